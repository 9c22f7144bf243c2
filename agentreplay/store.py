"""The run directory: everything a run leaves, written so that nothing is lost. I/O.

    run.json       what was to be done: plan, endpoint, trace files; written first
    records.jsonl  one Record a line, as they come
    server.jsonl   one Reading of the server's metrics a line, as they come
    end.json       how it ended, and how the client kept up
    summary.json   what it came to; can be made again from the others
    report.html    the same to look at
    aiperf_artifacts/, aiperf/
                   the same for other programs, where it is asked for

A run that was killed has no end.json, and its last line may be cut off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import orjson

from agentreplay.errors import AgentReplayError
from agentreplay.metrics.condition import Condition
from agentreplay.metrics.cost import Money, Prices, money_of
from agentreplay.metrics.gate import gate
from agentreplay.metrics.goodput import request_limit
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.metrics.server import Reading
from agentreplay.metrics.summary import ClientHealth, ClockStep, Summary, summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan

VERSION = 1

EXPORTS = {"inferencex": "aiperf_artifacts", "aiperf": "aiperf"}
"""Folders of what is written for other programs, each of which looks for files of fixed names."""

_MANIFEST, _RECORDS, _END, _SUMMARY = "run.json", "records.jsonl", "end.json", "summary.json"
_SERVER = "server.jsonl"
_SWEEP = "sweep.json"


class RunWriter:
    """Writes a run directory. `close` it, or use it in a with statement.

    Raises:
        AgentReplayError: the directory holds a run already, or can't be written.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        if (path / _RECORDS).exists():
            raise AgentReplayError(f"{path} holds a run already: name another folder with --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.describe(manifest)
            self._records: IO[bytes] = (path / _RECORDS).open("wb", buffering=1 << 20)
            self._server: IO[bytes] = (path / _SERVER).open("wb", buffering=0)
        except OSError as error:
            raise AgentReplayError(f"{path}: can't write there: {error.strerror}") from None

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Write what is to be done; again when more of it is known."""
        _write(self.path / _MANIFEST, {"version": VERSION, **manifest})

    def append(self, record: Record) -> None:
        """Keep a record; on disk with the next `flush`."""
        self._records.write(record_line(record))

    def append_lines(self, lines: bytes) -> None:
        """Keep records that are lines of `record_line` already."""
        self._records.write(lines)

    def append_reading(self, reading: Reading) -> None:
        """Keep what the server said of itself."""
        self._server.write(orjson.dumps(reading, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> None:
        """Hand what was appended to the operating system."""
        self._records.flush()

    def end(self, ending: Ending, health: ClientHealth | None, facts: Mapping[str, Any]) -> None:
        """Write how the run ended."""
        self.close()
        health_value = asdict(health) if health else None
        _write(self.path / _END, {"ending": asdict(ending), "client": health_value, **facts})

    def close(self) -> None:
        """Flush and close records and readings."""
        self._records.close()
        self._server.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record_line(record: Record) -> bytes:
    """A record as it stands in a run directory."""
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def records_of(lines: Iterable[bytes]) -> Iterator[Record]:
    """The records that stand in lines of a run directory; one that was cut off is left out."""
    return map(_record, _values(lines))


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, read back.

    Attributes:
        path: Where it lies.
        manifest: What was to be done.
        plan: The plan of it.
        limits: Where it stops being valid.
        gates: Conditions on its figures.
        goodput: Limits on single requests.
        ending: How it ended; None for a run that was killed or is still going.
        health: How the client kept up, where known.
        facts: What else was known at the end; empty where there was none.
        money: What makes money of its figures.
    """

    path: Path
    manifest: dict[str, Any]
    plan: Plan
    limits: Limits
    gates: tuple[Condition, ...]
    goodput: tuple[Condition, ...]
    ending: Ending | None
    health: ClientHealth | None
    facts: dict[str, Any]
    money: Money = field(default_factory=Money)

    def priced(self, newer: Money) -> Run:
        """The same, its money counted with whatever is known in *newer*."""
        money = self.money.updated(newer)
        return replace(self, money=money, manifest={**self.manifest, "money": asdict(money)})

    def records(self) -> Iterator[Record]:
        """The records, as a stream; a line that was cut off is left out."""
        return map(_record, _values(_lines(self.path / _RECORDS)))

    def server(self) -> Iterator[Reading]:
        """What the server said of itself, in order of time; nothing in runs of older versions."""
        return (Reading(**value) for value in _values(_lines(self.path / _SERVER)))

    def summary(self) -> Summary:
        """Compute every metric from the records."""
        ending = self.known_ending()
        dropped = None
        if (fit := self.facts.get("fit")) and fit["tokens"]:
            dropped = fit["dropped_tokens"] / fit["tokens"]
        return summarize(
            self.records(),
            self.plan,
            ending,
            self.health,
            self.limits,
            dropped,
            self.goodput,
            self.money,
            tuple(self.facts.get("workers", ())),
            self.server(),
        )

    def known_ending(self) -> Ending:
        """How it ended; where it didn't come to say so, with the last thing that it recorded.

        The window of such a run opened with the first call that was no warm-up, which is sent at
        once then.
        """
        if self.ending is not None:
            return self.ending
        last_ns, begun_ns = 0, None if self.plan.warms_up else 0
        for record in self.records():
            last_ns = max(last_ns, record.done_ns)
            if self.plan.warms_up and not record.request.warmup:
                due_ns = record.request.due_ns
                begun_ns = due_ns if begun_ns is None else min(begun_ns, due_ns)
        opened_ns = None if begun_ns is None else begun_ns + round(self.plan.lead_s * 1e9)
        return Ending("interrupted", last_ns, last_ns, opened_ns)


def read_run(path: Path) -> Run:
    """Open a run directory.

    Raises:
        AgentReplayError: it is none, or of another version.
    """
    try:
        manifest = orjson.loads((path / _MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise AgentReplayError(f"{path} is no run directory: it has no {_MANIFEST}") from None
    except orjson.JSONDecodeError as error:
        raise AgentReplayError(f"{path / _MANIFEST}: broken JSON: {error}") from None
    if manifest.get("version") != VERSION:
        raise AgentReplayError(
            f"{path}: run directory version {manifest.get('version')!r}; "
            f"this program reads version {VERSION}"
        )
    facts: dict[str, Any] = {}
    try:
        facts = orjson.loads((path / _END).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        pass  # killed before, or while, it was written
    ending, client = facts.pop("ending", None), facts.pop("client", None)
    if client:
        client["cpu_share"] = tuple(client["cpu_share"])
        client["clock_steps"] = tuple(ClockStep(**each) for each in client.get("clock_steps", ()))
    plan = _plan(manifest["plan"])
    limits = Limits(**manifest["limits"])
    money = money_of(manifest.get("money"))
    manifest["plan"], manifest["limits"] = asdict(plan), asdict(limits)
    manifest["money"] = asdict(money)
    if ending:  # an older version opened the window at the end of the ramp, and didn't say so
        ending = {"opened_ns": round(plan.lead_s * 1e9), **ending}
    return Run(
        path,
        manifest,
        plan,
        limits,
        tuple(map(gate, manifest.get("gates", ()))),
        tuple(map(request_limit, manifest.get("goodput", ()))),
        Ending(**ending) if ending else None,
        ClientHealth(**client) if client else None,
        facts,
        money,
    )


def write_summary(path: Path, value: Mapping[str, Any]) -> None:
    """Write summary.json into a run directory."""
    _write(path / _SUMMARY, value)


def write_text(path: Path, text: str, *, append: bool = False) -> None:
    """Write a report wherever it was asked for, with the folders that it lies in."""
    with suppress(FileExistsError):  # a file in its way is an error of the next line
        path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if append else "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def write_export(
    path: Path,
    name: str,
    rows: Iterable[Mapping[str, Any]],
    aggregate: Callable[[], Mapping[str, Any]],
) -> None:
    """Write an export into a run directory.

    Args:
        path: The run directory.
        name: Which of `EXPORTS`.
        rows: One for each request.
        aggregate: What stands beside them; asked for after the last row.
    """
    folder = path / EXPORTS[name]
    folder.mkdir(exist_ok=True)
    draft = folder / "rows.tmp"
    with draft.open("wb", buffering=1 << 20) as file:
        for row in rows:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    draft.replace(folder / "profile_export.jsonl")
    _write(folder / "profile_export_aiperf.json", aggregate())


def write_sweep(path: Path, value: Mapping[str, Any]) -> None:
    """Write sweep.json into the folder of a sweep, which is made where it is missing.

    Raises:
        AgentReplayError: it can't be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write(path / _SWEEP, {"version": VERSION, **value})
    except OSError as error:
        raise AgentReplayError(f"{path}: can't write there: {error.strerror}") from None


def read_sweep(path: Path) -> dict[str, Any] | None:
    """What sweep.json says in the folder of a sweep; None where there is none.

    Raises:
        AgentReplayError: it is broken, or of another version.
    """
    try:
        value: dict[str, Any] = orjson.loads((path / _SWEEP).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except orjson.JSONDecodeError as error:
        raise AgentReplayError(f"{path / _SWEEP}: broken JSON: {error}") from None
    if value.get("version") != VERSION:
        raise AgentReplayError(f"{path / _SWEEP}: this program reads version {VERSION}")
    return value


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file whole, so that a kill leaves the old one or the new one."""
    draft = path.with_suffix(".tmp")
    try:
        data = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # the name of a file need not be text
        data = json.dumps(value, ensure_ascii=False, indent=2).encode(errors="replace") + b"\n"
    draft.write_bytes(data)
    draft.replace(path)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; none where it isn't there."""
    try:
        with path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        return


def _values(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The object of each line; one that was cut off is left out."""
    return (orjson.loads(line) for line in lines if line.endswith(b"\n"))


def _plan(value: dict[str, Any]) -> Plan:
    """A plan as run.json holds it; a run of an older version says nothing of newer rules."""
    start, prices = value.get("start"), value.get("prices")
    return Plan(
        **{
            **value,
            "start": None if start is None else tuple(start),
            "prices": Prices(**prices) if prices else None,
            "overrides": tuple(value.get("overrides", ())),
        }
    )


def _record(value: dict[str, Any]) -> Record:
    value["request"] = Request(**value["request"])
    value["chunk_us"] = tuple(value["chunk_us"])
    if value["chunk_tokens"] is not None:
        value["chunk_tokens"] = tuple(value["chunk_tokens"])
    if value["error"] is not None:
        value["error"] = Failure(**value["error"])
    return Record(**value)
