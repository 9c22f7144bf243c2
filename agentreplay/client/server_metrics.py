"""What a server says of itself at /metrics, read once a second beside a run. I/O.

Nothing that a server does there raises from here, and reading it holds the loop up for no longer
than a record does: a page is narrowed to the lines that count before they are parsed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import httpx
import orjson

from agentreplay.client.endpoint import Endpoint, metrics_pages, open_client, page, shown
from agentreplay.client.exchange import transport_failure
from agentreplay.metrics.server import Load, Reading, together
from agentreplay.wire.api import error_text

SCRAPE_S = 1.0

READ_S = 1.0
"""A page that takes longer is not waited for."""

PAGE_BYTES = 4 << 20

SETTLE_S, SETTLE_STEP_S = 2.0, 0.02
"""So long a server may take to count the last answers, and how soon it is asked again at first."""

REASON_CHARS = 200

_SLAB_BYTES = 64 << 10
"""So much of a page is looked through at once, for 0.1 ms."""

_VLLM, _SGLANG, _LLAMACPP, _TRTLLM = "vllm:", "sglang:", "llamacpp:", "trtllm_"

_SUMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "running": (
        (_VLLM + "num_requests_running",),
        (_SGLANG + "num_running_reqs",),
        (_LLAMACPP + "requests_processing",),
        (_TRTLLM + "num_requests_running",),
    ),
    "waiting": (
        (_VLLM + "num_requests_waiting",),
        (_SGLANG + "num_queue_reqs",),
        (_LLAMACPP + "requests_deferred",),
        (_TRTLLM + "num_requests_waiting",),
    ),
    "prompt_tokens": (
        (_VLLM + "prompt_tokens",),
        (_SGLANG + "prompt_tokens",),
        # It counts those that it found apart.
        (_LLAMACPP + "prompt_tokens", _LLAMACPP + "prompt_tokens_cached"),
        (_TRTLLM + "prompt_tokens",),
    ),
    "generated_tokens": (
        (_VLLM + "generation_tokens",),
        (_SGLANG + "generation_tokens",),
        (_LLAMACPP + "tokens_predicted",),
        (_TRTLLM + "generation_tokens",),
    ),
    "looked_up_tokens": (
        (_VLLM + "prefix_cache_queries",),
        (_VLLM + "gpu_prefix_cache_queries",),
        (_SGLANG + "prompt_tokens",),
        (_LLAMACPP + "prompt_tokens", _LLAMACPP + "prompt_tokens_cached"),
    ),
    "found_tokens": (
        (_VLLM + "prefix_cache_hits",),
        (_VLLM + "gpu_prefix_cache_hits",),
        (_SGLANG + "cached_tokens",),
        (_LLAMACPP + "prompt_tokens_cached",),
    ),
    "drafted_tokens": (
        (_VLLM + "spec_decode_num_draft_tokens",),
        (_LLAMACPP + "spec_decode_num_draft_tokens",),
    ),
    "accepted_tokens": (
        (_VLLM + "spec_decode_num_accepted_tokens",),
        (_LLAMACPP + "spec_decode_num_accepted_tokens",),
    ),
    "preemptions": (
        (_VLLM + "num_preemptions",),
        (_SGLANG + "num_retracted_requests",),
    ),
}
"""Names of what is added up over engines, without the `_total` of newer counters. Of each row the
first counts of which all are there; names in it are added up."""

_SHARES: dict[str, tuple[str, ...]] = {
    "kv_use": (
        _VLLM + "kv_cache_usage_perc",
        _VLLM + "gpu_cache_usage_perc",
        _SGLANG + "token_usage",
        _LLAMACPP + "kv_cache_usage_ratio",
        _TRTLLM + "kv_cache_utilization",
    ),
    "acceptance": (_SGLANG + "spec_accept_rate",),
}
"""Names of what is a share of 1, of which the largest over engines counts."""

_WITH_PARTS = (_SGLANG + "num_running_reqs", _SGLANG + "num_queue_reqs")
"""Beside a sum, with the label priority="", its parts are given by priority."""

MOST = 1 << 60
"""No count is larger."""

_NAMES = frozenset(
    (name + suffix).encode()
    for names in (*(name for row in _SUMS.values() for name in row), *_SHARES.values())
    for name in names
    for suffix in ("", "_total")
)


@dataclass(slots=True)
class _Source:
    """An address, its own client, and how it did.

    Attributes:
        url: The address.
        client: Shares nothing with the requests of the run.
        reading: An answer is still waited for.
        gone: It has answered that there is nothing to read: it isn't asked again.
        latest: The last reading.
        ever: The last good one.
    """

    url: str
    client: httpx.AsyncClient
    reading: bool = False
    gone: bool = False
    latest: Reading | None = None
    ever: Reading | None = None


class Scrape:
    """Reads the metrics of an endpoint: `read` before the first request, `run` beside the replay,
    `settle` after the last answer. Use it in an async with statement.

    Args:
        endpoint: Whose metrics.
        keep: Takes each reading, once the run's clock is known.
    """

    def __init__(self, endpoint: Endpoint, keep: Callable[[Reading], None]) -> None:
        self._endpoint = endpoint
        self._keep = keep
        self._early: list[Reading] = []
        self._origin_ns: int | None = None
        servers = {urlsplit(url).netloc for url in endpoint.urls}
        self._sources = []
        for url in metrics_pages(endpoint):
            there = replace(endpoint, urls=(url,))
            if urlsplit(url).netloc not in servers:  # whose keys these are not
                there = replace(there, api_key=None, headers=())
            self._sources.append(_Source(url, open_client(there, time.monotonic_ns)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for source in self._sources:
            await source.client.aclose()

    @property
    def latest(self) -> Load | None:
        """The load of all addresses by their last readings; None where one of these failed."""
        readings = [source.latest for source in self._sources if not source.gone]
        good = [each for each in readings if each is not None and each.error is None]
        return together(good) if good and len(good) == len(readings) else None

    async def read(self) -> None:
        """Read every address once."""
        at_ns = time.monotonic_ns()
        async with anyio.create_task_group() as group:
            for source in self._sources:
                group.start_soon(self._read, source, at_ns)

    async def run(self, origin_ns: int) -> None:
        """Read once a second until cancelled; an address whose answer is late misses its turn.

        Args:
            origin_ns: The start of the run by `time.monotonic_ns`.
        """
        self._origin_ns = origin_ns
        for reading in self._early:
            self._keep(replace(reading, at_ns=reading.at_ns - origin_ns))
        due_s = anyio.current_time()
        async with anyio.create_task_group() as group:
            while True:
                due_s = max(due_s + SCRAPE_S, anyio.current_time())
                await anyio.sleep_until(due_s)
                at_ns = time.monotonic_ns()
                for source in self._sources:
                    group.start_soon(self._read, source, at_ns)

    async def settle(self) -> None:
        """Read until nothing runs any more and the counts stand still, for a few seconds at most.

        A server may count an answer a moment after it was sent, and works on for a while at what
        was cut.
        """
        step_s, after = SETTLE_STEP_S, list[Reading | None]()
        with anyio.move_on_after(SETTLE_S):
            while any(source.ever for source in self._sources):
                await self.read()
                before, after = after, [source.ever for source in self._sources]
                if before and all(map(_settled, before, after)):
                    return
                await anyio.sleep(step_s)
                step_s *= 2

    async def _read(self, source: _Source, at_ns: int) -> None:
        if source.gone or source.reading:
            return
        source.reading = True
        try:
            reading = await self._asked(source, at_ns)
        finally:
            source.reading = False
        source.latest = reading
        if reading.error is None:
            source.ever = reading
        if self._origin_ns is None:
            self._early.append(reading)
        else:
            self._keep(replace(reading, at_ns=at_ns - self._origin_ns))

    async def _asked(self, source: _Source, at_ns: int) -> Reading:
        url = shown(source.url)
        try:
            response, body = await page(source.client, source.url, READ_S, PAGE_BYTES)
            status = response.status_code
            if status == 200:
                return Reading(at_ns, url, **await figures(body))
            # Anything else may pass; what is not there, or not for us, stays so.
            lasting = 300 <= status < 500 and status != 429
            source.gone = source.ever is None and (lasting or status == 501)
            reason = f"HTTP {status}: {error_text(body).strip() or '(no body)'}"
        except httpx.RequestError as error:
            reason = transport_failure(error).message
        except (httpx.InvalidURL, ValueError) as error:
            reason = str(error)
        plain = "".join(char if char.isprintable() else " " for char in self._endpoint.mask(reason))
        return Reading(at_ns, url, error=plain[:REASON_CHARS])


def _settled(before: Reading | None, after: Reading | None) -> bool:
    """Nothing runs, and nothing was counted between two readings; so also where none ever came."""
    if before is None or after is None or before is after:
        return before is after is None
    return not after.running and not after.waiting and replace(before, at_ns=after.at_ns) == after


async def figures(body: bytes) -> dict[str, Any]:
    """The figures on a page, by their names in `Reading`.

    Raises:
        ValueError: it is no such page, or has none that is known.
    """
    if body.lstrip()[:1] == b"[":
        found = _iterations(orjson.loads(body))
    else:
        lines: list[bytes] = []
        for slab in _slabs(body):
            lines += [line for line in slab.split(b"\n") if _name(line) in _NAMES]
            await anyio.sleep(0)
        try:
            found = _figures(b"\n".join(lines).decode())
        except (ValueError, IndexError) as error:
            raise ValueError(f"a line that can't be read: {error}") from None
        if not found:
            raise ValueError("no figure of a known server on the page")
    if not all(0 <= value < MOST for value in found.values()):
        raise ValueError("a figure that no server can reach")
    return found


def _slabs(body: bytes) -> Iterator[bytes]:
    """Pieces of whole lines."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + _SLAB_BYTES) + 1 or len(body)
        yield body[start:end]
        start = end


def _name(line: bytes) -> bytes:
    """The name of a sample; of any other line what is none."""
    return line.partition(b"{")[0].partition(b" ")[0]


def _figures(text: str) -> dict[str, Any]:
    """The figures of a page in the text format of Prometheus that has only lines that count.

    Raises:
        ValueError: it is no such page.
    """
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    largest: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removesuffix("_total")
            part = name in _WITH_PARTS and sample.labels.get("priority")
            if part or not 0 <= sample.value < MOST:  # not what is no number, either
                continue
            sums[name] = sums.get(name, 0.0) + sample.value
            largest[name] = max(largest.get(name, 0.0), sample.value)
    found: dict[str, Any] = {}
    for figure, rows in _SUMS.items():
        for names in rows:
            if all(name in sums for name in names):
                found[figure] = round(sum(sums[name] for name in names))
                break
    for figure, alternatives in _SHARES.items():
        for name in alternatives:
            if name in largest:
                found[figure] = largest[name]
                break
    return found


def _iterations(stats: Any) -> dict[str, Any]:
    """The figures in TensorRT-LLM's list of iterations since it was last read.

    Raises:
        ValueError: it is no such list.
    """
    if not isinstance(stats, list) or not all(isinstance(each, dict) for each in stats):
        raise ValueError("a JSON list, but not of iterations")
    last = stats[-1] if stats else {}  # none where nothing was done, or none is kept
    found: dict[str, Any] = {}
    for figure, name in (("running", "numActiveRequests"), ("waiting", "numQueuedRequests")):
        if type(value := last.get(name)) is int:
            found[figure] = value
    cache = last.get("kvCacheStats")
    names = ("usedNumBlocks", "maxNumBlocks", "reusedBlocks", "missedBlocks", "tokensPerBlock")
    if isinstance(cache, dict) and all(type(cache.get(name)) is int for name in names):
        used, most, reused, missed, block = (cache[name] for name in names)
        found["looked_up_tokens"] = (reused + missed) * block
        found["found_tokens"] = reused * block
        if most > 0:
            found["kv_use"] = used / most
    return found
