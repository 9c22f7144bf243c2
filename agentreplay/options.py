"""Options that several commands share, and what they mean. Parsing only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from math import inf
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import click

from agentreplay import units
from agentreplay.errors import AgentReplayError, TraceError

if TYPE_CHECKING:
    from agentreplay.client.endpoint import Endpoint
    from agentreplay.metrics.condition import Condition
    from agentreplay.metrics.cost import Money, Prices
    from agentreplay.trace.load import TraceSet


class Section(click.Option):
    """The first option of a section of the help; those declared after it stand there, too."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class Sectioned(click.Command):
    """A command whose help shows its options by purpose."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of one section together."""
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        section = SECTIONS[-1]
        for param in self.get_params(ctx):
            if isinstance(param, Section):
                section = param.section
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


SECTIONS = (
    *("Traces", "Endpoint", "Load", "Warm-up", "Timing", "Limits and errors", "Scenario"),
    "Output",
)
"""In this order, and others after them."""


def workers(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """How many processes, or `auto`; None where it isn't said."""
    if value is None or value == "auto":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number from 1 on nor 'auto'")
    return int(value)


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, of a duration with its unit."""
    if value is None:
        return None
    try:
        return units.seconds(value)
    except AgentReplayError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def gap(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """The same, or `none`."""
    return None if value == "none" else duration(ctx, param, value)


def share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A share between 0 and 1, of one as 10%."""
    if value is None:
        return None
    try:
        return units.share(value)
    except AgentReplayError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def conditions(read: Callable[[str], Condition]) -> Callable[..., tuple[Condition, ...]]:
    """Conditions, of what *read* makes of each text; one that is given twice counts once."""

    def callback(
        ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[Condition, ...]:
        try:
            return tuple({each.text: each for each in map(read, values)}.values())
        except AgentReplayError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def request_limit(text: str) -> Condition:
    """A limit on single requests."""
    from agentreplay.metrics import goodput

    return goodput.request_limit(text)


def start(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, float] | None:
    """Two shares of a session's recorded span, or None for `beginning`."""
    if value == "beginning":
        return None
    kind, colon, span = value.partition(":")
    low, _, high = (span if colon else "0%-100%").partition("-")
    try:
        found = units.share(low), units.share(high)
    except AgentReplayError:
        found = 1.0, 0.0
    if kind != "spread" or found[0] > found[1]:
        raise click.BadParameter(
            f"{value!r} is no start: write beginning, spread or spread:25%-75%", ctx, param
        )
    return found


def from_to(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    """A range of positive numbers, as 5-60."""
    low, _, high = value.partition("-")
    if not (low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
        raise click.BadParameter(f"{value!r} is no range: write it as 5-60", ctx, param)
    return int(low), int(high)


def instant(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A date, a date with a time, or how long ago."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).astimezone().timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return time() - units.seconds(value)
    except AgentReplayError:
        raise click.BadParameter(
            f"{value!r} is no time: write 2026-01-31, 2026-01-31T14:00 or 7d for so long ago",
            ctx,
            param,
        ) from None


def prices(ctx: click.Context, param: click.Parameter, value: str | None) -> Prices | None:
    """Prices as name=dollars, separated by commas."""
    from agentreplay.metrics.cost import Prices

    if value is None:
        return None
    read = {}
    for each in value.split(","):
        name, _, dollars = each.partition("=")
        try:
            read[name.strip()] = float(dollars)
        except ValueError:
            read = {}
            break
    if read.keys() != {"input", "cached", "output"} or not all(
        0 <= each < inf for each in read.values()
    ):
        raise click.BadParameter(
            f"{value!r}: write dollars a million tokens, as input=3,cached=0.3,output=15",
            ctx,
            param,
        )
    return Prices(**read)


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Bytes, of a size with its unit."""
    if value is None:
        return None
    try:
        return units.size(value)
    except AgentReplayError as error:
        raise click.BadParameter(str(error), ctx, param) from None


PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
HTML = click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the same as a page to look at.",
)
EXPORT = click.option(
    "--export",
    "exports",
    multiple=True,
    type=click.Choice(["inferencex", "aiperf"]),
    help="Write the run as AIPerf does into the run directory, for InferenceX's or other tools.",
)
SEED = click.option("--seed", type=int, default=42, show_default=True, help="Of --sample.")

MONEY = (
    click.option(
        "--gpus",
        cls=Section,
        section="Output",
        type=click.IntRange(1),
        help="GPUs that serve, for tokens a second of one.",
    ),
    click.option(
        "--gpu-hour",
        type=click.FloatRange(0, min_open=True),
        metavar="DOLLARS",
        help="What an hour of a GPU costs, for tokens per dollar; needs --gpus.",
    ),
    click.option(
        "--prices",
        callback=prices,
        metavar="PRICES",
        help="Dollars a million tokens, as input=3,cached=0.3,output=15, for the bill.",
    ),
)
"""Options that make money of a run's figures."""

TRACES = (
    click.option(
        "--strict",
        cls=Section,
        section="Traces",
        is_flag=True,
        help="A file that can't be read is an error.",
    ),
    click.option(
        "--format",
        "form",
        metavar="NAME",
        help="Read everything as this format.  [default: seen from the content]",
    ),
    click.option("--since", callback=instant, metavar="TIME", help="Sessions begun then or later."),
    click.option("--until", callback=instant, metavar="TIME", help="Sessions begun before."),
    click.option("--project", metavar="PART", help="Sessions whose project's path has this in it."),
    click.option("--recorded-model", metavar="PART", help="Sessions with calls of such a model."),
    click.option("--min-calls", type=click.IntRange(1), help="Sessions of so many calls or more."),
    click.option("--sample", type=click.IntRange(1), help="So many of them, drawn by the seed."),
    click.option(
        "--gap",
        "gap_s",
        callback=duration,
        metavar="DURATION",
        help="Time between calls, for logs without times.",
    ),
    click.option(
        "--chars-per-token",
        type=click.FloatRange(0, min_open=True),
        help="Length of a token, for logs of texts without lengths.",
    ),
    click.option(
        "--turn-lengths",
        type=click.Choice(["delta", "full"]),
        help="What rows of Mooncake sessions hold, where it can't be seen: new tokens, or all.",
    ),
)
"""Options that say which recorded sessions are meant, and what their logs don't say."""

_WHICH = (
    "strict form since until project recorded_model min_calls sample gap_s chars_per_token "
    "turn_lengths"
).split()


ADDRESSED = (
    click.option(
        "--api",
        type=click.Choice(["chat", "completions", "responses", "messages"]),
        default="chat",
        show_default=True,
        help="API to speak.",
    ),
    click.option("--model", help="Model to ask for.  [default: the first one served]"),
    click.option(
        "--api-key",
        envvar=["AGENTREPLAY_API_KEY", "OPENAI_API_KEY"],
        help="Bearer token; also from AGENTREPLAY_API_KEY or OPENAI_API_KEY. Never stored.",
    ),
    click.option("--header", "headers", multiple=True, help="Further header, as 'Name: value'."),
    click.option("--body", help="Further fields of each request body, as a JSON object."),
    click.option("--ca", help="File of certificates to trust."),
    click.option("--insecure", is_flag=True, help="Trust any certificate."),
)
"""Options that say how an endpoint is spoken to."""


def traces(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the paths of traces and all options about them, as one value `which`."""
    names = ("paths", *_WHICH)

    @wraps(command)
    def packed(**values: Any) -> None:
        which = {name: values.pop(name) for name in names}
        command(which=which, **values)

    for option in reversed(TRACES):
        packed = option(packed)
    return PATHS(packed)


def opened(
    *,
    paths: tuple[Path, ...],
    since: float | None,
    until: float | None,
    project: str | None,
    recorded_model: str | None,
    min_calls: int | None,
    sample: int | None,
    seed: int,
    **reading: Any,
) -> TraceSet:
    """The trace set that the options of `traces` and a seed describe; it may be empty."""
    from agentreplay.trace.choice import Choice
    from agentreplay.trace.load import open_set

    choice = Choice(since, until, project, recorded_model, min_calls, sample, seed)
    return open_set(*paths, choice=choice, **reading)


def loaded(**which: Any) -> TraceSet:
    """The same, with at least one session."""
    trace = opened(**which)
    if not trace:
        raise TraceError(trace.nothing())
    return trace


def priced(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that make money of a run's figures, as one value `money`."""
    from agentreplay.metrics.cost import Money

    @wraps(command)
    def packed(
        gpus: int | None, gpu_hour: float | None, prices: Prices | None, **values: Any
    ) -> None:
        command(money=Money(gpus, gpu_hour, prices), **values)

    for option in reversed(MONEY):
        packed = option(packed)
    return packed


def sensible(money: Money) -> Money:
    """The same, unless something is missing without which the rest says nothing."""
    if money.gpu_hour is not None and money.gpus is None:
        raise AgentReplayError("--gpu-hour needs --gpus: it is the price of one of them")
    return money


def addressed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how an endpoint is spoken to."""
    for option in reversed(ADDRESSED):
        command = option(command)
    return command


def endpoint_of(
    *,
    urls: tuple[str, ...],
    api: str,
    model: str | None,
    api_key: str | None,
    headers: tuple[str, ...],
    body: str | None,
    ca: str | None,
    insecure: bool,
    token_ids: bool = False,
    tool_messages: bool = False,
    session_header: str = "none",
    connection_per_session: bool = False,
    calibrate: bool = True,
    connect_s: float = 5.0,
    metrics_urls: tuple[str, ...] = (),
) -> Endpoint | None:
    """What to send to; None without an address."""
    import orjson

    from agentreplay.client.endpoint import APIS, Endpoint, api_url, metrics_url

    pairs = []
    for header in headers:
        name, colon, content = header.partition(":")
        if not colon or not name.strip():
            raise AgentReplayError(f"--header {name!r}: write it as 'Name: value'")
        pairs.append((name.strip(), content.strip()))
    fields: dict[str, Any] = {}
    if body is not None:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise AgentReplayError(f"--body is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise AgentReplayError("--body must be a JSON object, as '{\"temperature\": 0}'")
    if token_ids and api != "completions":
        raise AgentReplayError("--token-ids needs --api completions: other APIs take text only")
    if tool_messages and api != "chat":
        raise AgentReplayError("--tool-messages needs --api chat: other APIs have other forms")
    if not urls:
        if model or pairs or fields or api != "chat":
            raise AgentReplayError("--api, --model, --header and --body need --url")
        if metrics_urls:
            raise AgentReplayError("--metrics-url needs --url: the simulated server has its own")
        return None
    return Endpoint(
        urls=tuple(api_url(url, APIS[api]) for url in urls),
        api=APIS[api],
        model=model,
        api_key=api_key,
        headers=tuple(pairs),
        fields=fields,
        calibrate=calibrate,
        token_ids=token_ids,
        tool_messages=tool_messages,
        session_header=None if session_header == "none" else session_header,
        connection_per_session=connection_per_session,
        connect_s=connect_s,
        ca=ca,
        insecure=insecure,
        metrics_urls=tuple(map(metrics_url, metrics_urls)),
    )
