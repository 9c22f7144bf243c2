"""What pages are made of: columns of a run's records, figures, and text that stays text."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import sessions, write_run
from records import record

from agentreplay.metrics.cost import Money
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import summarize
from agentreplay.metrics.verdict import Limits
from agentreplay.metrics.window import Ending, Window
from agentreplay.outcome import Reports, conclude
from agentreplay.plan import Plan
from agentreplay.report.html.columns import Bins, Columns, columns
from agentreplay.report.html.figures import DOTS, TTFT, by_length
from agentreplay.report.html.page import (
    Assets,
    Column,
    Figure,
    Table,
    csv_text,
    embedded,
    escaped,
    log_ticks,
    page_html,
    visible,
)
from agentreplay.report.html.run import run_page, tables, timeline
from agentreplay.report.value import summary_value

S = 1_000_000_000

texts = st.text(st.characters(codec=None) | st.sampled_from("</script>&'\"\\=+-@,\r\n\t\x00\x1b"))


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """Any requests: of several lanes and agents, failed, cut, refused or warm-up, at any time."""
    found = []
    for number in range(draw(st.integers(0, 12))):
        sent_ms = draw(st.integers(0, 20_000))
        gaps = draw(st.lists(st.integers(0, 900), max_size=6))
        at = [sent_ms]
        for gap in gaps:
            at.append(at[-1] + gap)
        kind = draw(st.sampled_from([None, None, None, "http_5xx", "cancelled"]))
        chunks = at[1:] if kind is None or draw(st.booleans()) else []
        chunks = chunks or ([sent_ms + 5] if kind is None else [])
        found.append(
            record(
                chunks,
                draw(st.none() | st.just([2] * len(chunks))),
                sent_ms=sent_ms,
                due_ms=max(0, sent_ms - draw(st.integers(0, 50))),
                lane=draw(st.integers(0, 2)),
                visit=draw(st.integers(0, 1)),
                call=number,
                calls=12,
                agent=draw(st.sampled_from(["", "", "a", "b"])),
                isl=draw(st.integers(1, 10**6)),
                isl_served=draw(st.none() | st.integers(0, 10**6)),
                cached=draw(st.none() | st.integers(0, 10**6)),
                error=Failure(kind, None, draw(texts) or "x") if kind else None,
                done_ms=(chunks or [sent_ms])[-1] + draw(st.integers(0, 500)),
                warmup=draw(st.sampled_from([False, False, True])),
                retry_s=draw(st.none() | st.just(1.0)) if kind == "http_5xx" else None,
            )
        )
    return found


windows = st.tuples(st.integers(0, 10 * S), st.integers(0, 25 * S)).map(
    lambda pair: Window(pair[0], max(pair))
)


def end_of(rows: list[Record]) -> int:
    return max((each.done_ns for each in rows), default=0)


def value_of(rows: list[Record], ending: Ending, words: str = "m") -> dict[str, Any]:
    """What summary.json holds of records."""
    manifest = {
        "agentreplay": "0",
        "plan": asdict(Plan(users=3)),
        "money": asdict(Money()),
        "limits": asdict(Limits()),
        "endpoint": {"model": words, "urls": [words]},
        "trace": {"paths": [words], "sessions": 1},
    }
    return summary_value(manifest, ending, {}, summarize(rows, Plan(users=3), ending))


@given(records(), windows)
def test_no_token_is_lost_over_time(rows: list[Record], span: Window) -> None:
    """All bins together hold the tokens of the measured requests that did not fail."""
    found = columns(rows, span, end_of(rows))
    came = [
        each
        for each in rows
        if (each.error is None or each.error.kind == "cancelled")
        and each.first_token_ns is not None
        and each.retry_s is None
        and not each.request.warmup
    ]
    served = [each.request.isl if each.isl is None else each.isl for each in came]
    assert found.input_tokens.sum() == sum(served)
    assert found.output_tokens.sum() == sum(each.osl or 0 for each in came)


def test_rates_over_time_have_the_mean_that_the_report_says() -> None:
    """Over bins that make up the window their mean is the token rate."""
    rows = list(sessions(4, 200))
    ending = Ending("duration", 60 * S, end_of(rows), 10 * S)
    span = Window.of(ending)
    found = columns(rows, span, end_of(rows))
    inside = (found.bins.middles_s > 10) & (found.bins.middles_s < 60)
    metrics = summarize(rows, Plan(users=4), ending).metrics
    for tokens, name in (
        (found.input_tokens, "input_token_rate"),
        (found.output_tokens, "output_token_rate"),
    ):
        assert tokens[inside].sum() / span.seconds == pytest.approx(metrics[name])


def test_columns_count_what_the_summary_counts() -> None:
    """The requests of the distributions are the same ones, with the same values."""
    rows = list(sessions(4, 300))
    ending = Ending("duration", 80 * S, end_of(rows), 10 * S)
    found = columns(rows, Window.of(ending), end_of(rows))
    metrics = summarize(rows, Plan(users=4), ending).metrics
    for name in ("ttft", "interactivity"):
        values = found.floats[name][found.counted]
        values = values[~np.isnan(values)]
        assert len(values) == metrics[name]["n"]
        assert values.mean() == pytest.approx(metrics[name]["mean"])


@given(st.integers(0, 10**14), windows, st.integers(20, 200))
def test_bins_are_few_and_one_begins_with_the_window(until: int, span: Window, most: int) -> None:
    """From 0 to the end of the run, and no more than asked for."""
    bins = Bins.over(span, until, most)
    edges = bins.edges_ns
    assert bins.count <= most
    assert edges[0] <= 0
    assert edges[-1] >= until
    assert span.open_ns > until or span.open_ns in edges


@given(records(), windows)
def test_calls_under_way_are_counted_by_time(rows: list[Record], span: Window) -> None:
    """The mean over all bins, times their length, is the time of all calls together."""
    bins = Bins.over(span, end_of(rows))
    starts = np.array([each.sent_ns for each in rows], dtype=np.int64)
    stops = np.array([each.done_ns for each in rows], dtype=np.int64)
    total = bins.mean_open(starts, stops).sum() * bins.width_ns
    assert total == pytest.approx((stops - starts).sum(), abs=2)


@given(records(), windows)
def test_no_two_calls_lie_on_each_other(rows: list[Record], span: Window) -> None:
    """On a row of a lane each call ends before the next one is sent; rows are without holes."""
    found = columns(rows, span, end_of(rows))
    keys = list(zip(found["lane"].tolist(), found["row"].tolist(), strict=True))
    calls = list(zip(keys, found["sent"].tolist(), found["done"].tolist(), strict=True))
    for (key, _, done), (other, sent, _) in pairwise(calls):
        assert key != other or done <= sent
    for lane, count in found.rows.items():
        used = {row for each, row in keys if each == lane}
        assert max(used) + 1 == count
        assert used | {0} == set(range(count))


def test_the_main_agent_has_the_first_row() -> None:
    """A chain of its calls stays there, whatever subagents do beside it."""
    rows = [record([110], sent_ms=100 * n, call=n, calls=9, done_ms=100 * n + 50) for n in range(5)]
    rows += [
        record([300], sent_ms=110 + n, call=5 + n, calls=9, agent=f"a{n}", done_ms=320)
        for n in range(2)
    ]
    found = columns(rows, Window(0, S), S)
    by_call = dict(zip(found["call"].tolist(), found["row"].tolist(), strict=True))
    assert [by_call[n] for n in range(5)] == [0] * 5
    assert {by_call[5], by_call[6]} == {1, 2}


@settings(max_examples=50)
@given(records(), windows, texts)
def test_any_run_has_a_page(rows: list[Record], span: Window, words: str) -> None:
    """Whatever was recorded: its page, and the tables behind it, can be made and read."""
    ending = Ending("duration", span.close_ns, end_of(rows), span.open_ns)
    value = value_of(rows, ending, words)
    found = columns(rows, Window.of(ending), end_of(rows))
    page = run_page(words, value, found)
    html = page_html(page, Assets("", "", ""))
    _, _, rest = html.partition('<script type="application/json" id="data">')
    data = json.loads(rest.partition("</script>")[0])
    drawn = {f.id for s in page.sections for f in s.parts if isinstance(f, Figure) and not f.empty}
    assert set(data["figures"]) == drawn
    assert html.count("<script") == html.count("</script>") == 3
    for _, table in tables(page, value, found):
        read = list(csv.reader(io.StringIO(csv_text(table))))
        assert len(read) == len(table.rows) + 1
        assert {len(row) for row in read} == {len(table.columns)}


def test_a_page_that_cannot_be_written_takes_nothing_along(tmp_path: Path) -> None:
    """It is said in a line; the summary and the tables are there."""
    run = write_run(tmp_path / "run", sessions(2, 20))
    (tmp_path / "file").write_text("")
    page = tmp_path / "file" / "x.html"
    result = conclude(run, reports=Reports(html=page, csv=tmp_path / "csv"))
    assert result.unwritten == (f"can't write {page}: Not a directory",)
    assert result.page is None
    assert (run / "summary.json").exists()
    rows = (tmp_path / "csv" / "requests.csv").read_text().splitlines()
    assert len(rows) == 21


@given(texts)
def test_text_stays_text(words: str) -> None:
    """In HTML no character opens a tag or an entity; JSON in a script ends nowhere before its end,
    and reads back as what can be seen."""
    html = escaped(words)
    assert not set("<>\"'") & set(html)
    assert html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace(
        "&#x27;", "'"
    ).replace("&amp;", "&") == visible(words)
    inside = embedded({"a": [words]})
    assert "<" not in inside
    assert json.loads(inside) == {"a": [visible(words)]}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\x00b\x7f", "a␀b␡"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\ufffd"),
        ("a\nb\tc", "a\nb\tc"),
        ("é 漢 😀", "é 漢 😀"),
    ],
)
def test_what_cannot_be_seen_is_made_visible(text: str, seen: str) -> None:
    """Escapes, ends and turns of direction have a sign; other text is left alone."""
    assert visible(text) == seen


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_no_cell_of_csv_is_a_formula(text: str) -> None:
    """A spreadsheet takes it for text; numbers stay as they are."""
    written = csv_text(Table((Column("a", "text"), Column("b")), [(text, -1.5)]))
    (_, row) = list(csv.reader(io.StringIO(written)))
    assert row == ["'" + text, "-1.5"]


@given(st.floats(1e-6, 1e9), st.floats(1, 1e6))
def test_axes_of_logarithms_have_labels(low: float, times: float) -> None:
    """Between two and nine, in order; all within the data where it spans more than a little."""
    ticks = log_ticks(low, low * times, str)
    values = [10**each for each in ticks["tickvals"]]
    assert 1 <= len(values) == len(ticks["ticktext"]) <= 9
    assert values == sorted(values)
    if times > 1.3:
        assert len(values) >= 2
        assert all(low / 1.05 <= each <= low * times * 1.05 for each in values)


def test_many_requests_are_drawn_as_few_dots() -> None:
    """The slowest are among them; table and lines are of all."""
    rows = [
        record([n + (5_000 if n == 1234 else 50 + n % 50), 20_000], sent_ms=n, isl_served=1000 + n)
        for n in range(5_000)
    ]
    found = columns(rows, Window(0, 30 * S), 30 * S)
    figure = by_length(found, TTFT)
    dots = figure.traces[0]
    assert len(dots["x"]) <= DOTS
    assert 1000 + 1234 in dots["x"]
    assert sum(int(row[1] or 0) for row in figure.table.rows) == 5_000
    assert f"of {len(rows):,}" in figure.about


def read_columns(found: Columns) -> dict[str, np.ndarray]:
    """The packed columns of the timeline as the script reads them."""
    from base64 import b64decode

    kinds = {"state": "u1", "warmup": "u1", "ttft": "<f4", "interactivity": "<f4"}
    return {
        name: np.frombuffer(b64decode(text), kinds.get(name, "<i4"))
        for name, text in timeline(found)["columns"].items()
    }


@pytest.mark.parametrize("until_s", [60, 400_000])
def test_the_timeline_holds_every_call(until_s: int) -> None:
    """Its numbers are those of the records, also of runs that last for days."""
    rows = [record([1000 * until_s - 5], sent_ms=1000 * until_s - 100, osl=7), record([50, 90])]
    found = columns(rows, Window(0, until_s * S), until_s * S)
    packed, unit_s = read_columns(found), timeline(found)["unit_s"]
    order = np.argsort(packed["sent"])
    sent = packed["sent"][order] * unit_s
    assert sent.tolist() == pytest.approx([0, until_s - 0.1], abs=unit_s)
    assert packed["osl"][order].tolist() == [2, 7]
    assert packed["ttft"][order].tolist() == pytest.approx([0.05, 0.095])
