"""Published sets by their address: found in a local copy, and what is said without one."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from command import agentreplay
from test_load import native_line, weka_bytes, written

from agentreplay.errors import TraceError
from agentreplay.trace.hub import is_address, published

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """An environment without a network in which one set has been fetched before."""
    home = tmp_path / "hub-home"
    folder = home / "hub" / "datasets--owner--traces"
    written(folder / "refs" / "main", REVISION.encode())
    snapshot = folder / "snapshots" / REVISION
    written(snapshot / "data.jsonl", weka_bytes("a") + b"\n" + weka_bytes("b") + b"\n")
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("address", ["hf://owner/traces", f"hf://owner/traces@{REVISION}"])
def test_a_set_that_was_fetched_before_is_read(hub: dict[str, str], address: str) -> None:
    """The address of a set reads the copy of it, at its latest or a named revision."""
    ended = agentreplay("inspect", address, "--json", **hub)
    assert ended.returncode == 0, ended.stderr
    assert orjson.loads(ended.stdout)["sessions"] == 2


def test_the_revision_is_recorded(hub: dict[str, str], tmp_path: Path) -> None:
    """A run directory says which revision of a set was replayed."""
    out = tmp_path / "run"
    ended = agentreplay("run", "hf://owner/traces", "--sessions", "1", "--out", out, **hub)
    assert ended.returncode == 3, ended.stderr  # its prompts are too short for the template
    manifest = orjson.loads((out / "run.json").read_bytes())
    assert manifest["trace"]["revisions"] == {"hf://owner/traces": REVISION}


@pytest.mark.parametrize("name", ["owner/other", f"owner/traces@{'f' * 40}"])
def test_without_a_network_and_a_copy_there_is_one_clear_line(
    hub: dict[str, str], name: str
) -> None:
    """A set that was never fetched is an error that says so, with the address."""
    ended = agentreplay("inspect", f"hf://{name}", **hub)
    assert ended.returncode == 2
    address = f"hf://{name.partition('@')[0]}"
    assert ended.stderr.startswith(f"agentreplay: {address}: the hub can't be reached")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", ["hf://", "hf://owner", "hf://owner/name/more", "hf://a b@/x"])
def test_an_address_that_names_no_set_is_refused(path: str) -> None:
    """What is no owner/name is an error that shows how an address looks."""
    with pytest.raises(TraceError, match="write it as hf://owner/name"):
        published(Path(path))


def test_paths_are_no_addresses(tmp_path: Path) -> None:
    """A folder that is called hf is a folder."""
    assert not is_address(tmp_path / "hf")
    assert not is_address(Path("hf"))
    file = written(tmp_path / "hf" / "a.jsonl", native_line("a"))
    assert agentreplay("inspect", file).returncode == 0
