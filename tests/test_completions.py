"""Rules of the completions protocol: what is sent, and what real servers answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_recorded_streams import OWN, Said
from test_responses import check, plain_events, streams

from agentreplay.wire import completions

TEXT = rb'"caf\u00e9 \"quoted\" \\ \n"'
IDS = b"[5, 17,4]"


def naive(path: Path) -> Said:
    """The stream of *path* by a plain reading."""
    events, done = plain_events(path)
    choices = [choice for event in events for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    usage = events[-1]["usage"]
    return Said(
        sum(choice["text"] != "" for choice in choices),
        reasons[-1],
        usage["prompt_tokens"],
        usage["completion_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        error=False,
        done=done,
    )


@pytest.mark.parametrize("path", streams("*completions*.raw", folder=OWN))
def test_streams(path: Path) -> None:
    """However the reads fall, an answer says what the recorded bytes say."""
    check(path, completions.API.piece, naive(path))


@pytest.mark.parametrize("path", streams("*completions*.raw"))
def test_shared_streams(path: Path) -> None:
    """The same holds for every recorded stream of this API there is."""
    check(path, completions.API.piece, naive(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm_completions_ids", Said(3, "length", 64, 4, 0, False, True)),
        ("llamacpp_completions_ids", Said(4, "length", 64, 4, 63, False, True)),
    ],
)
def test_known_streams(name: str, expected: Said) -> None:
    """A few recordings, counted by hand."""
    check(OWN / f"{name}.raw", completions.API.piece, expected)


@pytest.mark.parametrize("prompt", [TEXT, IDS], ids=["text", "ids"])
def test_body(prompt: bytes) -> None:
    """The prompt is the one value that is given, a text or ids, in a streaming request."""
    made = completions.body("m", (prompt,), {"max_tokens": 9})
    assert json.loads(made) == {
        "prompt": json.loads(prompt),
        "model": "m",
        "stream": True,
        "max_tokens": 9,
    }


@pytest.mark.parametrize("prompt", [TEXT, IDS], ids=["text", "ids"])
def test_the_bytes_of_the_prompt_are_sent_as_they_are(prompt: bytes) -> None:
    """The prompt is never encoded again."""
    assert completions.body("m", (prompt,), {}).startswith(b'{"prompt":' + prompt + b",")


def test_fields_override() -> None:
    """A given field stands in place of the usual one, once."""
    made = json.loads(
        completions.body("m", (TEXT,), {"stream": False, "model": "n"}),
        object_pairs_hook=lambda pairs: pairs,
    )
    assert [name for name, _ in made] == ["prompt", "model", "stream"]
    assert [value for _, value in made[1:]] == ["n", False]


def test_api() -> None:
    """The path and the output's limit are those of this API."""
    assert (completions.API.path, completions.API.limits) == ("/completions", ("max_tokens",))
