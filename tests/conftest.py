"""For all tests: properties without a time limit, and a certificate for tests of TLS."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import settings
from scripted import self_signed

# A busy machine is no fault of what is tested.
settings.register_profile("agentreplay", deadline=None)
settings.load_profile("agentreplay")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    return self_signed(tmp_path_factory.mktemp("tls"))
