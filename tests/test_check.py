"""What could be read of a set and what not, file by file, and the command that says it."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from command import agentreplay
from test_files import BROKEN, CUT, ROW, a_log, row, zipped
from test_load import native_line, weka_bytes, written
from virtually import chain

from agentreplay.trace.check import Checked, CheckedFile, Note, checked
from agentreplay.trace.choice import Choice
from agentreplay.trace.formats import native
from agentreplay.trace.load import open_set


def check(*paths: Path, **options: Any) -> Checked:
    return checked(open_set(*paths, **options))


def only(*paths: Path, **options: Any) -> CheckedFile:
    """What the one file of a set gave."""
    (file,) = check(*paths, **options).files
    return file


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command on a screen that wraps no line."""
    return agentreplay("check", *arguments, COLUMNS="1000")


# --- Files ----------------------------------------------------------------------------------------


def test_each_file_has_its_sessions_and_calls(tmp_path: Path) -> None:
    """A file has a format, sessions and calls; the set has their sums; files are in order."""
    written(tmp_path / "c.jsonl", native.line(chain(1, 3)) + native.line(chain(2, 4)))
    written(tmp_path / "a" / "a.jsonl", a_log(1, 2))
    written(tmp_path / "b.jsonl", weka_bytes("w") + b"\n")
    found = check(tmp_path)
    assert [(Path(f.path).name, f.format, f.sessions, f.calls) for f in found.files] == [
        ("a.jsonl", "litellm", 1, 2),
        ("b.jsonl", "weka", 1, 1),
        ("c.jsonl", "native", 2, 7),
    ]
    assert (found.sessions, found.calls, found.left_out) == (4, 10, {})


def test_a_file_of_one_session_in_a_folder_has_a_format(tmp_path: Path) -> None:
    """The format is also known of files of which only the head was looked at at first."""
    written(tmp_path / "a.json", weka_bytes("a"))
    written(tmp_path / "b.json", native_line("b").rstrip())
    assert [file.format for file in check(tmp_path).files] == ["weka", "native"]


@pytest.mark.parametrize("name", ["a.jsonl", "a:7.jsonl", "a:7", "a b:c.json"])
def test_a_file_is_known_by_its_whole_name(tmp_path: Path, name: str) -> None:
    """A file is said by its path, also where that looks like one with a line."""
    for data in (a_log(1), native_line("a"), b"text"):
        file = written(tmp_path / name, data)
        assert only(file).path == str(file)


def test_a_session_of_several_files_counts_where_it_begins(tmp_path: Path) -> None:
    """A log that goes on in another file is one session; the other file has none of its own."""
    written(tmp_path / "a.jsonl", a_log(1, 2))
    written(tmp_path / "b.jsonl", a_log(3))
    found = check(tmp_path)
    assert [(file.format, file.sessions, file.calls) for file in found.files] == [
        ("litellm", 1, 3),
        ("litellm", 0, 0),
    ]


def test_a_file_that_is_nothing_is_listed(tmp_path: Path) -> None:
    """A file that can't be read is there with the cause, and without a format."""
    file = written(tmp_path / "a.jsonl", b"text")
    assert only(file) == CheckedFile(str(file), None, 0, 0, [], {str(file): "it is no JSON"})


def test_a_broken_line_is_its_files(tmp_path: Path) -> None:
    """A line that can't be read stands under its file, by place and cause."""
    data = native_line("a") + b"{\n" + native_line("b") + weka_bytes("c", requests=[]) + b"\n"
    file = written(tmp_path / "a.jsonl", data)
    found = only(file)
    assert (found.format, found.sessions, found.calls) == ("native", 2, 2)
    assert list(found.skipped) == [f"{file}:2", f"{file}:4"]
    assert found.skipped[f"{file}:4"] == "no usable request"


def test_a_useless_entry_is_its_files(tmp_path: Path) -> None:
    """An entry of a list that is no session stands under its file."""
    file = written(tmp_path / "a.json", b"[5," + weka_bytes("a") + b"]")
    found = only(file)
    assert (found.sessions, list(found.skipped)) == (1, [f"{file}:1"])


def test_a_file_whose_sessions_are_all_broken_is_one_file(tmp_path: Path) -> None:
    """Where no line of a file can be read, it is still one file with its lines."""
    file = written(tmp_path / "a.jsonl", (weka_bytes("c", requests=[]) + b"\n") * 2)
    found = only(file)
    assert (found.sessions, found.calls) == (0, 0)
    assert list(found.skipped) == [f"{file}:1", f"{file}:2"]


def test_a_log_that_is_refused_was_not_read(tmp_path: Path) -> None:
    """A file whose format is seen and whose reader refuses it has no format, and the cause."""
    row = {"timestamp": "2026-01-02T12:00:00.000Z", "type": "session_meta", "payload": {"id": "c"}}
    file = written(tmp_path / "a.jsonl", orjson.dumps(row) + b"\n")
    written(tmp_path / "b.json", weka_bytes("b"))
    refused, _ = check(tmp_path).files
    assert (refused.format, refused.sessions) == (None, 0)
    assert "without a token count" in refused.skipped[str(file)]


def test_what_was_repaired_is_noted_with_lines(tmp_path: Path) -> None:
    """Notes come with counts and first lines, the most frequent first."""
    data = a_log(1) + b"{\n" * 5 + a_log(2) + orjson.dumps({"other": 1}) + b"\n"
    found = only(written(tmp_path / "a.jsonl", data))
    assert found.notes == [
        Note(BROKEN, 5, [2, 3, 4]),
        Note("lines that are no logged requests, left out", 1, [8]),
    ]


def test_notes_of_sessions_count_once(tmp_path: Path) -> None:
    """What a session's reader notes is there once, whatever else was read before."""
    file = written(tmp_path / "a.jsonl", weka_bytes("a", colour=1) + b"\n")
    for choice in (Choice(), Choice(min_calls=1)):
        assert only(file, choice=choice).notes == [Note("unknown field 'colour', ignored", 1, [])]


def test_members_of_an_archive_are_files(tmp_path: Path) -> None:
    """Each member of an archive is listed under its own name."""
    file = zipped(
        tmp_path / "x.zip", {"a.jsonl": native_line("a"), "b.jsonl": b"text", "c.jsonl": a_log(1)}
    )
    found = check(file)
    assert [(each.path, each.format, each.sessions) for each in found.files] == [
        (f"{file}/a.jsonl", "native", 1),
        (f"{file}/b.jsonl", None, 0),
        (f"{file}/c.jsonl", "litellm", 1),
    ]


def test_a_broken_archive_is_listed(tmp_path: Path) -> None:
    """An archive that can't be opened is a file with a cause."""
    found = only(written(tmp_path / "x.zip", b"PK\x03\x04" + bytes(100)))
    assert list(found.skipped.values()) == ["broken archive: File is not a zip file"]


def test_a_cut_file_says_so(tmp_path: Path) -> None:
    """A packed file without its end is read as far as it goes, and that is noted."""
    data = b"".join(native_line(f"{n * 977**11 % 2**160:040x}") for n in range(1000))
    found = only(written(tmp_path / "a.jsonl.gz", gzip.compress(data)[:-50]))
    assert Note(CUT, 1, []) in found.notes
    assert found.sessions > 800


def test_a_log_without_a_call_is_listed(tmp_path: Path) -> None:
    """A log in which nothing is a call is a file of its format with no session."""
    data = orjson.dumps(ROW | {"prompt_tokens": None, "completion_tokens": None}) + b"\n"
    found = only(written(tmp_path / "a.jsonl", data))
    assert (found.format, found.sessions, found.calls) == ("litellm", 0, 0)
    assert sum(note.times for note in found.notes) == 1


def test_what_was_not_chosen_is_counted(tmp_path: Path) -> None:
    """Sessions that are not meant are counted for the set, and none for their files."""
    file = written(tmp_path / "a.jsonl", native.line(chain(1, 3)) + native.line(chain(2, 4)))
    found = check(file, choice=Choice(min_calls=4))
    assert (found.sessions, found.calls, found.left_out) == (1, 4, {"of fewer calls": 1})
    assert [(each.sessions, each.calls) for each in found.files] == [(1, 4)]


# --- The command ----------------------------------------------------------------------------------


def mixed(folder: Path) -> Path:
    """A folder with sessions, a log with broken lines and files that are nothing."""
    written(folder / "a.json", weka_bytes("a"))
    written(folder / "b.jsonl", a_log(1) + b"{\n" * 5 + a_log(2))
    written(folder / "c.jsonl", native_line("x") + b"{\n")
    written(folder / "d.jsonl", b"text")
    written(folder / "e.json", orjson.dumps({"trajectory": [], "info": {}}))
    return folder


def test_json_is_what_was_found_and_nothing_else(tmp_path: Path) -> None:
    """With --json standard output is one object: files, sums, and what was left out."""
    ended = command(mixed(tmp_path), "--json")
    assert ended.returncode == 0
    found = orjson.loads(ended.stdout)
    assert list(found) == ["files", "sessions", "calls", "left_out"]
    assert [Path(file["path"]).name for file in found["files"]] == [
        "a.json", "b.jsonl", "c.jsonl", "d.jsonl", "e.json",
    ]  # fmt: skip
    assert (found["sessions"], found["calls"]) == (3, 4)
    assert found["files"][1] == {
        "path": str(tmp_path / "b.jsonl"),
        "format": "litellm",
        "sessions": 1,
        "calls": 2,
        "notes": [{"what": BROKEN, "times": 5, "lines": [2, 3, 4]}],
        "skipped": {},
    }
    assert ended.stderr == ""


def test_text_begins_with_the_formats(tmp_path: Path) -> None:
    """The report begins with a row for each format: files, sessions, calls."""
    said = [line.split() for line in command(mixed(tmp_path)).stdout.splitlines()]
    assert said[:4] == [
        ["format", "files", "sessions", "calls"],
        ["litellm", "1", "1", "2"],
        ["native", "1", "1", "1"],
        ["weka", "1", "1", "1"],
    ]


def test_text_names_what_was_repaired_with_lines(tmp_path: Path) -> None:
    """A file with notes is named with how often and where."""
    said = command(mixed(tmp_path)).stdout
    assert f"{tmp_path / 'b.jsonl'}: 1 sessions, 2 calls\n" in said
    assert f"  5 × {BROKEN} (line 2, 3, 4, …)\n" in said


def test_text_names_what_was_not_read_with_its_cause(tmp_path: Path) -> None:
    """A file, or line, that can't be read is named with the cause."""
    said = command(mixed(tmp_path)).stdout
    assert f"{tmp_path / 'd.jsonl'}: not read\n  it is no JSON\n" in said
    assert f"{tmp_path / 'c.jsonl'}: 1 sessions, 1 calls\n  :2 broken JSON: " in said
    assert "a SWE-agent trajectory (it records no times): known, but not read\n" in said


def test_text_is_silent_about_good_files(tmp_path: Path) -> None:
    """A file about which there is nothing to say is in the sums only."""
    said = command(mixed(tmp_path)).stdout
    assert "a.json" not in said
    assert said.splitlines()[-1] == "3 sessions, 4 calls of 5 files can be replayed"


def test_few_lines_are_all_named(tmp_path: Path) -> None:
    """Where all the lines are named there are no dots."""
    file = written(tmp_path / "a.jsonl", a_log(1) + b"{\n{\n")
    assert f"  2 × {BROKEN} (line 2, 3)\n" in command(file).stdout


def test_names_are_no_markup(tmp_path: Path) -> None:
    """Names of files are shown as they are."""
    file = written(tmp_path / "[red]a[/red].jsonl", b"text")
    assert f"{file}: not read" in command(file).stdout


def test_many_files_are_summed_up(tmp_path: Path) -> None:
    """After forty files with something to say the rest is one sum; JSON has them all."""
    for n in range(45):
        written(tmp_path / f"{n:02}.jsonl", orjson.dumps(row(n, session_id=str(n))) + b"\n{\n")
    said = command(tmp_path).stdout
    assert "39.jsonl" in said
    assert "40.jsonl" not in said
    assert f"… and 5 more files (--json)\n  5 × {BROKEN}\n" in said
    assert len(orjson.loads(command(tmp_path, "--json").stdout)["files"]) == 45


@pytest.mark.parametrize("data", [b"text", b"{\n", weka_bytes("a", requests=[]), b"", b"[]"])
def test_nothing_usable_ends_with_two(tmp_path: Path, data: bytes) -> None:
    """Where nothing can be replayed the exit code is 2, and the files are listed all the same."""
    file = written(tmp_path / "a.jsonl", data)
    ended = command(file)
    assert ended.returncode == 2
    assert str(file) in ended.stdout
    assert ended.stdout.endswith("0 sessions, 0 calls of 1 files can be replayed\n")
    assert ended.stderr.startswith(f"agentreplay: {file}: no usable session (")
    assert len(ended.stderr.splitlines()) == 1


def test_nothing_usable_is_json_too(tmp_path: Path) -> None:
    """With --json the files are listed as JSON, and the exit code is 2."""
    file = written(tmp_path / "a.jsonl", b"text")
    ended = command(file, "--json")
    assert ended.returncode == 2
    found = orjson.loads(ended.stdout)
    assert (found["sessions"], found["files"][0]["skipped"]) == (0, {str(file): "it is no JSON"})


def test_an_empty_folder_ends_with_two(tmp_path: Path) -> None:
    """A folder without a trace is an error with what was looked for."""
    ended = command(tmp_path)
    assert ended.returncode == 2
    assert f"{tmp_path}: no trace files (looked for " in ended.stderr


def test_a_missing_path_ends_with_two(tmp_path: Path) -> None:
    """A path that isn't there is an error of one line."""
    ended = command(tmp_path / "none")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"agentreplay: {tmp_path / 'none'}: no such file or folder\n"


@pytest.mark.parametrize("data", [b"text", native_line("a") + b"{\n"], ids=["file", "line"])
def test_strict_ends_at_the_first_fault(tmp_path: Path, data: bytes) -> None:
    """With --strict the first thing that can't be read is an error with its place."""
    file = written(tmp_path / "a.jsonl", data)
    ended = command(file, "--strict")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"agentreplay: {file}")
    assert "(--strict)" in ended.stderr
