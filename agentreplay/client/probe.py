"""Try an endpoint as a run would use it, and say what works, what doesn't and what to do. I/O.

Rule: nothing an endpoint does raises from here; each thing that was looked at is a `Finding`. About
thirty small requests are sent, one after another, so that no answer has to wait for another one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import httpx

from agentreplay.client import findings
from agentreplay.client.arrivals import Arrivals
from agentreplay.client.calibrate import (
    REFUSED,
    SHORT_WORDS,
    calibrate,
    lone_request,
    served_models,
)
from agentreplay.client.endpoint import (
    CONNECT_S,
    Endpoint,
    beside,
    http_stream,
    masked,
    open_client,
)
from agentreplay.client.exchange import exchange
from agentreplay.client.findings import BLOCKING, NAMES, OUTPUT_TOKENS, Finding, Findings, Seen
from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Form, Template, known_words
from agentreplay.wire import completions
from agentreplay.wire.api import ASK_USAGE, Api

ANSWER_S = 30.0
"""One answer may take so long."""

WHOLE_S = 180.0
"""What has not been tried by then is not tried: a slow server must not hold up its user."""

CACHED_WORDS = 600
CACHED_TIMES = 3
ROUND_TRIPS = 5


@dataclass(slots=True)
class _Notes:
    """What was found so far; it outlives a probe that is cut short."""

    found: dict[str, Finding] = field(default_factory=dict)
    simulated: str | None = None

    def add(self, *told: Finding) -> None:
        for each in told:
            self.found[each.name] = each


async def probe(endpoint: Endpoint) -> Findings:
    """Try the first address of *endpoint*.

    Raises:
        AgentReplayError: the file of certificates can't be read.
    """
    notes = _Notes()
    clock = time.monotonic_ns
    async with open_client(endpoint, clock, Arrivals(clock)) as client:
        with anyio.move_on_after(WHOLE_S) as limit:
            await _look(endpoint, client, notes)
    rest = f"not tried within {WHOLE_S:.0f} s" if limit.cancelled_caught else ""
    missing = {name: Finding(name, findings.NOT_TRIED, None, rest) for name in NAMES}
    secrets = findings.secrets(endpoint)
    found = {**missing, **notes.found}
    return Findings(tuple(findings.masked(found[name], secrets) for name in NAMES), notes.simulated)


async def _look(endpoint: Endpoint, client: httpx.AsyncClient, notes: _Notes) -> None:
    """Find out one thing after the other, as far as the answers let it."""
    given = endpoint
    notes.add(findings.proxy(endpoint))
    endpoint, model, models, first = await _find(endpoint, client, notes)
    notes.add(
        findings.address(given, endpoint, model, models, first),
        findings.tls(endpoint, first),
        findings.auth(endpoint, first),
        findings.model(model, models, first),
    )
    blamed = any(each.ok is False for each in notes.found.values() if each.name in BLOCKING)
    if first.status not in (200, *REFUSED):
        if not blamed:
            notes.add(findings.streaming(first))
        return
    if notes.found["model"].ok is False:
        return
    known = await calibrate(replace(endpoint, calibrate=True), client, time.monotonic_ns)
    ask = _Ask(endpoint, client)
    whole = await ask(known.dialect, osl=OUTPUT_TOKENS)
    notes.add(findings.streaming(whole))
    if whole.status != 200:
        return
    notes.add(findings.usage(whole), findings.output_length(whole), findings.context(known))
    notes.add(findings.template(known), findings.tokens_per_word(known))
    await _fields(ask, known.dialect, endpoint, notes)
    notes.add(await _cached_tokens(ask, known.dialect))
    notes.add(await _history(ask, known.dialect))
    notes.add(await _round_trip(ask, known.dialect))
    what = "the server's own figures can't be set beside the run's; a replay works without"
    notes.add(await _beside(client, endpoint, "metrics", None, what))
    text = {"model": known.dialect.model, "prompt": "one", "content": "one"}
    what = "prompts can't be counted without sending them; a replay works without"
    notes.add(await _beside(client, endpoint, "tokenize", text, what))


class _Ask:
    """Sends requests of known words to an endpoint, each for so long and no longer."""

    def __init__(self, endpoint: Endpoint, client: httpx.AsyncClient) -> None:
        self._endpoint = endpoint
        self._stream = http_stream(client, endpoint, time.monotonic_ns, f"probe-{_key()}")

    async def __call__(
        self,
        dialect: Dialect,
        messages: Sequence[bytes] | None = None,
        *,
        words: int = SHORT_WORDS,
        osl: int = 1,
    ) -> Seen:
        """Send *messages*, or a user's message of so many words nobody has seen before."""
        replies: list[Reply] = []
        records: list[Record] = []

        async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
            reply = await self._stream(request, body, sink)
            replies.append(reply)
            return reply

        messages = messages or known_words(dialect.template.form, ("user",), (words,), _key())
        body = dialect.body(messages, osl)
        with anyio.move_on_after(ANSWER_S) as limit:
            await exchange(
                stream,
                dialect.api,
                lone_request(_key(), words, osl),
                body,
                time.monotonic_ns,
                records.append,
            )
        (record,) = records
        if limit.cancelled_caught:
            failure = Failure("timeout", None, f"no whole answer within {ANSWER_S:.0f} s")
            record = replace(record, error=failure)
        if record.error is not None:
            record = replace(record, error=masked(self._endpoint, record.error))
        return Seen(record, replies[0] if replies else None)


def _key() -> int:
    return time.monotonic_ns()


# The way to the server


async def _find(
    endpoint: Endpoint, client: httpx.AsyncClient, notes: _Notes
) -> tuple[Endpoint, str, list[str] | None, Seen]:
    """The endpoint at the address that answers, the model, those that are listed, the answer.

    Where the address as given has no such path, it is tried with or without its /v1.
    """
    given = endpoint.urls[0]
    tries = []
    for url in (given, other_address(given, endpoint.api)):
        there = replace(endpoint, urls=(url,))
        models = await _served(client, url, notes)
        model = endpoint.model or (models[0] if models else "default")
        seen = await _Ask(there, client)(_plain(endpoint, model))
        tries.append((there, model, models, seen))
        if seen.status not in findings.ABSENT or findings.is_of_model(seen, model, models):
            return tries[-1]
    return tries[0]


def other_address(url: str, api: Api) -> str:
    """The full address *url* of an API without the /v1 that it has, or with the one it lacks."""
    parts = urlsplit(url)
    base = parts.path.removesuffix(api.path)
    base = base.removesuffix("/v1") if base.endswith("/v1") else base + "/v1"
    return urlunsplit(parts._replace(path=base + api.path))


async def _served(client: httpx.AsyncClient, url: str, notes: _Notes) -> list[str] | None:
    """The models of the server's list; None where there is none."""
    try:
        models, simulated = await served_models(url, client)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    notes.simulated = notes.simulated or simulated
    return list(models)


def _plain(endpoint: Endpoint, model: str) -> Dialect:
    """The least that can be asked: no server refuses it for a field it doesn't know."""
    form: Form = "messages"
    if endpoint.api is completions.API:
        form = "ids" if endpoint.token_ids else "text"
    return Dialect(model, Template(form=form), dict(endpoint.fields), endpoint.api)


# What takes requests of its own


async def _fields(ask: _Ask, dialect: Dialect, endpoint: Endpoint, notes: _Notes) -> None:
    """Each field by itself, beside those the user wants anyway."""
    api, wanted = endpoint.api, dict(endpoint.fields)
    asks_usage = any("stream_options" in fields for fields in api.optional)
    if asks_usage:
        seen = await ask(replace(dialect, fields={**wanted, **ASK_USAGE}, min_tokens=False))
        why = "usage can't be asked for, and comes only if the server sends it unasked"
        notes.add(finding := findings.accepted("stream_options", seen, why))
        if finding.ok:
            wanted = {**ASK_USAGE, **wanted}
    else:
        notes.add(findings.inapplicable("stream_options"))
    why = "answers end where the model ends them"
    tried: Mapping[str, Any] = {"ignore_eos": True, "min_tokens": OUTPUT_TOKENS}
    free = {name: value for name, value in wanted.items() if name not in tried}
    left = await ask(replace(dialect, fields=free, min_tokens=False), osl=OUTPUT_TOKENS)
    for name, value in tried.items():
        fields = {**free, name: value}
        seen = await ask(replace(dialect, fields=fields, min_tokens=False), osl=OUTPUT_TOKENS)
        notes.add(
            findings.effective(
                findings.accepted(name, seen, f"{why}, unless another field holds them"), seen, left
            )
        )
    if "max_completion_tokens" in api.limits:
        limited = replace(dialect, fields=wanted, min_tokens=False, limit="max_completion_tokens")
        why = "max_tokens is used instead: nothing is lost"
        notes.add(findings.accepted("max_completion_tokens", await ask(limited), why))
    else:
        notes.add(findings.inapplicable("max_completion_tokens"))


async def _cached_tokens(ask: _Ask, dialect: Dialect) -> Finding:
    """One prompt several times: what of it does the server say it found again?"""
    name = "cached_tokens"
    prompt = known_words(dialect.template.form, ("user",), (CACHED_WORDS,), _key())
    records = []
    for _ in range(CACHED_TIMES):
        seen = await ask(dialect, prompt, words=CACHED_WORDS)
        records.append(seen.record)
        if seen.status != 200:
            return Finding(name, "not known", None, seen.words)
    if all(record.isl is None for record in records):
        return Finding(name, "no usage", None)
    counts = [record.cached for record in records[1:] if record.cached is not None]
    if not counts and records[0].cached is None:
        why = (
            "prefix reuse by the server stays unknown; vLLM says it with "
            "--enable-prompt-tokens-details"
        )
        return Finding(name, "not sent", False, why)
    found, isl = max(counts, default=0), max(record.isl or 0 for record in records)
    value = f"{found} of {isl} found again"
    if not found:
        why = (
            "a prompt sent again was computed again: prefix caching is off, its blocks are longer "
            "than this prompt, or a router sent it elsewhere"
        )
        return Finding(name, value, False, why)
    return Finding(name, value, True)


async def _history(ask: _Ask, dialect: Dialect) -> Finding:
    """Whether a turn costs the same, first or second: only then are old turns left as they were.

    Both turns have the same text, so that it costs the same with any tokenizer.
    """
    template = dialect.template
    if template.form != "messages":
        return Finding("history", "no messages", None)
    user, *turn = known_words("messages", ("user", "assistant", "user"), (SHORT_WORDS,) * 3, _key())
    counts = []
    for messages in ([user], [user, *turn], [user, *turn, *turn]):
        seen = await ask(dialect, messages, words=SHORT_WORDS * len(messages))
        if seen.record.isl is None:
            return Finding("history", "not known", None, seen.words)
        counts.append(seen.record.isl)
    once, again = counts[1] - counts[0], counts[2] - counts[1]
    # A template without any assistant's turn is additive, too, but too cheap for their words.
    least = 1.5 * SHORT_WORDS * template.tokens_per_word
    if once == again and once >= least:
        return Finding("history", "kept", True)
    if once == again:
        why = "assistant turns are left out of the prompt: it is shorter than recorded"
        return Finding("history", "left out", False, f"{why} (a turn of 40 words adds {once})")
    why = (
        f"the chat template rewrites old turns (a turn adds {once} tokens, the next {again}): "
        "prefix reuse is lost from there on, and prompts are not as long as recorded"
    )
    return Finding("history", "rewritten", False, why)


async def _round_trip(ask: _Ask, dialect: Dialect) -> Finding:
    """The fastest of some answers of one token: no TTFT of a run can be lower."""
    times_s = []
    for _ in range(ROUND_TRIPS):
        record = (await ask(dialect)).record
        if record.first_token_ns is not None:
            times_s.append((record.first_token_ns - record.sent_ns) / 1e9)
    if not times_s:
        return Finding("round_trip_s", "not known", None, "no answer of one token had any text")
    return Finding("round_trip_s", round(min(times_s), 6), True)


async def _beside(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    name: str,
    body: Mapping[str, Any] | None,
    what: str,
) -> Finding:
    """Whether the server answers next to its API; servers have these above their /v1."""
    parts = urlsplit(beside(endpoint.urls[0], ""))
    path = f"{parts.path.removesuffix('/v1')}/{name}"
    url = urlunsplit(parts._replace(path=path))
    said = f"no answer within {CONNECT_S:.0f} s"
    with anyio.move_on_after(CONNECT_S):
        try:
            method = "GET" if body is None else "POST"
            headers = {"accept": "*/*"}
            async with client.stream(method, url, json=body, headers=headers) as response:
                if response.status_code == 200:
                    return Finding(name, path, True)
                said = f"HTTP {response.status_code}"
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
    return Finding(name, "none", False, f"{path}: {said}: {what}")
