"""Mooncake traces and what AIPerf and Dynamo made of them: a JSON line a request, ids of blocks.

Pure: decoded lines in, drafts of sessions out. docs/formats.md describes the format. A file is a
trace of its own: its block ids and session ids mean nothing in another one.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

from agentreplay.errors import TraceError
from agentreplay.trace.fields import count, number
from agentreplay.trace.model import Notes
from agentreplay.trace.recorded import BLOCK_TOKENS, Draft, Reading, Recorded
from agentreplay.trace.structure import FALLBACK_TOKENS_S

BLOCK = 512
"""Tokens a block where neither a header nor the numbers of ids say otherwise."""

TELLING_IDS = 3
"""From so many ids on the length of a prompt tells the block size: two fit half of all sizes."""

COMMON_FORKS = 3
"""A beginning after which so many rows go on differently is a system prompt, not a session."""

BUSY_PER_MS = 0.1
"""Rows a millisecond above which stamps rather are seconds."""

EARLIEST_DATE_S = 1e8
"""Stamps from here on (1973) count from 1970, and not from the start of the log."""

AGENTIC = "dynamo.agentic_mooncake"

FIELDS = frozenset(
    "timestamp created_time input_length input_tokens output_length output_tokens hash_ids "
    "session_id delay delay_ms text_input messages payload tools extra model request_id play_id "
    "wait_for tool_wait_ms tool_events branches prefix_reset not_before_ms dependencies "
    "output_token_ids priority strict_priority policy_class".split()
)


_Place = tuple[str | None, str | None]
"""A play, and a session or request in it."""


@dataclass(slots=True, eq=False)
class _Row:
    """A row that is a call.

    `new_only`: its input is what came on top of the session's earlier rows (None: to be found
    out). `waits`: ids of the requests that it waits for, whether for their ends, and the seconds
    after. `old`: how many of its leading blocks rows before it have. `again`: its last block, too.
    """

    line: int
    call: Recorded
    ids: Sequence[Any]
    session: str | None = None
    new_only: bool | None = None
    request: str | None = None
    play: str | None = None
    waits: Sequence[tuple[str, bool, float]] | None = None
    old: int = 0
    again: bool = False


def recognises(record: object) -> bool:
    """Whether a decoded line is a row of the Mooncake family."""
    if not isinstance(record, dict) or "chat_id" in record or "requests" in record:
        return False
    has = record.__contains__
    if isinstance(schema := record.get("schema"), str):
        return schema.startswith(AGENTIC)
    if isinstance(record.get("type"), dict):
        return False
    timed = has("timestamp") or has("created_time") or has("delay") or has("delay_ms")
    if has("input_length"):
        return timed or has("output_length") or has("hash_ids")
    if has("type"):
        return False
    if has("input_tokens"):
        return (timed or has("hash_ids")) and has("output_tokens")
    if has("text_input"):
        return True
    texts = has("messages") or has("payload")
    return (
        texts and not has("call_type") and (has("output_length") or (timed and has("session_id")))
    )


def read(
    records: Iterable[tuple[int, Any]], path: PurePath, reading: Reading, notes: Notes
) -> list[Draft]:
    """The sessions of one file.

    Raises:
        TraceError: no row's ids fit its length; rows hold texts only, or nothing tells whether
            they hold whole prompts, and *reading* doesn't say.
    """
    header: dict[str, Any] = {}
    rows = list(_rows(records, path, reading, notes, header))
    lengths = [(row.call.isl, len(row.ids)) for row in rows if row.ids]
    size = count(header.get("block_size")) or block_size(lengths, BLOCK, notes)
    rows = consistent(rows, size, path, notes)
    if not rows:
        return []
    agentic = bool(header) or any(row.waits is not None for row in rows)
    if agentic:
        for row in rows:
            row.session = row.session or row.play or row.request or f"{path}:{row.line}"
    dated = _dated(rows, notes)
    if all(row.session is None and row.call.start_s is not None for row in rows):
        rows.sort(key=lambda row: row.call.start_s or 0.0)
    sessions: dict[_Place, list[_Row]] = {}
    alone: list[_Row] = []
    for row in rows:
        if row.session is None:
            alone.append(row)
        else:
            sessions.setdefault((row.play, row.session), []).append(row)
    if not agentic:
        _find_out_what_is_new(sessions.values(), size, path, reading, notes)
    _compare(rows, size)
    groups = _plays(sessions) if agentic else list(sessions.values())
    groups += _continued(alone)
    if agentic:
        _schedule(rows, notes)
    groups.sort(key=lambda group: group[0].line)
    file, drafts = str(path), []
    for group in groups:
        first = group[0]
        if len(group) > 1:
            _complete(group, labelled=agentic)
        source = f"{file}:{first.line}"
        tokens = size if any(row.ids for row in group) else BLOCK_TOKENS
        name = first.play or first.session or source
        calls, scope = [row.call for row in group], f"{file}:{first.play or ''}"
        drafts.append(Draft(name, source, calls, dated, notes, tokens, scope=scope))
    return drafts


def drafts(parts: Sequence[list[Draft]], reading: Reading) -> list[Draft]:
    """The sessions of all files."""
    return [draft for part in parts for draft in part]


def _rows(
    records: Iterable[tuple[int, Any]],
    path: PurePath,
    reading: Reading,
    notes: Notes,
    header: dict[str, Any],
) -> Iterator[_Row]:
    """The rows with lengths, their ids as recorded; *header* is filled from the header line."""
    for line, record in records:
        if not isinstance(record, dict):
            notes.add("lines that are no objects, left out", line)
            continue
        get = record.get
        isl, osl = count(get("input_length")), count(get("output_length"))
        stamp, ids = number(get("timestamp")), get("hash_ids")
        if isl and osl and stamp is not None and ids and len(record) == 4:
            call = Recorded(stamp / 1000, None, isl, osl)
            yield _Row(line, call, block_ids(ids, line, notes))
            continue
        schema = get("schema")
        if isinstance(schema, str) and isl is None:
            if schema.startswith(AGENTIC) and not header:
                header.update(schema=schema, block_size=get("block_size"))
            else:
                notes.add("lines of another schema, left out", line)
            continue
        for name in record.keys() - FIELDS:
            if record[name] is not None:
                notes.add(f"unknown field {name!r}, ignored", line)
        isl = count(get("input_tokens")) if isl is None else isl
        osl = count(get("output_tokens")) if osl is None else osl
        call = Recorded(None, None, isl or 0, osl or 0)
        new_only = None
        if isl is None:
            new_only = _measure(record, call, path, reading)
        if not call.isl or osl is None:
            what = "an input length" if osl is not None else "an output length"
            notes.add(f"rows without {what}, left out", line)
            continue
        if not osl:
            notes.add("calls without output, sent with one token", line)
        if stamp is None:
            stamp = number(get("created_time"))
        delay = number(get("delay"))
        if delay is None:
            delay = number(get("delay_ms"))
        if delay is not None and delay < 0:
            notes.add("negative delays, taken as none", line)
            delay = 0.0
        call.delay_s = None if delay is None else delay / 1000
        session = _id(get("session_id"))
        if stamp is not None:
            call.start_s = stamp / 1000
        model = get("model")
        call.model = model if isinstance(model, str) and model else None
        row = _Row(line, call, block_ids(ids, line, notes), session, new_only)
        row.request, row.play = _id(get("request_id")), _id(get("play_id"))
        if row.request is not None:
            _add_waits(row, record, notes)
        yield row


def _id(value: object) -> str | None:
    """An id as text; None where there is none."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def block_ids(ids: object, line: int, notes: Notes) -> Sequence[Any]:
    """A row's block ids, where they are a list of values that can be told apart."""
    if ids is None:
        return []
    if isinstance(ids, list):
        try:
            return array("Q", ids)
        except (TypeError, OverflowError):
            if all(isinstance(each, str | int | float) for each in ids):
                return ids
    notes.add("rows with block ids that name nothing, ids left out", line)
    return []


def _add_waits(row: _Row, record: Mapping[str, Any], notes: Notes) -> None:
    """What an agentic row waits for; the second version of the format has other fields."""
    ids, links = record.get("wait_for"), record.get("dependencies")
    not_before = number(record.get("not_before_ms"))
    if isinstance(links, list):
        row.waits = [
            (
                request,
                link.get("trigger") != "dispatch",
                max(0.0, number(link.get("delay_ms")) or 0.0) / 1000,
            )
            for link in links
            if isinstance(link, dict) and (request := _id(link.get("request_id"))) is not None
        ]
        if len(row.waits) < len(links):
            notes.add("dependencies without a request, left out", row.line)
    elif isinstance(ids, list):
        tools = max(0.0, number(record.get("tool_wait_ms")) or 0.0) / 1000
        row.call.delay_s = (row.call.delay_s or 0.0) + tools
        waits = [(_id(each), True, row.call.delay_s) for each in ids]
        row.waits = [(each, ends, after) for each, ends, after in waits if each is not None]
        if row.waits:
            row.call.start_s = None  # a stamp is for rows that wait for nothing
    if not_before is not None:
        row.call.start_s = not_before / 1000
        row.waits = row.waits or ()


# --- Texts ----------------------------------------------------------------------------------------


def _measure(
    record: Mapping[str, Any], call: Recorded, path: PurePath, reading: Reading
) -> bool | None:
    """Give a call of a row of text its length and pieces; whether the text is what is new only."""
    payload, messages = record.get("payload"), record.get("messages")
    pieces: list[Any] = []
    if (text := record.get("text_input")) is not None:
        pieces = [text]
    elif isinstance(payload, dict):
        for name in ("tools", "system", "instructions", "messages", "input", "prompt"):
            value = payload.get(name)
            if isinstance(value, list) and name != "tools":
                pieces += value
            else:
                pieces.append(value)
    elif messages is not None:
        pieces = [record.get("tools"), *(messages if isinstance(messages, list) else [messages])]
    else:
        return None
    if reading.chars_per_token is None:
        raise TraceError(
            f"{path}: these Mooncake rows record no lengths; --chars-per-token supplies them"
        )
    chars, before = 0, 0
    names: list[int] = []
    ends: list[int] = []
    for piece in pieces:
        if strings := list(_strings(piece)):
            chars += sum(map(len, strings))
            before = reading.name("\0".join(strings).encode("utf-8", "surrogatepass"), before)
            names.append(before)
            ends.append(ceil(chars / reading.chars_per_token))
    call.isl = ceil(chars / reading.chars_per_token)
    if text is not None:
        return reading.turn_lengths != "full"
    call.prompt, call.ends = names, ends
    return False


def _strings(value: object) -> Iterator[str]:
    """All text in a JSON value, in order."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            rest += reversed(value.values())
        elif isinstance(value, list):
            rest += reversed(value)


# --- Blocks ---------------------------------------------------------------------------------------


def block_size(lengths: Iterable[tuple[int, int]], usual: int, notes: Notes) -> int:
    """How many tokens a block has: the *usual* number, or a size that more prompts fit.

    Args:
        lengths: Of prompts, in tokens and in blocks; begun blocks count.
        usual: The size that the format is known for.
        notes: Say so where it is another size.
    """
    telling = [(isl, ids) for isl, ids in lengths if ids >= TELLING_IDS]
    if all(-(-isl // usual) == ids for isl, ids in telling):
        return usual
    least = max(-(-isl // ids) for isl, ids in telling)
    sizes = [usual, *(1 << power for power in range(4, 17)), least]
    fitting = [sum(-(-isl // size) == ids for isl, ids in telling) for size in sizes]
    size = sizes[fitting.index(max(fitting))]
    if size != usual:
        notes.add(f"blocks of {size} tokens, as the numbers of block ids say")
    return size


class _WithIds(Protocol):
    """A row of this family, or of another log with block ids."""

    line: int
    call: Recorded
    ids: Any


_AnyRow = TypeVar("_AnyRow", bound=_WithIds)


def consistent(rows: list[_AnyRow], size: int, path: PurePath, notes: Notes) -> list[_AnyRow]:
    """The rows whose ids, if any, are as many as their length has blocks, begun ones included.

    Raises:
        TraceError: there are rows with ids, and none is right.
    """
    wrong = [row for row in rows if row.ids and -(-row.call.isl // size) != len(row.ids)]
    if not wrong:
        return rows
    if len(wrong) == sum(1 for row in rows if row.ids):
        row = wrong[0]
        raise TraceError(
            f"{path}:{row.line}: input_length {row.call.isl} has {-(-row.call.isl // size)} "
            f"blocks of {size} tokens, and there are {len(row.ids)} hash_ids"
        )
    for row in wrong:
        notes.add("rows whose block ids don't match their input length, left out", row.line)
    left_out = set(map(id, wrong))
    return [row for row in rows if id(row) not in left_out]


def _compare(rows: Sequence[_Row], size: int) -> None:
    """Keep the ids of whole blocks, and see how many of a row are old; a play's ids are its own."""
    spaces: dict[str | None, set[Any]] = {}
    for row in rows:
        if not row.ids:
            continue
        seen = spaces.setdefault(row.play, set())
        row.call.prompt = blocks = row.ids[: row.call.isl // size]
        # An id names all before it as well: what is old comes first.
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in seen:
                low = middle + 1
            else:
                high = middle
        row.old = low
        row.again = bool(blocks) and blocks[-1] in seen
        seen.update(blocks[low:] if low else blocks)
        row.ids = blocks or row.ids  # the begun block's has served


# --- Sessions -------------------------------------------------------------------------------------


def _dated(rows: Sequence[_Row], notes: Notes) -> bool:
    """Whether stamps count from 1970; notes stamps that would rather be seconds."""
    stamps = [row.call.start_s for row in rows if row.call.start_s is not None]
    if not stamps:
        return False
    first, last = min(stamps), max(stamps)
    if (last - first) * 1000 * BUSY_PER_MS < len(stamps) and len(set(stamps)) > 2:
        notes.add("stamps look like seconds: read as milliseconds")
    return first >= EARLIEST_DATE_S


def _continued(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Sessions of rows that name none.

    A row continues the latest earlier one whose whole blocks all begin it, where these are more
    than a system prompt that many have in common.
    """
    forks: dict[Any, int] = {}
    for row in rows:
        blocks, old = row.call.prompt, row.old
        if old < len(blocks):
            forks[blocks[-1]] = -1  # nothing follows it yet: the first that does is no fork
            if old:
                forks[blocks[old - 1]] = forks.get(blocks[old - 1], 0) + 1
    common = {block for block, times in forks.items() if times >= COMMON_FORKS - 1}
    sessions: list[list[_Row]] = []
    session_of: list[list[_Row]] = []
    held: dict[Any, int] = {}  # the latest row that ends in a block
    again = -1  # the latest row that ends in a block which was there before
    for place, row in enumerate(rows):
        blocks = row.call.prompt
        ends = filter(held.__contains__, reversed(blocks[: row.old]))
        latest = held.get(next(ends, None))
        if latest is not None and latest < again:
            latest = max(latest, max(map(held.__getitem__, ends), default=-1))
        before = () if latest is None else rows[latest].call.prompt
        if latest is not None and blocks[: len(before)] == before:
            session = session_of[latest]
        else:
            session = []
            sessions.append(session)
        session.append(row)
        session_of.append(session)
        if blocks and blocks[-1] not in common:
            held[blocks[-1]] = place
            again = place if row.again else again
    return sessions


def _find_out_what_is_new(
    sessions: Iterable[list[_Row]], size: int, path: PurePath, reading: Reading, notes: Notes
) -> None:
    """Mark rows that hold what is new only, by what most sessions' block ids say.

    Raises:
        TraceError: there are sessions of several rows, and nothing tells.
    """
    unknown = []
    for session in sessions:
        rows = [row for row in session if row.new_only is None]
        if len(rows) > 1:
            unknown.append(rows)
    if not unknown:
        return
    new_only = reading.turn_lengths == "delta"
    if reading.turn_lengths is None:
        votes = Counter((score > 0) - (score < 0) for score in (_new(s, size) for s in unknown))
        if votes[1] == votes[-1]:
            raise TraceError(
                f"{path}: rows after a session's first may hold whole prompts or what is new "
                "only, and block ids don't tell; --turn-lengths full or delta says it"
            )
        new_only = votes[1] > votes[-1]
        held = "what is new only" if new_only else "whole prompts"
        notes.add(f"rows of sessions hold {held} (decided by block ids)")
    for rows in unknown:
        for row in rows:
            row.new_only = new_only


def _new(session: Sequence[_Row], size: int) -> int:
    """How many rows share no block with the row before, less those that begin as it does."""
    score = 0
    for before, row in pairwise(session):
        whole = before.ids[: before.call.isl // size]
        if whole and row.ids:
            if row.ids[0] == whole[0]:
                score -= 1
            elif not set(whole).intersection(row.ids):
                score += 1
    return score


def _complete(rows: Sequence[_Row], *, labelled: bool) -> None:
    """Times and lengths of whole prompts, of a session of several rows."""
    first = rows[0].call
    if first.start_s is None and any(row.call.start_s is not None for row in rows):
        first.start_s = 0.0  # a session without a stamp begins with the log
    agents: dict[str | None, str] = {}
    last: dict[str | None, Recorded] = {}
    for row in rows:
        call, before = row.call, last.get(row.session)
        if labelled:
            call.agent = agents.setdefault(row.session, f"agent {len(agents)}" if agents else "")
        elif before is not None and call.delay_s is not None:
            call.start_s = None  # a delay counts from the end of the row before
        if row.new_only and before is not None:
            call.prompt = ()
            call.isl += before.isl + before.osl
        if before is not None and call.isl >= before.isl:
            # Where no row has pieces, a prompt that has grown holds the one before.
            call.parent, call.shared = before, before.isl
        last[row.session] = call


def _plays(sessions: Mapping[_Place, list[_Row]]) -> list[list[_Row]]:
    """Agentic rows by play; where plays have no names, sessions that wait for each other."""
    play_of = {session: session for session in sessions}

    def root(session: _Place) -> _Place:
        while play_of[session] != session:
            play_of[session] = session = play_of[play_of[session]]
        return session

    places: dict[_Place, _Place] = {}
    named: dict[str, _Place] = {}
    for session, rows in sessions.items():
        for row in rows:
            places[row.play, row.request] = session
            if row.play is not None:
                play_of[root(session)] = root(named.setdefault(row.play, session))
    for session, rows in sessions.items():
        for row in rows:
            for request, *_ in row.waits or ():
                if (row.play, request) in places:
                    play_of[root(session)] = root(places[row.play, request])
    plays: dict[_Place, list[_Row]] = {}
    for session, rows in sessions.items():
        plays.setdefault(root(session), []).extend(rows)
    return [sorted(rows, key=lambda row: row.line) for rows in plays.values()]


def _schedule(rows: Sequence[_Row], notes: Notes) -> None:
    """Times of agentic rows: when what they wait for has ended, at the usual speed of output."""
    named = {(row.play, row.request): row for row in rows if row.request is not None}
    followers: dict[_Row, list[_Row]] = {}
    open_waits: dict[_Row, int] = {}
    ready: deque[_Row] = deque()
    for row in rows:
        waits = [named.get((row.play, request)) for request, *_ in row.waits or ()]
        open_waits[row] = sum(1 for each in waits if each is not None)
        for each in waits:
            if each is None:
                notes.add("waits for requests that aren't there, left out", row.line)
            else:
                followers.setdefault(each, []).append(row)
        if not open_waits[row]:
            ready.append(row)
    done = 0
    while ready:
        row = ready.popleft()
        done += 1
        for request, at_its_end, delay_s in row.waits or ():
            before = named.get((row.play, request))
            if before is None or before.call.start_s is None:
                continue
            seconds = before.call.osl / FALLBACK_TOKENS_S if at_its_end else 0.0
            due_s = before.call.start_s + seconds + delay_s
            row.call.start_s = max(due_s, row.call.start_s or 0.0)
        if row.call.start_s is None and row.call.delay_s is None:
            row.call.start_s = 0.0
        for follower in followers.get(row, ()):
            open_waits[follower] -= 1
            if not open_waits[follower]:
                ready.append(follower)
    if done < len(rows):
        notes.add("rows that wait for each other, waits left out", times=len(rows) - done)
