"""Claude Code's and Codex's logs of invented sessions are read as what really happened.

What the formats can't say, and no test asks for:

* how much of an interrupted answer came: its output is the placeholder that was logged;
* answers that were cut off before their first line, or (Codex) before their token count, and
  compactions that leave no trace of their own call;
* how many milliseconds after its last input a call was sent; and in Codex, of the call after an
  automatic compaction, whether it was sent before or after the line that says so (3 ms);
* stamps on the other side of a clock's step back. Claude Code's stay as they were, and count again
  when the clock has caught up; Codex's are moved, so that durations stay;
* how long tools and system prompt are, where no call of an agent found just them in the cache;
* what a first prompt of an agent shares with whom: what was read from the cache may come from
  another session, and may count as shared with any earlier agent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import agent_logs
import pytest
from agent_logs import TrueAgent, TrueCall, World

from agentreplay.trace.load import load
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import common_prefix

SEEDS = range(150)
BLOCK = 64
EXACT_S = 5e-7

Place: TypeAlias = tuple[Session, int]


@dataclass(slots=True)
class Read:
    """A world, and what was read of it.

    Attributes:
        places: Where each call is, by its input length: no two calls have the same.
    """

    form: str
    world: World
    folder: Path
    sessions: list[Session]
    places: dict[int, Place]

    def calls(self) -> Iterator[tuple[TrueCall, Session, int]]:
        """Every call that was read, and where."""
        for call in self.world.calls:
            if call.isl in self.places:
                yield call, *self.places[call.isl]

    def steady(self) -> Iterator[tuple[TrueCall, Session, int]]:
        """The calls of the sessions whose clock was never set back."""
        return (found for found in self.calls() if not found[0].session.steps)

    def says(self, call: TrueCall, what: object) -> str:
        return f"{self.form} {self.world.seed}, call of {call.isl} in {call.model}: {what}"


def written(world: World, folder: Path) -> Path:
    """The folder, after the world's files went there."""
    for name, data in world.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def invented(form: str, seed: int) -> World:
    return agent_logs.claude_code(seed) if form == "claude-code" else agent_logs.codex(seed)


@pytest.fixture(scope="module", params=["claude-code", "codex"])
def reads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Read]:
    """All worlds of one format, read once."""
    found = []
    for seed in SEEDS:
        world = invented(request.param, seed)
        if not world.calls:
            continue
        folder = written(world, tmp_path_factory.mktemp(f"{request.param}-{seed}-"))
        sessions = list(load(folder))
        places = {call.isl: (s, i) for s in sessions for i, call in enumerate(s.calls)}
        found.append(Read(request.param, world, folder, sessions, places))
    return found


def agreed(complaints: list[str]) -> None:
    """Show the first of many."""
    assert not complaints, f"{len(complaints)} times:\n" + "\n".join(complaints[:8])


def whole_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def grouped(pairs: Iterator[tuple[object, int]]) -> set[frozenset[int]]:
    """The sets of calls with the same name."""
    groups: dict[object, set[int]] = {}
    for name, isl in pairs:
        groups.setdefault(name, set()).add(isl)
    return {frozenset(group) for group in groups.values()}


def before(session: Session, i: int) -> set[int]:
    """The calls that must have ended when a call is sent, directly or through others."""
    found: set[int] = set()
    ahead = list(session.calls[i].after)
    while ahead:
        j = ahead.pop()
        if j not in found:
            found.add(j)
            ahead += session.calls[j].after
    return found


def whole(read: Read, call: TrueCall) -> TrueCall | None:
    """The earlier call of its agent and model whose whole prompt, the longest, begins its own.

    None where what was read from the cache is all that is known: after a compaction or rollback,
    also where a model comes back after one, and in Codex where any model does.
    """
    made, last = earlier(call), previous(call)
    if call.after_compaction or call.rolled_back or last is None:
        return None
    if last.model != call.model:
        if read.form == "codex":
            return None
        made = made[max((i for i, c in enumerate(made) if c.after_compaction), default=0) :]
    alike = [c for c in made if c.model == call.model and c.isl in read.places]
    return max(filter(call.continues, alike), key=lambda other: other.isl, default=None)


def earlier(call: TrueCall) -> list[TrueCall]:
    """What its agent called before."""
    return call.agent.calls[: call.agent.calls.index(call)]


def previous(call: TrueCall) -> TrueCall | None:
    """The last of these."""
    return next(reversed(earlier(call)), None)


# Calls, totals, sessions, agents


def test_every_call_is_read_once_and_nothing_else(reads: list[Read]) -> None:
    """Input, cached, output and model of the calls read are those of the calls made."""
    complaints = []
    for read in reads:
        true = Counter((c.isl, c.cached, c.osl, str(c.model)) for c in read.world.calls)
        got = Counter(
            (c.isl, c.cached or 0, c.osl, str(c.model)) for s in read.sessions for c in s.calls
        )
        for what, rows in (("lost", true - got), ("too many", got - true)):
            if rows:
                complaints.append(f"{read.form} {read.world.seed}: {what}: {dict(rows)}")
    agreed(complaints)


def test_calls_begin_and_end_when_they_did(reads: list[Read]) -> None:
    """Starts and ends are right to the millisecond where no step of the clock lies between."""
    complaints = []
    for read in reads:
        origin_ms = first_ms(read)
        for call, session, i in read.calls():
            got = session.calls[i]
            moved = read.form == "codex" and call.session.steps
            if moved or not call.clean() or session.start_s is None:
                continue
            shown = [
                round((session.start_s + at_s) * 1000) + origin_ms
                for at_s in (got.start_s, got.end_s)
            ]
            true = [call.session.logged(at_ms) for at_ms in (call.start_ms, call.end_ms)]
            off = [a - b for a, b in zip(shown, true, strict=True)]
            if not -call.limit_ms <= off[0] <= 0 or off[1] or not got.timed:
                complaints.append(read.says(call, f"off by {off} ms, timed: {got.timed}"))
    agreed(complaints)


def first_ms(read: Read) -> int:
    """The stamp from which the set's seconds count: what most calls say."""
    votes: Counter[int] = Counter()
    for call, session, i in read.calls():
        at_s = (session.start_s or 0.0) + session.calls[i].start_s
        votes[call.session.logged(call.start_ms) - round(at_s * 1000)] += 1
    return votes.most_common(1)[0][0]


def test_durations_survive_a_step_of_the_clock(reads: list[Read]) -> None:
    """A call inside which the clock did not step takes as long as it took."""
    complaints = []
    for read in reads:
        for call, session, i in read.calls():
            if call.session.steps and call.clean() and not call.limit_ms:
                got = session.calls[i]
                took_ms = round((got.end_s - got.start_s) * 1000)
                if took_ms != call.end_ms - call.start_ms:
                    complaints.append(
                        read.says(call, f"{took_ms} ms, not {call.end_ms - call.start_ms}")
                    )
    agreed(complaints)


def test_sessions_are_told_apart(reads: list[Read]) -> None:
    """Calls are in one session exactly where they were made in one session."""
    complaints = []
    for read in reads:
        true = grouped((call.session, call.isl) for call in read.world.calls)
        got = {frozenset(call.isl for call in session.calls) for session in read.sessions}
        if true != got:
            sizes = sorted(map(len, true - got)), sorted(map(len, got - true))
            complaints.append(
                f"{read.form} {read.world.seed}: true {sizes[0]}, read {sizes[1]} calls"
            )
    agreed(complaints)


def test_agents_are_told_apart(reads: list[Read]) -> None:
    """Calls are of one agent exactly where one agent made them, and the main agent is unnamed."""
    complaints = []
    for read in reads:
        true = grouped((call.agent, call.isl) for call, *_ in read.calls())
        got = grouped(
            ((session.id, session.source, session.calls[i].agent), call.isl)
            for call, session, i in read.calls()
        )
        if true != got:
            sizes = sorted(map(len, true - got)), sorted(map(len, got - true))
            complaints.append(f"{read.form} {read.world.seed}: true {sizes[0]}, read {sizes[1]}")
        for call, session, i in read.calls():
            label = session.calls[i].agent
            if (call.agent.kind == "main") != (label == ""):
                complaints.append(read.says(call, f"{call.agent.kind} is {label!r}"))
    agreed(complaints)


# Waiting


def test_gaps_lead_to_the_recorded_starts(reads: list[Read]) -> None:
    """A call begins its gap after the last of what it waits for, or has no gap."""
    complaints = []
    for read in reads:
        for call, session, i in read.calls():
            got = session.calls[i]
            since_s = max((session.calls[j].end_s for j in got.after), default=0.0)
            if abs(max(since_s, got.start_s) - since_s - got.gap_s) > EXACT_S:
                complaints.append(read.says(call, f"{since_s} + {got.gap_s} is not {got.start_s}"))
    agreed(complaints)


def test_nothing_waits_for_what_ended_later(reads: list[Read]) -> None:
    """What a call waits for had ended when it began."""
    complaints = []
    for read in reads:
        for call, session, i in read.steady():
            got = session.calls[i]
            for j in got.after:
                late_s = session.calls[j].end_s - got.start_s
                if late_s > EXACT_S:
                    complaints.append(
                        read.says(call, f"waits for {session.calls[j].isl}, {late_s:.3f} s later")
                    )
    agreed(complaints)


def test_an_agent_makes_one_call_after_another(reads: list[Read]) -> None:
    """A call waits for the one that its agent made before it."""
    complaints = []
    for read in reads:
        for call, session, i in read.steady():
            last = previous(call)
            if last is None or read.places[last.isl][0] is not session:
                continue
            if read.places[last.isl][1] not in before(session, i):
                complaints.append(read.says(call, f"doesn't wait for {last.isl}"))
    agreed(complaints)


def test_agents_that_are_waited_for_are_joined(reads: list[Read]) -> None:
    """The call that could only begin when an agent had ended waits for its last call."""
    complaints = []
    for read in reads:
        for agent in read.world.agents:
            call = agent.joined_by
            if call is None or not agent.calls or agent.session.steps:
                continue
            last = max(agent.calls, key=lambda made: made.end_ms)
            session, i = read.places[call.isl]
            if read.places[last.isl][0] is session:
                j = read.places[last.isl][1]
                if j not in before(session, i):
                    complaints.append(read.says(call, f"doesn't wait for {last.isl}"))
    agreed(complaints)


def test_agents_in_the_background_are_not_waited_for(reads: list[Read]) -> None:
    """A maker that went on while an agent was at work doesn't wait for it, unless that woke it."""
    complaints = []
    for read in reads:
        for agent in read.world.agents:
            if agent.kind not in ("async", "helper") or agent.maker is None or not agent.calls:
                continue
            if agent.session.steps:
                continue
            first, last = agent.calls[0].start_ms, max(call.end_ms for call in agent.calls)
            made = {call.isl for call in agent.calls}
            for call in agent.maker.agent.calls:
                went_on = previous(call)
                if (
                    went_on is None
                    or call in agent.woken
                    or not first < went_on.end_ms - 1000
                    or went_on.end_ms > last
                ):
                    continue
                session, i = read.places[call.isl]
                waits = {session.calls[j].isl for j in session.calls[i].after}
                if waits & made:
                    complaints.append(read.says(call, f"waits for {waits & made}"))
    agreed(complaints)


def test_an_agent_waits_for_the_call_that_made_it(reads: list[Read]) -> None:
    """An agent's first call waits for its maker's call, where that had ended."""
    complaints = []
    for read in reads:
        for agent in read.world.agents:
            maker = agent.maker
            if maker is None or not agent.calls or agent.session.steps:
                continue
            first = agent.calls[0]
            session, i = read.places[first.isl]
            if maker.end_ms > first.start_ms or read.places[maker.isl][0] is not session:
                continue
            if read.places[maker.isl][1] not in before(session, i):
                complaints.append(read.says(first, f"doesn't wait for its maker {maker.isl}"))
    agreed(complaints)


# Prefixes


def test_no_prompt_shares_more_than_it_did(reads: list[Read]) -> None:
    """What two prompts share in the trace they shared, in whole blocks."""
    complaints = []
    for read in reads:
        true = {call.isl: call for call in read.world.calls}
        for call, session, i in read.calls():
            got = session.calls[i]
            if got.parent is None:
                continue
            other = true[session.calls[got.parent].isl]
            most = whole_blocks(call.shares(other))
            if other.agent is not call.agent:
                most = max(most, whole_blocks(call.cached))
            elif never_warm(call.agent) and not call.continues(other):
                most = max(most, whole_blocks(got.system))
            if got.shared > most:
                complaints.append(
                    read.says(call, f"shares {got.shared} with {other.isl}, not {most}")
                )
    agreed(complaints)


def never_warm(agent: TrueAgent) -> bool:
    """Whether no call of an agent found just tools and system prompt in the cache, or less."""
    return not any(0 < call.cached <= agent.system for call in agent.calls)


def test_no_two_prompts_of_an_agent_share_more_than_they_did(reads: list[Read]) -> None:
    """That is so for any two calls of an agent, over all the prompts between them."""
    complaints = []
    for read in reads:
        for agent in read.world.agents:
            if never_warm(agent):
                continue
            calls = [call for call in agent.calls if call.isl in read.places]
            for n, call in enumerate(calls):
                session, i = read.places[call.isl]
                for other in calls[:n]:
                    same, j = read.places[other.isl]
                    if same is not session:
                        continue
                    shared = common_prefix(session.calls, i, j)
                    most = whole_blocks(call.shares(other))
                    if shared > most:
                        complaints.append(
                            read.says(call, f"shares {shared} with {other.isl}, not {most}")
                        )
    agreed(complaints)


def test_a_prompt_that_grew_shares_all_of_the_one_before(reads: list[Read]) -> None:
    """A call that continues an earlier one of its agent and model shares that whole prompt."""
    complaints = []
    for read in reads:
        for call, session, i in read.steady():
            other = whole(read, call)
            if other is None or read.places[other.isl][0] is not session:
                continue
            j = read.places[other.isl][1]
            shared = common_prefix(session.calls, i, j)
            if shared != whole_blocks(other.isl):
                complaints.append(
                    read.says(call, f"shares {shared} with {other.isl}; cached {call.cached}")
                )
    agreed(complaints)


def test_after_a_miss_the_prompt_is_still_the_same(reads: list[Read]) -> None:
    """Where the cache had forgotten, a call shares the whole prompt that it continues."""
    complaints, seen = [], 0
    for read in reads:
        for call, session, i in read.steady():
            other = whole(read, call)
            if other is None or call.cached > call.agent.system or other.agent is not call.agent:
                continue
            seen += 1
            if session.calls[i].shared < whole_blocks(other.isl):
                complaints.append(read.says(call, f"shares {session.calls[i].shared}"))
    agreed(complaints)
    assert seen > 50


def test_after_a_compaction_the_old_prompt_is_gone(reads: list[Read]) -> None:
    """No call after a compaction shares as much as the prompt before it."""
    complaints, seen = [], 0
    for read in reads:
        for call, session, i in read.calls():
            last = previous(call)
            if call.after_compaction and last is not None and not call.continues(last):
                seen += 1
                if session.calls[i].shared >= whole_blocks(last.isl):
                    complaints.append(read.says(call, f"shares {session.calls[i].shared}"))
    agreed(complaints)
    assert seen > 50


def test_a_branch_shares_with_what_it_went_back_to(reads: list[Read]) -> None:
    """After a rewind a call shares the prompt it went back to, and no more with the branch left."""
    complaints, seen = [], 0
    for read in reads:
        for call, session, i in read.steady():
            left, back_to = previous(call), whole(read, call)
            if left is None or back_to is None or left is back_to or left.model != call.model:
                continue
            if not all(c.isl in read.places for c in (left, back_to)):
                continue
            if any(read.places[c.isl][0] is not session for c in (left, back_to)):
                continue
            seen += 1
            with_left = common_prefix(session.calls, i, read.places[left.isl][1])
            with_point = common_prefix(session.calls, i, read.places[back_to.isl][1])
            if with_point != whole_blocks(back_to.isl) or with_left > whole_blocks(
                call.shares(left)
            ):
                complaints.append(
                    read.says(call, f"{with_point} with {back_to.isl}, {with_left} with the left")
                )
    agreed(complaints)
    assert seen or reads[0].form == "codex"


def test_what_came_from_the_cache_is_shared(reads: list[Read]) -> None:
    """A call shares at least what was read from the cache, where it or its maker had sent that."""
    complaints = []
    for read in reads:
        for call, session, i in read.steady():
            if session.calls[i].shared >= whole_blocks(call.cached):
                continue
            maker = call.agent.maker
            sent = [
                other.isl
                for agent in (call.agent, maker.agent if maker else call.agent)
                for other in agent.calls
                if other.model == call.model
                and other.end_ms <= call.start_ms
                and call.shares(other) >= call.cached
            ]
            if sent:
                complaints.append(
                    read.says(
                        call, f"shares {session.calls[i].shared}, cached {call.cached} of {sent[0]}"
                    )
                )
    agreed(complaints)


def test_tools_and_system_prompt_are_no_longer_than_they_are(reads: list[Read]) -> None:
    """`system` is at most what an agent's prompts begin with, where it began with a warm cache."""
    complaints = []
    for read in reads:
        for call, session, i in read.calls():
            if session.calls[i].system > call.agent.system and not never_warm(call.agent):
                complaints.append(read.says(call, f"{session.calls[i].system} of system"))
    agreed(complaints)


# Files


def shown(sessions: list[Session]) -> list[tuple[str, float, int, tuple[Call, ...]]]:
    """Everything about sessions but where they were read."""
    return sorted((s.id, s.start_s or 0.0, len(s.calls), s.calls) for s in sessions)


def differences(read: Read, sessions: list[Session]) -> list[str]:
    true, got = shown(read.sessions), shown(sessions)
    if true == got:
        return []
    lost = [(row[0], row[1]) for row in true if row not in got]
    new = [(row[0], row[1]) for row in got if row not in true]
    return [f"{read.form} {read.world.seed}: {lost[:3]} became {new[:3]}"]


def test_the_order_of_files_changes_nothing(reads: list[Read]) -> None:
    """Files named one by one in any order give the sessions that their folder gives."""
    complaints = []
    for read in reads[::2]:
        names = sorted(
            n for n in read.world.files if not n.endswith(("meta.json", "journal.jsonl"))
        )
        random.Random(read.world.seed).shuffle(names)
        complaints += differences(read, list(load(*(read.folder / name for name in names))))
    agreed(complaints)


@pytest.mark.parametrize("where", ["a-backup", "z-backup"])
def test_a_backup_beside_the_folder_changes_nothing(
    reads: list[Read], tmp_path: Path, where: str
) -> None:
    """A copy of all files in another folder, before or after them, adds no call."""
    complaints = []
    for read in reads[1::4]:
        backup = written(read.world, tmp_path / str(read.world.seed) / where)
        folders = [read.folder, backup] if where.startswith("z") else [backup, read.folder]
        complaints += differences(read, list(load(*folders)))
    agreed(complaints)


@pytest.mark.parametrize("where", ["a-backup", "z-backup"])
def test_an_older_backup_changes_nothing(reads: list[Read], tmp_path: Path, where: str) -> None:
    """So does a copy that was made while the sessions went on."""
    complaints = []
    for read in reads[3::4]:
        older = World(read.world.seed)
        for name, data in read.world.files.items():
            lines = data.splitlines(keepends=True)
            older.files[name] = (
                data if name.endswith(".zst") else b"".join(lines[: len(lines) * 2 // 3 + 1])
            )
        backup = written(older, tmp_path / str(read.world.seed) / where)
        folders = [read.folder, backup] if where.startswith("z") else [backup, read.folder]
        complaints += differences(read, list(load(*folders)))
    agreed(complaints)


# The generator


def test_everything_happens_in_some_world(reads: list[Read]) -> None:
    """No feature of the generator is too rare to be seen."""
    seen: Counter[str] = Counter()
    for read in reads:
        seen += read.world.features
    assert {what for what, times in seen.items() if times < 3} == set()
    assert len(seen) >= (50 if reads[0].form == "claude-code" else 30)
