"""All readers of traces at once: what must hold for every format, over samples of each.

What a single format has of its own stands in that format's tests. Here files are written, opened
and read as a user's are.
"""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from command import agentreplay
from format_samples import (
    DROPPED,
    SAMPLES,
    Files,
    Place,
    Sample,
    Sums,
    document,
    file_places,
    folder_in_memory,
    lines,
    sums,
    table,
    tnetstrings,
    with_change,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import assert_well_formed
from shared_data import SHARED, needs_shared
from test_replay import FOREVER
from test_structure import in_flight, more_in_flight, recorded, simulated
from virtually import oracle, replay

from agentreplay.errors import TraceError
from agentreplay.trace import structure
from agentreplay.trace.export import exported
from agentreplay.trace.formats import native
from agentreplay.trace.load import FORMATS, SESSIONS, TraceSet, open_set
from agentreplay.trace.model import Session
from agentreplay.trace.statistics import statistics

BROKEN = "lines of broken JSON, left out"

BY_NAME = {sample.name: sample for sample in SAMPLES}


def each(*samples: Sample) -> pytest.MarkDecorator:
    """For each of the samples."""
    return pytest.mark.parametrize("sample", samples, ids=str)


every = each(*SAMPLES)
of_lines = each(*(sample for sample in SAMPLES if sample.has_lines))
of_logs = each(*(sample for sample in SAMPLES if sample.form not in SESSIONS))

random_cases = settings(deadline=None, database=None, derandomize=True, max_examples=25)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for thousands of small files."""
    with folder_in_memory() as folder:
        yield folder


# --- What is read ---------------------------------------------------------------------------------


def readable(sample: Sample, *paths: Path, **options: Any) -> list[Session]:
    """The sessions that can be read, each of which keeps the rules; none where it is refused."""
    sessions, _ = opened(sample, *paths, **options)
    return sessions


def opened(sample: Sample, *paths: Path, **options: Any) -> tuple[list[Session], TraceSet | None]:
    """The same, and the set where it could be opened; each session can be written."""
    try:
        trace = open_set(*paths, **(sample.options | options))
        sessions = list(trace.readable())
    except TraceError:
        return [], None
    for session in sessions:
        assert_well_formed(session, labelled=sample.form not in SESSIONS)
        native.line(session)
    return sessions, trace


def plain(sessions: Sequence[Session]) -> list[Session]:
    """Sessions without what their file's name and place tell of them."""
    return [replace(session, id="", source="") for session in sessions]


@cache
def whole(sample: Sample) -> list[Session]:
    """The sessions of a sample, without their places."""
    with folder_in_memory() as folder:
        return plain(readable(sample, sample.write(folder)))


def test_every_format_has_a_sample() -> None:
    """There is a sample of each format that can be read."""
    assert {sample.form for sample in SAMPLES} == set(FORMATS)


@every
def test_a_sample_is_read_whole(tmp_path: Path, sample: Sample) -> None:
    """A sample gives the sessions, calls and tokens that it was written with."""
    trace = sample.load(sample.write(tmp_path))
    sessions = list(trace)
    assert sums(sessions) == sample.sums
    assert trace.skipped == {}
    for session in sessions:
        assert_well_formed(session, labelled=sample.form not in SESSIONS)


@every
def test_reading_again_gives_the_same(tmp_path: Path, sample: Sample) -> None:
    """Nothing of a session depends on the key that texts are named with, or on a second look."""
    folder = sample.write(tmp_path)
    trace = sample.load(folder)
    assert list(trace) == list(trace) == list(sample.load(folder))


@every
def test_strict_reads_samples(tmp_path: Path, sample: Sample) -> None:
    """A sample has no fault that `--strict` refuses."""
    assert sums(list(sample.load(sample.write(tmp_path), strict=True))) == sample.sums


# --- What is recognised ---------------------------------------------------------------------------


@every
def test_a_sample_is_recognised(tmp_path: Path, sample: Sample) -> None:
    """Every file of a sample is of its format, when it lies in a folder and when it is named."""
    folder = sample.write(tmp_path)
    files = [folder / path for path in sample.files]
    for trace in (sample.load(folder), sample.load(*files)):
        list(trace)
        assert trace.formats == {str(file): sample.form for file in files}


def alone(sample: Sample) -> Iterator[dict[str, bytes]]:
    """Each record of a sample as a file of its own, and as an entry of a list."""
    for path, records in sample.files.items():
        for record in records:
            yield {path: sample.encode([record])}
            if sample.encode in (lines, document):
                yield {path: orjson.dumps([record])}


@every
def test_a_record_is_of_no_other_format(tmp_path: Path, sample: Sample) -> None:
    """A record by itself is of its format or says too little; two formats never claim it."""
    seen = set()
    for number, files in enumerate(alone(sample)):
        trace = open_set(write(tmp_path / str(number), files), **sample.options)
        list(trace.readable())
        seen |= set(trace.formats.values())
    assert seen == {sample.form}


@every
def test_a_sample_is_no_trace_of_another_format(tmp_path: Path, sample: Sample) -> None:
    """Read as a format that it isn't of, a file is refused, or what it gives keeps the rules."""
    sample.write(tmp_path)
    for form in FORMATS:
        sessions = readable(sample, tmp_path, form=form)
        assert form != sample.form or sums(sessions) == sample.sums


def test_all_formats_lie_in_one_folder(tmp_path: Path) -> None:
    """Files of all formats are one set, each of which is what it is alone."""
    for sample in SAMPLES:
        sample.write(tmp_path / sample.name)
    trace = open_set(tmp_path, chars_per_token=1.0)
    found = sums(list(trace))
    assert trace.skipped == {}
    assert found == Sums(*map(sum, zip(*(sample.sums for sample in SAMPLES), strict=True)))


# --- Cut files ------------------------------------------------------------------------------------


@every
def test_a_cut_file_gives_no_more_than_it_has(memory: Path, sample: Sample) -> None:
    """Cut after any byte a file gives its calls up to there or is named, and changes no format."""
    for path, data in sample.contents().items():
        file = write(memory, {path: data}) / path
        most = sums(readable(sample, file)).calls
        for size in range(len(data)):
            file.write_bytes(data[:size])
            sessions, trace = opened(sample, file)
            assert sums(sessions).calls <= most, (path, size)
            assert trace is not None, (path, size)
            assert set(trace.formats.values()) <= {sample.form}, (path, size)


@each(*(sample for sample in SAMPLES if len(sample.files) > 1))
def test_a_cut_file_is_no_harm_to_others(memory: Path, sample: Sample) -> None:
    """Of several files one of which is cut, no more is read than of all that are whole."""
    files = sample.contents()
    for path, data in files.items():
        write(memory, files)
        without = write(memory / "less", {name: files[name] for name in files if name != path})
        for size in range(0, len(data), 29):
            (memory / path).write_bytes(data[:size])
            calls = sums(readable(sample, *(memory / name for name in files))).calls
            assert calls <= sample.sums.calls, (path, size)
        assert sums(readable(sample, without)).calls <= sample.sums.calls


@of_lines
def test_of_cut_lines_all_but_the_last_count(tmp_path: Path, sample: Sample) -> None:
    """A file whose last line is cut is read as the lines before it are."""
    for path, records in sample.files.items():
        for keep in range(1, len(records)):
            before = sample.encode(records[:keep])
            after = sample.encode([records[keep]])
            expected = plain(readable(sample, write(tmp_path / "a", {path: before})))
            cut = write(tmp_path / "b", {path: before + after[: len(after) // 2]})
            assert plain(readable(sample, cut)) == expected, (path, keep)


# --- Broken lines ---------------------------------------------------------------------------------

BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "half a line": lambda line: line[: len(line) // 2],
    "the end of a line": lambda line: line[len(line) // 2 :],
    "an open object": lambda line: b'{"type": "user", "text": "',
    "garbage after it": lambda line: line + b"}",
    "two on a line": lambda line: line[: len(line) // 3] + line,
    "zeros": lambda line: bytes(32),
    "no UTF-8": lambda line: b"\xc3\x28\xff\xfe",
    "words": lambda line: b"Error: connection lost",
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS.keys())
@of_lines
def test_a_broken_line_is_counted_and_the_others_are_read(
    tmp_path: Path, sample: Sample, broken: Callable[[bytes], bytes]
) -> None:
    """A line that is no JSON, anywhere in a file, is named by its number and costs nothing else."""
    for path, records in sample.files.items():
        rows = [sample.encode([record]) for record in records]
        for at in range(len(rows) + 1):
            line = broken(rows[min(at, len(rows) - 1)].rstrip())
            data = b"".join([*rows[:at], line + b"\n", *rows[at:]])
            folder = write(tmp_path, sample.contents() | {path: data})
            sessions, trace = opened(sample, folder)
            assert trace is not None
            assert plain(sessions) == whole(sample), (path, at)
            file = str(tmp_path / path)
            if sample.form in SESSIONS:
                assert list(trace.skipped) == [f"{file}:{at + 1}"]
            else:
                assert (trace.notes[file][BROKEN], trace.notes[file].lines[BROKEN]) == (1, [at + 1])


@of_lines
def test_strict_refuses_a_broken_line(tmp_path: Path, sample: Sample) -> None:
    """With `strict` it is an error that names file and line."""
    path, records = next(iter(sample.files.items()))
    rows = [sample.encode([record]) for record in records]
    file = write(tmp_path, {path: b"".join([rows[0], b'{"a":\n', *rows[1:]])}) / path
    with pytest.raises(TraceError, match=re.escape(f"{file}:2: ")):
        list(sample.load(file, strict=True))


# --- How files are written ------------------------------------------------------------------------


def with_field(sample: Sample, value: Any) -> dict[str, bytes]:
    """The sample's files with a further field in each record."""

    def told(record: Any) -> Any:
        if isinstance(record, list):
            return [told(each) for each in record]
        return {**record, "comment": value}

    return {
        path: sample.encode([told(record) for record in records])
        for path, records in sample.files.items()
    }


def pretty(sample: Sample, records: Sequence[Any]) -> bytes:
    """Records as JSON on many lines, one after another."""
    return b"\n".join(orjson.dumps(record, option=orjson.OPT_INDENT_2) for record in records)


def in_utf16(order: str) -> Callable[[bytes], bytes]:
    mark = {"le": b"\xff\xfe", "be": b"\xfe\xff"}[order]
    return lambda data: mark + data.decode().encode(f"utf-16-{order}")


WRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "gzip of two members": lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:]),
}
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "BOM": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16 LE": in_utf16("le"),
    "UTF-16 BE": in_utf16("be"),
    "UTF-16 in gzip": lambda data: gzip.compress(in_utf16("le")(data)),
    "BOM in zstd": lambda data: zstandard.compress(b"\xef\xbb\xbf" + data),
    "no line end": bytes.rstrip,
}
LINES: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CRLF and BOM": lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    "CRLF in UTF-16": lambda data: in_utf16("le")(data.replace(b"\n", b"\r\n")),
    "blank lines": lambda data: b"\n \n" + data.replace(b"\n", b"\n\n\t \r\n") + b"\n\n",
    "spaces around": lambda data: b"  " + data.replace(b"\n", b" \n "),
}


def ways() -> Iterator[Any]:
    for sample in SAMPLES:
        found = WRITTEN | (TEXTS if sample.encode is not tnetstrings else {})
        found |= LINES if sample.has_lines else {}
        for name, way in found.items():
            yield pytest.param(sample, way, id=f"{sample}-{name}")


@pytest.mark.parametrize(("sample", "way"), list(ways()))
def test_the_same_is_read_however_it_is_written(
    tmp_path: Path, sample: Sample, way: Callable[[bytes], bytes]
) -> None:
    """Packing, marks, encodings, line ends and blank lines change no session."""
    files = {path: way(data) for path, data in sample.contents().items()}
    sessions, trace = opened(sample, write(tmp_path, files), strict=True)
    assert trace is not None
    assert plain(sessions) == whole(sample)
    assert set(trace.formats.values()) == {sample.form}


@every
def test_the_same_is_read_of_an_archive(tmp_path: Path, sample: Sample) -> None:
    """A zip archive is read as the folder that was packed."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sample.contents().items():
            archive.writestr(path, data)
    assert plain(readable(sample, tmp_path / "x.zip", strict=True)) == whole(sample)


@of_lines
def test_lines_may_be_written_over_several(tmp_path: Path, sample: Sample) -> None:
    """Pretty-printed objects one after another are the lines that they should have been."""
    files = {path: pretty(sample, records) for path, records in sample.files.items()}
    assert plain(readable(sample, write(tmp_path, files), strict=True)) == whole(sample)


@of_lines
def test_lines_may_be_entries_of_a_list(tmp_path: Path, sample: Sample) -> None:
    """A JSON list of the records is what lines of them are, whatever the file is called."""
    files = {path: orjson.dumps(list(records)) for path, records in sample.files.items()}
    assert plain(readable(sample, write(tmp_path, files), strict=True)) == whole(sample)


@each(*(sample for sample in SAMPLES if sample.encode is document))
def test_a_document_may_be_pretty_printed(tmp_path: Path, sample: Sample) -> None:
    """A document over many lines, of whatever ends, is the same document."""
    for name, end in {"a": b"\n", "b": b"\r\n"}.items():
        files = {
            path: pretty(sample, records).replace(b"\n", end)
            for path, records in sample.files.items()
        }
        assert plain(readable(sample, write(tmp_path / name, files), strict=True)) == whole(sample)


ODD_TEXTS = {
    "separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg",
    "a lone surrogate": orjson.Fragment(b'"a \\ud83d b"'),
    "a lone low surrogate": orjson.Fragment(b'"\\ude00"'),
    "a zero": "a\0b",
    "NaN": orjson.Fragment(b"NaN"),
    "infinity": orjson.Fragment(b"-Infinity"),
    "a large number": orjson.Fragment(b"1" + b"0" * 40),
    "no UTF-8": orjson.Fragment(b'"\xff\xfe caf\xe9"'),
    "depth": orjson.Fragment(b"[" * 300 + b"]" * 300),
}


@pytest.mark.parametrize("odd", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
@each(*(sample for sample in SAMPLES if sample.encode in (lines, document)))
def test_odd_values_of_a_field_that_means_nothing_change_nothing(
    tmp_path: Path, sample: Sample, odd: object
) -> None:
    """What Python writes and others refuse, and what only looks like an end of a line, is read."""
    folder = write(tmp_path, with_field(sample, odd))
    assert plain(readable(sample, folder, strict=True)) == whole(sample)


def test_a_number_beyond_all_floats_costs_no_line(tmp_path: Path) -> None:
    """A whole number of 400 digits in a field that means nothing is no reason to lose a line."""
    sample = BY_NAME["litellm"]
    folder = write(tmp_path, with_field(sample, orjson.Fragment(b"1" + b"0" * 400)))
    assert plain(readable(sample, folder)) == whole(sample)


def test_a_line_of_50_megabytes_is_read(memory: Path) -> None:
    """A line may hold pictures: its length is no limit, and it changes nothing."""
    sample = BY_NAME["claude-code"]
    picture = orjson.dumps("x" * 50_000_000)
    (path, records), *others = sample.files.items()
    message = {"role": "user", "content": [{"type": "image", "data": orjson.Fragment(picture)}]}
    large = [*records[:4], {**records[4], "message": message}, *records[5:]]
    folder = sample.write(memory, {path: large, **dict(others)})
    assert (folder / path).stat().st_size > 50_000_000
    assert plain(readable(sample, folder, strict=True)) == whole(sample)


# --- Values of the wrong kind ---------------------------------------------------------------------

WRONG: tuple[Any, ...] = (
    None,
    "",
    0,
    -1,
    orjson.Fragment(b"1e999"),
    [],
    {},
    True,
    "x",
    orjson.Fragment(b'"\\ud83d"'),
    DROPPED,
)


def with_value(sample: Sample, path: str, place: Place, value: Any) -> bytes | None:
    """A file with a wrong value at a place; None where no such file can be written."""
    if value is DROPPED and isinstance(place[-1], int):
        return None
    is_plain = None not in place and sample.encode in (tnetstrings, table)
    if isinstance(value, orjson.Fragment) and is_plain:
        value = float("inf") if sample.encode is tnetstrings else "1e999"
    try:
        return sample.encode(with_change(sample.files, path, place, lambda _: value)[path])
    except (TypeError, ValueError, AttributeError):
        return None


@every
def test_a_wrong_value_anywhere_is_no_crash(memory: Path, sample: Sample) -> None:
    """Any value of a file may be of any kind, or missing: what is read still keeps the rules."""
    paths = [sample.write(memory) / path for path in sample.files]
    for path, place, _ in file_places(sample.files):
        for value in WRONG:
            data = with_value(sample, path, place, value)
            if data is not None:
                (memory / path).write_bytes(data)
                try:
                    readable(sample, *paths)
                except Exception as error:
                    error.add_note(f"{sample}: {path}: {place}: {value!r}")
                    raise
        write(memory, {path: sample.contents()[path]})


@every
def test_a_number_without_bounds_is_no_crash(memory: Path, sample: Sample) -> None:
    """A count that no prompt has is left out or refused: what is read can still be summed up."""
    paths = [sample.write(memory) / path for path in sample.files]
    for path, place, value in file_places(sample.files):
        if not isinstance(value, int | float) and not str(value).isdecimal():
            continue
        for number in (1 << 63, 1e30, 1e308):
            data = with_value(
                sample, path, place, number if sample.encode is not table else "9" * 30
            )
            assert data is not None
            (memory / path).write_bytes(data)
            assert statistics(readable(sample, *paths)).input_tokens < 1 << 60, (
                path,
                place,
                number,
            )
        write(memory, {path: sample.contents()[path]})


# --- Sets of files --------------------------------------------------------------------------------


def in_any_order(sessions: Sequence[Session]) -> list[str]:
    """Sessions as a bag, without their places."""
    return sorted(map(repr, plain(sessions)))


def read_of(sample: Sample, files: Files) -> list[Session]:
    """The sessions of other files of a sample's kind."""
    with folder_in_memory() as folder:
        return readable(sample, sample.write(folder, files))


@each(*(sample for sample in SAMPLES if len(sample.files) > 1))
def test_the_order_of_files_means_nothing(tmp_path: Path, sample: Sample) -> None:
    """Files may be named in any order."""
    sample.write(tmp_path)
    paths = [tmp_path / path for path in sample.files]
    shuffled = list(permutations(paths)) if len(paths) < 4 else [paths[::-1], paths[3:] + paths[:3]]
    for order in shuffled:
        assert in_any_order(readable(sample, *order)) == in_any_order(whole(sample))


@each(*(sample for sample in SAMPLES if sample.named))
def test_a_copy_of_a_file_adds_nothing(tmp_path: Path, sample: Sample) -> None:
    """Calls that have ids count once, whichever file is copied into another folder, or packed."""
    for path, data in sample.contents().items():
        others = {f"copies/of/{path}": data, f"{path}.gz": gzip.compress(data)}
        for name, copy in others.items():
            folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            write(sample.write(folder), {name: copy})
            assert sums(readable(sample, folder))[1:] == sample.sums[1:], name


def test_a_copy_of_a_main_file_does_not_part_it_from_its_agents(tmp_path: Path) -> None:
    """A session whose main file was also put elsewhere is still one, with its subagents."""
    sample = BY_NAME["claude-code"]
    path = next(iter(sample.files))
    for name in ("a copy", "z copy"):
        folder = sample.write(tmp_path / name)
        write(folder, {f"{name}/s-one.jsonl": sample.contents()[path]})
        assert sums(readable(sample, folder)) == sample.sums


@each(*(sample for sample in SAMPLES if sample.named))
def test_a_copy_of_all_files_adds_nothing(tmp_path: Path, sample: Sample) -> None:
    """A backup of a whole folder inside it changes no number."""
    sample.write(sample.write(tmp_path) / "backup" / "of it")
    assert sums(readable(sample, tmp_path)) == sample.sums


@each(*(sample for sample in SAMPLES if sample.apart))
@random_cases
@given(data=st.data())
def test_lines_may_lie_in_any_file(sample: Sample, data: st.DataObject) -> None:
    """Dealt out to two files, or mixed in one, each file's lines in order, they are the same."""
    queues = [list(records) for records in sample.files.values()]
    path = next(iter(sample.files))
    mixed: list[Any] = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(queues[data.draw(st.integers(0, len(queues) - 1))].pop(0))
    assert sums(read_of(sample, {path: mixed})) == sample.sums
    dealt: dict[str, list[Any]] = {path: [], str(Path(path).with_name("more.jsonl")): []}
    for record in mixed:
        dealt[data.draw(st.sampled_from(list(dealt)))].append(record)
    assert (
        sums(read_of(sample, {name: rows for name, rows in dealt.items() if rows})) == sample.sums
    )


@each(*(sample for sample in SAMPLES if sample.any_order))
@random_cases
@given(data=st.data())
def test_lines_may_stand_in_any_order(sample: Sample, data: st.DataObject) -> None:
    """Where each line says all of itself, their order changes no session."""
    files = {
        path: data.draw(st.permutations(list(records))) for path, records in sample.files.items()
    }
    assert in_any_order(read_of(sample, files)) == in_any_order(whole(sample))


@each(*(sample for sample in SAMPLES if sample.encode is not document))
@random_cases
@given(data=st.data())
def test_records_in_disorder_are_no_crash(sample: Sample, data: st.DataObject) -> None:
    """Records that are missing and out of order give no call more; doubled ones keep the rules."""
    fewer, doubled = {}, {}
    for path, records in sample.files.items():
        places = st.lists(st.integers(0, len(records) - 1), min_size=1, max_size=2 * len(records))
        doubled[path] = [records[place] for place in data.draw(places)]
        fewer[path] = [records[place] for place in dict.fromkeys(data.draw(places))]
    assert sums(read_of(sample, fewer)).calls <= sample.sums.calls
    read_of(sample, doubled)


@random_cases
@given(data=st.data())
def test_formats_in_one_file_are_asked_about_or_read(data: st.DataObject) -> None:
    """Lines of two formats in a file are refused with the question, or read as one of them."""
    one, other = (data.draw(st.sampled_from([s for s in SAMPLES if s.has_lines])) for _ in range(2))
    rows = [
        record for records in (*one.files.values(), *other.files.values()) for record in records
    ]
    mixed = data.draw(st.permutations(rows))
    with folder_in_memory() as folder:
        path = folder / "x.jsonl"
        path.write_bytes(lines(mixed))
        said = ""
        try:
            trace = open_set(path, chars_per_token=1.0)
        except TraceError as error:
            said = str(error)
        else:
            sessions = list(trace.readable())
            assert {one.form, other.form} >= set(trace.formats.values())
            for session in sessions:
                assert_well_formed(session, labelled=False)
        assert said == "" or "say which with --format" in said


# --- Replaying what was read ----------------------------------------------------------------------


@every
def test_a_sample_replays_as_recorded(sample: Sample) -> None:
    """Identity: answered in recorded time, the scheduler starts each call at its recorded time."""
    for session in whole(sample):
        outcome = replay(FOREVER, [session], oracle([session]))
        sent_s = {record.request.call: record.sent_ns / 1e9 for record in outcome.records}
        expected = {i: pytest.approx(c.start_s, abs=1e-3) for i, c in enumerate(session.calls)}
        assert sent_s == expected


@pytest.mark.parametrize("stretch", [3.0, 10.0])
@every
def test_slow_calls_of_a_sample_do_not_pile_up(sample: Sample, stretch: float) -> None:
    """Stretch: with longer calls no session has more in flight than recorded."""
    for session in whole(sample):
        spans = simulated(session, stretch)
        assert in_flight(spans) <= in_flight(recorded(session))
        for i, call in enumerate(session.calls):
            assert all(spans[j][1] <= spans[i][0] for j in call.after)


FOLDERS = sorted(path.name for path in (SHARED / "data" / "formats").glob("*") if path.is_dir())


@cache
def shared_sessions(folder: str) -> list[Session]:
    """The sessions of a folder of shared samples."""
    path = SHARED / "data" / "formats" / folder
    trace = open_set(path, chars_per_token=4.0, gap_s=1.0)
    return list(trace.readable())


@needs_shared
@pytest.mark.parametrize("folder", FOLDERS)
def test_shared_samples_keep_the_rules(folder: str) -> None:
    """What is read of recordings by others is what the model allows."""
    for session in shared_sessions(folder):
        assert_well_formed(session)


@needs_shared
@pytest.mark.parametrize("folder", FOLDERS)
def test_shared_samples_replay_as_recorded(folder: str) -> None:
    """Identity: with recorded durations every call starts within a second of its recorded time."""
    for session in shared_sessions(folder):
        starts_s = [start_s for start_s, _ in simulated(session)]
        assert starts_s == pytest.approx([c.start_s for c in session.calls], abs=1.0), session.id


@needs_shared
@pytest.mark.parametrize("stretch", [3.0, 10.0])
@pytest.mark.parametrize("folder", FOLDERS)
def test_slow_calls_of_shared_samples_do_not_pile_up(folder: str, stretch: float) -> None:
    """Stretch: with longer calls no session has more in flight than recorded."""
    assert more_in_flight(shared_sessions(folder), stretch) == set()


# --- Written and read again -----------------------------------------------------------------------


def rounded(sessions: Sequence[Session]) -> list[Session]:
    """Sessions with times as the native format writes them, to the microsecond."""
    return [
        replace(
            session,
            calls=tuple(
                c._replace(
                    start_s=round(c.start_s, 6), end_s=round(c.end_s, 6), gap_s=round(c.gap_s, 6)
                )
                for c in session.calls
            ),
        )
        for session in plain(sessions)
    ]


@every
def test_a_sample_comes_back_through_native(tmp_path: Path, sample: Sample) -> None:
    """Written in the native format and read again, a session is the same."""
    trace = sample.load(sample.write(tmp_path / "in"))
    written = write(tmp_path, {"out.jsonl": b"".join(exported(trace, "native", 0))})
    back = open_set(written / "out.jsonl", strict=True)
    assert rounded(list(back)) == rounded(list(trace))


def test_all_samples_come_back_through_the_command(tmp_path: Path) -> None:
    """`convert` writes what is read of all formats at once."""
    for sample in SAMPLES:
        sample.write(tmp_path / "in" / sample.name)
    out = tmp_path / "out.jsonl"
    ended = agentreplay("convert", tmp_path / "in", "--chars-per-token", "1", "--out", out)
    assert ended.returncode == 0, ended.stderr
    trace = open_set(tmp_path / "in", chars_per_token=1.0)
    assert rounded(list(open_set(out, strict=True))) == rounded(list(trace))


@needs_shared
@pytest.mark.parametrize("folder", FOLDERS)
def test_shared_samples_come_back_through_native(tmp_path: Path, folder: str) -> None:
    """That holds for recordings by others."""
    trace = open_set(SHARED / "data" / "formats" / folder, chars_per_token=4.0, gap_s=1.0)
    written = write(tmp_path, {"out.jsonl": b"".join(exported(trace, "native", 0)) or b"[]"})
    expected = rounded(list(map(structure.alone, shared_sessions(folder))))
    assert rounded(list(open_set(written / "out.jsonl"))) == expected
