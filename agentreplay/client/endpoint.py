"""An OpenAI-compatible endpoint: where it is, what it serves, how its chat template counts."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import httpx

from agentreplay.client.exchange import exchange, transport_failure
from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.client.transport import Transport
from agentreplay.errors import AgentReplayError
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Role, Template, known_words
from agentreplay.wire import chat

CONNECT_S = 5.0
SILENCE_S = 600.0
"""An answer that sends no byte for so long is given up. Long, since a queue is no fault."""

CALIBRATION_S = 30.0
BODY_BYTES = 65_536

SIMULATED_HEADER = "x-simulated-server"

_SHORT, _LONG = 20, 220
_DIALECTS: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True}, "ignore_eos": True},
    {"stream_options": {"include_usage": True}},
    {},
)
"""Optional fields of a body, tried in this order: strict servers refuse what they don't know."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as the user names it.

    Attributes:
        url: The full address of chat completions.
        model: The model to ask for; None to take the first that the server lists.
        api_key: Sent as a bearer token; never written anywhere.
        headers: Further headers.
        fields: Further fields of every body.
        calibrate: Whether to measure the chat template first.
    """

    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    calibrate: bool = True


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of an endpoint before a run.

    Attributes:
        dialect: How requests will look.
        tokens_per_word: Of the prompt's words; None where not measured.
        simulated: Profile of a simulated server; None for a real one.
        failure: Why the template could not be measured; None where it was, or was not asked for.
    """

    dialect: Dialect
    tokens_per_word: float | None = None
    simulated: str | None = None
    failure: Failure | None = None


def chat_url(url: str) -> str:
    """The address of chat completions, from a host, its /v1, or the full path.

    Raises:
        AgentReplayError: it is no http or https address.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise AgentReplayError(f"{url!r} is no address: write it as http://host:port or .../v1")
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions" if path.endswith("/v1") else "/v1/chat/completions"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def models_url(endpoint_url: str) -> str:
    """The address of the list of models, beside that of chat completions."""
    parts = urlsplit(endpoint_url)
    path = parts.path.removesuffix("/chat/completions") + "/models"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def open_client(
    endpoint: Endpoint, clock: Callable[[], int], ssl_context: ssl.SSLContext | None = None
) -> httpx.AsyncClient:
    """A client for the endpoint whose transport stamps what arrives with *clock*."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "accept-encoding": "identity",
    }
    if endpoint.api_key:
        headers["authorization"] = f"Bearer {endpoint.api_key}"
    headers.update(endpoint.headers)
    return httpx.AsyncClient(
        transport=Transport(clock, ssl_context=ssl_context),
        headers=headers,
        timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
    )


def http_stream(client: httpx.AsyncClient, url: str, clock: Callable[[], int]) -> Stream:
    """Send requests to *url*.

    Our transport hands the events over as they arrive. Where another one is in use, or the
    response is compressed, the same bytes come by the client's own iteration.
    """

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        extensions = {"sse_sink": sink}
        async with client.stream("POST", url, content=body, extensions=extensions) as response:
            kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
            said = b""
            if response.extensions.get("sink_used"):
                async for _ in response.aiter_raw():
                    pass
            elif response.status_code == 200 and kind == "text/event-stream":
                async for data in response.aiter_bytes():
                    sink(clock(), data)
            else:
                said = await _first_bytes(response)
            reconnected = bool(response.extensions.get("reconnected"))
            return Reply(response.status_code, kind, said, reconnected)

    return stream


async def _first_bytes(response: httpx.Response) -> bytes:
    body = b""
    async for data in response.aiter_bytes():
        body += data
        if len(body) >= BODY_BYTES:
            break
    return body[:BODY_BYTES]


async def calibrate(
    endpoint: Endpoint, client: httpx.AsyncClient, clock: Callable[[], int]
) -> Calibration:
    """Ask what is served, and measure the chat template by four requests of one token each.

    What fails is told in the result: whether the endpoint works shows in the run.
    """
    fields = {**_DIALECTS[0], **endpoint.fields}
    known = Calibration(Dialect(endpoint.model or "default", Template(), fields))
    with anyio.move_on_after(CALIBRATION_S):
        known = await _ask_models(endpoint, client, known)
        if known.failure or not endpoint.calibrate:
            return known
        stream = http_stream(client, endpoint.url, clock)
        return await _measure(stream, clock, known, endpoint.fields)
    return replace(
        known, failure=Failure("timeout", None, f"no answer within {CALIBRATION_S:.0f} s")
    )


async def _ask_models(
    endpoint: Endpoint, client: httpx.AsyncClient, known: Calibration
) -> Calibration:
    """Take the first model of the server's list, where none was named and there is a list.

    Not every server has a list; that nobody answers at all is a failure.
    """
    try:
        response = await client.get(models_url(endpoint.url), timeout=CONNECT_S)
        names = [model["id"] for model in response.json()["data"]]
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return replace(known, failure=transport_failure(error))
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return known
    known = replace(known, simulated=response.headers.get(SIMULATED_HEADER))
    if endpoint.model is None and names:
        known = replace(known, dialect=replace(known.dialect, model=str(names[0])))
    return known


async def _measure(
    stream: Stream, clock: Callable[[], int], known: Calibration, fields: Mapping[str, Any]
) -> Calibration:
    """Four prompts of known words tell what the template adds to a prompt and to a message."""
    asked = known
    for optional in _DIALECTS:
        asked = replace(known, dialect=replace(known.dialect, fields={**optional, **fields}))
        first = await _one_token(stream, clock, asked.dialect, ("user",), (_SHORT,))
        if first.error is None or first.error.kind != "http_4xx":
            break
    if first.isl is None and first.error is not None:
        return replace(known, failure=first.error)
    known = asked
    records: dict[str, Record] = {}

    async def ask(name: str, roles: tuple[Role, ...], counts: tuple[int, ...]) -> None:
        records[name] = await _one_token(stream, clock, known.dialect, roles, counts)

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "long", ("user",), (_LONG,))
        group.start_soon(ask, "system", ("system", "user"), (_SHORT, _SHORT))
        group.start_soon(ask, "pair", ("user", "assistant", "user"), (_SHORT,) * 3)
    short, long, pair = first.isl, records["long"].isl, records["pair"].isl
    system = records["system"]
    if short is None or long is None or pair is None:
        failed = records["long"].error or records["pair"].error
        what = Failure("bad_stream", 200, "the server sends no usage, so it can't be measured")
        return replace(known, failure=failed or what)
    if system.isl is None and system.error is not None and system.error.kind != "http_4xx":
        return replace(known, failure=system.error)
    slope = (long - short) / (_LONG - _SHORT)
    words = slope * _SHORT
    template = Template(
        prompt=round(short - words),
        system=None if system.isl is None else round(system.isl - short - words),
        pair=round(pair - short - 2 * words),
    )
    return replace(known, dialect=replace(known.dialect, template=template), tokens_per_word=slope)


async def _one_token(
    stream: Stream,
    clock: Callable[[], int],
    dialect: Dialect,
    roles: tuple[Role, ...],
    counts: tuple[int, ...],
) -> Record:
    isl = sum(counts)
    request = Request(
        lane=-1,
        visit=0,
        session="calibration",
        index=-1,
        call=0,
        calls=1,
        agent="",
        due_ns=clock(),
        isl=isl,
        osl=1,
        overlong=0,
        block=1,
        shared=0,
        reuse=0,
        recorded_s=None,
        gap_cut_s=0.0,
    )
    body = chat.body(dialect.model, known_words(roles, counts, clock()), 1, dialect.fields)
    return await exchange(stream, request, body, clock, lambda record: None)
