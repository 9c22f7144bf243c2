"""Whatever bytes come, a record comes of them: 100,000 streams from fixed seeds."""

from __future__ import annotations

import anyio
import pytest
from fuzz import BLOCK, KINDS, fuzz

UNHEARD = {"connect", "tls", "timeout", "reset", "client"}
"""Kinds that no bytes of an answer bring about."""


@pytest.mark.parametrize("first", range(0, 100_000, BLOCK))
def test_any_bytes_become_a_record(first: int) -> None:
    """Nothing raises, and every record keeps the rules, is read back, and can be summarised."""
    found = anyio.run(fuzz, range(first, first + BLOCK))
    assert not found.broken, found.report()
    assert found.outcomes.total() == BLOCK


def test_the_streams_come_to_everything_that_bytes_can() -> None:
    """Among a few streams is a success, and a failure of each kind that a server can bring."""
    found = anyio.run(fuzz, range(2000))
    assert found.outcomes.keys() >= KINDS - UNHEARD | {"success"}
