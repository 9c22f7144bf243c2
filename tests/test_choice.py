"""Which recorded sessions are meant: the rules, and the options through every command."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from hypothesis import given
from hypothesis import strategies as st
from test_load import native_line, weka_bytes, written
from virtually import chain

from agentreplay.errors import TraceError
from agentreplay.trace.choice import Choice, Head
from agentreplay.trace.formats import native
from agentreplay.trace.load import TraceSet, load, open_set

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOON_S = NOON.timestamp()


def refused(
    choice: Choice,
    date_s: float | None = None,
    project: str | None = None,
    models: Collection[str | None] = (None,),
    calls: int = 1,
) -> str | None:
    """Why a session of this kind is not meant."""
    return choice.refusal(Head(date_s, project, models, calls))


# --- Rules ----------------------------------------------------------------------------------------


def test_without_a_choice_all_are_meant() -> None:
    """A choice of nothing means every session, and looks into none."""
    assert refused(Choice()) is None
    assert not Choice(sample=3, seed=1).looks_inside
    assert Choice().drawn([3, 5]) == [3, 5]


@pytest.mark.parametrize(
    ("date_s", "refusal"),
    [(9.9, "before --since"), (10.0, None), (19.9, None), (20.0, "after --until")],
)
def test_since_is_included_and_until_is_not(date_s: float, refusal: str | None) -> None:
    """A session that begins at --since is meant, and one that begins at --until isn't."""
    assert refused(Choice(since_s=10.0, until_s=20.0), date_s) == refusal


@pytest.mark.parametrize("choice", [Choice(since_s=0.0), Choice(until_s=9e9)])
def test_a_session_without_a_date_is_at_no_time(choice: Choice) -> None:
    """Where dates are asked for, a session without one isn't meant."""
    assert refused(choice) == "without a date"


@pytest.mark.parametrize("part", ["web", "WEB", "me/web", "/home/me/Web", ""])
def test_a_project_has_the_part_in_its_name(part: str) -> None:
    """A part of the project's name is enough, in any case of letters."""
    assert refused(Choice(project=part), project="/home/me/Web") is None


@pytest.mark.parametrize("project", ["/home/me/other", "", None])
def test_other_projects_are_not_meant(project: str | None) -> None:
    """Another project, and a session of which none was recorded, isn't meant."""
    assert refused(Choice(project="web"), project=project) == "of other projects"


@pytest.mark.parametrize(
    ("models", "refusal"),
    [
        (["a-Large-1"], None),
        (["other", None, "a-large-2"], None),
        (["other"], "of other models"),
        ([None], "of other models"),
        ([], "of other models"),
    ],
)
def test_one_call_of_the_model_is_enough(models: list[str | None], refusal: str | None) -> None:
    """A session is meant where one of its calls was of such a model."""
    assert refused(Choice(model="LARGE"), models=models) == refusal


@pytest.mark.parametrize(("calls", "refusal"), [(2, "of fewer calls"), (3, None), (4, None)])
def test_as_many_calls_are_enough(calls: int, refusal: str | None) -> None:
    """A session of exactly so many calls is meant."""
    assert refused(Choice(min_calls=3), calls=calls) == refusal


def test_all_wishes_count() -> None:
    """A session must meet every wish; one that meets none is left out for one reason."""
    choice = Choice(since_s=1.0, project="web", model="m", min_calls=2)
    assert refused(choice, 2.0, "web", ["m"], 2) is None
    assert refused(choice, 0.0, "x", ["x"], 1) == "before --since"
    assert refused(choice, 2.0, "web", ["m"], 1) == "of fewer calls"


@given(st.lists(st.integers(0, 999), unique=True), st.integers(1, 40), st.integers())
def test_a_sample_is_some_of_them_in_order(indices: list[int], sample: int, seed: int) -> None:
    """A sample has as many as asked for, or all, in their order, and is the same each time."""
    indices.sort()
    drawn = Choice(sample=sample, seed=seed).drawn(indices)
    assert len(drawn) == min(sample, len(indices))
    assert drawn == [index for index in indices if index in drawn]
    assert drawn == Choice(sample=sample, seed=seed).drawn(tuple(indices))


def test_the_seed_decides_the_sample() -> None:
    """Other seeds draw others, and every session may be drawn."""
    drawn = {tuple(Choice(sample=3, seed=seed).drawn(range(10))) for seed in range(50)}
    assert len(drawn) > 20
    assert {index for each in drawn for index in each} == set(range(10))


# --- Sets -----------------------------------------------------------------------------------------


def logged(name: str, began: datetime, calls: int = 1, **fields: str) -> bytes:
    """A session in the log of an agent: its calls are a minute apart and take ten seconds."""
    lines: list[dict[str, Any]] = []
    about = {"sessionId": name, "cwd": fields.get("cwd", "/home/me/web"), "isSidechain": False}
    for n in range(calls):
        at = began + timedelta(minutes=n)
        usage = {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 900}
        message = {"id": f"{name}{n}", "role": "assistant", "model": fields.get("model", "large-1")}
        lines += (
            {"type": "user", "uuid": f"u{name}{n}", "parentUuid": f"a{name}{n - 1}" if n else None,
             "timestamp": at.isoformat(), "message": {"role": "user", "content": "x"}} | about,
            {"type": "assistant", "uuid": f"a{name}{n}", "parentUuid": f"u{name}{n}",
             "requestId": f"r{name}{n}", "timestamp": (at + timedelta(seconds=10)).isoformat(),
             "message": message | {"content": [{"type": "text", "text": "y"}], "usage": usage}}
            | about,
        )  # fmt: skip
    return b"".join(map(_line, lines))


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five sessions in logs, of different days, projects, models and lengths, and two without."""
    folder = tmp_path / "logs"
    for name, days, calls, fields in (
        ("a", 0, 1, {}),
        ("b", 1, 2, {"cwd": "/home/me/api"}),
        ("c", 2, 3, {"model": "small-1"}),
        ("d", 3, 4, {}),
        ("e", 4, 5, {"cwd": "/home/me/api"}),
    ):
        written(
            folder / f"{name}.jsonl", logged(name, NOON + timedelta(days=days), calls, **fields)
        )
    written(folder / "f.jsonl", native.line(chain(6, 6)))
    written(folder / "g.jsonl", native.line(chain(7, 7)))
    return folder


def calls_of(trace: TraceSet) -> list[int]:
    """How many calls each session has; in the folder each has another number."""
    return sorted(len(session.calls) for session in trace)


DAY_S = 86400.0


@pytest.mark.parametrize(
    ("choice", "calls", "left_out"),
    [
        (Choice(), [1, 2, 3, 4, 5, 6, 7], {}),
        (Choice(since_s=NOON_S + 2 * DAY_S), [3, 4, 5], {"before --since": 2, "without a date": 2}),
        (Choice(until_s=NOON_S + DAY_S), [1], {"after --until": 4, "without a date": 2}),
        (Choice(project="API"), [2, 5], {"of other projects": 5}),
        (Choice(model="large"), [1, 2, 4, 5], {"of other models": 3}),
        (Choice(min_calls=5), [5, 6, 7], {"of fewer calls": 4}),
        (
            Choice(since_s=NOON_S + DAY_S, project="web", min_calls=4),
            [4],
            {"without a date": 2, "before --since": 1, "of other projects": 2, "of fewer calls": 1},
        ),
    ],
    ids=["all", "since", "until", "project", "model", "calls", "several"],
)
def test_a_set_holds_what_is_meant(
    folder: Path, choice: Choice, calls: list[int], left_out: dict[str, int]
) -> None:
    """Of logs and session files those are kept that are meant; the others are counted by why."""
    trace = load(folder, choice=choice)
    assert (calls_of(trace), trace.left_out) == (calls, left_out)


def test_a_sample_of_a_set_is_counted(folder: Path) -> None:
    """A sample is drawn of those that are meant, and the others are counted."""
    trace = load(folder, choice=Choice(min_calls=3, sample=2))
    assert (len(trace), min(calls_of(trace)) >= 3) == (2, True)
    assert trace.left_out == {"of fewer calls": 2, "not drawn for the sample": 3}


def test_a_sample_is_the_same_each_time(folder: Path) -> None:
    """The same seed draws the same sessions of the same set."""
    drawn = [calls_of(load(folder, choice=Choice(sample=3, seed=n))) for n in (*range(9), 0)]
    assert drawn[0] == drawn[-1]
    assert len(set(map(tuple, drawn))) > 3


def test_a_sample_parses_nothing(tmp_path: Path) -> None:
    """Of sessions in files a sample is drawn by their number, without reading them."""
    for n in range(50):
        written(tmp_path / f"{n:03}.json", b'{"requests": [')
    trace = load(tmp_path, choice=Choice(sample=3))
    assert (len(trace), trace.skipped) == (3, {})


def test_arrivals_count_from_the_first_that_is_meant(folder: Path) -> None:
    """The set's own start is the first session that is left."""
    trace = load(folder, choice=Choice(since_s=NOON_S + 2 * DAY_S))
    assert sorted(session.start_s or 0.0 for session in trace) == [0.0, DAY_S, 2 * DAY_S]


def test_a_session_that_can_not_be_read_is_named_not_left_out(tmp_path: Path) -> None:
    """What can't be looked into is skipped under its name."""
    file = written(tmp_path / "a.jsonl", native_line("a") + b"{\n" + native_line("b"))
    trace = load(file, choice=Choice(min_calls=1))
    assert [session.id for session in trace] == ["a", "b"]
    assert (list(trace.skipped), trace.left_out) == ([f"{file}:2"], {})


def test_a_choice_does_not_soften_strict(tmp_path: Path) -> None:
    """With `strict` what can't be looked into is an error."""
    file = written(tmp_path / "a.jsonl", native_line("a") + b"{\n" + native_line("b"))
    with pytest.raises(TraceError, match=r"a\.jsonl:2: broken JSON"):
        load(file, strict=True, choice=Choice(min_calls=1))


def test_a_choice_counts_no_note_twice(tmp_path: Path) -> None:
    """Sessions are looked into to choose them; what was noted then is not noted again."""
    data = weka_bytes("a", colour=1) + b"\n" + weka_bytes("b", colour=1) + b"\n"
    file = written(tmp_path / "a.jsonl", data)
    trace = load(file, choice=Choice(min_calls=1))
    list(trace)
    assert trace.notes == {str(file): {"unknown field 'colour', ignored": 2}}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(min_calls=9), "no session is left of 7: 7 of fewer calls"),
        (Choice(since_s=9e9), "no session is left of 7: 2 without a date, 5 before --since"),
    ],
)
def test_a_set_of_nothing_says_why(folder: Path, choice: Choice, said: str) -> None:
    """Where no session is left, the error counts them by why."""
    with pytest.raises(TraceError) as raised:
        load(folder, choice=choice)
    assert str(raised.value) == f"{folder}: {said}"
    assert len(open_set(folder, choice=choice)) == 0


# --- Commands -------------------------------------------------------------------------------------

CHOICES = {
    "--since": ("2026-01-04T00:00Z", [3, 4, 5]),
    "--until": ("2026-01-04T00:00Z", [1, 2]),
    "--project": ("API", [2, 5]),
    "--recorded-model": ("SMALL", [3]),
    "--min-calls": ("5", [5, 6, 7]),
}
choices = pytest.mark.parametrize(
    ("option", "value", "calls"), [(name, *rest) for name, rest in CHOICES.items()], ids=CHOICES
)


def json_of(*arguments: str | Path) -> dict[str, Any]:
    """What a command prints as JSON."""
    ended = agentreplay(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = orjson.loads(ended.stdout)
    return found


@choices
def test_all_commands_choose_alike(folder: Path, option: str, value: str, calls: list[int]) -> None:
    """The same option means the same sessions to inspect, check, convert and a dry run."""
    which = (folder, option, value)
    for command in ("inspect", "check"):
        found = json_of(command, *which)
        assert (found["sessions"], found["calls"]) == (len(calls), sum(calls))
        assert sum(found["left_out"].values()) == 7 - len(calls)
    lines = agentreplay("convert", *which).stdout.splitlines()
    assert sorted(len(orjson.loads(line)["calls"]) for line in lines) == calls
    found = json_of("run", *which, "--dry-run", "--sessions", str(len(calls)))
    assert (found["sessions"], found["calls"]) == (len(calls), sum(calls))


def test_all_commands_draw_alike(folder: Path) -> None:
    """The same sample and seed draw the same sessions in every command."""
    which = (folder, "--sample", "3", "--seed", "5")
    calls = calls_of(load(folder, choice=Choice(sample=3, seed=5)))
    assert json_of("inspect", *which)["calls"] == sum(calls)
    assert json_of("check", *which)["calls"] == sum(calls)
    lines = agentreplay("convert", *which).stdout.splitlines()
    assert sorted(len(orjson.loads(line)["calls"]) for line in lines) == calls
    assert json_of("run", *which, "--dry-run", "--sessions", "3")["calls"] == sum(calls)


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_what_was_left_out_is_shown(folder: Path, command: str) -> None:
    """The report counts the sessions that were left out, by why."""
    ended = agentreplay(command, folder, "--since", "2026-01-04T00:00Z", "--sample", "1")
    assert ended.returncode == 0, ended.stderr
    said = [line.strip() for line in ended.stdout.splitlines() if " sessions " in line]
    for line in ("2 sessions before --since", "2 sessions without a date",
                 "2 sessions not drawn for the sample"):  # fmt: skip
        assert line in said


@pytest.mark.parametrize(
    "command", [["inspect"], ["check"], ["convert"], ["run", "--dry-run"]], ids=lambda c: c[0]
)
def test_nothing_left_is_an_error(folder: Path, command: list[str]) -> None:
    """Where no session is left, the command says why and ends with 2."""
    ended = agentreplay(*command, folder, "--project", "none of them")
    assert ended.returncode == 2
    assert ended.stderr == (
        f"agentreplay: {folder}: no session is left of 7: 7 of other projects\n"
    )


@pytest.mark.parametrize(
    ("zone", "since", "sessions"),
    [
        ("UTC", "2026-01-02T12:00", 1),
        ("UTC", "2026-01-02T12:00:01", 0),
        ("UTC", "2026-01-02", 1),
        ("UTC", "2026-01-03", 0),
        ("Asia/Tokyo", "2026-01-02T21:00", 1),
        ("Asia/Tokyo", "2026-01-02T21:01", 0),
        ("America/New_York", "2026-01-02 07:00", 1),
        ("America/New_York", "2026-01-02T12:00+00:00", 1),
        ("Asia/Tokyo", "2026-01-02T12:01Z", 0),
    ],
)
def test_a_date_is_of_the_users_zone(tmp_path: Path, zone: str, since: str, sessions: int) -> None:
    """A date or time without a zone is local, and begins with its first moment."""
    file = written(tmp_path / "a.jsonl", logged("a", NOON))
    ended = agentreplay("check", file, "--since", since, "--json", TZ=zone)
    assert orjson.loads(ended.stdout)["sessions"] == sessions


@pytest.mark.parametrize(("ago", "sessions"), [("2d", 1), ("36h", 0), ("5d", 2), ("1h30m", 0)])
def test_a_time_may_be_so_long_ago(tmp_path: Path, ago: str, sessions: int) -> None:
    """A duration counts back from now."""
    now = datetime.now(UTC)
    data = logged("a", now - timedelta(days=1.8)) + logged("b", now - timedelta(days=3))
    file = written(tmp_path / "a.jsonl", data)
    found = orjson.loads(agentreplay("check", file, "--since", ago, "--json").stdout)
    assert found["sessions"] == sessions


@pytest.mark.parametrize("value", ["soon", "2026-13-01", "7", "-3d", ""])
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_what_is_no_time_is_refused(folder: Path, option: str, value: str) -> None:
    """A value that is no time is an error of one line that says how to write one."""
    ended = agentreplay("check", folder, option, value)
    assert ended.returncode == 2
    assert f"'{option}': {value!r} is no time: write 2026-01-31" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("value", ["0001-01-01", "9999-12-31T23:59", "99999999999999999d"])
def test_a_time_beyond_all_times_is_no_crash(folder: Path, value: str, zone: str) -> None:
    """At the ends of the calendar a time is refused or leaves sessions out, in one line."""
    ended = agentreplay("check", folder, "--since", value, "--json", TZ=zone)
    assert len(ended.stderr.splitlines()) <= 1


@pytest.mark.parametrize(
    ("option", "value"), [("--min-calls", "0"), ("--sample", "0"), ("--sample", "-1")]
)
def test_a_choice_of_nothing_is_refused(folder: Path, option: str, value: str) -> None:
    """So few calls or sessions can't be asked for."""
    ended = agentreplay("inspect", folder, option, value)
    assert ended.returncode == 2
    assert option in ended.stderr
