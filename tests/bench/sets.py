"""Trace sets to measure with: generated ones, copies of recorded ones, and long prompts. I/O."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import orjson

import agentreplay
from agentreplay.trace.export import exported
from agentreplay.trace.formats import native
from agentreplay.trace.load import load
from agentreplay.trace.model import Call, Session
from agentreplay.trace.synth import synthesise

ROOT = Path(agentreplay.__file__).parents[1]
"""The tree that is measured."""

WEKA = ROOT.parent / "shared" / "data" / "weka"
"""Recorded sessions that may lie beside it."""

SESSIONS = 75
FILE_BYTES = 1_000_000

BLOCK = 64
SYSTEM = 12_000

Rows: TypeAlias = Iterator[dict[str, Any]]


def sessions(folder: Path) -> list[Path]:
    """Files with one session each, put into *folder*: the recorded ones, or as many made up."""
    recorded = sorted(WEKA.glob("*.json"))
    for file in recorded:
        shutil.copy(file, folder)
    if not recorded:
        for number, session in enumerate(synthesise(SESSIONS, 1)):
            (folder / f"{number}.jsonl").write_bytes(native.line(session))
    return sorted(folder.iterdir())


def copies(files: list[Path], folder: Path, count: int) -> None:
    """Fill *folder* with so many files, each another name of one of *files*."""
    for number in range(count):
        file = files[number % len(files)]
        os.link(file, folder / f"{number}{file.suffix}")


def written(folder: Path, name: str, size: int) -> Path:
    """A file of a format's sessions, about *size* bytes long; of Weka, the recorded ones if any."""
    path = folder / f"{name}.jsonl"
    if name == "weka" and WEKA.is_dir():
        path.mkdir()
        for recorded in WEKA.glob("*.json"):
            shutil.copy(recorded, path)
        return path
    with path.open("wb") as file:
        if name in MADE:
            for row in MADE[name](Random(1)):
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                if file.tell() > size:
                    break
        else:
            traces = load(ROOT / "traces")
            while file.tell() < size:
                file.writelines(exported(traces, name, 1))
    return path


def agent_folder(folder: Path, name: str, files: int) -> None:
    """Fill a folder with session logs of an agent, of a megabyte each and no two of one session."""
    lines, size = [], 0
    for row in MADE[name](Random(2)):
        lines.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        size += len(lines[-1])
        if size > FILE_BYTES:
            break
    session = b"".join(lines)
    for n in range(files):
        named = session.replace(SESSION_ID, b"%08x" % n).replace(b'"msg_', b'"msg_%d_' % n)
        (folder / f"{n}.jsonl").write_bytes(named)


def chain(name: str, first: int, last: int, calls: int, osl: int, gap_s: float = 0.0) -> Session:
    """A chain of calls, each of which shares all whole blocks of the one before it.

    Args:
        name: Of the session.
        first: Tokens of its first prompt.
        last: Of its last one.
        calls: How many, two or more.
        osl: Tokens of each answer.
        gap_s: From the end of one to the start of the next.
    """
    lengths = [first + (last - first) * n // (calls - 1) for n in range(calls)]
    chained = [call(lengths[0], osl)]
    for n in range(1, calls):
        shared = lengths[n - 1] // BLOCK * BLOCK
        chained.append(call(lengths[n], osl, n - 1, shared, gap_s=gap_s))
    return Session(name, None, tuple(chained), BLOCK, "made for the bench")


def call(
    isl: int,
    osl: int,
    parent: int | None = None,
    shared: int = 0,
    *,
    gap_s: float = 0.0,
    system: int = SYSTEM,
) -> Call:
    """A call that waits for its parent."""
    after = () if parent is None else (parent,)
    return Call(
        start_s=0.0, end_s=0.0, timed=False, isl=isl, osl=osl, after=after, gap_s=gap_s,
        parent=parent, shared=shared, system=system, agent="", model=None, cached=None,
    )  # fmt: skip


SESSION_ID = b"5f0c0000"
"""What tells one made-up session of an agent from another."""


def _stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1.767e9 + at_s)) + ".000Z"


def _words(rng: Random, size: int) -> str:
    """Text as tools give it: what a JSON reader has to copy."""
    return " ".join(rng.choices(_VOCABULARY, k=size // 6))


_VOCABULARY = [f"word{n}" for n in range(997)] + ['"quoted"', "line\nend", "tab\t", "é"]


def claude_code(rng: Random) -> Rows:
    """A session: prompts, answers of two lines, results, and lines that are for the screen only."""
    session, at_s, isl, parent = (
        f"{SESSION_ID.decode()}-0000-4000-8000-00000000000a",
        0.0,
        20_000,
        None,
    )
    for n in range(1 << 30):
        common = {"isSidechain": False, "sessionId": session, "version": "2.1.0", "cwd": "/w"}
        for _ in range(rng.randrange(3)):
            data = {"type": "bash_progress", "output": _words(rng, 2000)}
            yield common | {"type": "progress", "timestamp": _stamp(at_s), "data": data}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": _words(rng, 3000)}
        user = {"role": "user", "content": [result]}
        tail = {"uuid": f"u{n}", "parentUuid": parent, "timestamp": _stamp(at_s)}
        yield common | {"type": "user", "message": user} | tail
        created = rng.randrange(200, 2000)
        usage: dict[str, int] = {
            "input_tokens": 4,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": isl,
            "output_tokens": 8,
        }
        for k, out in enumerate((8, 300)):
            text: dict[str, Any] = {"type": "text", "text": _words(rng, 800)}
            message: dict[str, Any] = {
                "id": f"msg_{n}",
                "role": "assistant",
                "model": "m",
                "content": [text],
            }
            message |= {"usage": usage | {"output_tokens": out}}
            parent, before = f"a{n}-{k}", f"u{n}" if not k else f"a{n}-0"
            tail = {"uuid": parent, "parentUuid": before, "timestamp": _stamp(at_s + 3 + k)}
            yield common | {"type": "assistant", "message": message, "requestId": f"r{n}"} | tail
        isl, at_s = 20_000 if isl > 180_000 else isl + created + 4, at_s + 8


def codex(rng: Random) -> Rows:
    """A thread: results, reasoning, calls of tools, and the counts after each call, twice."""

    def row(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"timestamp": _stamp(at_s), "type": kind, "payload": payload}

    def usage(isl: int, cached: int, osl: int) -> dict[str, int]:
        return {
            "input_tokens": isl,
            "cached_input_tokens": cached,
            "output_tokens": osl,
            "reasoning_output_tokens": osl // 2,
            "total_tokens": isl + osl,
        }

    at_s, isl, total = 0.0, 10_000, 0
    yield row(
        "session_meta",
        {"id": SESSION_ID.decode(), "cwd": "/w", "source": "cli", "cli_version": "0.114.0"},
    )
    yield row("turn_context", {"turn_id": "1", "cwd": "/w", "model": "m"})
    for n in range(1 << 30):
        output = {"type": "function_call_output", "call_id": f"c{n}", "output": _words(rng, 3000)}
        yield row("response_item", output)
        at_s += 3
        yield row("response_item", {"type": "reasoning", "encrypted_content": "x" * 1500})
        call = {"type": "function_call", "call_id": f"c{n + 1}", "arguments": _words(rng, 300)}
        yield row("response_item", call)
        total += isl + 100
        info = {
            "total_token_usage": usage(total, total - 500 * n, 100 * n),
            "last_token_usage": usage(isl, isl - 500, 100),
        }
        for _ in range(2):
            yield row("event_msg", {"type": "token_count", "info": info})
        isl, at_s = 10_000 if isl > 180_000 else isl + 900, at_s + 1


def mooncake(rng: Random) -> Rows:
    """Conversations that grow by some blocks a turn."""
    chats: list[list[int]] = [[0] for _ in range(50)]
    free = 1
    for n in range(1 << 30):
        chat = rng.choice(chats)
        for _ in range(rng.randrange(1, 6)):
            chat.append(free)
            free += 1
        row = {"timestamp": n * 300, "input_length": len(chat) * 512, "output_length": 80}
        yield row | {"hash_ids": list(chat)}
        if len(chat) > 120:
            del chat[1:]


def tracelab(rng: Random) -> Rows:
    """Rounds of a session."""
    for n in range(1 << 30):
        at_s, isl = n * 9.0, 10_000 + n % 200 * 700
        events = [
            {"event_type": "user_message", "timestamp": _stamp(at_s), "content_chars": 9},
            {"event_type": "tool_call", "timestamp": _stamp(at_s + 4), "tool_call_id": f"t{n}"},
        ]
        yield {
            "provider": "claude", "project": "p", "session_id": f"s{n // 200}", "model": "m",
            "round_index": n % 200, "round_id": f"m{n}", "input_tokens_total": isl,
            "prefix_tokens": isl - 700, "newly_append_tokens": 700, "output_tokens": 200,
            "timing_events": events, "tools": [], "first_input_event_type": "user_message",
        }  # fmt: skip


def litellm(rng: Random) -> Rows:
    """Calls of a proxy that stores no prompts."""
    for n in range(1 << 30):
        at_s, isl = 1.767e9 + n * 5, 1_000 + n % 100 * 500
        yield {
            "id": f"c{n}", "trace_id": f"s{n // 100}", "call_type": "acompletion", "stream": True,
            "status": "success", "startTime": at_s, "completionStartTime": at_s + 1,
            "endTime": at_s + 3, "model": "m", "prompt_tokens": isl, "completion_tokens": 50,
            "total_tokens": isl + 50, "cache_hit": None, "metadata": {"x": _words(rng, 600)},
            "messages": "redacted-by-litellm", "response": {},
        }  # fmt: skip


MADE: Mapping[str, Callable[[Random], Rows]] = {
    "claude-code": claude_code,
    "codex": codex,
    "mooncake": mooncake,
    "tracelab": tracelab,
    "litellm": litellm,
}
"""Rows of a format without end, by its name."""
