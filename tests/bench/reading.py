"""What it costs to read recorded sessions of each format, beside decoding their JSON alone.

Each round decodes a file's lines with orjson and reads the same file as a trace set, one after the
other; the ratio is the median over the rounds. What reading takes in memory is seen from two
folders of different sizes. Run by `make bench`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import orjson

from agentreplay.trace.export import exported
from agentreplay.trace.load import load

ROUNDS = 5
GOAL_RATIO = 2.0
GOAL_MB_S = 20.0
SIZE_BYTES = 25_000_000
FOLDER_FILES = (100, 300)
GOAL_FOLDER_MB = 500
GOAL_PEAK_MB = 300

Rows = Iterator[dict[str, Any]]


def _stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1.767e9 + at_s)) + ".000Z"


def _words(rng: Random, size: int) -> str:
    """Text as tools give it: what a JSON reader has to copy."""
    return " ".join(rng.choices(_VOCABULARY, k=size // 6))


_VOCABULARY = [f"word{n}" for n in range(997)] + ['"quoted"', "line\nend", "tab\t", "é"]


def claude_code(rng: Random) -> Rows:
    """A session: prompts, answers of two lines, results, and lines that are for the screen only."""
    session, at_s, isl, parent = "5f0c0000-0000-4000-8000-00000000000a", 0.0, 20_000, None
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
    yield row("session_meta", {"id": "T", "cwd": "/w", "source": "cli", "cli_version": "0.114.0"})
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


def written(folder: Path, name: str) -> Path:
    """A file of the format's sessions, about SIZE_BYTES long."""
    path = folder / f"{name}.jsonl"
    with path.open("wb") as file:
        if name in ("native", "weka"):
            traces = load(Path(__file__).parents[2] / "traces")
            while file.tell() < SIZE_BYTES:
                file.writelines(exported(traces, name, 1))
            return path
        for row in globals()[name.replace("-", "_")](Random(1)):
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            if file.tell() > SIZE_BYTES:
                return path
    return path


def filled(folder: Path, files: int) -> float:
    """Give a folder so many session logs of Claude Code of a megabyte; returns its megabytes."""
    lines, size = [], 0
    for row in claude_code(Random(2)):
        lines.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        size += len(lines[-1])
        if size > 1e6:
            break
    session = b"".join(lines)
    for n in range(files):
        named = session.replace(b"5f0c0000", b"%08x" % n).replace(b'"msg_', b'"msg_%d_' % n)
        (folder / f"{n}.jsonl").write_bytes(named)
    return files * size / 1e6


def peak_mb(path: Path) -> float:
    """The most memory that a process has while it reads every session of a folder."""
    code = (
        "import resource, sys; from agentreplay.trace.load import load\n"
        "for session in load(sys.argv[1]): pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    ended = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    return float(ended.stdout)


def decoded(path: Path) -> None:
    """Decode every line."""
    with path.open("rb") as file:
        for line in file:
            orjson.loads(line)


def read(path: Path) -> int:
    """Read every session; returns the calls."""
    return sum(len(session.calls) for session in load(path))


def timed(work: Callable[[Path], Any], path: Path) -> float:
    """CPU seconds of *work*."""
    begin_s = time.process_time()
    work(path)
    return time.process_time() - begin_s


def main() -> None:
    """Print the table."""

    def out(line: str) -> None:
        print(line)  # noqa: T201

    rows = []
    for files in FOLDER_FILES:  # first, as a process is counted what its parent has when it starts
        with tempfile.TemporaryDirectory() as folder:
            rows.append((filled(Path(folder), files), peak_mb(Path(folder))))
    (small_mb, least_mb), (large_mb, most_mb) = rows
    growth = (most_mb - least_mb) / (large_mb - small_mb)
    expected_mb = most_mb + growth * (GOAL_FOLDER_MB - large_mb)
    out(f"Reading a folder of Claude Code sessions, {FOLDER_FILES[-1]} files of a megabyte")
    out(
        f"peak {most_mb:.0f} MB, {growth:.2f} MB more for each megabyte: {expected_mb:.0f} MB for "
        f"{GOAL_FOLDER_MB} MB  ≤ {GOAL_PEAK_MB} MB: "
        f"{'met' if expected_mb <= GOAL_PEAK_MB else 'missed'}"
    )
    out("")
    out(f"Reading sessions, median of {ROUNDS} rounds (CPU time)")
    out(f"{'':<14}{'MB':>8}{'calls':>10}{'orjson s':>10}{'read s':>10}{'ratio':>8}{'MB/s':>8}")
    for name in ("native", "weka", "claude-code", "codex", "mooncake", "tracelab", "litellm"):
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder), name)
            size = path.stat().st_size / 1e6
            calls = read(path)
            rounds = [(timed(decoded, path), timed(read, path)) for _ in range(ROUNDS)]
        ratio = median(taken / least for least, taken in rounds)
        least_s, taken_s = (median(column) for column in zip(*rounds, strict=True))
        bounded = name not in ("tracelab", "litellm")
        met = ratio <= GOAL_RATIO if bounded else size / taken_s >= GOAL_MB_S
        goal = f"≤ {GOAL_RATIO:.0f}" if bounded else f"≥ {GOAL_MB_S:.0f} MB/s"
        out(
            f"{name:<14}{size:>8.1f}{calls:>10,}{least_s:>10.3f}{taken_s:>10.3f}{ratio:>8.2f}"
            f"{size / taken_s:>8.0f}  {goal}: {'met' if met else 'missed'}"
        )


if __name__ == "__main__":
    main()
