"""Gates, JUnit, Markdown, annotations and exit codes, as a CI system sees them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from records import record
from virtually import chain

from agentreplay.metrics.cost import Money
from agentreplay.metrics.gate import gate
from agentreplay.metrics.record import Failure, Record
from agentreplay.metrics.summary import summarize
from agentreplay.metrics.verdict import LIMITED, Limits
from agentreplay.metrics.window import Ending
from agentreplay.plan import Plan
from agentreplay.report.junit import junit
from agentreplay.report.markdown import markdown, plain
from agentreplay.report.value import summary_value
from agentreplay.trace.formats import native

GOOD = [record([100, 150, 200], visit=n, lane=n) for n in range(8)]
ENDING = Ending("work", 10_000_000_000, 10_000_000_000)

texts = st.text(st.characters(codec=None) | st.sampled_from("|\\`*_[]()<>&!~#@$:/\r\n\t\x00"))
"""Any text there can be, often with what is markup: control characters and halves of pairs too."""


def failed(words: str) -> Record:
    return record([], error=Failure("http_5xx", 500, words))


def value_of(rows: Sequence[Record], *gates: str, words: str = "x", **limits: float) -> Any:
    """What summary.json holds of records."""
    held = Limits(**limits)
    manifest = {
        "agentreplay": "0",
        "plan": asdict(Plan(users=8)),
        "money": asdict(Money()),
        "limits": asdict(held),
        "endpoint": {"model": words, "urls": [words]},
        "trace": {"paths": [words], "sessions": 1},
    }
    summary = summarize(rows, Plan(users=8), ENDING, limits=held)
    return summary_value(manifest, ENDING, {}, summary, map(gate, gates))


def cases(value: Any) -> dict[str, str | None]:
    """The message of each test case that failed by the case's name; None for one that passed."""
    found = {}
    for case in ElementTree.fromstring(junit(value).encode()).iter("testcase"):
        failure = case.find("failure")
        found[case.attrib["name"]] = None if failure is None else failure.attrib["message"]
    return found


def test_every_limit_has_its_test_case() -> None:
    """The groups of JUnit hold each limit of the verdict once."""
    named = [name for names in LIMITED.values() for name in names]
    assert sorted(named) == sorted(Limits.names())


def test_a_valid_run_is_a_file_of_passed_cases() -> None:
    """One case for the verdict, one for each group of limits, one for each gate."""
    found = cases(value_of(GOOD, "ttft.p95 < 2s", "verdict == valid"))
    assert list(found) == ["verdict", *LIMITED, "ttft.p95 < 2s", "verdict == valid"]
    assert set(found.values()) == {None}


def test_what_is_wrong_fails_its_cases_and_no_other() -> None:
    """The verdict with its reasons, the limit that was passed, gates, also without a sample."""
    value = value_of(
        [*GOOD, failed("boom")], "ttft.p95 < 1ms", "session_slowdown.p50 < 2", "ttft.n > 1"
    )
    found = {name: message for name, message in cases(value).items() if message is not None}
    assert found == {
        "verdict": "error_rate: 11.1% of requests failed (limit 1.0%)",
        "error_rate": "11.1% of requests failed (limit 1.0%)",
        "ttft.p95 < 1ms": "it is 100 ms",
        "session_slowdown.p50 < 2": "no sample",
    }


def test_junit_counts_what_it_holds() -> None:
    """The totals are those of the cases; every case has a group, a name and a time."""
    value = value_of([*GOOD, failed("boom")], "ttft.p95 < 1ms")
    root = ElementTree.fromstring(junit(value).encode())
    for each in (root, root[0]):
        assert int(each.attrib["tests"]) == len(list(root.iter("testcase")))
        assert int(each.attrib["failures"]) == len(list(root.iter("failure")))
        assert float(each.attrib["time"]) == value["window"]["seconds"]
    for case in root.iter("testcase"):
        assert case.attrib["classname"].startswith("agentreplay")
        assert case.attrib["name"]
        assert float(case.attrib["time"]) >= 0


@given(texts, texts)
def test_junit_is_well_formed_whatever_is_said(words: str, path: str) -> None:
    """Any words of a server and any name of a path: the file parses, and has what XML can hold."""
    value = value_of([*GOOD, failed(words)], words=path)
    root = ElementTree.fromstring(junit(value).encode())
    verdict = root.find(".//testcase[@name='verdict']/failure")
    assert verdict is not None
    kept = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", words)
    assert (verdict.text or "").endswith(kept.replace("\r\n", "\n").replace("\r", "\n"))


def shown(page: str) -> list[list[str]]:
    """The cells of all tables of a page as a reader sees them."""
    tokens = MarkdownIt().enable(["table", "strikethrough"]).parse(page)
    rows: list[list[str]] = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("td_open", "th_open"):
            seen = token.children or []
            assert {each.type for each in seen} <= {
                "text",
                "text_special",
                "strong_open",
                "strong_close",
            }
            rows[-1].append("".join(each.content for each in seen))
    return rows


@given(texts)
def test_markdown_shows_any_text_as_it_is(words: str) -> None:
    """Words of a server make no table, link, image, tag or emphasis: they are read as they are."""
    page = markdown(value_of([*GOOD, failed(words)]))
    (cells,) = [row for row in shown(page) if row[0] == "http_5xx"]
    seen = "".join(
        " " if ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 else c
        for c in words[:300]
    )
    assert cells[2] == " ".join(seen.replace("\ufffe", " ").replace("\uffff", " ").split())


@pytest.mark.parametrize(
    "text", ["| a |", "<script>", "[x](http://h)", "**b**", "`c`", "&lt;", "a_b_c", "~~d~~", "\\"]
)
def test_markdown_is_plain(text: str) -> None:
    """What would be markup is shown."""
    html = MarkdownIt().enable(["table", "strikethrough"]).renderInline(plain(text))
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert html == escaped.replace('"', "&quot;")


def test_the_summary_begins_with_the_verdict() -> None:
    """Valid with its missed gates, or invalid with its reasons; gates and failures are tables."""
    page = markdown(value_of(GOOD, "ttft.p95 < 1ms", "ttft.n > 1"))
    assert page.startswith("## Verdict: valid, 1 of 2 gates missed\n")
    assert ["missed", "ttft.p95 < 1ms", "it is 100 ms"] in shown(page)
    assert ["passed", "ttft.n > 1", "it is 8"] in shown(page)
    page = markdown(value_of([*GOOD, failed("boom")]))
    assert page.startswith("## Verdict: invalid\n\n- error\\_rate: 11.1% of requests failed")
    assert ["http_5xx", "1", "boom"] in shown(page)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four short sessions."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 2, gap_s=0.05)) for n in range(4)))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a valid run with a gate that was missed."""
    folder = tmp_path_factory.mktemp("finished")
    path = folder / "trace.jsonl"
    path.write_bytes(b"".join(native.line(chain(n, 2, gap_s=0.05)) for n in range(4)))
    goodput = (
        "--goodput",
        "ttft < 1h",
        "--gate",
        "goodput >= 100%",
        "--gate",
        "tpot.p90 < 1ms",
    )
    ended = agentreplay(
        "run", path, "--sessions", "4", *goodput, *BUSY_MACHINE, "--out", folder / "out"
    )
    assert ended.returncode == 1, ended.stderr
    return folder / "out"


def test_a_missed_gate_ends_with_one(finished: Path) -> None:
    """The last line names it with its value; what passed is not named there."""
    ended = agentreplay("report", finished)
    assert ended.returncode == 1
    said = r"exit 1: gate missed: tpot\.p90 < 1ms \(it is [\d.]+ ms\)$"
    assert re.search(said, ended.stdout.splitlines()[-1])
    assert "Gate passed  goodput >= 100%" in ended.stdout


def test_report_judges_by_the_gates_of_the_run_and_its_own(finished: Path) -> None:
    """Gates of the run stay; those of `report` are added, one that is known counts once."""
    again = ("--gate", "verdict == valid", "--gate", "tpot.p90<1ms", "--gate", "goodput < 5 %")
    ended = agentreplay("report", finished, *again, "--json")
    assert ended.returncode == 1
    value = orjson.loads(ended.stdout)
    assert [(each["text"], each["passed"]) for each in value["gates"]] == [
        ("goodput >= 100%", True),
        ("tpot.p90 < 1ms", False),
        ("verdict == valid", True),
        ("goodput < 5%", False),
    ]
    assert value["metrics"]["goodput"] == value["gates"][0]["value"] == 1.0
    assert value["goodput_limits"] == ["ttft < 1h"]
    assert len(orjson.loads((finished / "run.json").read_bytes())["gates"]) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gate", "ttfb.p95 < 2s"], "there is ttft.p95"),
        (["--gate", "ttft.p95 < 2"], "write it with a unit"),
        (["--goodput", "ttft.p95 < 2s"], "without a percentile"),
        (["--gate", "goodput > 90%"], "needs --goodput"),
        (["--max-error-rate", "120%"], "is no share"),
        (["--allow", "error_rate=5%", "--max-error-rate", "2%"], "give one of them"),
        (["--scenario", "agentx", "--max-error-rate", "1%"], "agentx has error_rate=10%"),
        (["--junit", "."], "is a directory"),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_said_before_anything_is_sent(
    trace: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    """Exit code 2, and no run directory."""
    ended = agentreplay("run", trace, *options, "--out", tmp_path / "out")
    assert ended.returncode == 2
    assert words in " ".join(ended.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--max-error-rate", "2%", "--allow", "error_rate=0.02"],
        ["--max-error-rate", "2%"],
        ["--allow", "error_rate=2%"],
    ],
)
def test_the_error_rate_has_two_names_and_one_value(
    trace: Path, tmp_path: Path, options: list[str]
) -> None:
    """By either name, or by both with one value, the limit is the same."""
    ended = agentreplay(
        "run", trace, "--requests", "1", *options, "--out", tmp_path / "out", "--json"
    )
    assert orjson.loads(ended.stdout)["verdict"]["limits"]["error_rate"] == 0.02


def test_github_gets_a_page_and_annotations(finished: Path, tmp_path: Path) -> None:
    """The page is appended to; an annotation for each missed gate, on standard error."""
    page = tmp_path / "step.md"
    page.write_text("before\n")
    variables = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(page)}
    file = tmp_path / "sub" / "s.md"
    ended = agentreplay("report", finished, "--summary-md", file, "--json", **variables)
    assert page.read_text() == "before\n" + file.read_text()
    (line,) = [each for each in ended.stderr.splitlines() if each.startswith("::error")]
    assert re.fullmatch(r"::error title=Gate missed%3A tpot\.p90 < 1ms::it is [\d.]+ ms", line)
    orjson.loads(ended.stdout)


def test_annotations_say_any_words_in_one_line(tmp_path: Path) -> None:
    """Reasons of an invalid verdict, with their percent signs as GitHub takes them."""
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(native.line(chain(0, 2)))
    address = ("--url", "http://127.0.0.1:9", "--out", tmp_path / "out")
    ended = agentreplay("run", trace, *address, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="")
    assert ended.returncode == 4
    lines = [each for each in ended.stderr.splitlines() if each.startswith("::")]
    assert (
        "::error title=agentreplay%3A error_rate::100.0%25 of requests failed (limit 1.0%25)"
        in lines
    )
    outside = agentreplay("report", tmp_path / "out", GITHUB_ACTIONS="", GITHUB_STEP_SUMMARY="")
    assert "::error" not in outside.stderr


def test_a_file_that_cannot_be_written_takes_no_other_along(finished: Path, tmp_path: Path) -> None:
    """One clear line, exit code 2; what comes before and after it is there."""
    (tmp_path / "file").write_text("")
    page, wrong = tmp_path / "s.md", tmp_path / "file" / "junit.xml"
    (finished / "aiperf").write_text("")  # where the export has its folder
    (finished / "summary.json").unlink()
    files = ("--export", "aiperf", "--export", "inferencex", "--junit", wrong, "--summary-md", page)
    ended = agentreplay("report", finished, *files)
    (finished / "aiperf").unlink()
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    said = ended.stdout.splitlines()[-1]
    assert f"can't write {finished / 'aiperf'}: File exists" in said
    assert f"can't write {wrong}: Not a directory" in said
    assert page.read_text().startswith("**SIMULATED SERVER")
    assert (finished / "summary.json").exists()
    assert (finished / "aiperf_artifacts" / "profile_export_aiperf.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_files_are_written_waits_for_them(
    trace: Path, tmp_path: Path, number: int, code: int
) -> None:
    """It comes while the JUnit file is held up: that and the page after it are whole."""
    pipe, page, out = tmp_path / "junit", tmp_path / "s.md", tmp_path / "out"
    os.mkfifo(pipe)
    files = ["--junit", str(pipe), "--summary-md", str(page)]
    command = [sys.executable, "-m", "agentreplay", "run", str(trace), "--requests", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(out), *files], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (out / "summary.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    ElementTree.fromstring(pipe.read_bytes())
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert stdout.decode().splitlines()[-1].endswith(f"exit {code}: interrupted")
    assert "Verdict" in page.read_text()
