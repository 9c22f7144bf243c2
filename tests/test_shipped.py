"""Sessions that are packed for other machines."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from virtually import chain

from agentreplay.errors import TraceError
from agentreplay.trace.formats import native
from agentreplay.trace.load import load
from agentreplay.trace.shipped import ship

TRACES = Path(__file__).parents[1] / "traces"


def test_sessions_arrive_as_they_were() -> None:
    """Whoever unpacks one has the very session, after a journey as bytes, in 100 bytes a call."""
    trace = load(TRACES)
    parcel = pickle.dumps(ship(trace, range(len(trace))))
    assert list(pickle.loads(parcel)) == list(trace)
    assert len(parcel) < 100 * sum(len(session.calls) for session in trace)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """The others keep their places, and cost nothing."""
    sessions = [chain(n, 3) for n in range(20)]
    shipped = ship(sessions, [3, 19])
    assert len(shipped) == 20
    assert [shipped[3], shipped[-1]] == [sessions[3], sessions[19]]
    assert len(pickle.dumps(shipped)) < len(pickle.dumps(ship(sessions, range(20)))) / 5


def test_what_could_not_be_read_is_told_where_it_is_drawn(tmp_path: Path) -> None:
    """With the same words as by whoever has the file."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(native.line(chain(0, 3)) + b'{"agentreplay": 1, "calls": 7}\n')
    trace = load(path)
    shipped = ship(trace, range(2))
    assert shipped[0] == trace[0]
    with pytest.raises(TraceError) as here:
        trace[1]
    with pytest.raises(TraceError) as there:
        shipped[1]
    assert str(there.value) == str(here.value)
