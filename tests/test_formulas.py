"""The published formulas, written out a second time, against the summary of runs of many shapes.

Rule: only the files of a run directory are read, and nothing of agentreplay computes. Numbers are
of plain Python, percentiles too.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from shapes import SHAPES, made

Row = dict[str, Any]
Span = tuple[int, int]

NOT_WRITTEN_TWICE = {"client", "goodput"}
"""What is no formula over records: how the machine kept up, and counts of reads; and what needs
limits on requests, which these runs have none of."""


def percentile(values: Iterable[float], p: float) -> float | None:
    """Linear interpolation between closest ranks."""
    ranked = sorted(values)
    if not ranked:
        return None
    at = (len(ranked) - 1) * p / 100
    low = int(at)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (at - low)


def spread(values: Iterable[float]) -> dict[str, float | int | None]:
    """A distribution of times, lengths or ratios."""
    known = list(values)
    return {
        "n": len(known),
        "mean": sum(known) / len(known) if known else None,
        **{f"p{p}": percentile(known, p) for p in (50, 75, 90, 95, 99)},
        "min": min(known, default=None),
        "max": max(known, default=None),
    }


def slow_tail(values: Iterable[float]) -> dict[str, float | int | None]:
    """A distribution of rates: p90 is what 90 % reach."""
    known = list(values)
    tail = {f"p{p}": percentile(known, 100 - p) for p in (50, 75, 90, 95, 99)}
    return {**spread(known), **tail}


def inverse(times: Iterable[float]) -> dict[str, float | int | None]:
    """Rates given as seconds a token: p90 is 1 / P90 of the times."""
    known = list(times)
    percentiles = {p: percentile(known, p) for p in (50, 75, 90, 95, 99)}
    tail = {f"p{p}": 1 / value if value else None for p, value in percentiles.items()}
    return {**spread(1 / time for time in known), **tail}


def share(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def covered_s(spans: Iterable[Span]) -> float:
    """How long at least one span lasts, by looking at every stretch between two edges."""
    known = list(spans)
    edges = sorted({edge for span in known for edge in span})
    return (
        sum(
            stop - start
            for start, stop in itertools.pairwise(edges)
            if any(low <= start and stop <= high for low, high in known)
        )
        / 1e9
    )


class Formulas:
    """docs/metrics.md over the files of a run directory."""

    def __init__(self, path: Path) -> None:
        manifest = json.loads((path / "run.json").read_text())
        self.plan, self.money = manifest["plan"], manifest["money"]
        lines = (path / "records.jsonl").read_text().splitlines(True)
        self.all: list[Row] = [json.loads(line) for line in lines if line.endswith("\n")]
        self.refusals = [row for row in self.all if row["retry_s"] is not None]
        kept = [row for row in self.all if row["retry_s"] is None]
        self.one_token = [row for row in kept if row["request"]["warmup"]]
        self.ordinary = [row for row in kept if not row["request"]["warmup"]]
        self.open_ns, self.close_ns = self._window(path)
        self.measured = [row for row in self.ordinary if row["sent_ns"] >= self.open_ns]
        self.inside = [row for row in self.measured if row["sent_ns"] < self.close_ns]
        self.ok = [row for row in self.inside if row["error"] is None]

    def _window(self, path: Path) -> Span:
        """When it opened and closed; of a killed run, as far as the records go."""
        if (path / "end.json").exists():
            ending = json.loads((path / "end.json").read_text())["ending"]
            return ending["opened_ns"], ending["closed_ns"]
        last_ns = max(row["done_ns"] for row in self.all)
        lead_ns = int(max(self.plan["ramp_s"], self.plan["warmup_s"]) * 1e9)
        if self.plan["start"] is None:
            return lead_ns, last_ns
        if not self.ordinary:
            return last_ns + 1, last_ns + 1
        return lead_ns + min(row["request"]["due_ns"] for row in self.ordinary), last_ns

    @cached_property
    def window_s(self) -> float | None:
        """Null below one second, and without a token."""
        seconds = (self.close_ns - self.open_ns) / 1e9
        return seconds if seconds >= 1 and any(map(self.arrived, self.ordinary)) else None

    @property
    def length_s(self) -> float:
        return (self.close_ns - self.open_ns) / 1e9

    def plays(self) -> list[list[Row]]:
        """All requests of each play, one-token calls too."""
        plays: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in [*self.one_token, *self.ordinary]:
            plays[row["request"]["lane"], row["request"]["visit"]].append(row)
        return list(plays.values())

    def live_s(self, rows: list[Row]) -> float:
        """How long a play was live in the window: until its last answer, if nothing more of it was
        to come, else to the end."""
        sent = [row for row in rows if not row["request"]["warmup"]]
        start_ns = min(row["request"]["due_ns"] for row in rows)
        stop_ns = self.close_ns
        if sent and (
            len(sent) == calls_of(sent)
            or (self.plan["on_error"] != "continue" and any(row["error"] for row in sent))
        ):
            stop_ns = max(row["done_ns"] for row in sent)
        return float(max(0, min(stop_ns, self.close_ns) - max(start_ns, self.open_ns))) / 1e9

    def within(self, at_ns: int) -> bool:
        return self.open_ns <= at_ns < self.close_ns

    def arrived(self, row: Row) -> int:
        """Output tokens that came in the window, chunk by chunk; none of failed requests."""
        if failed(row) or row["first_token_ns"] is None:
            return 0
        at_ns, tokens = row["first_token_ns"], 0
        sizes = row["chunk_tokens"] or [1] * (len(row["chunk_us"]) + 1)
        for size, gap_us in zip(sizes, [*row["chunk_us"], 0], strict=True):
            tokens += size if self.within(at_ns) else 0
            at_ns += gap_us * 1000
        return tokens

    def streaming(self, row: Row) -> list[Span]:
        """From the first token to the last, as far as it lies in the window."""
        if failed(row) or row["first_token_ns"] is None:
            return []
        low = max(row["first_token_ns"], self.open_ns)
        high = min(row["last_token_ns"], self.close_ns)
        return [(low, high)] if low < high else []

    def metrics(self) -> dict[str, Any]:
        return {
            **self.rates(),
            **self.run_rates(),
            **self.per_gpu(),
            "bill": self.bill(),
            **self.distributions(),
            **self.users(),
            **self.counts(),
            **self.lengths(),
            **self.sessions(),
            "prefix_reuse": self.reuse(),
            "coverage": self.coverage(),
            "concurrency": self.concurrency(),
        }

    def rates(self) -> dict[str, Any]:
        seconds = self.window_s
        tokens_in = sum(
            input_tokens(row)
            for row in self.ordinary
            if not failed(row)
            and row["first_token_ns"] is not None
            and self.within(row["first_token_ns"])
        )
        tokens_out = sum(map(self.arrived, self.ordinary))
        return {
            "input_token_rate": share(tokens_in, seconds),
            "output_token_rate": share(tokens_out, seconds),
            "total_token_rate": share(tokens_in + tokens_out, seconds),
            "request_rate": share(len(self.inside), seconds),
        }

    def run_rates(self) -> dict[str, Any]:
        rows = [row for row in self.measured if row["error"] is None]
        seconds = None
        if rows:
            last_ns = max(row["done_ns"] for row in rows)
            seconds = (last_ns - min(row["sent_ns"] for row in rows)) / 1e9
        tokens_in = sum(map(input_tokens, rows))
        tokens_out = sum(row["osl"] for row in rows)
        return {
            "input_token_rate_run": share(tokens_in, seconds),
            "output_token_rate_run": share(tokens_out, seconds),
            "total_token_rate_run": share(tokens_in + tokens_out, seconds),
            "request_rate_run": share(len(rows), seconds),
        }

    def per_gpu(self) -> dict[str, Any]:
        gpus, hour = self.money["gpus"], self.money["gpu_hour"]
        rate = self.run_rates()["total_token_rate_run"]
        window = self.rates()["total_token_rate"]
        return {
            "total_token_rate_per_gpu": None if window is None else window / gpus,
            "total_token_rate_run_per_gpu": None if rate is None else rate / gpus,
            "tokens_per_dollar": None if rate is None else rate / gpus * 3600 / hour,
            "dollars_per_million_tokens": share(1e6 * hour * gpus, rate and rate * 3600),
        }

    def bill(self) -> dict[str, Any]:
        prices = {name: dollars / 1e6 for name, dollars in self.money["prices"].items()}

        def cached(row: Row) -> int:
            known = row["request"]["reuse"] if row["cached"] is None else row["cached"]
            return int(min(known, input_tokens(row)))

        def parts(row: Row) -> dict[str, float]:
            return {
                "input": (input_tokens(row) - cached(row)) * prices["input"],
                "cached": cached(row) * prices["cached"],
                "output": (row["osl"] or 0) * prices["output"],
            }

        def dollars(row: Row) -> float:
            return sum(parts(row).values())

        sent = [*self.one_token, *self.ordinary]
        paid = [row for row in sent if row["first_token_ns"] is not None]
        early = [*self.one_token, *(row for row in self.ordinary if row["sent_ns"] < self.open_ns)]
        whole = [
            rows for rows in self.plays() if rows[-1]["request"]["first"] == 0 and is_whole(rows)
        ]
        return {
            "total": sum(map(dollars, paid)),
            **{name: sum(parts(row)[name] for row in paid) for name in prices},
            "before_window": sum(dollars(row) for row in early if row in paid),
            "failed": sum(dollars(row) for row in paid if row["error"]),
            "per_request": spread(map(dollars, self.ok)),
            "per_session": spread(sum(map(dollars, rows)) for rows in whole),
            "predicted": share(sum(row["cached"] is None for row in paid), len(paid)),
            "unanswered": len(sent) - len(paid),
        }

    def distributions(self) -> dict[str, Any]:
        def since(event: str, start: Callable[[Row], int]) -> dict[str, Any]:
            known = [row for row in self.ok if row[event] is not None]
            return spread((row[event] - start(row)) / 1e9 for row in known)

        def sent(row: Row) -> int:
            return int(row["sent_ns"])

        def due(row: Row) -> int:
            return int(row["request"]["due_ns"])

        paced = [row for row in self.ok if row["osl"] >= 2 and not row["burst"]]
        later = [(row, row["osl"] - (row["chunk_tokens"] or [1])[0]) for row in paced]
        gaps = [gap_us / 1e6 for row in self.ok if not row["burst"] for gap_us in row["chunk_us"]]
        return {
            "ttft": since("first_token_ns", sent),
            "ttft_visible": since("first_visible_ns", sent),
            "latency": since("last_token_ns", sent),
            "latency_from_due": since("last_token_ns", due),
            "lag": spread(
                (row["sent_ns"] - row["request"]["due_ns"]) / 1e9
                - row["request"]["behind_s"]
                - row["request"]["busy_s"]
                for row in self.inside
            ),
            "tpot": spread(streamed_s(row) / (row["osl"] - 1) for row in paced),
            "interactivity": inverse(streamed_s(row) / (row["osl"] - 1) for row in paced),
            "interactivity_corrected": inverse(
                streamed_s(row) / tokens for row, tokens in later if tokens > 0
            ),
            "interactivity_normalised": inverse(
                (row["last_token_ns"] - row["sent_ns"]) / 1e9 / row["osl"] for row in self.ok
            ),
            "chunk_gap": spread(gaps),
            "isl": spread(map(input_tokens, self.ok)),
            "osl": spread(row["osl"] for row in self.ok),
        }

    def users(self) -> dict[str, Any]:
        if self.window_s is None:
            return {
                "user_output_rate": slow_tail([]),
                "user_output_rate_streaming": slow_tail([]),
            }
        tokens: Counter[int] = Counter()
        spans: dict[int, list[Span]] = defaultdict(list)
        for row in self.ordinary:
            lane = row["request"]["lane"]
            tokens[lane] += self.arrived(row)
            spans[lane] += self.streaming(row)
        lanes = range(self.plan["users"])
        return {
            "user_output_rate": slow_tail(tokens[lane] / self.window_s for lane in lanes),
            "user_output_rate_streaming": slow_tail(
                tokens[lane] / covered_s(spans[lane]) for lane in lanes if spans[lane]
            ),
        }

    def counts(self) -> dict[str, Any]:
        kinds = Counter(row["error"]["kind"] for row in self.measured if failed(row))
        cancelled = sum(row["error"] is not None and not failed(row) for row in self.measured)
        attempted = len(self.measured)
        refused = [row for row in self.refusals if row["sent_ns"] >= self.open_ns]
        return {
            "requests": {
                "attempted": attempted,
                "succeeded": attempted - kinds.total() - cancelled,
                "failed": kinds.total(),
                "cancelled": cancelled,
                "warmup": len(self.one_token) + len(self.ordinary) - attempted,
            },
            "errors": dict(kinds),
            "error_rate": share(kinds.total(), attempted),
            "context_overflow_rate": share(kinds["context_overflow"], attempted),
            "partial_tokens": sum(row["osl"] or 0 for row in self.measured if failed(row)),
            "busy": {
                "refusals": len(refused),
                "waited": sum(row["retry_s"] for row in refused),
            },
        }

    def lengths(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("isl", "osl"):
            off = [
                (row[name] - row["request"][name]) / row["request"][name]
                for row in self.ok
                if row["request"][name] and not row["estimated"]
            ]
            found[f"{name}_error"] = spread(map(abs, off))
            found[f"{name}_bias"] = sum(off) / len(off) if off else None
        return found

    def sessions(self) -> dict[str, Any]:
        visits: dict[tuple[int, int], list[Row]] = defaultdict(list)
        for row in self.ordinary:
            visits[row["request"]["lane"], row["request"]["visit"]].append(row)
        plays = list(visits.values())
        whole = [rows for rows in plays if is_whole(rows)]
        full = [rows for rows in whole if rows[0]["request"]["first"] == 0]
        plays_of = Counter(rows[0]["request"]["index"] for rows in plays)
        model_s = [covered_s((row["sent_ns"], row["done_ns"]) for row in rows) for rows in full]
        wall_s = [
            (max(row["done_ns"] for row in rows) - min(row["request"]["due_ns"] for row in rows))
            / 1e9
            for rows in full
        ]
        return {
            "sessions": {
                "started": len(plays),
                "completed": len(whole),
                "distinct": len(plays_of),
                "reused": len(plays) - len(plays_of),
                "most_plays": max(plays_of.values(), default=0),
                "calls_unsent": sum(
                    calls_of(rows) - len(rows)
                    for rows in plays
                    if any(failed(row) for row in rows)
                    and all(row["error"] is None or failed(row) for row in rows)
                ),
            },
            "session_seconds": spread(wall_s),
            "session_model_seconds": spread(model_s),
            "session_wait_seconds": spread(
                wall - model for wall, model in zip(wall_s, model_s, strict=True)
            ),
            "session_slowdown": slowdowns(plays),
            "session_slowdown_main": slowdowns(
                [row for row in rows if row["request"]["agent"] == ""] for rows in plays
            ),
            "session_slowdown_subagents": slowdowns(
                [row for row in rows if row["request"]["agent"] != ""] for rows in plays
            ),
        }

    def reuse(self) -> dict[str, Any]:
        def prompt(row: Row) -> int:
            live = row["request"]["history"] == "live"
            return input_tokens(row) if live else int(row["request"]["isl"])

        def seen(row: Row) -> int:
            live = row["request"]["history"] == "live"
            seen = int(row["request"]["reuse"])
            return min(seen, input_tokens(row)) if live else seen

        def blocks(tokens: int, row: Row) -> int:
            return int(tokens // row["request"]["block"])

        all_blocks = sum(blocks(prompt(row), row) for row in self.inside)
        telling = [row for row in self.ok if row["isl"] is not None and row["cached"] is not None]
        server = share(sum(row["cached"] for row in telling), sum(row["isl"] for row in telling))
        possible = share(sum(map(seen, telling)), sum(map(prompt, telling)))
        return {
            "theoretical": share(sum(map(seen, self.inside)), sum(map(prompt, self.inside))),
            "theoretical_blocks": share(
                sum(blocks(seen(row), row) for row in self.inside), all_blocks
            ),
            "trace_blocks": share(
                sum(blocks(row["request"]["shared"], row) for row in self.inside), all_blocks
            ),
            "server": server,
            "captured": None if server is None else share(server, possible),
        }

    def coverage(self) -> dict[str, Any]:
        length_ns = self.close_ns - self.open_ns
        if not length_ns:
            return {"ttft": None, "tpot": None}
        first = [row["first_token_ns"] for row in self.ok]
        last = [row["last_token_ns"] for row in self.ok if row["osl"] >= 2 and not row["burst"]]
        return {
            name: min(1.0, (max(ends, default=self.open_ns) - self.open_ns) / length_ns)
            for name, ends in (("ttft", first), ("tpot", last))
        }

    def concurrency(self) -> dict[str, Any]:
        if self.close_ns - self.open_ns < 1e9:
            return {"lanes_mean": None, "in_flight_mean": None, "in_flight_max": None}
        flights = [
            (max(row["sent_ns"], self.open_ns), min(row["done_ns"], self.close_ns))
            for row in self.all
        ]
        flights = [(start, stop) for start, stop in flights if start < stop]
        return {
            "lanes_mean": sum(map(self.live_s, self.plays())) / self.length_s,
            "in_flight_mean": sum(b - a for a, b in flights) / 1e9 / self.length_s,
            "in_flight_max": max(
                (sum(a <= start < b for a, b in flights) for start, _ in flights), default=0
            ),
        }


def failed(row: Row) -> bool:
    return row["error"] is not None and row["error"]["kind"] != "cancelled"


def input_tokens(row: Row) -> int:
    """As the server counted them, else as sent."""
    planned = row["request"]["isl"] + row["request"]["overlong"]
    return int(planned if row["isl"] is None else row["isl"])


def streamed_s(row: Row) -> float:
    return float(row["last_token_ns"] - row["first_token_ns"]) / 1e9


def calls_of(rows: list[Row]) -> int:
    """Calls of the play, without those before its beginning."""
    return int(rows[0]["request"]["calls"] - rows[0]["request"]["first"])


def is_whole(rows: list[Row]) -> bool:
    return sum(row["error"] is None for row in rows) == calls_of(rows)


def slowdowns(plays: Iterable[list[Row]]) -> dict[str, Any]:
    """Σ latency / Σ recorded duration of the plays with three calls of known duration."""
    found = []
    for rows in plays:
        known = [
            row for row in rows if row["error"] is None and row["request"]["recorded_s"] is not None
        ]
        if len(known) >= 3:
            latency_s = sum((row["last_token_ns"] - row["sent_ns"]) / 1e9 for row in known)
            found.append(latency_s / sum(row["request"]["recorded_s"] for row in known))
    return spread(found)


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Where two values differ by more than rounding; what is not expected is not compared."""
    if isinstance(expected, dict):
        return [
            each
            for key in expected
            for each in differences(found[key], expected[key], f"{where}.{key}")
        ]
    same = (
        found is None if expected is None else found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    )
    return [] if same else [f"{where}: {found} is not {expected}"]


@pytest.fixture(scope="module", params=SHAPES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(SHAPES[request.param], tmp_path_factory.mktemp("run") / "out")


def test_the_summary_is_what_the_formulas_give(run: Path) -> None:
    """Every figure of the summary, computed a second way from the records, to nine digits."""
    found = json.loads((run / "summary.json").read_text())["metrics"]
    expected = Formulas(run).metrics()
    assert expected.keys() == found.keys() - NOT_WRITTEN_TWICE
    assert differences(found, expected) == []


def test_the_shapes_are_different(tmp_path: Path) -> None:
    """Together the runs hold what the formulas tell apart; otherwise they would prove less."""
    seen: Counter[str] = Counter()
    for name, shape in SHAPES.items():
        formulas = Formulas(made(shape, tmp_path / name))
        seen["one-token calls"] += len(formulas.one_token)
        seen["before the window"] += len(formulas.ordinary) - len(formulas.measured)
        seen["after the window"] += len(formulas.measured) - len(formulas.inside)
        seen["refusals waited out"] += len(formulas.refusals)
        for row in formulas.ordinary:
            seen[row["error"]["kind"] if row["error"] else "success"] += 1
            seen["burst"] += row["burst"]
            seen["single token"] += row["error"] is None and row["osl"] == 1
            seen["bundled"] += row["chunk_tokens"] is not None
            seen["estimated"] += row["estimated"] and row["error"] is None
            seen["reasoning first"] += row["first_visible_ns"] != row["first_token_ns"]
            seen["live"] += row["request"]["history"] == "live"
            arrived = formulas.arrived(row)
            across = not failed(row) and 0 < arrived < (row["osl"] or 0)
            seen["across an edge"] += across
            seen["bundled, across an edge"] += across and row["chunk_tokens"] is not None
            found = row["request"]["reuse"] - (row["cached"] or 0)
            seen["less found than sent"] += row["cached"] is not None and found > 64
    kinds = {"http_5xx", "http_4xx", "context_overflow", "error_event", "truncated", "cancelled"}
    assert kinds <= seen.keys()
    assert [what for what, times in seen.items() if not times] == []
