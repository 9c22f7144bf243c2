"""What real servers sent, read as a run reads it, against a second, plain reading of the bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentreplay.client.exchange import reply_failure
from agentreplay.client.stream import Reply
from agentreplay.wire import chat
from agentreplay.wire.answer import Answer, chunk_tokens
from agentreplay.wire.http1 import ResponseReader

OWN = Path(__file__).parent / "data" / "sse"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "sse"
ABSENT = "the full set of recordings does not lie beside the project"


@dataclass(frozen=True, slots=True)
class Said:
    """What an event stream says."""

    chunks: int
    finish: str | None
    isl: int | None
    osl: int | None
    cached: int | None
    error: bool
    done: bool


def is_chat_stream(path: Path) -> bool:
    """Whether the recording is an event stream of chat completions."""
    data = path.read_bytes()
    return data.startswith(b"HTTP/1.1 200") and b"chat.completion.chunk" in data


def chat_streams(folder: Path) -> list[Path]:
    """The recorded chat streams, and those that a server refused inside a stream."""
    return [
        path
        for path in sorted(folder.glob("*.raw"))
        if is_chat_stream(path) or path.stem == "vllm_overload_5"
    ]


SHARED_STREAMS = [pytest.param(path, id=path.stem) for path in chat_streams(SHARED)] or [
    pytest.param(SHARED, marks=pytest.mark.skip(reason=ABSENT), id="absent")
]
OWN_STREAMS = [pytest.param(path, id=path.stem) for path in chat_streams(OWN)]


@cache
def naive(path: Path) -> Said:
    """The stream of *path*, read at leisure: whole body, split at blank lines, every field."""
    body = ResponseReader().feed(path.read_bytes())
    chunks, finish, error, done = 0, None, False, False
    counts: dict[str, int] = {}
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
        lines = block.removeprefix(b"\n").split(b"\n")
        data = b"\n".join(line[5:].lstrip(b" ") for line in lines if line.startswith(b"data:"))
        if not data:
            continue
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        texts = [text for choice in event.get("choices", []) for text in texts_of(choice)]
        chunks += any(texts)
        for choice in event.get("choices", []):
            finish = choice.get("finish_reason") or finish
        error = error or "error" in event
        usage = event.get("usage") or {}
        flat = {**usage, **(usage.get("prompt_tokens_details") or {})}
        counts |= {name: value for name, value in flat.items() if type(value) is int}
    return Said(
        chunks,
        finish,
        counts.get("prompt_tokens"),
        counts.get("completion_tokens"),
        counts.get("cached_tokens"),
        error,
        done,
    )


def texts_of(choice: dict[str, Any]) -> list[Any]:
    """All generated texts of a choice, empty ones included."""
    delta = choice.get("delta") or {}
    functions = [call.get("function") or {} for call in delta.get("tool_calls") or []]
    return [
        *(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "refusal")),
        *(function.get(key) for function in functions for key in ("name", "arguments")),
        choice.get("text"),
    ]


def said(answer: Answer) -> Said:
    """What an answer has understood."""
    usage = answer.usage
    return Said(
        len(answer.stamps_ns),
        answer.finish,
        usage.isl,
        usage.osl,
        usage.cached,
        answer.error is not None,
        answer.done_ns is not None,
    )


def recorded_reads(path: Path) -> list[tuple[float, int]]:
    """Seconds and bytes of each read, as recorded."""
    lines = path.with_suffix(".reads.jsonl").read_text().splitlines()
    return [(float(at_s), int(size)) for at_s, size in map(json.loads, lines)]


def played(path: Path, reads: list[tuple[float, int]]) -> tuple[Reply, Answer]:
    """The response of *path* as it comes in *reads*: (seconds, bytes)."""
    data = path.read_bytes()
    assert sum(size for _, size in reads) == len(data)
    reader, answer, body, at = ResponseReader(), Answer(chat.piece), b"", 0
    for at_s, size in reads:
        part = reader.feed(data[at : at + size])
        at += size
        kind = reader.header(b"content-type").decode().split(";")[0].strip().lower()
        if reader.status == 200 and kind == "text/event-stream":
            if part:
                answer.feed(round(at_s * 1e9), part)
        else:
            body += part
    answer.close(round(reads[-1][0] * 1e9))
    return Reply(reader.status, kind, body), answer


def check_stream(path: Path) -> None:
    """Compare the answer, however it was read, with the plain reading."""
    size = path.stat().st_size
    expected = naive(path)
    recorded = recorded_reads(path)
    for reads in ([(0.0, size)], [(n / 1e6, 1) for n in range(size)], recorded):
        reply, answer = played(path, reads)
        assert said(answer) == expected
        assert answer.broken is None
        assert answer.stamps_ns == sorted(answer.stamps_ns)
        success = expected.finish is not None and expected.chunks > 0 and not expected.error
        assert (reply_failure(reply, answer) is None) is success
        if expected.osl:
            shares = chunk_tokens(answer.sizes, answer.counts, expected.osl)
            assert not answer.sizes or sum(shares or [1] * len(answer.sizes)) == expected.osl
    _, answer = played(path, recorded)
    stamps = {round(at_s * 1e9) for at_s, _ in recorded}
    assert stamps.issuperset(answer.stamps_ns)
    assert answer.token_reads == len(set(answer.stamps_ns))


@pytest.mark.parametrize("path", OWN_STREAMS)
def test_streams(path: Path) -> None:
    """However the reads fall, an answer says what the recorded bytes say."""
    check_stream(path)


@pytest.mark.parametrize("path", SHARED_STREAMS)
def test_shared_streams(path: Path) -> None:
    """The same holds for every recorded chat stream there is."""
    check_stream(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm_chat_plain", (8, "length", 8)),
        ("llamacpp_chat_plain", (5, "length", 5)),
        ("vllm_chat_continuous_usage", (3, "length", 3)),
        ("vllm_overload_5", (0, None, None)),
        ("vllm_chat_cancelled", (5, None, None)),
    ],
)
def test_known_streams(name: str, expected: tuple[int, str | None, int | None]) -> None:
    """Chunks with tokens, finish and output tokens of a few recordings, counted by hand."""
    path = OWN / f"{name}.raw"
    _, answer = played(path, [(0.0, path.stat().st_size)])
    assert (len(answer.stamps_ns), answer.finish, answer.usage.osl) == expected


FAILURES = {
    "guidellm_mock_err_404": "http_4xx",
    "guidellm_mock_err_bad_json": "http_5xx",
    "guidellm_mock_err_missing_messages": "http_4xx",
    "guidellm_mock_err_unknown_model": None,
    "litellm_mock_ratelimit": "http_429",
    "litellm_vllm_err_404": "http_4xx",
    "litellm_vllm_err_bad_json": "http_4xx",
    "litellm_vllm_err_missing_messages": "http_4xx",
    "litellm_vllm_err_unknown_model": "http_4xx",
    "llamacpp_err_404": "http_4xx",
    "llamacpp_err_bad_json": "http_4xx",
    "llamacpp_err_empty_messages": "bad_stream",
    "llamacpp_err_missing_messages": "http_4xx",
    "llamacpp_err_overflow_messages": "context_overflow",
    "llamacpp_err_overflow_prompt": "context_overflow",
    "llamacpp_err_unknown_model": None,
    "sglrouter_err_404": "http_4xx",
    "sglrouter_err_bad_json": "http_4xx",
    "sglrouter_err_missing_messages": "http_4xx",
    "sglrouter_err_unknown_model": "http_4xx",
    "sglrouter_err_worker_down": "http_5xx",
    "vllm_drain_midstream": None,
    "vllm_engine_killed_midstream": "error_event",
    "vllm_err_401": "auth",
    "vllm_err_404": "http_4xx",
    "vllm_err_405": "http_4xx",
    "vllm_err_bad_json": "http_4xx",
    "vllm_err_empty_messages": "http_4xx",
    "vllm_err_min_gt_max": "http_4xx",
    "vllm_err_missing_messages": "http_4xx",
    "vllm_err_overflow_ids": "http_4xx",
    "vllm_err_overflow_max_tokens": "http_4xx",
    "vllm_err_overflow_messages": "context_overflow",
    "vllm_err_overflow_prompt": "context_overflow",
    "vllm_err_overflow_responses": "context_overflow",
    "vllm_err_stream_options_nonstream": "http_4xx",
    "vllm_err_unknown_model": "http_4xx",
    "vllm_min_err_404": "http_4xx",
    "vllm_min_err_bad_json": "http_4xx",
    "vllm_min_err_missing_messages": "http_4xx",
    "vllm_min_err_unknown_model": "http_4xx",
    "vllm_new_request_while_draining": "http_5xx",
    "vllm_overload_0": None,
    "vllm_overload_5": "error_event",
    "vllm_overload_nonstream_0": "bad_stream",
    "vllm_overload_nonstream_5": "http_5xx",
    "vllm_sigterm_midstream": "error_event",
}


@pytest.mark.parametrize(("name", "kind"), FAILURES.items(), ids=FAILURES)
def test_failures(name: str, kind: str | None) -> None:
    """A refusal of a real server is named by its kind, in words, with the status that came."""
    path = next((p for p in (OWN / f"{name}.raw", SHARED / f"{name}.raw") if p.exists()), None)
    if path is None:
        pytest.skip(ABSENT)
    reply, answer = played(path, [(0.0, path.stat().st_size)])
    failure = reply_failure(reply, answer)
    if kind is None:
        assert failure is None
    else:
        assert failure is not None
        assert (failure.kind, failure.status) == (kind, reply.status)
        assert failure.message.isprintable()
        assert 0 < len(failure.message) <= 500


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm_err_401", "HTTP 401: Unauthorized"),
        ("sglrouter_err_404", "HTTP 404: (no body)"),
        ("vllm_new_request_while_draining", "cannot schedule new futures after shutdown"),
        ("vllm_overload_5", "The engine is currently busy and cannot accept new requests."),
        ("litellm_mock_ratelimit", "this is a mock rate limit error LiteLLM: model group"),
        ("llamacpp_err_overflow_prompt", "request (82341 tokens) exceeds"),
        ("vllm_err_overflow_prompt", "maximum context length is 131072 tokens"),
    ],
)
def test_words_of_failures(name: str, words: str) -> None:
    """The server's own words are in the message, on one line."""
    path = OWN / f"{name}.raw"
    failure = reply_failure(*played(path, [(0.0, path.stat().st_size)]))
    assert failure is not None
    assert words in failure.message


def test_every_shared_refusal_is_in_the_table() -> None:
    """No recorded failure is left out of the table above."""
    if not SHARED.is_dir():
        pytest.skip(ABSENT)
    signs = ("err", "overload", "ratelimit", "drain", "killed", "sigterm")
    names = {path.stem for sign in signs for path in SHARED.glob(f"*{sign}*.raw")}
    assert names == FAILURES.keys()
