"""Learn before a run how an endpoint wants its requests, and how it counts a prompt. I/O.

Four requests of one token of known words tell what the chat template adds to a prompt and to a
message, and what a word costs; no tokenizer is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import anyio
import httpx
import orjson

from agentreplay.client.endpoint import Endpoint, beside, http_stream, masked, page
from agentreplay.client.exchange import exchange, transport_failure
from agentreplay.client.stream import Stream
from agentreplay.metrics.record import Failure, Record, Request
from agentreplay.play import Dialect
from agentreplay.prompt.messages import TOOLS, Form, Role, Template, known_words
from agentreplay.wire import completions

LONGEST_S = 30.0
"""A server that is too busy to answer in this time is replayed against unmeasured."""

SIMULATED_HEADER = "x-simulated-server"

REFUSED = (400, 422)
"""How servers answer fields that they don't know."""

SHORT_WORDS, LONG_WORDS = 20, 220

TOOL_FIELDS: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none"}
"""What goes with tool messages. The answer is text all the same: its length is what counts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is known of an endpoint before a run.

    Attributes:
        dialect: How requests will look.
        measured: The template was measured.
        simulated: Profile of a simulated server; None for a real one.
        context_tokens: Longest prompt and answer together, where the server says so.
        failure: Why the template could not be measured; None where it was, or was not asked for.
    """

    dialect: Dialect
    measured: bool = False
    simulated: str | None = None
    context_tokens: int | None = None
    failure: Failure | None = None


async def calibrate(
    endpoint: Endpoint, client: httpx.AsyncClient, clock: Callable[[], int]
) -> Calibration:
    """Ask what is served, and measure the chat template.

    What fails is told in the result: whether the endpoint works shows in the run.
    """
    known = await _calibrate(endpoint, client, clock)
    return (
        known if known.failure is None else replace(known, failure=masked(endpoint, known.failure))
    )


async def _calibrate(
    endpoint: Endpoint, client: httpx.AsyncClient, clock: Callable[[], int]
) -> Calibration:
    form: Form = "messages"
    if endpoint.api is completions.API:
        form = "ids" if endpoint.token_ids else "text"
    known = Calibration(
        Dialect(
            model=endpoint.model or "default",
            template=Template(form=form),
            fields={**endpoint.api.optional[0], **endpoint.fields},
            api=endpoint.api,
        )
    )
    with anyio.move_on_after(LONGEST_S):
        known = await _ask_models(endpoint, client, known)
        if endpoint.tool_messages:
            fields = {**known.dialect.fields, **TOOL_FIELDS}
            template = replace(known.dialect.template, tools=True)
            known = replace(known, dialect=replace(known.dialect, fields=fields, template=template))
        if known.failure or not endpoint.calibrate:
            return known
        stream = http_stream(client, endpoint, clock, f"calibration-{clock()}")
        asked, first = await _accepted(endpoint, stream, clock, known)
        if first.isl is None and first.error is not None:
            return replace(known, failure=first.error)
        return await _measure(stream, clock, asked, first)
    return replace(known, failure=Failure("timeout", None, f"no answer within {LONGEST_S:.0f} s"))


async def _ask_models(
    endpoint: Endpoint, client: httpx.AsyncClient, known: Calibration
) -> Calibration:
    """Take the first model of the server's list, where none was named and there is a list.

    Not every server has a list; that nobody answers at all is a failure.
    """
    try:
        models, simulated = await served_models(endpoint.urls[0], client)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return replace(known, failure=transport_failure(error))
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return known
    name = endpoint.model or next(iter(models), known.dialect.model)
    model = models.get(name, {})
    length = model.get("max_model_len")
    if model.get("owned_by") == "llamacpp":
        length = await _llamacpp_context(endpoint, client)
    return replace(
        known,
        dialect=replace(known.dialect, model=name),
        simulated=simulated,
        context_tokens=length if type(length) is int and length > 0 else None,
    )


async def served_models(
    url: str, client: httpx.AsyncClient
) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The list of models beside an API, by name, and the profile of a simulated server.

    Raises:
        httpx.HTTPError, ValueError, KeyError, TypeError: there is no such list.
    """
    response, body = await page(client, beside(url, "/models"))
    models = {str(model["id"]): model for model in orjson.loads(body)["data"]}
    return models, response.headers.get(SIMULATED_HEADER)


async def _llamacpp_context(endpoint: Endpoint, client: httpx.AsyncClient) -> object:
    """llama.cpp lists what the model was trained for; what a request gets, it says elsewhere."""
    try:
        _, body = await page(client, httpx.URL(endpoint.urls[0]).copy_with(raw_path=b"/props"))
        return orjson.loads(body)["default_generation_settings"]["n_ctx"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


async def _accepted(
    endpoint: Endpoint, stream: Stream, clock: Callable[[], int], known: Calibration
) -> tuple[Calibration, Record]:
    """Find out by the shortest prompt which names and fields the server takes."""

    async def ask(dialect: Dialect) -> tuple[Record, bool]:
        record = await _one_token(stream, clock, dialect, ("user",), (SHORT_WORDS,))
        return record, record.error is None or record.error.status not in REFUSED

    for limit in endpoint.api.limits:
        for optional in endpoint.api.optional:
            tools = TOOL_FIELDS if endpoint.tool_messages else {}
            fields = {**optional, **tools, **endpoint.fields}
            dialect = replace(known.dialect, fields=fields, limit=limit)
            record, taken = await ask(dialect)
            if taken and "ignore_eos" not in fields:
                least, taken_too = await ask(replace(dialect, min_tokens=True))
                if least.error is None and taken_too:
                    dialect = replace(dialect, min_tokens=True)
            if taken:
                return replace(known, dialect=dialect), record
    return known, record


async def _measure(
    stream: Stream, clock: Callable[[], int], known: Calibration, first: Record
) -> Calibration:
    """Compare prompts of known words: *first* had a short user message only."""
    asked: dict[str, tuple[tuple[Role, ...], tuple[int, ...]]] = {
        "long": (("user",), (LONG_WORDS,))
    }
    template = known.dialect.template
    if template.form == "messages":
        asked["system"] = ("system", "user"), (SHORT_WORDS,) * 2
        asked["pair"] = ("user", "assistant", "user"), (SHORT_WORDS,) * 3
    if template.tools:
        asked["bare"] = ("user",), (SHORT_WORDS,)
    records: dict[str, Record] = {}

    async def ask(name: str, roles: tuple[Role, ...], counts: tuple[int, ...]) -> None:
        dialect = known.dialect
        if name == "bare":
            fields = {k: v for k, v in dialect.fields.items() if k not in TOOL_FIELDS}
            dialect = replace(dialect, fields=fields)
        records[name] = await _one_token(stream, clock, dialect, roles, counts)

    async with anyio.create_task_group() as group:
        for name, (roles, counts) in asked.items():
            group.start_soon(ask, name, roles, counts)
    system = records.pop("system", None)
    if first.isl is None or any(record.isl is None for record in records.values()):
        failed = next((record.error for record in records.values() if record.error), None)
        what = Failure("bad_stream", 200, "the server sends no usage, so it can't be measured")
        return replace(known, failure=failed or what)
    isl = {name: record.isl or 0 for name, record in records.items()}
    slope = (isl["long"] - first.isl) / (LONG_WORDS - SHORT_WORDS)
    if slope <= 0:
        what = Failure("bad_stream", 200, "the server counts a longer prompt as no longer")
        return replace(known, failure=what)
    words = slope * SHORT_WORDS
    bare = isl.get("bare", first.isl)
    template = replace(
        template,
        tokens_per_word=slope,
        prompt=round(bare - words),
        head=first.isl - bare,
    )
    if system is not None:
        if system.isl is not None:
            template = replace(template, system=round(system.isl - first.isl - words))
        elif system.error is not None and system.error.status in REFUSED:
            template = replace(template, system=None)
        else:
            return replace(known, failure=system.error)
        template = replace(template, pair=round(isl["pair"] - first.isl - 2 * words))
    return replace(known, dialect=replace(known.dialect, template=template), measured=True)


async def _one_token(
    stream: Stream,
    clock: Callable[[], int],
    dialect: Dialect,
    roles: tuple[Role, ...],
    counts: tuple[int, ...],
) -> Record:
    request = lone_request(clock(), sum(counts), 1)
    template = dialect.template
    messages = known_words(template.form, roles, counts, clock(), tools=template.tools)
    body = dialect.body(messages, 1)
    return await exchange(stream, dialect.api, request, body, clock, lambda record: None)


def lone_request(due_ns: int, isl: int, osl: int) -> Request:
    """A request that belongs to no recorded session."""
    return Request(
        lane=0,
        visit=0,
        session="calibration",
        index=0,
        call=0,
        calls=1,
        agent="",
        due_ns=due_ns,
        isl=isl,
        osl=osl,
        overlong=0,
        block=1,
        shared=0,
        reuse=0,
        history="recorded",
        recorded_s=None,
        gap_cut_s=0.0,
    )
