"""What reading event streams costs, and how exact its stamps are, beside other clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from .programs import Measured, Phase, Sent, built, client, floor, running
from .table import Line, Row, ratio_row, slope_us

EVENTS = (
    Line("event / aiohttp", goal=0.80),
    Line("event / httpx lines", goal=0.25),
    Line("event / C reader", goal=2.2),
)
REQUEST = (Line("request / aiohttp", goal=2.2),)
STAMPS = (
    Line("stamp error P99, 1 stream", "ms"),
    Line("stamp error P99, 100 streams", "ms", 0.1),
    Line("stamp error P99, 500 streams", "ms"),
)

ROUNDS = 5

STREAMS, FEW_STREAMS = 100, 30
"""Few, beside httpx: its pool would cost more than all else with more of them."""

FIRST = Phase(tokens=1)
"""Opens the connections and is not counted."""

SHORT, LONG = Phase(tokens=20), Phase(tokens=220)
"""The two points of the slope."""

REQUEST_STREAMS = 20
SMALL = Phase(tokens=1, times=80, pace_us=5_000)

STAMPED_STREAMS = (1, 100, 500)
STAMPED = Phase(tokens=200, spread=True)
STAMP_ROUNDS = 4


def events(folder: Path) -> list[Row]:
    """What one more token costs in CPU time."""
    costs: dict[str, list[float]] = defaultdict(list)
    phases = (FIRST, SHORT, LONG)
    reader = built("floor", folder)
    with running(built("source", folder)) as source:
        measured: Mapping[str, Callable[[], Sequence[Measured]]] = {
            "ours": lambda: client(source, "ours", STREAMS, phases),
            "aiohttp": lambda: client(source, "aiohttp", STREAMS, phases),
            "floor": lambda: floor(source, reader, STREAMS, phases),
            "few": lambda: client(source, "ours", FEW_STREAMS, phases),
            "httpx": lambda: client(source, "httpx", FEW_STREAMS, phases),
        }
        for _ in range(ROUNDS):
            for name, measure in measured.items():
                _, low, high = measure()
                costs[name].append(slope_us(low, high))
    aiohttp, httpx, c_reader = EVENTS
    return [
        ratio_row(aiohttp, costs["ours"], costs["aiohttp"], "us"),
        ratio_row(httpx, costs["few"], costs["httpx"], "us"),
        ratio_row(c_reader, costs["ours"], costs["floor"], "us"),
    ]


def request(folder: Path) -> list[Row]:
    """What a request with a small body and a short answer costs in CPU time."""
    costs: dict[str, list[float]] = defaultdict(list)
    with running(built("source", folder)) as source:
        for _ in range(ROUNDS):
            for stack in ("ours", "aiohttp"):
                _, each = client(source, stack, REQUEST_STREAMS, (FIRST, SMALL))
                costs[stack].append(each["cpu_s"] / each["requests"] * 1e6)
    return [ratio_row(line, costs["ours"], costs["aiohttp"], "us") for line in REQUEST]


def stamps(folder: Path) -> list[Row]:
    """How far our stamps are from what the source did."""
    found: dict[int, list[Errors]] = defaultdict(list)
    with running(built("source", folder)) as source:
        for _ in range(STAMP_ROUNDS):
            for streams in STAMPED_STREAMS:
                source.log()
                *_, last = client(source, "ours", streams, (FIRST, STAMPED), "--stamps")
                found[streams].append(errors(last["stamps"], source.log()))
    return [
        Row(
            line,
            tuple(each["gap_p99_ms"] for each in found[streams]),
            {
                name: median(each[name] for each in found[streams])
                for name in ("gap_p50_ms", "delay_p50_ms", "delay_p99_ms")
            },
        )
        for line, streams in zip(STAMPS, STAMPED_STREAMS, strict=True)
    ]


Errors = Mapping[str, float]


def errors(stamped: Mapping[str, Sequence[int]], log: Sequence[Sent]) -> Errors:
    """What lies between a client's stamps and the source's log of the same streams.

    The gap's error is |client gap − source gap| from token to token, the delay what passed between
    send and stamp.

    Raises:
        ValueError: a stream has not as many stamps as tokens were sent.
    """
    sent = {each.name: each.sent_ns for each in log}
    gaps, delays = [], []
    for name, stamps_ns in stamped.items():
        if len(stamps_ns) != len(sent[name]):
            raise ValueError(f"{name}: {len(stamps_ns)} stamps of {len(sent[name])} tokens")
        late = np.subtract(stamps_ns, sent[name])
        delays.append(late)
        gaps.append(np.abs(np.diff(late)))
    both = {"gap": np.concatenate(gaps), "delay": np.concatenate(delays)}
    return {
        f"{name}_p{p}_ms": float(np.percentile(values, p)) / 1e6
        for name, values in both.items()
        for p in (50, 99)
    }
