"""Sets whose block ids are common to all sessions: they share prefixes as in the recording."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from command import agentreplay
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared
from test_end_to_end import PROFILE
from test_forecast import plans, sent
from test_messages import common, equal_runs, held_bytes, modest, parsed, rendered
from test_structure import random_cases
from virtually import ANSWER, SIM, Outcome, replay

from agentreplay.client.stream import Reply, Sink
from agentreplay.errors import TraceError
from agentreplay.forecast import forecast
from agentreplay.metrics.record import Request
from agentreplay.plan import Plan, Visit
from agentreplay.play import Play
from agentreplay.prompt.messages import Conversation, Prompt, Template
from agentreplay.sim import virtual
from agentreplay.sim.engine import Profile
from agentreplay.sim.server import SimServer
from agentreplay.trace import recorded
from agentreplay.trace.choice import Choice
from agentreplay.trace.export import exported
from agentreplay.trace.fit import fitted, without
from agentreplay.trace.load import load
from agentreplay.trace.model import Notes, Session
from agentreplay.trace.prefix import Ledger, Reuse, Sent, session_reuse
from agentreplay.trace.recorded import Draft, Recorded
from agentreplay.trace.statistics import statistics
from agentreplay.trace.structure import alone, common_prefix, recorded_order

SIZE = 64
MOONCAKE = SHARED / "data" / "formats" / "mooncake" / "conversation_trace_first200.jsonl"

ALL_AT_ONCE = Plan(users=1, duration_s=None, timing="none", drain_s=1e6)


@dataclass(frozen=True)
class Made:
    """Sessions, and the blocks of each call's prompt."""

    sessions: tuple[Session, ...]
    blocks: dict[tuple[int, int], tuple[int, ...]]

    @property
    def calls(self) -> list[tuple[int, int]]:
        """Every call as (session, index), in order of time."""
        return sorted(self.blocks, key=lambda at: self.sessions[at[0]].names[at[1]])

    def common(self, one: tuple[int, int], other: tuple[int, int]) -> int:
        """How many leading tokens (whole blocks) two prompts have in common."""
        return common(self.blocks[one], self.blocks[other]) * SIZE


def made_of(rows: Sequence[Sequence[tuple[float, int, int, Sequence[int]]]]) -> Made:
    """Sessions of calls given as start, input, output and blocks of the prompt."""
    prompts: dict[Recorded, tuple[int, ...]] = {}
    drafts = []
    for n, session in enumerate(rows):
        calls = []
        for start_s, isl, osl, blocks in session:
            calls.append(Recorded(start_s, start_s + 1.0, isl, osl, prompt=list(blocks)))
            prompts[calls[-1]] = tuple(blocks)
        drafts.append(Draft(f"s{n}", f"s{n}", calls, False, block_size=SIZE, scope="set"))
    recorded.relate(drafts)
    sessions = tuple(recorded.session(draft)[0] for draft in drafts)
    blocks_of: dict[tuple[int, int], tuple[int, ...]] = {}
    for n, draft in enumerate(drafts):
        in_order = sorted(draft.calls, key=lambda call: call.start_s or 0.0)
        blocks_of |= {(n, i): prompts[call] for i, call in enumerate(in_order)}
    return Made(sessions, blocks_of)


def sharing(*prompts: Sequence[int], osl: int = 100) -> Made:
    """Sessions of one call each, ten seconds apart, with these blocks and a tail."""
    return made_of([[(10.0 * n, len(ids) * SIZE + 20, osl, ids)] for n, ids in enumerate(prompts)])


@st.composite
def sets(draw: st.DrawFn) -> Made:
    """Sessions whose prompts are cut and continued at random, across sessions too."""
    rows: list[list[tuple[float, int, int, tuple[int, ...]]]] = [
        [] for _ in range(draw(st.integers(2, 4)))
    ]
    prompts: list[tuple[int, ...]] = []
    start_s, fresh = 0.0, 0
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["next", "next", "fork", "root"])) if prompts else "root"
        base: tuple[int, ...] = ()
        if kind != "root":
            base = prompts[-1 if kind == "next" else draw(st.integers(0, len(prompts) - 1))]
        base = base[: max(0, len(base) - draw(st.sampled_from([0, 0, 1, 2, 5])))]
        new = draw(st.integers(0 if base else 1, 6))
        ids = (*base, *range(fresh, fresh + new))
        fresh += new
        prompts.append(ids)
        start_s += draw(st.sampled_from([0.0, 0.5, 1.0, 30.0]))
        isl = len(ids) * SIZE + draw(st.integers(0, SIZE - 1))
        row = start_s, isl, draw(st.sampled_from([0, 30, 100, 700])), ids
        rows[draw(st.integers(0, len(rows) - 1))].append(row)
    root = (start_s, SIZE, 10, (fresh,))
    made = made_of([row or [root] for row in rows])
    if not all(session.names for session in made.sessions):  # nobody shares
        return draw(st.just(sharing((0, 1), (0, 2))))
    return made


def texts(made: Made, template: Template, visit: int = 2) -> dict[tuple[int, int], Prompt]:
    """The prompts of all calls, each session played on its own."""
    found: dict[tuple[int, int], Prompt] = {}
    for n, session in enumerate(made.sessions):
        play = Conversation(session, template, session_key=1, visit_key=visit)
        found |= {(n, i): play.prompt(i) for i in range(len(session.calls))}
    return found


# --- Who shares with whom -------------------------------------------------------------------------


@random_cases
@given(sets())
def test_a_parent_shares_the_most(made: Made) -> None:
    """What a call shares with its parent is the most that it shares with any call before it."""
    calls = made.calls
    for n, (k, i) in enumerate(calls):
        before = [made.common((k, i), other) for other in calls[:n]]
        call = made.sessions[k].calls[i]
        assert call.shared == max(before, default=0)
        assert (call.parent is None) == (not call.shared)


@random_cases
@given(sets())
def test_lent_calls_are_those_of_their_sessions(made: Made) -> None:
    """A lent call has the name and lengths of the call that it stands for."""
    whose = {session.names[i]: session.calls[i] for session in made.sessions
             for i in range(len(session.calls))}  # fmt: skip
    for session in made.sessions:
        for name, call in zip(session.names[len(session.calls) :], session.lent, strict=True):
            own = whose[name]
            assert (call.isl, call.osl, call.shared) == (own.isl, own.osl, own.shared)
        for i, call in enumerate(session.prompts):
            if call.parent is not None:
                assert session.name(call.parent) < session.name(i)


@random_cases
@given(sets())
def test_common_prefixes_are_those_of_the_blocks(made: Made) -> None:
    """Of two calls of a session it is known what they share, also by way of other sessions."""
    for k, session in enumerate(made.sessions):
        for i in range(len(session.calls)):
            for j in range(i):
                found = common_prefix(session.prompts, i, j)
                assert found == common_prefix(session.prompts, j, i) == made.common((k, i), (k, j))


def test_a_parent_of_the_own_session_comes_first() -> None:
    """Where calls of the own and of another session share as much, the own one is the parent."""
    made = made_of(
        [
            [(0.0, 3 * SIZE, 10, (1, 2, 3)), (20.0, 5 * SIZE, 10, (1, 2, 3, 4, 5))],
            [(10.0, 3 * SIZE, 10, (1, 2, 3))],
        ]
    )
    assert [call.parent for call in made.sessions[0].calls] == [None, 0]
    assert made.sessions[0].lent == ()


def test_many_sessions_that_begin_alike_are_lent_one_call() -> None:
    """The call that brought a common beginning is lent, not a chain of all that repeat it."""
    made = sharing(*((0, n) for n in range(1, 500)))
    assert {len(session.lent) for session in made.sessions} == {0, 1}


def test_a_chain_goes_on_by_way_of_another_session() -> None:
    """A call that shares most with another session's still continues its own session's chain."""
    made = made_of(
        [
            [(0.0, 5 * SIZE, 10, (1, 2, 3, 4, 5)), (50.0, 7 * SIZE, 10, (1, 2, 3, 4, 5, 6, 7))],
            [(20.0, 6 * SIZE, 10, (1, 2, 3, 4, 5, 6))],
        ]
    )
    (first, second), _ = (session.calls for session in made.sessions)
    assert (second.parent, second.shared, second.after) == (-1, 6 * SIZE, (0,))
    assert recorded_order(made.sessions[0]).calls[1].after == (0,)
    assert first.parent is None


def test_ids_that_name_only_their_own_block_are_compared_from_the_start() -> None:
    """An id that comes back after another beginning is another block."""
    made = sharing((1, 7), (2, 7), (1, 7, 8))
    assert [session.calls[0].shared for session in made.sessions] == [0, 0, 2 * SIZE]


def test_sessions_that_share_nothing_are_on_their_own() -> None:
    """Where no session begins like another, there is nothing to name."""
    assert [session.names for session in sharing((1,), (2,)).sessions] == [(), ()]


# --- Text -----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(sets(), modest)
def test_sessions_share_what_was_recorded(made: Made, template: Template) -> None:
    """Any two calls of the set share all they shared, but for what pays for the prompt's end."""
    tokens = {at: rendered(prompt, template) for at, prompt in texts(made, template).items()}
    for n, one in enumerate(made.calls):
        for other in made.calls[:n]:
            lengths = (made.sessions[k].calls[i].isl for k, i in (one, other))
            paid = min(lengths) - template.prompt
            assert common(tokens[one], tokens[other]) >= min(made.common(one, other), paid)


@settings(deadline=None)
@given(sets(), modest)
def test_sessions_share_no_more_than_was_recorded(made: Made, template: Template) -> None:
    """After what two calls of the set share, their words differ."""
    tokens = {at: rendered(prompt, template) for at, prompt in texts(made, template).items()}
    for n, one in enumerate(made.calls):
        for other in made.calls[:n]:
            a, b = tokens[one], tokens[other]
            after = range(made.common(one, other), min(len(a), len(b)))
            assert equal_runs(a, b, after) == []


@settings(deadline=None)
@given(sets(), st.sampled_from(["text", "ids"]))
def test_prompts_without_roles_share_the_same(made: Made, form: Any) -> None:
    """As one text, or as ids, prompts of the set begin alike up to what they share."""
    found = texts(made, Template(form=form))
    for n, one in enumerate(made.calls):
        for other in made.calls[:n]:
            a, b = (found[at].messages[0] for at in (one, other))
            shared = made.common(one, other)
            assert common(a, b) >= 5 * shared
            assert common(a, b) < 5 * (shared + 4)


@settings(deadline=None, max_examples=50)
@given(sets(), modest, st.randoms(use_true_random=False))
def test_the_order_of_asking_changes_nothing(
    made: Made, template: Template, shuffler: random.Random
) -> None:
    """Calls have the same bytes in whatever order they are asked for."""
    wanted = texts(made, template)
    for n, session in enumerate(made.sessions):
        order = list(range(len(session.calls)))
        shuffler.shuffle(order)
        play = Conversation(session, template, session_key=1, visit_key=2)
        for i in order:
            assert play.prompt(i) == wanted[n, i]


@settings(deadline=None, max_examples=50)
@given(sets(), modest, st.data())
def test_what_is_not_asked_for_changes_nothing(
    made: Made, template: Template, data: st.DataObject
) -> None:
    """Calls have the same bytes where only some of a session are asked for, in any order, and no
    text is kept of them."""
    wanted = texts(made, template)
    for n, session in enumerate(made.sessions):
        calls = st.sampled_from(range(len(session.calls)))
        asked: list[int] = data.draw(st.lists(calls, unique=True))
        play = Conversation(session, template, session_key=1, visit_key=2, asked=asked)
        assert [play.prompt(i) for i in asked] == [wanted[n, i] for i in asked]
        assert held_bytes(play) == 0


def words(session: Session, visit: Visit, plan: Plan | None = None, i: int = 0) -> list[str]:
    """All words of a call of a play."""
    play = Play(plan or Plan(), visit, session, SIM)
    play.begin(0)
    messages = tuple(map(orjson.dumps, orjson.loads(play.body(i))["messages"]))
    return [word for _, said in parsed(Prompt(messages, 0)) for word in said]


def played(made: Made, *laps: int, plan: Plan | None = None) -> list[list[str]]:
    """The first words of two sessions, played in these passes."""
    return [
        words(session, Visit(n, 0, n, 7 * n, lap), plan)
        for n, (session, lap) in enumerate(zip(made.sessions, laps, strict=True))
    ]


SHARING = sharing((1, 2, 3), (1, 2, 4))


def test_plays_of_one_pass_share() -> None:
    """Whatever lane plays them, two sessions begin alike for as long as in the recording."""
    one, other = played(SHARING, 0, 0)
    assert 128 <= common(one, other) < 132


def test_another_pass_shares_nothing() -> None:
    """A session finds nothing of another pass over the set, not even of itself."""
    one, other = played(SHARING, 0, 1)
    assert common(one, other) < 4
    again = words(SHARING.sessions[0], Visit(0, 1, 0, 2, 1))
    assert common(one, again) < 4


def test_a_live_history_shares_within_the_session() -> None:
    """With the server's own answers sent back, sessions share nothing."""
    one, other = played(SHARING, 0, 0, plan=Plan(history="live"))
    assert common(one, other) < 4


def test_system_prompts_are_common_to_all_passes() -> None:
    """Text inside the system tokens is the same in each pass, and in each session."""
    drafts = [
        Draft(f"s{n}", "s", [Recorded(n, n + 1.0, 260, 10, system=128, prompt=ids)], False,
              block_size=SIZE, scope="set")
        for n, ids in enumerate([(1, 2, 3, 4), (1, 2, 3, 5)])
    ]  # fmt: skip
    recorded.relate(drafts)
    made = Made(tuple(recorded.session(draft)[0] for draft in drafts), {})
    assert 123 <= common(*played(made, 0, 1)) < 132
    assert 187 <= common(*played(made, 1, 1)) < 196


# --- What was seen --------------------------------------------------------------------------------


@random_cases
@given(sets(), st.randoms(use_true_random=False))
def test_a_pass_knows_what_its_sessions_sent(made: Made, shuffler: random.Random) -> None:
    """In whatever order calls are sent, each finds the longest beginning that was sent."""
    order, sent_so_far = list(made.blocks), dict[int, int]()
    shuffler.shuffle(order)
    ledgers = [Ledger(session, sent_so_far) for session in made.sessions]
    known: set[tuple[int, ...]] = set()
    for k, i in order:
        ids = made.blocks[k, i]
        starts = [ids[:end] for end in range(1, len(ids) + 1)]
        assert ledgers[k].seen(i) == max((len(s) for s in starts if s in known), default=0) * SIZE
        ledgers[k].add(i)
        known.update(starts)


@random_cases
@given(sets())
def test_reuse_is_that_of_the_set(made: Made) -> None:
    """Over the set it is blocks less different blocks, in whatever order sessions are read."""
    different = {ids[:end] for ids in made.blocks.values() for end in range(1, len(ids) + 1)}
    blocks = sum(map(len, made.blocks.values()))
    for sessions in (made.sessions, made.sessions[::-1]):
        found, sent_so_far = Reuse(), dict[int, int]()
        for session in sessions:
            found += session_reuse(session, sent_so_far)
        assert (found.blocks, found.seen_blocks) == (blocks, blocks - len(different))
        assert statistics(sessions).prefix_reuse_blocks == pytest.approx(found.by_blocks)


def test_a_pass_is_forgotten_when_every_lane_has_left_it() -> None:
    """What was sent in a pass is found by late lanes, and kept no longer than they need it."""
    made, sent_so_far = SHARING, Sent(Plan(users=2))
    first = sent_so_far.play(made.sessions[0], Visit(0, 0, 0, 0, 0))
    assert first.send(0) == 0
    sent_so_far.play(made.sessions[0], Visit(0, 1, 0, 2, 1))
    late = sent_so_far.play(made.sessions[1], Visit(1, 0, 1, 1, 0))
    assert late.send(0) == 128
    sent_so_far.play(made.sessions[1], Visit(1, 1, 1, 3, 1))
    assert sent_so_far.play(made.sessions[1], Visit(0, 0, 1, 1, 0)).send(0) == 0


# --- Whole runs -----------------------------------------------------------------------------------

FAST = replace(
    PROFILE, prefill_token_s=1e-7, step_tokens=500_000, context_tokens=500_000, kv_tokens=5_000_000
)


def simulate(plan: Plan, trace: Sequence[Session], profile: Profile = FAST) -> Outcome:
    """Replay against the simulated server, which has room for everything."""
    servers: list[SimServer] = []

    async def serve() -> None:
        servers.append(SimServer(profile, virtual.clock))
        await servers[0].run()

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        while not servers:
            await anyio.sleep(0)
        return await servers[0].stream(request, body, sink)

    return replay(plan, trace, stream, dialect=SIM, server=serve)


def found_and_predicted(outcome: Outcome) -> list[tuple[int, int | None]]:
    assert all(record.error is None for record in outcome.records)
    return [(record.request.reuse, record.cached) for record in outcome.records]


@pytest.mark.parametrize("seed", range(4))
def test_the_server_finds_what_is_predicted(seed: int) -> None:
    """Whoever comes first, the others find what it sent; and a second pass finds nothing."""
    made = sharing((1, 2, 3), (1, 2, 4), (1, 5, 6, 7), (8, 9))
    plan = replace(ALL_AT_ONCE, sessions=8, seed=seed)
    pairs = found_and_predicted(simulate(plan, made.sessions))
    assert all(predicted == cached for predicted, cached in pairs)
    for lap in (pairs[:4], pairs[4:]):
        assert sum(predicted for predicted, _ in lap) == 3 * SIZE


@settings(deadline=None, max_examples=30)
@given(sets(), st.integers(0, 5))
def test_the_server_finds_what_is_predicted_of_any_set(made: Made, seed: int) -> None:
    """So it is for conversations that cross: up to a block where a prompt has to pay its end."""
    sessions = [
        replace(
            session,
            calls=tuple(
                call._replace(after=(i - 1,) if i else ()) for i, call in enumerate(session.calls)
            ),
        )
        for session in made.sessions
    ]
    plan = replace(ALL_AT_ONCE, sessions=2 * len(sessions), seed=seed)
    for predicted, cached in found_and_predicted(simulate(plan, sessions)):
        assert cached is not None
        assert predicted - SIZE <= cached <= predicted


@needs_shared
@pytest.mark.parametrize("seed", range(2))
def test_the_server_finds_what_is_predicted_of_a_published_set(seed: int) -> None:
    """Of 200 recorded rows a pass finds 322 blocks, in whatever order."""
    sessions = list(load(MOONCAKE))
    plan = replace(ALL_AT_ONCE, sessions=len(sessions), seed=seed)
    pairs = found_and_predicted(simulate(plan, sessions, replace(FAST, block_size=512)))
    assert sum(predicted for predicted, _ in pairs) == 322 * 512
    assert [predicted for predicted, _ in pairs] == [cached for _, cached in pairs]


@random_cases
@given(plans, sets())
def test_any_plan_sends_what_was_foretold(plan: Plan, made: Made) -> None:
    """The scheduler finds as much of the set's prefixes as foretold."""
    found = forecast(plan, len(made.sessions), made.sessions.__getitem__)
    assert found == sent(plan, made.sessions)


def test_a_live_history_predicts_nothing_across_sessions() -> None:
    """With the server's own answers sent back, what other sessions sent is not expected."""

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        sink(virtual.clock(), ANSWER)
        return Reply(200, "text/event-stream", b"")

    plan = replace(ALL_AT_ONCE, sessions=2, history="live")
    records = replay(plan, SHARING.sessions, stream).records
    assert [record.request.reuse for record in records] == [0, 0]


# --- Fitting --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(sets(), modest, st.integers(2, 12))
def test_what_is_left_says_and_shares_what_it_did(
    made: Made, template: Template, blocks: int
) -> None:
    """Calls that stay when others are too long have the same bytes, and find each other's."""
    wanted = texts(made, template)
    for n, session in enumerate(made.sessions):
        left = fitted(session, blocks * SIZE, "drop-calls").session
        if left is None:
            continue
        kept = [session.names.index(name) for name in left.names[: len(left.calls)]]
        play = Conversation(left, template, session_key=1, visit_key=2)
        assert [play.prompt(i) for i in range(len(kept))] == [wanted[n, i] for i in kept]
        ledger = Ledger(left)
        for i, at in enumerate(kept):
            before = (made.common((n, at), (n, other)) for other in kept[:i])
            assert ledger.seen(i) == max(before, default=0)
            ledger.add(i)
        assert recorded_order(left).names == left.names


def test_who_waited_for_a_dropped_call_waits_for_what_it_waited_for() -> None:
    """The chain closes over the gap, and the dropped call is lent."""
    ids = (1, 2, 3, 4, 5)
    rows = [(10.0 * n, (n + 3) * SIZE, 10, ids[: n + 3]) for n in range(3)]
    made = made_of([rows, [(50.0, 3 * SIZE, 10, (1, 2, 9))]])
    left = without(made.sessions[0], {1})
    assert [(call.after, call.gap_s, call.parent) for call in left.calls] == [
        ((), 0.0, None),
        ((0,), 19.0, -1),
    ]
    assert left.lent[-1].parent == 0


# --- Reading --------------------------------------------------------------------------------------


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def mooncake(stamp: int, isl: int, ids: list[int], **fields: Any) -> dict[str, Any]:
    """A row of the original format."""
    return {"timestamp": stamp, "input_length": isl, "output_length": 5, "hash_ids": ids, **fields}


def shared_of(path: Path) -> list[int]:
    return [call.shared for session in load(path) for call in session.calls]


def test_two_files_share_nothing(tmp_path: Path) -> None:
    """A Mooncake file is a set of its own: its ids mean nothing in another one."""
    written(tmp_path / "a.jsonl", mooncake(0, 1500, [1, 2, 3]), mooncake(9, 1500, [1, 2, 4]))
    written(tmp_path / "b.jsonl", mooncake(0, 1500, [1, 2, 5]), mooncake(9, 1500, [1, 6, 7]))
    assert shared_of(tmp_path) == [0, 1024, 0, 512]


def test_named_sessions_share(tmp_path: Path) -> None:
    """Sessions of several rows that begin alike share; rows without a stamp are in their place."""
    rows = [
        mooncake(0, 1500, [1, 2, 3], session_id="a"),
        mooncake(5000, 1500, [1, 2, 9], session_id="b"),
        {**mooncake(0, 2500, [1, 2, 3, 4, 5], session_id="a", delay=60000), "timestamp": None},
        {**mooncake(0, 2500, [1, 2, 9, 4, 6], session_id="b", delay=90000), "timestamp": None},
    ]
    assert shared_of(written(tmp_path / "a.jsonl", *rows)) == [0, 1024, 1024, 1024]


def test_rows_of_what_is_new_share_their_first(tmp_path: Path) -> None:
    """Where rows hold what is new only, the ids of a session's first row are its prompt's."""
    new = {"timestamp": None, "delay": 1000}
    rows = [
        mooncake(0, 1600, [1, 2, 3, 4], session_id="a"),
        mooncake(0, 600, [5, 6], session_id="a") | new,
        mooncake(9000, 2600, [1, 2, 3, 7, 8, 9], session_id="b"),
        mooncake(0, 600, [10, 11], session_id="b") | new,
    ]
    first, second = load(written(tmp_path / "a.jsonl", *rows))
    assert [(call.isl, call.shared) for call in (*first.calls, *second.calls)] == [
        (1600, 0),
        (1600 + 5 + 600, 1536),
        (2600, 1536),
        (2600 + 5 + 600, 2560),
    ]


def test_plays_of_agentic_rows_share_nothing(tmp_path: Path) -> None:
    """The block ids of a named play are its own."""
    rows = [
        mooncake(0, 1600, [1, 2, 3, 4], request_id="x", play_id=play, wait_for=[])
        for play in ("a", "b")
    ]
    assert shared_of(written(tmp_path / "a.jsonl", *rows)) == [0, 0]


@pytest.mark.parametrize(("sample", "lent"), [(None, 3), (2, 1), (1, 0)])
def test_sessions_that_were_not_chosen_lend_nothing(
    tmp_path: Path, sample: int | None, lent: int
) -> None:
    """Sharing is that of the sessions which are in the set."""
    rows = (mooncake(n * 1000, 1536, [1, 2, 10 + n]) for n in range(4))
    path = written(tmp_path / "a.jsonl", *rows)
    chosen = load(path, choice=Choice(sample=sample))
    assert sum(bool(session.lent) for session in chosen) == lent


def test_sets_of_thousands_open_at_once() -> None:
    """No search over all calls is made for each call."""
    drafts = []
    for n in range(12_000):
        ids = [0, *range(n * 20 + 1, n * 20 + 20)]
        calls = [Recorded(float(n), None, SIZE * 20, 5, prompt=ids)]
        drafts.append(Draft(f"s{n}", "s", calls, False, block_size=SIZE, scope="set"))
    recorded.relate(drafts)
    assert len(recorded.session(drafts[-1])[0].lent) == 1


def weka(name: str, *prompts: list[Any], **fields: Any) -> bytes:
    """A Weka session with global ids, a request each ten seconds, as a line without an end."""
    requests = [
        {"t": 10.0 * n, "type": "n", "in": 4 * len(ids), "out": 5, "hash_ids": ids, "api_time": 1.0}
        for n, ids in enumerate(prompts)
    ]
    value = {"id": name, "block_size": 4, "hash_id_scope": "global", "requests": requests}
    return orjson.dumps(value | fields)


A, B = weka("a", [1, 2, 3], [1, 2, 3, 4]), weka("b", [1, 2, 9], [1, 2, 3, 4, 5])


def as_files(folder: Path) -> Path:
    (folder / "a.json").write_bytes(A)
    (folder / "b.json").write_bytes(B)
    return folder


def as_lines(folder: Path) -> Path:
    (folder / "x.jsonl").write_bytes(A + b"\n" + B + b"\n")
    return folder / "x.jsonl"


def as_list(folder: Path) -> Path:
    (folder / "x.json").write_bytes(b"[" + A + b"," + B + b"]")
    return folder / "x.json"


def packed(folder: Path) -> Path:
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(A + b"\n" + B))
    return folder / "x.jsonl.gz"


@pytest.mark.parametrize("lay", [as_files, as_lines, as_list, packed])
def test_weka_sessions_with_global_ids_share(tmp_path: Path, lay: Callable[[Path], Path]) -> None:
    """However the sessions lie, prompts begin with what other sessions brought."""
    trace = load(lay(tmp_path))
    found = {session.id: [call.shared for call in session.calls] for session in trace}
    assert found == {"a": [0, 12], "b": [8, 16]}
    assert [session.start_s for session in trace] == [None, None]
    assert not trace.notes
    assert not any(map(trace.is_from_log, range(2)))
    assert set(trace.formats.values()) == {"weka"}


def test_weka_sessions_with_global_ids_are_what_they_are_alone(tmp_path: Path) -> None:
    """But for what they share, such sessions are read as any other."""
    (tmp_path / "a.json").write_bytes(A)
    (tmp_path / "b.json").write_bytes(A.replace(b"global", b"local"))
    one, other = load(tmp_path)
    assert replace(one, source=other.source) == other


@pytest.mark.parametrize("fields", [{"requests": []}, {"block_size": 0}])
def test_a_broken_session_lends_nothing(tmp_path: Path, fields: dict[str, Any]) -> None:
    """It is named when it is asked for; the others share."""
    (tmp_path / "x.jsonl").write_bytes(b"\n".join((A, weka("x", [1, 2], **fields), B)))
    trace = load(tmp_path)
    assert [session.id for session in trace.readable()] == ["a", "b"]
    assert list(trace.skipped) == [f"{tmp_path / 'x.jsonl'}:2"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"hash_id_scope": "global"}',
        b'["hash_id_scope", {"hash_id_scope": "global"}]',
        b'{"hash_id_scope": "global", "block_size": 4}',
        b'{"hash_id_scope": "global", "block_size": 4, "requests": null}',
        b'{"hash_id_scope": "global", "block_size": 4, "requests": [1, {"requests": [2]}]}',
        b'{"hash_id_scope": "global", "block_size": 4, "requests": [',
    ],
)
def test_a_line_that_only_looks_like_it_lends_nothing(tmp_path: Path, line: bytes) -> None:
    """What is no session is skipped as ever."""
    (tmp_path / "x.jsonl").write_bytes(A + b"\n" + line + b"\n" + B)
    trace = load(tmp_path)
    assert [session.id for session in trace.readable()] == ["a", "b"]
    assert len(trace.skipped) == 1


def test_a_nested_word_makes_no_scope(tmp_path: Path) -> None:
    """A session whose own ids are local is read by itself, whatever stands in it."""
    nested = {"hash_id_scope": "local", "totals": {"hash_id_scope": "global"}}
    data = weka("x", [1, 2, 3], **nested)
    (tmp_path / "x.jsonl").write_bytes(A + b"\n" + data)
    assert [session.names != () for session in load(tmp_path)] == [False, False]


def test_ids_that_name_nothing_are_refused(tmp_path: Path) -> None:
    """Lists are no ids: the session is refused in words."""
    (tmp_path / "x.jsonl").write_bytes(A + b"\n" + weka("x", [[1], [2]]))
    with pytest.raises(TraceError, match="hash_ids"):
        load(tmp_path)[1]


def test_chosen_weka_sessions_are_read_once(tmp_path: Path) -> None:
    """Notes of sessions that are looked into to choose them are counted once."""
    (tmp_path / "x.jsonl").write_bytes(A + b"\n" + weka("x", [1, 2, 3], [1, 2, 4], new=1))
    trace = load(tmp_path, choice=Choice(min_calls=2))
    assert [len(list(session.calls)) for session in trace] == [2, 2]
    assert trace.notes == {str(tmp_path / "x.jsonl"): {"unknown field 'new', ignored": 1}}


# --- Taken elsewhere ------------------------------------------------------------------------------


def reuse_of(path: Path) -> float | None:
    return statistics(load(path)).prefix_reuse_blocks


def conversations(path: Path) -> Path:
    """A Mooncake file of sessions that cross."""
    return written(
        path,
        mooncake(0, 1600, [1, 2, 3, 4]),
        mooncake(1000, 2100, [1, 2, 5, 6, 7]),
        mooncake(60000, 2600, [1, 2, 3, 8, 9, 10]),
        mooncake(90000, 3100, [1, 2, 5, 6, 11, 12, 13]),
        mooncake(99000, 600, [77, 78]),
    )


def test_weka_lines_carry_what_sessions_share(tmp_path: Path) -> None:
    """Written as Weka and read again, the set shares as many blocks."""
    source = conversations(tmp_path / "a.jsonl")
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"".join(exported(load(source), "weka", 1000)))
    assert reuse_of(out) == reuse_of(source) == pytest.approx(9 / 19)
    assert all(b'"hash_id_scope":"global"' in line for line in out.read_bytes().splitlines())


def test_native_lines_carry_what_a_session_shares_with_itself(tmp_path: Path) -> None:
    """Written natively each session is on its own, and what gets lost is counted."""
    source, notes = conversations(tmp_path / "a.jsonl"), Notes()
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"".join(exported(load(source), "native", 0, notes)))
    assert reuse_of(out) == pytest.approx(7 / 19)
    assert notes == {"tokens that are shared with other sessions only, written as new ones": 1024}


def test_a_session_alone_shares_what_its_calls_have_in_common(tmp_path: Path) -> None:
    """A call whose most went by another session shares the rest with its own."""
    left = alone(load(as_lines(tmp_path))[1])
    assert [(call.parent, call.shared) for call in left.calls] == [(None, 0), (0, 8)]
    assert (left.lent, left.names) == ((), ())


def test_convert_says_what_the_format_loses(tmp_path: Path) -> None:
    """The count goes to standard error, also of a dry run."""
    source = conversations(tmp_path / "a.jsonl")
    for where in (("--out", str(tmp_path / "out.jsonl")), ("--dry-run",)):
        ended = agentreplay("convert", source, *where)
        assert ended.returncode == 0
        assert "1024 tokens that are shared with other sessions only" in ended.stderr
