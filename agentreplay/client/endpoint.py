"""An OpenAI-compatible endpoint: where it is, and how requests get there."""

from __future__ import annotations

import base64
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx

from agentreplay.client.arrivals import Arrivals
from agentreplay.client.stream import Reply, Sink, Stream
from agentreplay.client.transport import Transport
from agentreplay.errors import AgentReplayError
from agentreplay.metrics.record import Failure, Request
from agentreplay.wire import chat, completions, messages, responses
from agentreplay.wire.api import Api

APIS: dict[str, Api] = {
    module.API.name: module.API for module in (chat, completions, responses, messages)
}

CONNECT_S = 5.0
SILENCE_S = 600.0
"""An answer that sends no byte for so long is given up. Long, since a queue is no fault."""

BODY_BYTES = 65_536
"""So much of a refusal is read."""

PAGE_BYTES = 16 << 20
"""No list of models is longer."""

ANTHROPIC_VERSION = "2023-06-01"
"""The messages API is asked for with the version of its form."""

SECRET_WORDS = ("key", "token", "secret", "sig", "pass", "auth", "code")
MASK = "***"
SHORTEST_SECRET = 6

_UNQUOTED = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-._~")
"""Of a unix socket's path, what stands for itself in a host, which is read in lower case."""

SESSION_HEADER = "X-Session-ID"
REQUEST_HEADER = "X-Request-ID"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as the user names it.

    Attributes:
        urls: Full addresses of the API; with several, each play of a session keeps to one.
        metrics_urls: Where the server's metrics are; none for /metrics on the hosts of `urls`.
        api: The API to speak.
        model: The model to ask for; None to take the first that the server lists.
        api_key: Sent as a bearer token (and, with Anthropic's API, in its own header); never
            written anywhere.
        headers: Further headers.
        fields: Further fields of every body.
        calibrate: Whether to measure the chat template first.
        token_ids: Completions are asked for by token ids instead of text.
        tool_messages: What follows an assistant's turn is sent as the result of a tool call.
        session_header: Header that names the play of a session to routers; None for none.
        connection_per_session: Each play of a session has connections of its own.
        connect_s: How long a connection may take to be set up.
        ca: File of certificates to trust; None for the system's.
        insecure: Trust any certificate.
    """

    urls: tuple[str, ...]
    api: Api = chat.API
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    calibrate: bool = True
    token_ids: bool = False
    tool_messages: bool = False
    session_header: str | None = SESSION_HEADER
    connection_per_session: bool = False
    connect_s: float = CONNECT_S
    ca: str | None = None
    insecure: bool = False
    metrics_urls: tuple[str, ...] = ()

    def mask(self, text: str) -> str:
        """*text* without what nobody must read; servers repeat keys that they refuse."""
        for secret in self._secrets():
            text = text.replace(secret, MASK)
        return text

    def _secrets(self) -> list[str]:
        """Longest first, so that none is left in parts; very short ones hide nothing."""
        found = [value for _, value in self.headers]
        found += [value.removeprefix("Bearer ") for value in found]
        found.append(self.api_key or "")
        for url in (*self.urls, *self.metrics_urls):
            parts = urlsplit(url)
            for pair in parts.query.split("&"):
                name, _, value = pair.partition("=")
                if is_secret(name):
                    found += (value, unquote_plus(value))
            if parts.password:
                found += (parts.password, unquote(parts.password))
                user = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
                found.append(base64.b64encode(user.encode()).decode())
        return sorted((text for text in found if len(text) >= SHORTEST_SECRET), key=len)[::-1]


def api_url(url: str, api: Api = chat.API) -> str:
    """The full address of an API, from a host, its /v1, or the full address.

    `unix:/path/of/socket` is a unix socket, with `:/v1` and the like behind it if need be; it
    becomes `unix://` with the path, quoted, as the host.

    Raises:
        AgentReplayError: it is no http or https address, and no unix socket.
    """
    parts = _parts(url, "http://host:port or .../v1", unix=True)
    path = _base(parts.path.rstrip("/"))
    if not path.endswith("/v1") and path == parts.path.rstrip("/"):
        path += "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path + api.path, parts.query, ""))


def metrics_url(url: str) -> str:
    """The full address of a page of metrics, from a host or that address.

    Raises:
        AgentReplayError: it is no http or https address.
    """
    parts = _parts(url, "http://host:port or .../metrics")
    path = parts.path if parts.path.strip("/") else "/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def metrics_pages(endpoint: Endpoint) -> list[str]:
    """The full addresses of the metrics of an endpoint, each once."""
    hosts = [urlunsplit((*urlsplit(url)[:2], "/metrics", "", "")) for url in endpoint.urls]
    return list(dict.fromkeys(endpoint.metrics_urls or hosts))


def _parts(url: str, form: str, *, unix: bool = False) -> SplitResult:
    """The parts of an http or https address, which may lack its scheme, or of a unix socket."""
    schemes: tuple[str, ...] = ("http", "https")
    whole = url if "://" in url else f"http://{url}"
    if unix:
        schemes += ("unix",)
        if re.match("unix:(?!//[^/])", url):
            whole = _unix_url(url)
    try:
        parts = urlsplit(whole)
        if parts.scheme in schemes and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # as a port that is no number
    raise AgentReplayError(f"{url!r} is no address: write it as {form}")


def _unix_url(url: str) -> str:
    """A unix socket and what may follow it as an address that libraries can take apart."""
    path, colon, rest = url.removeprefix("unix:").removeprefix("//").partition(":/")
    host = "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02x}" for byte in os.fsencode(path))
    return f"unix://{host}{'/' if colon else ''}{rest}"


def beside(url: str, path: str) -> str:
    """An address below the same base as the full address *url* of an API."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, _base(parts.path) + path, parts.query, ""))


def shown(url: str) -> str:
    """An address without the user's name, password and keys in it, for people and files."""
    parts = urlsplit(url)
    pairs = [pair.partition("=") for pair in parts.query.split("&")]
    query = "&".join(
        name + equals + (MASK if value and is_secret(name) else value)
        for name, equals, value in pairs
    )
    if parts.scheme == "unix":
        rest = urlunsplit(("", "", parts.path, query, ""))
        return f"unix:{unquote(parts.netloc)}" + (f":{rest}" if rest else "")
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query))


def masked(endpoint: Endpoint, failure: Failure) -> Failure:
    """A failure whose words hold none of the endpoint's secrets."""
    return replace(failure, message=endpoint.mask(failure.message))


def is_secret(name: str) -> bool:
    """Whether what goes by this name should not be told."""
    return any(word in name.lower() for word in SECRET_WORDS)


def _base(path: str) -> str:
    """A path without the API at its end, if there is one."""
    for known in APIS.values():
        if path.endswith(known.path):
            return path.removesuffix(known.path)
    return path


def open_client(
    endpoint: Endpoint, clock: Callable[[], int], arrivals: Arrivals | None = None
) -> httpx.AsyncClient:
    """A client for the endpoint whose transport stamps what arrives with *clock*.

    With *arrivals*, of the same clock, it takes these stamps, which are the kernel's where it can.

    Raises:
        AgentReplayError: the file of certificates can't be read.
    """
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "accept-encoding": "identity",
    }
    if endpoint.api is messages.API:
        headers["anthropic-version"] = ANTHROPIC_VERSION
    if endpoint.api_key:
        headers["authorization"] = f"Bearer {endpoint.api_key}"
        if endpoint.api is messages.API:
            headers["x-api-key"] = endpoint.api_key  # Anthropic's own servers look here
    headers.update(endpoint.headers)
    client = httpx.AsyncClient(
        transport=_transport(endpoint, clock, arrivals),
        headers=headers,
        timeout=httpx.Timeout(SILENCE_S, connect=endpoint.connect_s),
    )
    client._cookies = _Cookies()
    return client


class _Cookies(httpx.Cookies):
    """Looks at responses that set a cookie only.

    To look at one, httpx makes a request and a response of urllib's of it, which was a fourth of
    all that a request costs.
    """

    def extract_cookies(self, response: httpx.Response) -> None:
        """Keep what *response* sets."""
        if "set-cookie" in response.headers:
            super().extract_cookies(response)


def _transport(
    endpoint: Endpoint, clock: Callable[[], int], arrivals: Arrivals | None
) -> httpx.AsyncBaseTransport:
    """Ours, unless the environment names a proxy for this host: that is httpx's own to speak."""
    context = _ssl_context(endpoint)
    parts = urlsplit(endpoint.urls[0])
    proxy = getproxies().get(parts.scheme)
    if proxy and parts.hostname and not proxy_bypass(parts.hostname):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncHTTPTransport(verify=context or True, proxy=proxy, limits=limits)
    return Transport(clock, arrivals, ssl_context=context)


def _ssl_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """How certificates are checked; None for the usual way."""
    if not endpoint.insecure and endpoint.ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=endpoint.ca)
    except OSError as error:
        raise AgentReplayError(f"--ca {endpoint.ca}: {error.strerror or error}") from None
    if endpoint.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def http_stream(
    client: httpx.AsyncClient, endpoint: Endpoint, clock: Callable[[], int], run: str
) -> Stream:
    """Send requests to the endpoint.

    Our transport hands the events over as they arrive. Where another one is in use, or the
    response is compressed, the same bytes come by the client's own iteration.

    Args:
        client: From `open_client`.
        endpoint: Where to.
        clock: Stamps what comes by the client's own iteration.
        run: Name of the run, so that the names of its sessions and requests are its own.
    """

    own = {REQUEST_HEADER.lower(), (endpoint.session_header or "").lower(), "content-length"}
    # What all requests to an address have in common is put together once.
    common: dict[str, tuple[httpx.URL, list[tuple[bytes, bytes]]]] = {}

    def asked(request: Request, body: bytes, sink: Sink) -> httpx.Request:
        url = endpoint.urls[(request.lane + request.visit) % len(endpoint.urls)]
        if url not in common:
            built = client.build_request("POST", url)
            raw = [pair for pair in built.headers.raw if pair[0].lower().decode() not in own]
            common[url] = built.url, raw
        to, raw = common[url]
        session = request.play_id(run)
        headers = [
            *raw,
            (REQUEST_HEADER.encode(), request.request_id(run).encode()),
            (b"Content-Length", b"%d" % len(body)),
        ]
        if endpoint.session_header is not None:
            headers.append((endpoint.session_header.encode(), session.encode()))
        extensions: dict[str, Any] = {"sse_sink": sink}
        if endpoint.connection_per_session:
            extensions["connections"] = session
        made = httpx.Request(
            "POST", to, headers=headers, stream=httpx.ByteStream(body), extensions=extensions
        )
        if client.cookies:
            client.cookies.set_cookie_header(made)
        return made

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        response = await client.send(asked(request, body, sink), stream=True)
        try:
            kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
            said = b""
            if response.extensions.get("sink_used"):
                async for _ in response.stream:  # type: ignore[union-attr]
                    pass
            elif response.status_code == 200 and kind == "text/event-stream":
                async for data in response.aiter_bytes():
                    sink(clock(), data)
            elif response.has_redirect_location:
                where = response.headers["location"]
                said = f"it redirects to {where}, which is not followed".encode()
            else:
                said = await _first_bytes(response, BODY_BYTES)
            return Reply(
                response.status_code,
                kind,
                said,
                reconnected=bool(response.extensions.get("reconnected")),
                held_ns=response.extensions.get("held_ns", 0),
                retry_after_s=_seconds_until(response.headers.get("retry-after", "")),
            )
        finally:
            await response.aclose()

    return stream


def _seconds_until(after: str) -> float | None:
    """What a Retry-After header says: seconds, or a date (RFC 9110, 10.2.3); None for neither."""
    try:
        if after.isdecimal():
            return float(after)
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


async def page(
    client: httpx.AsyncClient,
    url: str | httpx.URL,
    within_s: float = CONNECT_S,
    longest: int = PAGE_BYTES,
) -> tuple[httpx.Response, bytes]:
    """What stands at an address beside the API, and its body.

    Raises:
        httpx.HTTPError: it did not come whole within *within_s*, or has *longest* bytes or more.
    """
    with anyio.move_on_after(within_s):
        async with client.stream("GET", url, timeout=within_s) as response:
            body = await _first_bytes(response, longest)
        if len(body) < longest:
            return response, body
        raise httpx.ReadError(f"a page of over {longest >> 20} MB")
    raise httpx.ReadTimeout(f"no whole answer within {within_s:g} s")


async def _first_bytes(response: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for data in response.aiter_bytes():
        body += data
        if len(body) >= limit:
            break
    return bytes(body[:limit])
