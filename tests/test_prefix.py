"""Prefix reuse, against second computations on the block ids themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared, weka_files, weka_sessions
from test_global_sets import Made as PromptSet
from test_global_sets import sets
from test_messages import Made as PromptSession
from test_messages import sessions as prompt_sessions
from test_play import PLAIN

from agentreplay.plan import Plan, ShareSystem, Visit, visits
from agentreplay.play import Play
from agentreplay.trace.model import Call, Session
from agentreplay.trace.prefix import Ledger, News, Reuse, Sent, session_reuse, shared_by_plays
from agentreplay.trace.structure import shared_prefixes

SIZE = 4
"""Tokens a block in the sessions made here."""

random_cases = settings(deadline=None, database=None, derandomize=True, max_examples=300)

Prompt = Sequence[object]


def sent(
    isl: int, parent: int | None = None, shared: int = 0, system: int = 0, start_s: float = 0.0
) -> Call:
    """A call of which only the prompt matters."""
    return Call(
        start_s=start_s,
        end_s=start_s,
        timed=True,
        isl=isl,
        osl=1,
        after=(),
        gap_s=0.0,
        parent=parent,
        shared=shared,
        system=system,
        agent="",
        model=None,
        cached=None,
    )


def session(*calls: Call) -> Session:
    """A session of these calls."""
    return Session("own", None, calls, SIZE, "own")


def prompted(
    prompts: Sequence[Prompt], tails: Sequence[int] = (), systems: Sequence[int] = ()
) -> tuple[Call, ...]:
    """Calls with these prompts, each item a block, and some tokens after the last whole block."""
    names: dict[Prompt, int] = {}
    ids = [
        [names.setdefault(tuple(prompt[: end + 1]), len(names)) for end in range(len(prompt))]
        for prompt in prompts
    ]
    return tuple(
        sent(
            len(prompt) * SIZE + (tails[i] if tails else 0),
            parent,
            shared * SIZE,
            systems[i] if systems else 0,
        )
        for i, (prompt, (parent, shared)) in enumerate(
            zip(prompts, shared_prefixes(ids), strict=True)
        )
    )


# --- Reuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        pytest.param([[1, 2], [1, 2, 3], [9]], (2, 6), id="one prompt grows"),
        pytest.param([[1, 2]], (0, 2), id="one prompt"),
        pytest.param([[1, 2], [1, 2]], (2, 4), id="the same again"),
        pytest.param([[1, 2, 3], [1], [1, 2, 3]], (4, 7), id="shorter between"),
        pytest.param([[1, 2], [3, 2]], (0, 4), id="the same block after another"),
        pytest.param([[1], [1, 2], [1, 3], [1, 2, 4], [1, 3, 4]], (6, 11), id="two branches"),
        pytest.param([[]], (0, 0), id="no block"),
    ],
)
def test_seen_blocks_are_counted(prompts: list[list[int]], expected: tuple[int, int]) -> None:
    """Reuse by blocks is blocks whose whole beginning came before, of all blocks."""
    reuse = session_reuse(session(*prompted(prompts, [1] * len(prompts))))
    assert (reuse.seen_blocks, reuse.blocks) == expected


def test_tokens_after_the_last_block_are_never_seen() -> None:
    """The part of a prompt beyond its whole blocks counts as input and not as reuse."""
    reuse = session_reuse(session(*prompted([[1, 2], [1, 2]], tails=[3, 3])))
    assert reuse == Reuse(tokens=22, seen_tokens=8, blocks=4, seen_blocks=2)


@pytest.mark.parametrize(
    ("reuse", "by_tokens", "by_blocks"),
    [
        (Reuse(), None, None),
        (Reuse(tokens=3), 0.0, None),
        (Reuse(tokens=10, seen_tokens=4, blocks=2, seen_blocks=1), 0.4, 0.5),
    ],
    ids=["nothing", "no whole block", "some"],
)
def test_a_share_of_nothing_is_absent(
    reuse: Reuse, by_tokens: float | None, by_blocks: float | None
) -> None:
    """Shares are seen of all, and None where there is nothing to divide by."""
    assert (reuse.by_tokens, reuse.by_blocks) == (by_tokens, by_blocks)


def test_reuse_adds_up() -> None:
    """Two reuses add number by number."""
    assert Reuse(1, 2, 3, 4) + Reuse(10, 20, 30, 40) == Reuse(11, 22, 33, 44)


def test_sessions_share_nothing_with_each_other() -> None:
    """The reuse of a set is the sum over its sessions, even where they are equal."""
    one = session(*prompted([[1, 2], [1, 2, 3]]))
    assert sum(map(session_reuse, [one, one]), Reuse()) == session_reuse(one) + session_reuse(one)


def test_a_set_without_sessions_has_no_reuse() -> None:
    """The reuse of nothing is all zeros."""
    assert sum(map(session_reuse, []), Reuse()) == Reuse()


# --- The ledger -----------------------------------------------------------------------------------


class PrefixSet:
    """The same as a ledger, by keeping every prefix that was sent."""

    def __init__(self, prompts: Sequence[Prompt], calls: Sequence[Call]) -> None:
        self.prompts, self.calls = prompts, calls
        self.sent: set[Prompt] = set()

    def prefixes(self, i: int, limit: int | None) -> Iterator[Prompt]:
        """The beginnings of a call's first *limit* tokens, shortest first."""
        tokens = self.calls[i].isl if limit is None else min(limit, self.calls[i].isl)
        return (tuple(self.prompts[i][:end]) for end in range(1, tokens // SIZE + 1))

    def seen(self, i: int, limit: int | None = None) -> int:
        """Tokens of the longest beginning that was sent."""
        known = (prefix for prefix in self.prefixes(i, limit) if prefix in self.sent)
        return max(map(len, known), default=0) * SIZE

    def add(self, i: int, limit: int | None = None) -> None:
        """Note all beginnings as sent."""
        self.sent.update(self.prefixes(i, limit))


trees = st.lists(st.lists(st.integers(0, 2), max_size=7), min_size=1, max_size=10)
"""Prompts of few different blocks, so that many begin alike."""


def played(
    prompts: list[list[int]], tails: list[int], sends: list[tuple[int, int | None]]
) -> tuple[list[int], list[int]]:
    """What every call had seen after each of the sends, by ledger and by set of prefixes."""
    calls = prompted(prompts, tails)
    ledger, known = Ledger(session(*calls)), PrefixSet(prompts, calls)
    found, wanted = [], []
    for number, limit in sends:
        ledger.add(number % len(calls), limit)
        known.add(number % len(calls), limit)
        for i in range(len(calls)):
            for up_to in (None, 0, 1, SIZE, 2 * SIZE + 1, 5 * SIZE, 1000):
                found.append(ledger.seen(i, up_to))
                wanted.append(known.seen(i, up_to))
    return found, wanted


tails = st.lists(st.integers(0, SIZE - 1), min_size=10, max_size=10)


@random_cases
@given(trees, tails, st.permutations(range(10)))
def test_a_ledger_knows_what_was_sent_in_any_order(
    prompts: list[list[int]], tails: list[int], order: list[int]
) -> None:
    """Whatever the order of sending, a ledger finds the longest beginning that was sent."""
    found, wanted = played(prompts, tails, [(number, None) for number in order])
    assert found == wanted


@random_cases
@given(
    trees,
    tails,
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 8 * SIZE)), max_size=12),
)
def test_a_ledger_knows_what_was_sent_in_part(
    prompts: list[list[int]], tails: list[int], sends: list[tuple[int, int | None]]
) -> None:
    """Where only the first tokens of prompts are sent, a ledger finds no more than those."""
    found, wanted = played(prompts, tails, sends)
    assert found == wanted


def test_an_empty_ledger_has_seen_nothing() -> None:
    """Before anything was sent nothing was seen."""
    calls = prompted([[1, 2], [1, 2, 3]])
    assert [Ledger(session(*calls)).seen(i) for i in range(2)] == [0, 0]


def test_asking_a_ledger_changes_nothing() -> None:
    """What was seen is the same when it is asked for again."""
    ledger = Ledger(session(*prompted([[1, 2], [1, 2, 3]])))
    ledger.add(0)
    assert [ledger.seen(1), ledger.seen(1)] == [8, 8]


def test_a_later_call_makes_an_earlier_one_seen() -> None:
    """A call that is sent after the one that continues it finds its whole prompt."""
    ledger = Ledger(session(*prompted([[1, 2], [1, 2, 3]])))
    ledger.add(1)
    assert ledger.seen(0) == 8


@pytest.mark.parametrize(
    ("limit", "seen"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (11, 8), (12, 12), (99, 12)]
)
def test_a_limit_is_cut_to_whole_blocks(limit: int, seen: int) -> None:
    """Only the whole blocks within a limit are sent."""
    ledger = Ledger(session(*prompted([[1, 2, 3], [1, 2, 3, 4]], tails=[2, 2])))
    ledger.add(0, limit)
    assert ledger.seen(1) == seen


# --- Plays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param([sent(20)], [0], id="no system"),
        pytest.param([sent(20, system=8)], [8], id="whole blocks"),
        pytest.param([sent(20, system=11)], [8], id="a block only in part"),
        pytest.param([sent(20, system=3)], [0], id="less than a block"),
        pytest.param([sent(6, system=6)], [4], id="a prompt that is all system"),
        pytest.param([sent(6, system=100)], [4], id="no more than the prompt"),
        pytest.param([sent(20, system=8), sent(40, 0, 16, system=8)], [8, 8], id="continued"),
        pytest.param([sent(20, system=8), sent(40, 0, 4, system=12)], [8, 12], id="own system"),
        pytest.param([sent(20, system=8), sent(40, 0, 8, system=12)], [8, 12], id="system goes on"),
        pytest.param([sent(20, system=8), sent(40, 0, 8, system=4)], [8, 8], id="held before"),
        pytest.param([sent(20, system=4), sent(40, 0, 8, system=16)], [4, 4], id="after a private"),
        pytest.param([sent(20, system=8), sent(40, system=12)], [8, 12], id="another agent"),
        pytest.param(
            [sent(20, system=8), sent(40, 0, 16), sent(40, 1, 4)], [8, 8, 4], id="shared in part"
        ),
        pytest.param(
            [sent(20, system=0), sent(40, 0, 16, system=16), sent(40, 1, 36, system=36)],
            [0, 0, 0],
            id="private from the start",
        ),
    ],
)
def test_plays_share_tools_and_system_prompt(calls: list[Call], expected: list[int]) -> None:
    """Plays share the leading blocks that were system to the call that first held them."""
    assert shared_by_plays(session(*calls)) == expected


def naive_shared_by_plays(prompts: Sequence[Prompt], calls: Sequence[Call]) -> list[int]:
    """Block by block: a beginning is common if all before is, and its first holder's system."""
    common: dict[Prompt, bool] = {(): True}
    result = []
    for prompt, call in zip(prompts, calls, strict=True):
        shared = 0
        for end in range(1, len(prompt) + 1):
            prefix = tuple(prompt[:end])
            before = common[tuple(prompt[: end - 1])]
            common.setdefault(prefix, before and end * SIZE <= min(call.system, call.isl))
            shared = end if common[prefix] else shared
        result.append(shared * SIZE)
    return result


@random_cases
@given(trees, tails, st.lists(st.integers(0, 8 * SIZE), min_size=10, max_size=10))
def test_what_plays_share_is_what_their_blocks_say(
    prompts: list[list[int]], tails: list[int], systems: list[int]
) -> None:
    """On any session, what plays share is what a look at every block finds."""
    calls = prompted(prompts, tails, systems)
    assert shared_by_plays(session(*calls)) == naive_shared_by_plays(prompts, calls)


# --- What plays find of each other ----------------------------------------------------------------


def words(body: bytes) -> list[str]:
    """All words of a prompt."""
    messages = json.loads(body)["messages"]
    return [word for message in messages for word in message["content"].split(" ")]


def alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many leading words are equal."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def predicted_and_shared(
    plan: Plan, trace: Sequence[Session], source: random.Random, plays: int = 3, workers: int = 1
) -> Iterator[tuple[int, int]]:
    """Of each call that is sent, what it should find, and what its words do have in common with
    those before it. Lanes and calls take turns at random; each lane plays so many sessions.

    The lanes are those of so many workers, who tell each other at once what they send."""
    sents: list[Sent] = []

    def tell_others(worker: int, news: News) -> None:
        for other, sent in enumerate(sents):
            if other != worker:
                sent.learn([news])

    for worker in range(workers):
        own = len(range(worker, plan.users, workers))
        sents.append(Sent(plan, own, partial(tell_others, worker)))
    before = list[list[str]]()
    lanes = [islice(visits(plan, lane, len(trace)), plays) for lane in range(plan.users)]
    playing: dict[int, tuple[Play, Session, list[int]]] = {}
    while lanes:
        lane = source.randrange(len(lanes))
        at = id(lanes[lane])
        if at not in playing:
            visit = next(lanes[lane], None)
            if visit is None:
                del lanes[lane]
                continue
            played = trace[visit.session]
            left = list(range(len(played.calls)))
            source.shuffle(left)
            playing[at] = (
                Play(plan, visit, played, PLAIN, sents[visit.lane % workers]),
                played,
                left,
            )
        play, played, left = playing[at]
        i = left.pop()
        prompt = words(play.body(i))
        longest = max((alike(prompt, other) for other in before), default=0)
        before.append(prompt)
        yield play.request(i, 0).reuse, longest // played.block_size * played.block_size
        if not left:
            del playing[at]


shares = st.sampled_from(get_args(ShareSystem))
crews = st.integers(1, 3).flatmap(lambda users: st.tuples(st.just(users), st.integers(1, users)))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(prompt_sessions(), min_size=1, max_size=3),
    shares,
    crews,
    st.randoms(use_true_random=False),
)
def test_plays_find_what_their_words_have_in_common(
    made: list[PromptSession], share: ShareSystem, crew: tuple[int, int], source: random.Random
) -> None:
    """Whoever shares tools and system prompt, what a call finds is the longest beginning, in whole
    blocks, that its words have in common with any that were sent before, by whichever worker."""
    users, workers = crew
    plan = Plan(users=users, share_system=share)
    trace = [replace(each.session, id=f"s{n}") for n, each in enumerate(made)]
    for predicted, shared in predicted_and_shared(plan, trace, source, workers=workers):
        assert predicted == shared


@settings(deadline=None, max_examples=150)
@given(sets(), st.data(), shares, crews, st.randoms(use_true_random=False))
def test_plays_of_a_set_find_what_their_words_have_in_common(
    made: PromptSet,
    data: st.DataObject,
    share: ShareSystem,
    crew: tuple[int, int],
    source: random.Random,
) -> None:
    """So it is where sessions of a set share prefixes, with system prompts or without."""
    users, workers = crew
    trace = [
        replace(
            each,
            calls=tuple(
                call._replace(system=min(call.isl, data.draw(st.sampled_from([0, 64, 150, 1000]))))
                for call in each.calls
            ),
        )
        for each in made.sessions
    ]
    systems = {each.name(i): call.system for each in trace for i, call in enumerate(each.calls)}
    trace = [
        replace(
            each,
            lent=tuple(
                call._replace(system=systems[each.name(i - len(each.lent))])
                for i, call in enumerate(each.lent)
            ),
        )
        for each in trace
    ]
    plan = Plan(users=users, share_system=share)
    for predicted, shared in predicted_and_shared(plan, trace, source, workers=workers):
        assert predicted == shared


@pytest.mark.parametrize(
    ("share", "found"),
    [("session", [0, 8, 8]), ("pass", [0, 0, 0]), ("play", [0, 0, 0])],
)
def test_who_shares_a_system_prompt(share: ShareSystem, found: list[int]) -> None:
    """A session that is played in three passes over the set finds its system prompt again, or, if
    passes or plays are on their own, nothing."""
    plan = Plan(users=1, share_system=share)
    sent_before, one = Sent(plan), session(sent(20, system=8))
    plays = [sent_before.play(one, visit) for visit in islice(visits(plan, 0, 1), 3)]
    assert [play.send(0) for play in plays] == found


@pytest.mark.parametrize(
    ("share", "found"),
    [("session", [0, 16, 8, 16]), ("pass", [0, 16, 0, 16]), ("play", [0, 0, 0, 0])],
)
def test_who_shares_a_system_prompt_in_a_set(share: ShareSystem, found: list[int]) -> None:
    """Two sessions of a set that begin alike, in two passes: a pass has all in common, and passes
    the system prompt; nothing is, where no two plays have the same system prompt."""
    plan = Plan(users=1, share_system=share)
    root = sent(20, system=8)
    sent_before = Sent(plan)
    first = Session("a", None, (root,), SIZE, "own", names=(0,))
    second = Session("b", None, (sent(24, -1, 16, system=8),), SIZE, "own", (root,), (1, 0))
    found_now = [
        sent_before.play((first, second)[visit.session], visit).send(0)
        for visit in (Visit(0, n, n % 2, n, n // 2) for n in range(4))
    ]
    assert found_now == found


@pytest.mark.parametrize("share", get_args(ShareSystem))
def test_what_comes_before_a_system_prompt_is_of_the_pass(share: ShareSystem) -> None:
    """Sessions of a set without a system prompt share in a pass, whoever shares those."""
    plan = Plan(users=1, share_system=share)
    root = sent(20)
    first = Session("a", None, (root,), SIZE, "own", names=(0,))
    second = Session("b", None, (sent(24, -1, 16, system=20),), SIZE, "own", (root,), (1, 0))
    sent_before = Sent(plan)
    found = [
        sent_before.play((first, second)[visit.session], visit).send(0)
        for visit in (Visit(0, n, n % 2, n, n // 2) for n in range(4))
    ]
    assert found == [0, 16, 0, 16]


# --- The shared recordings ------------------------------------------------------------------------


def requests(holder: dict[str, Any], origin_s: float = 0.0) -> Iterator[tuple[float, Any]]:
    """(absolute start, request) of a file, subagents included."""
    for row in holder["requests"]:
        if row["type"] == "subagent":
            yield from requests(row, origin_s + row["t"])
        else:
            yield origin_s + row["t"], row


def counted(value: dict[str, Any]) -> Reuse:
    """Reuse by looking every block id up among those seen before."""
    seen: set[int] = set()
    tokens = blocks = hits = 0
    for _, row in sorted(requests(value), key=lambda pair: pair[0]):
        tokens += row["in"]
        blocks += len(row["hash_ids"])
        hits += sum(block in seen for block in row["hash_ids"])
        seen.update(row["hash_ids"])
    return Reuse(tokens, hits * value["block_size"], blocks, hits)


@needs_shared
def test_shared_reuse_is_what_the_block_ids_say() -> None:
    """Over every shared file reuse equals a count on the recorded ids, token for token."""
    wanted = {path.stem: counted(orjson.loads(path.read_bytes())) for path in weka_files()}
    assert {each.id: session_reuse(each) for each in weka_sessions()} == wanted


@needs_shared
def test_shared_reuse_of_the_whole_set() -> None:
    """The shared recordings repeat 96.207 % of their input tokens."""
    reuse = sum(map(session_reuse, weka_sessions()), Reuse())
    assert (reuse.tokens, round(reuse.by_tokens or 0.0, 5)) == (678_893_960, 0.96207)
