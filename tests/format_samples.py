"""One small file, or a few, of every format that can be read, with what they hold. Own values.

A sample is kept as decoded records, so that tests can change a field anywhere and write the files
again. Recorded ids of blocks are large, so that they can be searched for.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson

from agentreplay.trace.load import TraceSet, load
from agentreplay.trace.model import Session

Row = dict[str, Any]
Files = Mapping[str, Sequence[Any]]
"""Decoded records by the path of the file that they are in."""

ZERO_S = 1_767_348_000  # 2026-01-02T10:00:00Z


class Sums(NamedTuple):
    """What a set holds."""

    sessions: int
    calls: int
    isl: int
    osl: int


@dataclass(frozen=True, eq=False)
class Sample:
    """A trace of one format.

    Attributes:
        name: The format, and which of its kinds of files where there are several.
        form: The format's name.
        sums: What it holds.
        files: Its records.
        encode: Makes a file of records.
        options: What has to be supplied to read it.
        named: Its calls have ids, so that a copy of a file adds none.
        apart: Its sessions go together by ids, so that lines may lie in any file.
        any_order: Its lines may stand in any order.
    """

    name: str
    form: str
    sums: Sums
    files: Files
    encode: Callable[[Sequence[Any]], bytes]
    options: Row = field(default_factory=dict)
    named: bool = False
    apart: bool = False
    any_order: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def has_lines(self) -> bool:
        return self.encode is lines

    def contents(self) -> dict[str, bytes]:
        """The files as they are."""
        return {path: self.encode(records) for path, records in self.files.items()}

    def write(self, folder: Path, files: Files | None = None) -> Path:
        """Write the sample's files, or others of its kind, below a folder."""
        files = self.files if files is None else files
        return write(folder, {path: self.encode(records) for path, records in files.items()})

    def load(self, *paths: Path, **options: Any) -> TraceSet:
        """Open paths with what the sample needs."""
        return load(*paths, **(self.options | options))


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder."""
    for path, data in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def sums(sessions: Sequence[Session]) -> Sums:
    """What sessions hold."""
    calls = [call for session in sessions for call in session.calls]
    return Sums(
        len(sessions),
        len(calls),
        sum(call.isl for call in calls),
        sum(call.osl for call in calls),
    )


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder for thousands of small files, in memory where the system has such a place."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


# --- Files of records -----------------------------------------------------------------------------


def text(value: object) -> str:
    """A value as JSON."""
    return orjson.dumps(value).decode()


def lines(records: Sequence[Any]) -> bytes:
    """A file of JSON lines."""
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def document(records: Sequence[Any]) -> bytes:
    """A file that is one JSON document."""
    (record,) = records
    return orjson.dumps(record)


def table(records: Sequence[Any]) -> bytes:
    """A CSV file."""
    opened = StringIO(newline="")
    writer = csv.DictWriter(opened, list(records[0]), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(records)
    return opened.getvalue().encode()


def tnetstrings(records: Sequence[Any]) -> bytes:
    """A file of flows."""
    return b"".join(map(_tnetstring, records))


def _tnetstring(value: object) -> bytes:
    payload, kind = b"", b"~"
    if isinstance(value, bytes):
        payload, kind = value, b","
    elif isinstance(value, str):
        payload, kind = value.encode("utf-8", "surrogatepass"), b";"
    elif isinstance(value, bool):
        payload, kind = (b"true" if value else b"false"), b"!"
    elif isinstance(value, int | float):
        payload, kind = repr(value).encode(), b"#" if isinstance(value, int) else b"^"
    elif isinstance(value, list):
        payload, kind = b"".join(map(_tnetstring, value)), b"]"
    elif isinstance(value, dict):
        items = (_tnetstring(each) for item in value.items() for each in item)
        payload, kind = b"".join(items), b"}"
    return b"%d:%s%s" % (len(payload), payload, kind)


def iso(seconds: float) -> str:
    """A stamp so many seconds after ten o'clock, as most agents write it."""
    return f"2026-01-02T10:{int(seconds) // 60:02}:{seconds % 60:06.3f}Z"


# --- Records that are sessions --------------------------------------------------------------------


def _native() -> Sample:
    first = {"start_s": 0.0, "end_s": 2.5, "isl": 640, "osl": 20, "gap_s": 0.0, "model": "model-a"}
    next_ = {"start_s": 4.0, "end_s": 6.0, "isl": 900, "osl": 30, "gap_s": 1.5, "after": [0]}
    next_ |= {"parent": 0, "shared": 640, "system": 128, "agent": "agent 1", "cached": 512}
    sessions = [
        {"agentreplay": 1, "id": "one", "block_size": 64, "calls": [first, next_]},
        {"agentreplay": 1, "id": "two", "start_s": 7.0, "block_size": 64}
        | {"calls": [first | {"timed": False}]},
    ]
    return Sample("native", "native", Sums(2, 3, 2180, 70), {"own.jsonl": sessions}, lines)


def _weka() -> Sample:
    def request(t: float, isl: int, osl: int, first: int, blocks: int, took: float) -> Row:
        ids = [8_300_000_001 + first + n for n in range(blocks)]
        row: Row = {"t": t, "type": "n", "model": "model-a", "in": isl, "out": osl, "hash_ids": ids}
        told: Row = {"input_types": ["text"], "output_types": ["text"], "stop": "end_turn"}
        return row | told | {"api_time": took, "think_time": 0.0}

    def session(name: str, *requests: Row) -> Row:
        row: Row = {"id": name, "models": ["model-a"], "block_size": 64, "hash_id_scope": "local"}
        return row | {"tool_tokens": 64, "system_tokens": 64, "requests": list(requests)}

    entry = {
        "t": 3.0,
        "type": "subagent",
        "agent_id": "agent_001",
        "subagent_type": "explorer",
        "duration_ms": 3000,
        "status": "completed",
        "models": ["model-a"],
        "requests": [request(0.0, 200, 10, 100, 3, 3.0)],
    }
    calls = [request(0.0, 300, 40, 0, 4, 2.5), entry, request(9.0, 420, 25, 0, 6, 1.75)]
    sessions = [session("one", *calls), session("two", request(0.0, 130, 5, 500, 2, 1.0))]
    return Sample("weka", "weka", Sums(2, 4, 1050, 80), {"trace.jsonl": sessions}, lines)


# --- Logs of coding agents ------------------------------------------------------------------------


def _claude_code() -> Sample:
    def row(session: str, kind: str, uuid: str, parent: str | None, t: float, **more: Any) -> Row:
        line: Row = {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": iso(t)}
        line |= {"sessionId": session, "isSidechain": False, "cwd": "/home/someone/project"}
        return line | {"version": "2.1.0", "gitBranch": "main"} | more

    def user(session: str, uuid: str, parent: str | None, t: float, **more: Any) -> Row:
        message: Row = {"role": "user", "content": "please mend it"}
        return row(session, "user", uuid, parent, t, message=message) | more

    def result(session: str, uuid: str, parent: str, t: float) -> Row:
        found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a file"}
        message: Row = {"role": "user", "content": [found]}
        return user(session, uuid, parent, t, message=message, toolUseResult={"stdout": "a file"})

    def answer(
        session: str, uuid: str, parent: str, t: float, name: str, counts: Sequence[int],
        **more: Any,
    ) -> Row:  # fmt: skip
        usage: Row = {"input_tokens": counts[0], "cache_creation_input_tokens": counts[1]}
        usage |= {"cache_read_input_tokens": counts[2], "output_tokens": counts[3]}
        message: Row = {"id": name, "role": "assistant", "model": "model-a", "usage": usage}
        message |= {"stop_reason": more.pop("stop", "tool_use")}
        message |= {"content": [{"type": "text", "text": "an answer"}]}
        return row(session, "assistant", uuid, parent, t, message=message) | more

    side = {"isSidechain": True, "agentId": "a1b2"}
    files: Files = {
        "project/s-one.jsonl": [
            {"type": "mode", "mode": "default", "sessionId": "s-one"},
            user("s-one", "u1", None, 0),
            answer("s-one", "a1", "u1", 3.1, "msg_A", (4, 900, 12_000, 8), stop=None),
            answer("s-one", "a2", "a1", 4.2, "msg_A", (4, 900, 12_000, 212)),
            result("s-one", "u2", "a2", 10),
            answer("s-one", "a3", "u2", 12, "msg_B", (5, 230, 12_900, 30), stop="end_turn"),
        ],
        "project/s-one/subagents/agent-a1b2.jsonl": [
            user("s-one", "v1", None, 5, **side),
            answer("s-one", "b1", "v1", 9, "msg_C", (10, 990, 4_000, 40), **side),
        ],
        "project/s-two.jsonl": [
            user("s-two", "w1", None, 30),
            answer("s-two", "c1", "w1", 32, "msg_D", (1, 1_999, 0, 50), stop="end_turn"),
        ],
    }
    found = Sums(2, 4, 12_904 + 13_135 + 5_000 + 2_000, 212 + 30 + 40 + 50)
    return Sample("claude-code", "claude-code", found, files, lines, named=True, apart=True)


def _codex() -> Sample:
    def row(t: float, kind: str, **payload: object) -> Row:
        return {"timestamp": iso(t), "type": kind, "payload": payload}

    def meta(t: float, name: str, source: object = "cli") -> list[Row]:
        told: Row = {
            "id": name,
            "timestamp": iso(t),
            "cwd": "/home/someone/project",
            "source": source,
        }
        words = [{"type": "input_text", "text": "please mend it"}]
        return [
            row(t, "session_meta", cli_version="0.114.0", **told),
            row(t + 0.01, "turn_context", model="model-a", cwd="/home/someone/project"),
            row(t + 0.02, "response_item", type="message", role="user", content=words),
        ]

    def counted(isl: int, cached: int, osl: int) -> Row:
        counts = {"input_tokens": isl, "cached_input_tokens": cached, "output_tokens": osl}
        return counts | {"reasoning_output_tokens": 0, "total_tokens": isl + osl}

    def call(t: float, total: Row, last: Row) -> list[Row]:
        info = {"total_token_usage": total, "last_token_usage": last}
        tool: Row = {"name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"}
        return [
            row(t, "response_item", type="function_call", **tool),
            row(t + 0.05, "event_msg", type="token_count", info=info, rate_limits=None),
        ]

    def result(t: float) -> Row:
        return row(t, "response_item", type="function_call_output", call_id="c1", output="a file")

    def path(thread: str) -> str:
        return f"2026/01/02/rollout-2026-01-02T10-00-00-{thread}.jsonl"

    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "T1", "depth": 1}}}
    first, child, other = counted(9000, 3000, 80), counted(4000, 0, 30), counted(3000, 0, 20)
    files: Files = {
        path("T1"): [
            *meta(0, "T1"),
            *call(4, first, first),
            result(10),
            *call(12, counted(18_200, 12_000, 90), counted(9200, 9000, 10)),
        ],
        path("T2"): [*meta(5, "T2", spawned), *call(9, child, child)],
        path("T3"): [*meta(30, "T3"), *call(33, other, other)],
    }
    return Sample("codex", "codex", Sums(2, 4, 25_200, 140), files, lines, named=True)


def _gemini(name: str) -> Sample:
    def user(t: float) -> Row:
        words = [{"text": "please mend it"}]
        return {"id": f"u{t}", "timestamp": iso(t), "type": "user", "content": words}

    def answer(t: float, isl: int, cached: int, osl: int) -> Row:
        tokens = {"input": isl, "output": osl, "cached": cached, "thoughts": 5, "tool": 0}
        row: Row = {"id": f"a{t}", "timestamp": iso(t), "type": "gemini", "content": "an answer"}
        tools = [{"id": "t", "name": "ls", "timestamp": iso(t + 1), "result": ["a file"]}]
        told: Row = {"model": "model-a", "tokens": tokens | {"total": isl + osl + 5}}
        return row | told | {"toolCalls": tools}

    def head(session: str) -> Row:
        return {"sessionId": session, "projectHash": "0fbb10", "startTime": iso(0)}

    one = [user(1), answer(4, 1000, 0, 20), answer(9, 1300, 960, 30)]
    two = [user(40), answer(42, 500, 0, 10)]
    found = Sums(2, 3, 2800, 75)
    if name == "gemini-cli":
        files: Files = {
            "hash/chats/session-1.json": [head(f"{name}-one") | {"messages": one}],
            "hash/chats/session-2.json": [head(f"{name}-two") | {"messages": two}],
        }
        return Sample(name, "gemini-cli", found, files, document, named=True)
    files = {
        "hash/chats/session-1.jsonl": [
            head(f"{name}-one"),
            *one,
            {"$set": {"lastUpdated": iso(9)}},
        ],
        "hash/chats/session-2.jsonl": [head(f"{name}-two"), *two],
    }
    return Sample(name, "gemini-cli", found, files, lines, named=True)


def _opencode() -> Sample:
    def ms(t: float) -> int:
        return ZERO_S * 1000 + int(t * 1000)

    def head(name: str, **more: Any) -> Row:
        row: Row = {"id": name, "projectID": "p", "directory": "/home/someone/project"}
        return row | {"title": "a title", "time": {"created": ms(0), "updated": ms(9)}} | more

    def answer(name: str, session: str, times: tuple[float, float], counts: Sequence[int]) -> Row:
        row: Row = {"id": name, "sessionID": session, "role": "assistant", "modelID": "model-a"}
        cache: Row = {"read": counts[1], "write": counts[2]}
        tokens = {"input": counts[0], "output": counts[3], "reasoning": 5, "cache": cache}
        span = {"created": ms(times[0]), "completed": ms(times[1])}
        return row | {"providerID": "provider", "time": span, "tokens": tokens}

    said: Row = {"id": "prt_1", "sessionID": "ses_1", "messageID": "msg_1", "type": "text"}
    said |= {"text": "an answer", "time": {"start": ms(1), "end": ms(3)}}
    files: Files = {
        "storage/session/p/ses_1.json": [head("ses_1")],
        "storage/session/p/ses_2.json": [head("ses_2", parentID="ses_1")],
        "storage/session/p/ses_3.json": [head("ses_3")],
        "storage/message/ses_1/msg_1.json": [answer("msg_1", "ses_1", (0, 3), (900, 0, 100, 20))],
        "storage/message/ses_1/msg_3.json": [answer("msg_3", "ses_1", (9, 12), (200, 960, 40, 30))],
        "storage/message/ses_2/msg_2.json": [answer("msg_2", "ses_2", (4, 8), (500, 0, 0, 10))],
        "storage/message/ses_3/msg_4.json": [answer("msg_4", "ses_3", (30, 33), (700, 0, 0, 15))],
        "storage/part/msg_1/prt_1.json": [said],
    }
    return Sample("opencode", "opencode", Sums(2, 4, 3400, 95), files, document, named=True)


def _openhands(name: str) -> Sample:
    def event(number: int, t: float, source: str = "user", **fields: Any) -> Row:
        row: Row = {"id": number, "timestamp": iso(t)[:-1], "source": source, "message": "a text"}
        return row | ({} if "observation" in fields else {"action": "message"}) | fields

    def act(number: int, t: float, response: str, isl: int, took: float) -> Row:
        usage: Row = {"model": "model-a", "prompt_tokens": isl, "completion_tokens": 10}
        usage |= {"response_id": response, "cache_read_tokens": 64, "cache_write_tokens": 0}
        latency = {"model": "model-a", "latency": took, "response_id": response}
        metrics: Row = {"accumulated_token_usage": {"prompt_tokens": 99_999}}
        metrics |= {"token_usages": [usage], "response_latencies": [latency]}
        told: Row = {"tool_call_metadata": {"model_response": {"id": response, "model": "model-a"}}}
        return event(number, t, "agent", action="run", llm_metrics=metrics, **told)

    def seen(number: int, t: float) -> Row:
        return event(number, t, "agent", observation="run", content="a file")

    def completion(response: str, t: float, took: float, isl: int, *texts: str) -> Row:
        usage: Row = {"prompt_tokens": isl, "completion_tokens": 10}
        messages = [{"role": "user", "content": each} for each in texts]
        row: Row = {"messages": messages, "kwargs": {"tools": [{"name": "run"}]}, "latency": took}
        row |= {"response": {"id": response, "model": "model-a", "usage": usage}}
        return row | {"timestamp": ZERO_S + t, "cost": 0.1}

    if name == "openhands":
        one = [
            event(0, 0),
            act(1, 5, f"{name}-r1", 100, 4),
            seen(2, 8),
            act(3, 12, f"{name}-r2", 200, 3),
        ]
        two = [event(0, 60), act(1, 66, f"{name}-r3", 300, 2)]
        files: Files = {"one.json": [one], "two.json": [two]}
        return Sample(name, "openhands", Sums(2, 3, 600, 30), files, document, named=True)
    begin = "please mend it " * 40
    files = {
        "logs/one/model-1.json": [completion("r1", 5, 4, 100, begin)],
        "logs/one/model-2.json": [completion("r2", 12, 3, 200, begin, "an answer", "a file")],
        "logs/two/model-1.json": [completion("r3", 66, 2, 300, "another task")],
    }
    return Sample(name, "openhands", Sums(2, 3, 600, 30), files, document, named=True)


# --- Rows of benchmarks and data sets -------------------------------------------------------------


def _block(*numbers: int) -> list[int]:
    return [7_400_000_000 + number for number in numbers]


def _mooncake(name: str) -> Sample:
    def row(isl: int, osl: int, *ids: int, **more: Any) -> Row:
        return {"input_length": isl, "output_length": osl, "hash_ids": _block(*ids)} | more

    if name == "mooncake":
        rows = [
            row(1300, 52, 1, 2, 3, timestamp=0),
            row(1800, 80, 1, 2, 9, 10, timestamp=3000),
            row(600, 20, 50, 51, timestamp=4000),
        ]
        found = Sums(2, 3, 3700, 152)
        return Sample(name, "mooncake", found, {"conversation.jsonl": rows}, lines)
    if name == "mooncake-new":
        rows = [
            row(1536, 20, 1, 2, 3, session_id="s1", timestamp=0),
            row(512, 30, 4, session_id="s1", delay=1500),
            row(1024, 40, 6, 7, session_id="s2", timestamp=100),
        ]
        found = Sums(2, 3, 1536 + 2068 + 1024, 90)
        return Sample(name, "mooncake", found, {"sessions.jsonl": rows}, lines)
    after = {"request_id": "q1", "trigger": "completion", "delay_ms": 500, "relation": "sequence"}
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64}
    rows = [
        header | {"hash_id_scope": "local", "source": {"format": "other", "digest": "0fbb10"}},
        row(200, 20, 1, 2, 3, 4, request_id="q1", play_id="p1", session_id="m1", not_before_ms=0),
        row(330, 30, 1, 2, 3, 8, 9, 10, request_id="q2", play_id="p1", session_id="m1")
        | {"dependencies": [after], "model": "model-a"},
        row(120, 10, 1, 2, request_id="q3", play_id="p2", session_id="m2", not_before_ms=900),
    ]
    found = Sums(2, 3, 650, 60)
    return Sample(name, "mooncake", found, {"agentic.jsonl": rows}, lines)


def _dynamo() -> Sample:
    def ended(name: str, t: float, isl: int, first: int, **context: str) -> Row:
        hashes = [14_879_255_164_371_896_000 + first + n for n in range(-(-isl // 64))]
        replayed = {"trace_block_size": 64, "input_length": isl, "input_sequence_hashes": hashes}
        request: Row = {"request_id": name, "model": "model-a", "input_tokens": isl}
        request |= {"output_tokens": 16, "cached_tokens": 0, "total_time_ms": 1000.0}
        request |= {"request_received_ms": ZERO_S * 1000 + t * 1000, "replay": replayed}
        row: Row = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
        row |= {"event_time_unix_ms": ZERO_S * 1000 + t * 1000 + 1000, "event_source": "dynamo"}
        return row | {"agent_context": context, "request": request}

    tool: Row = {"tool_call_id": "c1", "tool_class": "bash", "status": "succeeded"}
    about: Row = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end"}
    about |= {"event_time_unix_ms": ZERO_S * 1000 + 3000, "agent_context": {"session_id": "root"}}
    rows = [
        ended("r1", 0, 128, 0, session_id="root"),
        about | {"tool": tool},
        ended("r2", 2, 100, 50, session_id="kid", parent_session_id="root"),
        ended("r3", 5, 256, 0, session_id="root"),
        ended("r4", 9, 200, 90, session_id="other"),
    ]
    files: Files = {"requests.jsonl": rows}
    found = Sums(2, 4, 684, 64)
    return Sample(
        "dynamo", "dynamo", found, files, lines, named=True, apart=True, any_order=True
    )  # fmt: skip


def _tracelab() -> Sample:
    def round_(session: str, index: int, start: float, end: float, isl: int, prefix: int) -> Row:
        events = [
            {"event_type": "user_message", "timestamp": iso(start), "content_chars": 6},
            {"event_type": "tool_call", "timestamp": iso(end), "tool_call_id": "t1"},
        ]
        tool: Row = {"tool_name": "Bash", "emitted_at": iso(end), "result_at": iso(end + 0.5)}
        return {
            "provider": "claude",
            "project": "project",
            "session_id": session,
            "round_index": index,
            "round_id": f"msg_{session}{index}",
            "model": "model-a",
            "input_tokens_total": isl,
            "prefix_tokens": prefix,
            "newly_append_tokens": isl - prefix,
            "output_tokens": 10,
            "reasoning_output_tokens": None,
            "timing_events": events,
            "tools": [tool],
        }

    rows = [
        round_("t-one", 0, 0, 4, 13_000, 12_000),
        round_("t-one", 1, 5, 8, 13_400, 12_990),
        round_("t-two", 0, 30, 31, 2_000, 0),
    ]
    files: Files = {"rounds.jsonl": rows}
    found = Sums(2, 3, 28_400, 30)
    return Sample(
        "tracelab", "tracelab", found, files, lines, named=True, apart=True, any_order=True
    )  # fmt: skip


def _mlperf() -> Sample:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"c":"ls"}'}}

    def message(conversation: str, turn: int, role: str, content: object, **more: Any) -> Row:
        row: Row = {"conversation_id": conversation, "turn": turn, "role": role, "content": content}
        return row | more

    found = [{"tool_call_id": "c1", "content": "a.py"}]
    rows = [
        message("a", 1, "user", "Fix it.", system="You fix code.", model="model-a"),
        message("a", 2, "assistant", None, tool_calls=[call]),
        message("a", 3, "tool", None, tool_results=found, delay_seconds=0.7),
        message("a", 4, "assistant", "done", model="model-a"),
        message("b", 1, "user", "Another one."),
        message("b", 2, "assistant", "no"),
    ]
    first, second = len("You fix code.Fix it."), len("bash") + len('{"c":"ls"}')
    sums_ = Sums(2, 3, 2 * first + second + len("a.py") + 12, second + 4 + 2)
    options = {"chars_per_token": 1.0}
    files: Files = {"messages.jsonl": rows}
    return Sample(
        "mlperf-endpoints", "mlperf-endpoints", sums_, files, lines, options, named=True
    )  # fmt: skip


def _arrivals(name: str) -> Sample:
    def chat(number: int, parent: int, t: float, isl: int, *ids: int) -> Row:
        row: Row = {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": t,
            "input_length": isl,
        }
        return row | {"output_length": 35, "type": "text", "turn": 1, "hash_ids": _block(*ids)}

    if name == "arrivals-bailian":
        rows = [
            chat(1590, -1, 61.1, 46, 1, 2, 3),
            chat(1591, 1590, 70.5, 62, 1, 2, 3, 4),
            chat(1592, -1, 71.0, 30, 8, 9),
        ]
        return Sample(name, "arrivals", Sums(2, 3, 138, 105), {"chats.jsonl": rows}, lines)
    if name == "arrivals-burstgpt":
        rows = [
            {"Timestamp": "5", "Model": "model-a", "Request tokens": "472"}
            | {"Response tokens": "18", "Total tokens": "490", "Log Type": "Conversation log"},
            {"Timestamp": "45.5", "Model": "model-b", "Request tokens": "1087"}
            | {"Response tokens": "0", "Total tokens": "1087", "Log Type": "API log"},
        ]
        return Sample(name, "arrivals", Sums(2, 2, 1559, 18), {"burst.csv": rows}, table)
    rows = [
        {"TIMESTAMP": "2023-11-16 18:15:46.6805900", "ContextTokens": "374"}
        | {"GeneratedTokens": "44"},
        {"TIMESTAMP": "2023-11-16 18:15:50.9951690", "ContextTokens": "396"}
        | {"GeneratedTokens": "109"},
    ]
    return Sample(name, "arrivals", Sums(2, 2, 770, 153), {"azure.csv": rows}, table)


# --- Logs of requests -----------------------------------------------------------------------------

_ASKED = [{"role": "user", "content": "please mend it"}]
_LATER = [*_ASKED, {"role": "assistant", "content": "an answer"}, {"role": "user", "content": "go"}]


def _chat_usage(isl: int, cached: int, osl: int) -> Row:
    told: Row = {"prompt_tokens": isl, "completion_tokens": osl}
    return {"usage": told | {"prompt_tokens_details": {"cached_tokens": cached}}}


def _har() -> Sample:
    def entry(t: float, path: str, body: Row, answer: Row, **response: Any) -> Row:
        request: Row = {"method": "POST", "url": f"https://host.example{path}?key=k"}
        request |= {"headers": [{"name": "Authorization", "value": "Bearer token"}]}
        request |= {"postData": {"mimeType": "application/json", "text": text(body)}}
        content = {"mimeType": "application/json", "text": text(answer)}
        told: Row = {"status": 200, "headers": [], "content": content} | response
        row: Row = {"startedDateTime": iso(t), "time": 2000, "request": request, "response": told}
        return row | {"timings": {"blocked": 0, "wait": 1}, "serverIPAddress": "127.0.0.1"}

    chat, messages = "/v1/chat/completions", "/v1/messages"
    body = {"model": "model-a", "messages": _ASKED, "tools": [{"name": "ls"}]}
    other = {"model": "model-b", "system": "Be brief.", "messages": _ASKED, "max_tokens": 9}
    usage: Row = {"input_tokens": 10, "cache_read_input_tokens": 400, "output_tokens": 25}
    usage |= {"cache_creation_input_tokens": 90}
    entries = [
        entry(0, chat, body, {"id": "c1"} | _chat_usage(900, 512, 20)),
        entry(5, chat, body | {"messages": _LATER}, {"id": "c2"} | _chat_usage(1000, 896, 30)),
        entry(60, messages, other, {"id": "m1", "content": [], "usage": usage}),
        entry(70, chat, body, {"error": {"message": "too many"}}, status=429),
    ]
    value: Row = {"log": {"version": "1.2", "creator": {"name": "x", "version": "1"}}}
    value["log"] |= {"entries": entries}
    return Sample(
        "har", "har", Sums(2, 3, 2400, 75), {"browser.har": [value]}, document, named=True
    )


def _mitmproxy() -> Sample:
    def flow(t: float, path: bytes, body: Row, answer: Row) -> Row:
        request: Row = {"method": b"POST", "scheme": b"https", "host": "host.example", "path": path}
        request |= {"headers": [[b"Authorization", b"Bearer token"]], "port": 443}
        request |= {"content": orjson.dumps(body), "timestamp_start": ZERO_S + t}
        response: Row = {"status_code": 200, "headers": [[b"content-type", b"application/json"]]}
        response |= {"content": orjson.dumps(answer), "timestamp_end": ZERO_S + t + 2.0}
        row: Row = {"type": "http", "version": 21, "id": f"f{t}", "error": None, "marked": ""}
        return (
            row
            | {"client_conn": {"sni": "host.example"}}
            | {
                "request": request,
                "response": response,
            }
        )

    body = {"model": "model-a", "messages": _ASKED, "tools": [{"name": "ls"}]}
    other = {"model": "model-b", "input": "please mend that", "instructions": "Be brief."}
    usage: Row = {"input_tokens": 500, "output_tokens": 25}
    flows = [
        flow(0, b"/v1/chat/completions", body, {"id": "c1"} | _chat_usage(900, 512, 20)),
        flow(5, b"/v1/chat/completions", body | {"messages": _LATER}, _chat_usage(1000, 896, 30)),
        flow(60, b"/v1/responses", other, {"id": "r1", "output": [], "usage": usage}),
    ]
    files: Files = {"flows.mitm": flows}
    return Sample("mitmproxy", "mitmproxy", Sums(2, 3, 2400, 75), files, tnetstrings, named=True)


def _batch() -> Sample:
    def asked(name: str) -> Row:
        system = {"role": "system", "content": "Be brief."}
        body = {"model": "model-a", "messages": [system, *_ASKED]}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}

    def answered(name: str, isl: int) -> Row:
        body = {"id": f"c-{name}", "model": "model-a-1"} | _chat_usage(isl, 64, 5)
        response = {"status_code": 200, "request_id": "q", "body": body}
        return {"id": f"b-{name}", "custom_id": name, "response": response, "error": None}

    files: Files = {
        "input.jsonl": [asked("one"), asked("two")],
        "output.jsonl": [answered("two", 300), answered("one", 100)],
    }
    return Sample(
        "openai-batch", "openai-batch", Sums(2, 2, 400, 10), files, lines, named=True, apart=True
    )  # fmt: skip


def _litellm(name: str) -> Sample:
    def spend(number: int, session: str, t: int, isl: int, cached: int) -> Row:
        usage: Row = {"usage_object": {"prompt_tokens_details": {"cached_tokens": cached}}}
        times = [f"2026-01-02 10:00:{at:02}.000000" for at in (t, t + 1, t + 3)]
        return {
            "request_id": f"{name}-{number}",
            "session_id": f"{name}-{session}",
            "call_type": "acompletion",
            "startTime": times[0],
            "completionStartTime": times[1],
            "endTime": times[2],
            "model": "model-a",
            "prompt_tokens": str(isl) if name == "litellm-csv" else isl,
            "completion_tokens": "40" if name == "litellm-csv" else 40,
            "cache_hit": "None",
            "metadata": text(usage | {"user_api_key_alias": "someone"}),
            "messages": "{}",
            "response": "{}",
            "request_tags": '["a tag"]',
            "status": "success",
        }

    rows = [
        spend(1, "one", 0, 900, 0),
        spend(2, "one", 5, 1200, 896),
        spend(3, "two", 30, 700, 0),
    ]
    found = Sums(2, 3, 2800, 120)
    if name == "litellm-csv":
        return Sample(name, "litellm", found, {"spend.csv": rows}, table, named=True)
    usage: Row = {"usage": {"prompt_tokens": 700, "completion_tokens": 40}}
    rows[2] = {
        "id": "chatcmpl-3",
        "trace_id": "litellm-two",
        "call_type": "completion",
        "startTime": ZERO_S + 30.0,
        "endTime": ZERO_S + 33.0,
        "model": "model-a",
        "model_parameters": {},
        "prompt_tokens": 700,
        "completion_tokens": 40,
        "cache_hit": None,
        "metadata": {"user_api_key_alias": "someone"},
        "messages": _ASKED,
        "response": {"id": "chatcmpl-3"} | usage,
        "status": "success",
    }
    files: Files = {"requests.jsonl": rows}
    return Sample(
        name, "litellm", found, files, lines, named=True, apart=True, any_order=True
    )  # fmt: skip


def _attributes(values: Row) -> list[Row]:
    def wrapped(value: object) -> Row:
        return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}

    return [{"key": key, "value": wrapped(value)} for key, value in values.items()]


def _nano(t: float) -> str:
    return str(int((ZERO_S + t) * 1e9))


def _otel() -> Sample:
    def span(
        number: int, trace: int, times: tuple[float, float], told: Row, parent: int = 0
    ) -> Row:
        row: Row = {
            "traceId": f"{trace:032x}",
            "spanId": f"{number:016x}",
            "name": "a span",
            "kind": 3,
        }
        row |= {"startTimeUnixNano": _nano(times[0]), "endTimeUnixNano": _nano(times[1])}
        return (
            row
            | ({"parentSpanId": f"{parent:016x}"} if parent else {})
            | {
                "attributes": _attributes(told),
                "status": {},
            }
        )

    def chat(conversation: str, isl: int, osl: int, cached: int = 0) -> Row:
        told: Row = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "model-a"}
        told |= {"gen_ai.conversation.id": conversation, "gen_ai.usage.input_tokens": isl}
        told |= {"gen_ai.usage.output_tokens": osl}
        return told | {"gen_ai.usage.cache_read.input_tokens": cached}

    def export(*spans: Row) -> Row:
        resource = {"attributes": _attributes({"service.name": "a service"})}
        scoped = [{"scope": {"name": "a library", "version": "1"}, "spans": list(spans)}]
        return {"resourceSpans": [{"resource": resource, "scopeSpans": scoped}]}

    agent: Row = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "coder"}
    agent |= {"gen_ai.usage.input_tokens": 9_999, "gen_ai.usage.output_tokens": 99}
    tool: Row = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "ls"}
    rows = [
        export(
            span(2, 1, (0, 3), chat("c-one", 1200, 64), 1),
            span(3, 1, (3, 4), tool, 1),
        ),
        export(
            span(4, 1, (5, 8), chat("c-one", 1400, 20, 1152), 1),
            span(1, 1, (0, 9), agent),
        ),
        export(span(9, 2, (30, 31), chat("c-two", 500, 10))),
    ]
    files: Files = {"spans.jsonl": rows}
    return Sample(
        "otel", "otel", Sums(2, 3, 3100, 94), files, lines, named=True, apart=True, any_order=True
    )  # fmt: skip


def _otel_logs() -> Sample:
    def event(t: float, session: str, number: int, told: Row) -> Row:
        about: Row = {"session.id": session, "event.name": "api_request", "model": "model-a"}
        about |= {"event.sequence": str(number), "duration_ms": "2000"}
        record: Row = {"timeUnixNano": _nano(t), "body": {"stringValue": "claude_code.api_request"}}
        record |= {"attributes": _attributes(about | told)}
        return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [record]}]}]}

    def counts(new: int, read: int, osl: int) -> Row:
        told: Row = {"input_tokens": str(new), "cache_read_tokens": str(read)}
        return told | {"cache_creation_tokens": "0", "output_tokens": str(osl)}

    rows = [
        event(2, "o-one", 1, counts(1000, 0, 20)),
        event(6, "o-one", 2, counts(300, 1000, 30)),
        event(40, "o-two", 3, counts(500, 0, 10)),
    ]
    return Sample(
        "otel-logs", "otel", Sums(2, 3, 2800, 60), {"logs.jsonl": rows}, lines, apart=True
    )  # fmt: skip


def _otel_flat() -> Sample:
    def span(name: str, times: tuple[float, float], isl: int, osl: int, *said: str) -> Row:
        messages = [{"role": "user", "content": each} for each in said]
        told: Row = {"gen_ai.request.model": "model-a", "gen_ai.input.messages": text(messages)}
        told |= {"gen_ai.usage.input_tokens": isl, "gen_ai.usage.output_tokens": osl}
        row: Row = {"trace_id": "t", "span_id": name, "parent_span_id": None, "name": "chat"}
        row |= {"start_time": iso(times[0])[:-1], "end_time": iso(times[1])[:-1]}
        return row | {"attributes": told | {"gen_ai.output.text": "an answer"}}

    begin = "please mend it " * 40
    one = [span("a", (0, 3), 300, 10, begin), span("b", (5, 6), 330, 20, begin, "go on")]
    files: Files = {
        "one.json": [{"trace_id": "t", "span_count": 2, "spans": one}],
        "two.json": [{"trace_id": "u", "spans": [span("c", (9, 10), 100, 5, "another task")]}],
    }
    return Sample("otel-flat", "otel", Sums(2, 3, 730, 35), files, document)


SAMPLES: tuple[Sample, ...] = (
    _native(),
    _weka(),
    _claude_code(),
    _codex(),
    _mooncake("mooncake"),
    _mooncake("mooncake-new"),
    _mooncake("mooncake-agentic"),
    _dynamo(),
    _har(),
    _litellm("litellm"),
    _litellm("litellm-csv"),
    _otel(),
    _otel_logs(),
    _otel_flat(),
    _tracelab(),
    _mitmproxy(),
    _batch(),
    _mlperf(),
    _gemini("gemini-cli"),
    _gemini("gemini-cli-log"),
    _opencode(),
    _openhands("openhands"),
    _openhands("openhands-completions"),
    _arrivals("arrivals-bailian"),
    _arrivals("arrivals-burstgpt"),
    _arrivals("arrivals-azure"),
)


# --- Changing a field -----------------------------------------------------------------------------

Place = tuple[str | int | None, ...]
"""Keys and indices that lead to a value; None leads into JSON that is written as text."""


def places(value: object, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Every value within a value, those in JSON that is written as text included."""
    if place:
        yield place, value
    if isinstance(value, str | bytes) and value[:1] in ("{", "[", b"{", b"["):
        value, place = orjson.loads(value), (*place, None)
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*place, number))


def changed(value: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    """A copy of a value in which *change* was made at a place; `DROPPED` takes it out."""
    if not place:
        return change(value)
    key, rest = place[0], place[1:]
    if key is None:
        inner = orjson.dumps(changed(orjson.loads(value), rest, change))
        return inner if isinstance(value, bytes) else inner.decode()
    copy = value.copy()
    copy[key] = changed(value[key], rest, change)
    if copy[key] is DROPPED:
        del copy[key]
    return copy


DROPPED = object()


def file_places(files: Files) -> Iterator[tuple[str, Place, object]]:
    """Every value in the records of files."""
    for path, records in files.items():
        for place, value in places(list(records)):
            yield path, place, value


def with_change(
    files: Files, path: str, place: Place, change: Callable[[Any], Any]
) -> dict[str, Sequence[Any]]:
    """The files with a change at a place of one of them."""
    return {**files, path: changed(list(files[path]), place, change)}
