"""OpenHands (V0): events of a conversation, rows of an evaluation, and its log of completions.

Events name the call that they come from, with its lengths and perhaps its duration; the log of
completions has whole prompts. Where both are of one conversation, calls come from the log and
agents from the events. Pure: numbers only are kept. docs/formats.md describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePath
from typing import Any

from agentreplay.trace.fields import count, inside, number, objects, string, unix_s
from agentreplay.trace.formats import bodies
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import Draft, Reading, Recorded, continue_by_counts, total_input

SOURCES = frozenset({"agent", "user", "environment"})
HELPER = "helper 1"
"""The label of the condenser, and of whatever else called the model beside the agents."""

_Lengths = tuple[int, int, int | None]
"""Input, output and cached tokens."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An event; calls are told by the keyed names of their responses.

    Attributes:
        id: Its number in the conversation.
        time_s: When it was.
        delegates: 1 where an agent hands on its task, -1 where the other one is done.
        condenses: The history was condensed.
        response: The response that it comes from.
        counted: The responses whose lengths it states.
    """

    id: int | None
    time_s: float | None
    delegates: int
    condenses: bool
    response: int | None
    counted: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Log:
    """A conversation: its events, or its completions by the names of their responses."""

    id: str
    source: str
    notes: Notes
    events: list[_Event] = field(default_factory=list)
    usages: dict[int, tuple[_Lengths, str | None]] = field(default_factory=dict)
    latencies: dict[int, float] = field(default_factory=dict)
    completions: dict[int, Recorded] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """The conversations of one file, by what they have in common with other files."""

    logs: dict[str, _Log]


def recognises(record: object) -> bool:
    """Whether a decoded JSON value is an event, or holds events, or is a logged completion."""
    if isinstance(record, list):
        return any(map(_is_event, record[:3]))
    return _is_event(record) or _is_completion(record) or _history(record) is not None


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> Part:
    """The conversations of one file; a file of loose events is one."""
    part = Part({})
    folder = path.parent
    if folder.name == "event_cache":
        notes.add("files of a cache of events, left out")
        return part

    def log(key: str, identity: str, line: int) -> _Log:
        return part.logs.setdefault(key, _Log(identity or key, f"{path}:{line}", notes))

    for line, record in records:
        history = record if isinstance(record, list) else _history(record)
        if history is not None:
            told = record if isinstance(record, dict) else {}
            identity = told.get("instance_id")
            whole = log(f"{path}:{line}", identity if isinstance(identity, str) else "", line)
            _measure(whole, told.get("metrics"), reading)
            for event in history:
                for each in event if isinstance(event, list) else (event,):
                    _add(whole, each, reading, line)
        elif _is_completion(record):
            alone = path.suffix == ".json" and folder.name
            owner = log(f"completions {folder if alone else path}", folder.name, line)
            _complete(owner, record, reading, line)
        elif _is_event(record) and path.stem.isdecimal():
            above = folder.parent if folder.name == "events" else folder
            _add(log(f"{folder}", above.name, line), record, reading, line)
        elif _is_event(record):
            _add(log(f"{path}", f"{path}:{line}", line), record, reading, line)
        else:
            notes.add("records of no known kind, left out", line)
    return part


def drafts(parts: Sequence[Part], reading: Reading) -> list[Draft]:
    """The conversations of all files, each call once."""
    del reading
    logs: dict[str, _Log] = {}
    completed: dict[int, _Log] = {}
    for part in parts:
        for key, each in part.logs.items():
            log = logs.setdefault(key, _Log(each.id, each.source, each.notes))
            log.events += each.events
            log.usages |= each.usages
            log.latencies |= each.latencies
            for name, call in each.completions.items():
                if completed.setdefault(name, log) is log:
                    log.completions[name] = call
                else:
                    each.notes.add("calls recorded twice, left out")
    found = []
    seen: set[int] = set()
    for log in logs.values():
        calls = []
        for name, call in _calls(log):
            if name in seen:
                log.notes.add("calls recorded twice, left out")
            else:
                seen.add(name)
                calls.append((name, call))
        for other in dict.fromkeys(completed[name] for name, _ in calls if name in completed):
            calls = _merged(calls, other.completions)
            seen |= other.completions.keys()
            other.completions = {}
        if calls:
            made = sorted((call for _, call in calls), key=lambda call: call.start_s or 0.0)
            continue_by_counts(made)
            found.append(Draft(log.id, log.source, made, True, log.notes))
    found += [
        Draft(log.id, log.source, list(log.completions.values()), True, log.notes)
        for log in logs.values()
        if log.completions
    ]
    return found


def _merged(
    calls: Sequence[tuple[int, Recorded]], completions: Mapping[int, Recorded]
) -> list[tuple[int, Recorded]]:
    """The completions with the agents that the events tell, and the calls that only those have."""
    merged, alone = dict(completions), []
    for call in completions.values():
        call.agent = HELPER
    offset_s = 0.0  # events have local times
    for name, call in calls:
        completion = completions.get(name)
        if completion is None:
            alone.append((name, call))
            continue
        completion.agent = call.agent
        if call.end_s is not None and completion.end_s is not None:
            offset_s = completion.end_s - call.end_s
    for _, call in alone:
        call.start_s = None if call.start_s is None else call.start_s + offset_s
        call.end_s = None if call.end_s is None else call.end_s + offset_s
    return [*merged.items(), *alone]


def _calls(log: _Log) -> Iterator[tuple[int, Recorded]]:
    """The calls that the events of a conversation tell of, with the names of their responses."""
    if all(event.id is not None for event in log.events):
        log.events.sort(key=lambda event: event.id or 0)
    pending: list[tuple[float | None, float | None]] = []  # condensations, with the event before
    agents, born, known = [""], 0, set[int]()
    before_s = None
    for event in log.events:
        new = [name for name in event.counted if name not in known]
        name = event.response if event.response is not None else new[-1] if new else None
        if event.condenses and name is None:
            pending.append((event.time_s, before_s))
        if name is not None and name not in known:
            known.add(name)
            agent = HELPER if event.condenses else agents[-1]
            call = _call(log, name, event.time_s, before_s, agent)
            if call is not None:
                yield name, call
        if event.delegates > 0:
            born += 1
            agents.append(f"agent {born}")
        elif event.delegates < 0 and len(agents) > 1:
            agents.pop()
        before_s = event.time_s if event.time_s is not None else before_s
    # The condenser's calls are in the sums only, in the order of its events.
    unnamed = [name for name in log.usages if name not in known]
    for name, (time_s, since_s) in zip(unnamed, pending, strict=False):
        helper = _call(log, name, time_s, since_s, HELPER)
        if helper is not None:
            yield name, helper
    if missing := len(pending) - len(unnamed):
        what = "condensations without token counts" if missing > 0 else "calls that no event names"
        log.notes.add(f"{what}, left out", times=abs(missing))


def _call(
    log: _Log, name: int, end_s: float | None, before_s: float | None, agent: str
) -> Recorded | None:
    """The call that an event comes from: it ended with the event."""
    lengths, model = log.usages.get(name, (None, None))
    if lengths is None:
        log.notes.add("calls without token counts, left out")
        return None
    if end_s is None:
        log.notes.add("calls without a time, left out")
        return None
    latency_s = log.latencies.get(name)
    start_s = end_s if before_s is None else before_s
    if latency_s is not None:
        start_s = end_s - latency_s
    else:
        log.notes.add("calls without a latency, begun at the event before")
    known_end_s = None if start_s > end_s or (latency_s is None and before_s is None) else end_s
    isl, osl, cached = lengths
    return Recorded(start_s, known_end_s, isl, osl, agent=agent, model=model, cached=cached)


def _add(log: _Log, event: object, reading: Reading, line: int) -> None:
    """Keep an event in numbers."""
    if not isinstance(event, dict) or not _is_event(event):
        log.notes.add("records of no known kind, left out", line)
        return
    stamp = event.get("timestamp")
    if isinstance(stamp, str) and not set("Z+-") & set(stamp[19:]):
        log.notes.add("local times, taken as UTC", line)
    counted = _measure(log, event.get("llm_metrics"), reading)
    response = inside(event, "tool_call_metadata", "model_response")
    name = _name(response.get("id"), reading)
    if name is not None and name not in log.usages:
        isl, osl, cached = bodies.usage(response)
        if isl and osl is not None:
            log.usages[name] = (isl, osl, cached), string(response.get("model"))
    action, observation = event.get("action"), event.get("observation")
    log.events.append(
        _Event(
            id=count(event.get("id")),
            time_s=unix_s(stamp),
            delegates=(action == "delegate") - (observation == "delegate"),
            condenses=action == "condensation",
            response=name,
            counted=counted if event["source"] == "agent" and isinstance(action, str) else (),
        )
    )


def _measure(log: _Log, metrics: object, reading: Reading) -> tuple[int, ...]:
    """Keep lengths and durations by response; the sums in `accumulated_…` are of all so far."""
    if not isinstance(metrics, dict):
        return ()
    names = []
    for usage in objects(metrics.get("token_usages")):
        name = _name(usage.get("response_id"), reading)
        isl, osl = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
        if name is None or not isl or osl is None:
            continue
        cached = count(usage.get("cache_read_tokens"))
        what = "calls with more cached than input tokens, both added"
        written = count(usage.get("cache_write_tokens")) or 0
        isl = total_input(isl, cached, log.notes, what, written=written)
        log.usages[name] = (isl, osl, cached), string(usage.get("model"))
        names.append(name)
    for latency in objects(metrics.get("response_latencies")):
        name, seconds = _name(latency.get("response_id"), reading), number(latency.get("latency"))
        if name is not None and seconds is not None and seconds >= 0:
            log.latencies[name] = seconds
    return tuple(names)


def _complete(log: _Log, record: Mapping[str, Any], reading: Reading, line: int) -> None:
    """Keep a logged completion: it has its whole prompt, and ended when it was logged."""
    response = record["response"]
    isl, osl, cached = bodies.usage(response)
    if not isl or osl is None:
        log.notes.add("calls without token counts, left out", line)
        return
    time_s = unix_s(record.get("timestamp"))
    if time_s is None:
        log.notes.add("calls without a time, left out", line)
        return
    latency_s = number(record.get("latency"))
    if latency_s is None:
        log.notes.add("completions without a latency, duration estimated", line)
    options = inside(record, "kwargs")
    names, chars, leading = bodies.message_pieces(
        record["messages"], options.get("tools"), None, reading
    )
    name = _name(response.get("id"), reading)
    if name is None:
        name = reading.named(f"{log.source} {line}")
    told = bodies.Exchange(
        isl,
        osl,
        cached,
        model=string(response.get("model")) or string(options.get("model")),
        names=names,
        chars=chars,
        system_pieces=leading,
    )
    start_s, end_s = time_s - (latency_s or 0.0), None if latency_s is None else time_s
    call = bodies.recorded(told, start_s, end_s, reading)
    if call is not None:
        log.completions[name] = call


def _is_event(record: object) -> bool:
    if not isinstance(record, dict) or "timestamp" not in record:
        return False
    source = record.get("source")
    return (
        isinstance(source, str)
        and source in SOURCES
        and (isinstance(record.get("action"), str) or isinstance(record.get("observation"), str))
    )


def _is_completion(record: object) -> bool:
    return (
        isinstance(record, dict)
        and isinstance(record.get("messages"), list)
        and isinstance(record.get("response"), dict)
        and "timestamp" in record
        and ("latency" in record or "kwargs" in record)
        and "call_type" not in record
    )


def _history(record: object) -> list[Any] | None:
    """The events of a row of an evaluation, or of a saved trajectory; older rows have pairs."""
    if not isinstance(record, dict):
        return None
    for name in ("history", "trajectory"):
        events = record.get(name)
        if isinstance(events, list):
            first = chain.from_iterable(e if isinstance(e, list) else (e,) for e in events[:3])
            if any(map(_is_event, first)):
                return events
    return None


def _name(identity: object, reading: Reading) -> int | None:
    """The keyed name of a response."""
    known = string(identity)
    return None if known is None else reading.named(known)
