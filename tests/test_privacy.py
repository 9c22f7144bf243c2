"""Nothing that somebody wrote leaves a recording: texts, paths, names and hashes stay in it.

A key is planted in every text of a sample of every format that bears one, and looked for in all
that the program writes. What is meant to be kept: paths as the user gave them, names of models,
and in a run's records and report the ids of the sessions. The native and the Weka format, which
hold no texts, keep their own ids and labels also where they are converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from command import BUSY_MACHINE, agentreplay
from format_samples import (
    SAMPLES,
    Files,
    Place,
    Sample,
    file_places,
    folder_in_memory,
    with_change,
)

from agentreplay.errors import TraceError
from agentreplay.trace.load import LOGS, SESSIONS, open_set
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.recorded import Reading

KEY = re.compile(rb"sk7q[0-9]{5}z", re.IGNORECASE)

OPTIONS = ("--chars-per-token", "1")

SESSION_FIELDS = frozenset(
    "id sessionId session_id trace_id gen_ai.conversation.id session.id conversation_id play_id "
    "sessionID parentID parent_thread_id parent_session_id".split()
)
"""Fields of which the ids of sessions are made."""


class Planted(NamedTuple):
    """Where a key was planted: the sample, and the fields."""

    sample: str
    fields: frozenset[str]


@dataclass(frozen=True)
class Bearer:
    """A sample with a key in every text that can bear one.

    Attributes:
        sample: The sample.
        files: Its records with the keys.
        keys: Where each key is.
    """

    sample: Sample
    files: Files
    keys: dict[bytes, Planted]


def read(sample: Sample, files: Files) -> list[Session]:
    """The sessions of a sample's files with other records."""
    with folder_in_memory() as folder:
        try:
            return list(open_set(sample.write(folder, files), **sample.options).readable())
        except TraceError:
            return []


def nameless(sessions: list[Session], *, labelled: bool) -> list[object]:
    """The calls of sessions without what a longer text may change of them."""
    return [
        [
            (call[:7], call.parent, call.cached, call.agent if labelled else "")
            for call in session.calls
        ]
        for session in sessions
    ]


def name_of(value: Any, place: Place) -> str:
    """The field that a place is, by the key of an attribute where it is the value of one."""
    names = [name for name in place if isinstance(name, str)]
    if names[-2:] in (["value", "stringValue"], ["value", "intValue"]):
        for step in place[:-2]:
            value = orjson.loads(value) if step is None else value[step]
        return str(value["key"])
    return names[-1] if names else ""


def planted(sample: Sample, first: int) -> Bearer:
    """Plant keys, numbered from *first*; equal texts get the same one where that can be."""
    comment = {"comment": "a text", "nested": [{"text": "another text"}]}
    files: Files = {
        path: [{**each, **comment} if isinstance(each, dict) else each for each in records]
        for path, records in sample.files.items()
    }
    labelled = sample.form not in SESSIONS
    whole = nameless(read(sample, sample.files), labelled=labelled)
    if nameless(read(sample, files), labelled=labelled) != whole:
        files = sample.files
    groups: dict[str | bytes, list[tuple[str, Place]]] = {}
    for path, place, value in file_places(files):
        if place[-1] == "key" or not isinstance(value, str | bytes):
            continue  # it is an attribute's name, or no text
        if value[:1] not in ("{", "[", b"{", b"["):
            groups.setdefault(value, []).append((path, place))
    keys: dict[bytes, Planted] = {}

    def plant(value: str | bytes, spots: list[tuple[str, Place]]) -> bool:
        nonlocal files
        key = f"sk7q{first + len(keys):05}z"
        grown = value + key if isinstance(value, str) else value + key.encode()
        tried = files
        for path, place in spots:
            tried = with_change(tried, path, place, lambda _: grown)
        if nameless(read(sample, tried), labelled=labelled) != whole:
            return False
        fields = frozenset(name_of(list(files[path]), place) for path, place in spots)
        files = tried
        keys[key.encode()] = Planted(sample.name, fields)
        return True

    for value, spots in groups.items():
        if not plant(value, spots) and len(spots) > 1:
            for spot in spots:
                plant(value, [spot])
    return Bearer(sample, files, keys)


@pytest.fixture(scope="module")
def bearers() -> list[Bearer]:
    """Every sample with its keys."""
    made: list[Bearer] = []
    for sample in SAMPLES:
        made.append(planted(sample, sum(len(each.keys) for each in made)))
    return made


@pytest.fixture(scope="module")
def where(bearers: list[Bearer]) -> dict[bytes, Planted]:
    """Where each key of all samples is."""
    return {key: spot for bearer in bearers for key, spot in bearer.keys.items()}


@pytest.fixture(scope="module")
def folder(bearers: list[Bearer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All samples with their keys in one folder."""
    root = tmp_path_factory.mktemp("planted")
    for bearer in bearers:
        bearer.sample.write(root / bearer.sample.name, bearer.files)
    return root


class Kept(NamedTuple):
    """The keys that are meant to be kept, by what they are part of."""

    models: set[bytes]
    sessions: set[bytes]
    agents: set[bytes]


@pytest.fixture(scope="module")
def kept(bearers: list[Bearer]) -> Kept:
    """What the sessions themselves say of keys."""
    found = Kept(set(), set(), set())
    for bearer in bearers:
        for session in read(bearer.sample, bearer.files):
            found.sessions.update(KEY.findall(session.id.encode()))
            for call in session.calls:
                found.models.update(KEY.findall((call.model or "").encode()))
                found.agents.update(KEY.findall(call.agent.encode()))
    return found


def output(*arguments: str | Path) -> bytes:
    """All that a command prints, on a screen that cuts nothing."""
    ended = agentreplay(*arguments, COLUMNS="3000")
    assert ended.returncode == 0, ended.stderr
    return (ended.stdout + ended.stderr).encode()


def files_below(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        yield str(path.relative_to(folder)).encode()
        if path.is_file():
            yield path.read_bytes()


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run of all sessions leaves, prints, and what is reported of it afterwards."""
    out = tmp_path_factory.mktemp("run") / "out"
    plays = sum(sample.sums.sessions for sample in SAMPLES)
    options = ("--sessions", str(plays), "--users", str(plays), "--timing", "none", *BUSY_MACHINE)
    said = output("run", folder, *OPTIONS, *options, "--out", out)
    return {
        "screen": said,
        "directory": b"\n".join(files_below(out)),
        "report": output("report", out),
        "report as JSON": output("report", out, "--json"),
    }


def leaks(data: bytes, where: dict[bytes, Planted], but: set[bytes]) -> list[Planted]:
    """Where the keys in *data* come from, but for those that are meant to be there."""
    found = {key.lower() for key in KEY.findall(data)} - but
    return [where[key] for key in sorted(found)]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for thousands of small files."""
    with folder_in_memory() as folder:
        yield folder


# --- What is planted ------------------------------------------------------------------------------


def test_keys_are_planted_in_every_sample(bearers: list[Bearer]) -> None:
    """Of each sample some text can bear a key, and hundreds in all."""
    assert all(bearer.keys for bearer in bearers)
    assert sum(len(bearer.keys) for bearer in bearers) > 250


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ("claude-code", "content"),
        ("claude-code", "text"),
        ("claude-code", "stdout"),
        ("claude-code", "cwd"),
        ("claude-code", "gitBranch"),
        ("claude-code", "agentId"),
        ("codex", "text"),
        ("codex", "output"),
        ("codex", "cwd"),
        ("codex", "command"),
        ("har", "content"),
        ("har", "url"),
        ("har", "value"),
        ("har", "system"),
        ("mitmproxy", "content"),
        ("mitmproxy", "sni"),
        ("litellm", "user_api_key_alias"),
        ("litellm", "content"),
        ("otel", "gen_ai.agent.name"),
        ("otel", "gen_ai.tool.name"),
        ("otel", "service.name"),
        ("otel-flat", "content"),
        ("otel-flat", "gen_ai.output.text"),
        ("gemini-cli", "projectHash"),
        ("opencode", "directory"),
        ("opencode", "title"),
        ("openhands", "content"),
        ("openhands-completions", "content"),
        ("mooncake-agentic", "request_id"),
        ("weka", "subagent_type"),
        ("weka", "agent_id"),
    ],
)
def test_keys_are_where_people_write(bearers: list[Bearer], form: str, field: str) -> None:
    """Prompts, answers, results, paths, headers and names bear keys."""
    (bearer,) = (bearer for bearer in bearers if bearer.sample.name == form)
    assert field in {field for spot in bearer.keys.values() for field in spot.fields}


def test_sessions_are_named_by_their_ids_only(kept: Kept, where: dict[bytes, Planted]) -> None:
    """No text but a session's id becomes part of its name."""
    assert {field for key in kept.sessions for field in where[key].fields} <= SESSION_FIELDS


def test_agents_of_logs_have_neutral_names(kept: Kept, where: dict[bytes, Planted]) -> None:
    """No recorded name or id of an agent is its label, but in formats whose labels are data."""
    assert {where[key].sample for key in kept.agents} <= set(SESSIONS)


# --- What is written ------------------------------------------------------------------------------


def own(kept: Kept, where: dict[bytes, Planted]) -> set[bytes]:
    """The ids and labels of native and Weka sessions, and models: what exports keep."""
    named = {key for key in kept.sessions | kept.agents if where[key].sample in SESSIONS}
    return named | kept.models


@pytest.mark.parametrize("form", ["native", "weka"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["written", "dry run"])
def test_no_text_is_exported(
    folder: Path, where: dict[bytes, Planted], kept: Kept, form: str, more: tuple[str, ...]
) -> None:
    """An export has the models of logs, and no text, path, id or label of them."""
    said = output("convert", folder, *OPTIONS, "--to", form, *more)
    assert leaks(said, where, own(kept, where)) == []


@pytest.mark.parametrize(
    "command", [("check",), ("check", "--json"), ("inspect",), ("inspect", "--json")], ids=" ".join
)
def test_no_text_is_printed_of_a_set(
    folder: Path, where: dict[bytes, Planted], kept: Kept, command: tuple[str, ...]
) -> None:
    """What is said of a set names its files and models."""
    said = output(command[0], folder, *OPTIONS, *command[1:])
    assert leaks(said, where, kept.models) == []


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "JSON"])
def test_no_text_is_printed_of_a_plan(
    folder: Path, where: dict[bytes, Planted], kept: Kept, more: tuple[str, ...]
) -> None:
    """A forecast says no more."""
    said = output("run", folder, *OPTIONS, "--dry-run", *more)
    assert leaks(said, where, kept.models) == []


def test_a_run_keeps_no_text(
    run: dict[str, bytes], where: dict[bytes, Planted], kept: Kept
) -> None:
    """A run directory has models, and the ids of sessions in its records."""
    labels = {key for key in kept.agents if where[key].sample in SESSIONS}
    assert leaks(run["directory"], where, kept.models | kept.sessions | labels) == []


@pytest.mark.parametrize("part", ["screen", "report", "report as JSON"])
def test_a_run_prints_no_text(
    run: dict[str, bytes], where: dict[bytes, Planted], kept: Kept, part: str
) -> None:
    """A run and a report of one name sessions by their ids, and print nothing else recorded."""
    assert leaks(run[part], where, kept.models | kept.sessions) == []


def given(value: object, _: object) -> object:
    return value


def said_of(sample: Sample, *paths: Path, **options: Any) -> str:
    """All that is said of files when they are read."""
    try:
        trace = open_set(*paths, **(sample.options | options))
        list(trace.readable())
    except TraceError as error:
        return str(error)
    return f"{trace.skipped} {trace.notes} {trace.nothing()}"


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.form != "native"], ids=str)
def test_no_note_repeats_a_wrong_value(memory: Path, sample: Sample) -> None:
    """What is said of a value that stands where it makes no sense does not say the value.

    The native format holds no texts, and a wrong value of its own is named.
    """
    paths = [sample.write(memory) / path for path in sample.files]
    repeated = []
    for path, place, _ in file_places(sample.files):
        for value in ("sk7q00000z", ["sk7q00000z"]):
            try:
                files = with_change(sample.files, path, place, partial(given, value))
                data = sample.encode(files[path])
            except (TypeError, ValueError, AttributeError):
                continue  # no such file can be written
            (memory / path).write_bytes(data)
            if "sk7q00000z" in said_of(sample, *paths):
                repeated.append(place)
        (memory / path).write_bytes(sample.contents()[path])
    assert repeated == []


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_no_message_repeats_a_broken_line(memory: Path, sample: Sample) -> None:
    """What is said of a line or a file that is broken does not repeat it."""
    key = b"sk7q00000z"
    for path, data in sample.contents().items():
        file = memory / Path(path).name
        for broken in (b'{"text": "' + key, b'"' + key + b'"}', key, b'{"a": ' + key + b"}"):
            for written in (broken, broken + b"\n" + data, data + broken):
                file.write_bytes(written)
                for strict in (False, True):
                    assert key.decode() not in said_of(sample, file, strict=strict)


# --- Hashes ---------------------------------------------------------------------------------------


def recorded_hashes() -> set[bytes]:
    """The recorded block ids and hashes of all samples."""
    found = set()
    for sample in SAMPLES:
        for _, place, value in file_places(sample.files):
            if isinstance(value, int) and set(place) & {"hash_ids", "input_sequence_hashes"}:
                found.add(str(value).encode())
    return found


@pytest.mark.parametrize("form", ["native", "weka"])
def test_recorded_hashes_are_not_exported(folder: Path, form: str) -> None:
    """Block ids and hashes of a recording lead from no export back to it."""
    hashes = recorded_hashes()
    assert len(hashes) > 30
    assert all(len(each) >= 10 for each in hashes)
    numbers = set(re.findall(rb"\d+", output("convert", folder, *OPTIONS, "--to", form)))
    assert hashes & numbers == set()


def test_a_run_keeps_no_recorded_hash(run: dict[str, bytes]) -> None:
    """They don't get into a run directory, nor on the screen."""
    numbers = set(re.findall(rb"\d+", b"\n".join(run.values())))
    assert recorded_hashes() & numbers == set()


def test_two_exports_have_no_block_in_common(folder: Path) -> None:
    """Nothing but lengths and times tells that two Weka exports are of the same sessions."""

    def blocks() -> list[set[int]]:
        found = []
        for line in output("convert", folder, *OPTIONS, "--to", "weka").splitlines():
            text = line.decode()
            ids = re.findall(r'"hash_ids":\[([\d,]*)\]', text)
            found.append({int(each) for row in ids for each in row.split(",") if each})
        return found

    one, other = blocks(), blocks()
    assert [len(each) for each in one] == [len(each) for each in other]
    assert sum(map(len, one)) > 100
    assert set().union(*one) & set().union(*other) == set()
    assert len(set().union(*one)) == sum(map(len, one))


def names(sample: Sample, key: bytes) -> set[int]:
    """The names that the texts of a sample's prompts get."""
    reading = Reading(key, **sample.options)
    module = LOGS[sample.form]
    parts = [
        module.read(enumerate(records, 1), Path(path), reading, Notes())
        for path, records in sample.files.items()
    ]
    calls = [call for draft in module.drafts(parts, reading) for call in draft.calls]
    return {name for call in calls if call.ends for name in call.prompt}


OF_TEXTS = [
    sample
    for sample in SAMPLES
    if sample.name in ("har", "mitmproxy", "litellm", "otel-flat", "openhands-completions")
]


@pytest.mark.parametrize("sample", OF_TEXTS, ids=str)
def test_two_readings_name_texts_differently(sample: Sample) -> None:
    """A text's name depends on the key of the reading: known texts can't be looked for."""
    one, again, other = (names(sample, key) for key in (b"one key", b"one key", b"another key"))
    assert one == again
    assert len(one) == len(other) >= 1
    assert not one & other


def test_every_reading_draws_a_key(tmp_path: Path) -> None:
    """Two sets of the same files are read with different keys of 32 bytes."""
    sample = SAMPLES[0]
    sample.write(tmp_path)
    sets = [open_set(tmp_path), open_set(tmp_path)]
    held = [value for each in sets for value in vars(each).values() if isinstance(value, Reading)]
    assert len({reading.key for reading in held}) == 2
    assert [len(reading.key) for reading in held] == [32, 32]
