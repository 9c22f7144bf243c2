"""What a server's own counters say of its prefix cache, for servers whose usage does not. I/O."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentreplay.client.endpoint import Endpoint, page

_COUNTERS = (
    ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits", False),
    ("llamacpp:prompt_tokens", "llamacpp:prompt_tokens_cached", True),
)
"""Counters of prompt tokens and of those that were found, by server, and whether the former leave
the latter out."""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Prompt tokens that a server has looked up in its cache, and found there, since it started."""

    looked_up: float
    found: float

    def since(self, before: CacheCounters) -> CacheCounters:
        """What came between two readings."""
        return CacheCounters(self.looked_up - before.looked_up, self.found - before.found)

    @property
    def share(self) -> float | None:
        """Found / looked up; None where nothing was."""
        return self.found / self.looked_up if self.looked_up > 0 else None


async def cache_counters(client: httpx.AsyncClient, endpoint: Endpoint) -> CacheCounters | None:
    """Read the counters from /metrics of every address; None where one has none that is known."""
    total = CacheCounters(0.0, 0.0)
    for url in endpoint.urls:
        try:
            response, body = await page(client, httpx.URL(url).join("/metrics"))
            read = counters(body.decode()) if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        if read is None:
            return None
        total = CacheCounters(total.looked_up + read.looked_up, total.found + read.found)
    return total


def counters(text: str) -> CacheCounters | None:
    """The counters in a page of Prometheus metrics, summed over their labels.

    Raises:
        ValueError: it is no such page.
    """
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removesuffix("_total")
            sums[name] = sums.get(name, 0.0) + sample.value
    for looked_up, found, apart in _COUNTERS:
        if looked_up in sums and found in sums:
            return CacheCounters(sums[looked_up] + apart * sums[found], sums[found])
    return None
