"""Rules of prompts as messages: what calls, plays and sessions share, and how long prompts are."""

from __future__ import annotations

import gc
import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentreplay.prompt.live import LiveConversation, Served
from agentreplay.prompt.messages import Conversation, Form, Prompt, Role, Template, known_words
from agentreplay.trace.model import Call, Session
from agentreplay.trace.prefix import shared_by_plays

Name: TypeAlias = tuple[int, int]
"""A block by who first held it, and its place there."""

RUN = 4
"""So many equal words in a row are no accident: one in 512 ** 4."""

LEAST = 64
"""A new part of so many tokens can pay for the templates that `modest` draws."""


def call(
    isl: int,
    parent: int | None = None,
    shared: int = 0,
    *,
    osl: int = 100,
    system: int = 0,
) -> Call:
    """A call of which only the prompt matters."""
    return Call(0.0, 0.0, True, isl, osl, (), 0.0, parent, shared, system, "", None, None)


def session_of(*calls: Call, block: int = 64) -> Session:
    """A session of *calls*."""
    return Session("s", None, calls, block, "made by hand")


@dataclass(frozen=True)
class Made:
    """A session, and the block names of each prompt that it was made from."""

    session: Session
    blocks: tuple[tuple[Name, ...], ...]

    def common(self, i: int, j: int) -> int:
        """How many leading tokens (whole blocks) two prompts have in common."""
        return common(self.blocks[i], self.blocks[j]) * self.session.block_size

    def shared_text(self, i: int, position: int) -> bool:
        """Whether the word there is in all plays: it is inside its first holder's system blocks."""
        block = self.session.block_size
        names = self.blocks[i]
        holder = names[position // block][0] if position // block < len(names) else i
        return position < self.session.calls[holder].system // block * block


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common prefix."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return min(len(one), len(other))


@st.composite
def sessions(draw: st.DrawFn) -> Made:
    """A session whose prompts are cut and continued at random, described as readers describe it."""
    block = draw(st.sampled_from([16, 64, 512]))
    calls: list[Call] = []
    blocks: list[tuple[Name, ...]] = []
    for i in range(draw(st.integers(1, 8))):
        base: tuple[Name, ...] = ()
        kind = draw(st.sampled_from(["next", "next", "next", "fork", "root"])) if i else "root"
        if kind != "root":
            base = blocks[-1 if kind == "next" else draw(st.integers(0, i - 1))]
        cut = draw(st.sampled_from([0, 0, 0, 1, 2]) | st.integers(0, len(base)))
        base = base[: max(0, len(base) - cut)]
        new = draw(st.sampled_from([0, 5, block, 700]) | st.integers(130, 130 + 4 * block))
        isl = len(base) * block + (new or (0 if base else 1))
        names = (*base, *((i, n) for n in range(len(base), isl // block)))
        best = [common(names, other) for other in blocks]
        parent = max(range(i), key=lambda j: (best[j], j), default=None)
        if parent is not None and not best[parent]:
            parent = None
        inherited = calls[-1].system if calls else 0
        calls.append(
            call(
                isl,
                parent,
                0 if parent is None else best[parent] * block,
                osl=draw(st.sampled_from([0, 30, 100, 5000]) | st.integers(64, 1000)),
                system=min(isl, draw(st.sampled_from([inherited, 2 * block, isl // 2, isl]))),
            )
        )
        blocks.append(names)
    return Made(session_of(*calls, block=block), tuple(blocks))


modest = st.builds(
    Template,
    prompt=st.integers(0, 40),
    system=st.none() | st.integers(0, 15),
    pair=st.integers(0, 30),
)
templates = modest | st.builds(
    Template,
    prompt=st.integers(0, 3000),
    system=st.none() | st.integers(0, 300),
    pair=st.integers(0, 300),
)


def conversation(
    session: Session, template: Template, key: int = 1, visit: int = 2
) -> Conversation:
    """A play of *session*."""
    return Conversation(session, template, session_key=key, visit_key=visit)


def prompts(session: Session, template: Template, key: int = 1, visit: int = 2) -> list[Prompt]:
    """The prompts of all calls, in their order."""
    play = conversation(session, template, key, visit)
    return [play.prompt(i) for i in range(len(session.calls))]


def parsed(prompt: Prompt) -> list[tuple[str, list[str]]]:
    """Role and words of each message."""
    messages = [json.loads(message) for message in prompt.messages]
    assert all(message.keys() == {"role", "content"} for message in messages)
    return [(message["role"], message["content"].split(" ")) for message in messages]


def rendered(prompt: Prompt, template: Template) -> list[str]:
    """What a chat template makes of the messages, token by token, without what it adds at the end.

    A word is a token; what a message costs stands before it, as so many marks of its role.
    """
    tokens: list[str] = []
    before = ""
    for role, words in parsed(prompt):
        marks = 0
        if role == "system":
            marks = template.system or 0
        elif role == "assistant":
            marks = template.pair // 2
        elif before == "assistant":
            marks = template.pair - template.pair // 2
        tokens += [f"<{role}>"] * marks + words
        before = role
    return tokens


def equal_runs(one: list[str], other: list[str], among: Sequence[int]) -> list[int]:
    """Positions at which both have the same `RUN` words, all of them among the given positions."""
    same = {
        p
        for p in among
        if p < min(len(one), len(other)) and one[p] == other[p] and one[p].isalpha()
    }
    return [p for p in sorted(same) if same.issuperset(range(p, p + RUN))]


@settings(deadline=None)
@given(sessions(), templates)
def test_roles(made: Made, template: Template) -> None:
    """After a system message, if any, user and assistant alternate, and the last is the user's."""
    for prompt in prompts(made.session, template):
        roles = [role for role, _ in parsed(prompt)]
        if roles[0] == "system":
            assert template.system is not None
            roles = roles[1:]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


@settings(deadline=None)
@given(sessions(), templates)
def test_messages_are_words(made: Made, template: Template) -> None:
    """Every message is one or more words of four letters, with a space between them."""
    for prompt in prompts(made.session, template):
        for _, words in parsed(prompt):
            assert words
            assert all(len(word) == 4 and word.isalpha() for word in words)


@settings(deadline=None)
@given(sessions(), templates)
def test_length(made: Made, template: Template) -> None:
    """Words and what the template adds are the recorded length, and what is said to exceed it."""
    for recorded, prompt in zip(made.session.calls, prompts(made.session, template), strict=True):
        messages = parsed(prompt)
        counted = template.prompt + sum(len(words) for _, words in messages)
        for role, _ in messages:
            if role == "system":
                assert template.system is not None
                counted += template.system
            elif role == "assistant":
                counted += template.pair
        assert prompt.overlong >= 0
        assert counted == recorded.isl + prompt.overlong


@settings(deadline=None)
@given(sessions(), modest)
def test_exact_length(made: Made, template: Template) -> None:
    """A prompt whose new part can pay for the template has exactly the recorded length."""
    for recorded, prompt in zip(made.session.calls, prompts(made.session, template), strict=True):
        if recorded.isl - recorded.shared >= LEAST:
            assert prompt.overlong == 0


@settings(deadline=None)
@given(sessions(), modest)
def test_calls_share_what_was_recorded(made: Made, template: Template) -> None:
    """Any two calls of a play share all they shared, but for what pays for the prompt's end."""
    calls = made.session.calls
    tokens = [rendered(prompt, template) for prompt in prompts(made.session, template)]
    for i in range(len(calls)):
        for j in range(i):
            paid = min(calls[i].isl, calls[j].isl) - template.prompt
            assert common(tokens[i], tokens[j]) >= min(made.common(i, j), paid)


@settings(deadline=None)
@given(sessions(), modest)
def test_calls_share_no_more_than_was_recorded(made: Made, template: Template) -> None:
    """After what two calls of a play share, their words differ."""
    tokens = [rendered(prompt, template) for prompt in prompts(made.session, template)]
    for i in range(len(tokens)):
        for j in range(i):
            after = range(made.common(i, j), min(len(tokens[i]), len(tokens[j])))
            assert equal_runs(tokens[i], tokens[j], after) == []


@settings(deadline=None)
@given(sessions(), modest)
def test_messages_are_inherited(made: Made, template: Template) -> None:
    """Messages of the parent that end below what is shared are the child's, byte by byte."""
    of_play = prompts(made.session, template)
    for recorded, prompt in zip(made.session.calls, of_play, strict=True):
        if recorded.parent is not None:
            before = of_play[recorded.parent].messages
            ends = [len(rendered(Prompt(before[: n + 1], 0), template)) for n in range(len(before))]
            kept = sum(end < recorded.shared for end in ends[:-1])
            assert prompt.messages[:kept] == before[:kept]


@settings(deadline=None)
@given(sessions(), modest)
def test_plays_share_system_blocks_only(made: Made, template: Template) -> None:
    """Two plays of a session have the words of its system blocks in common, and no others."""
    one, other = (prompts(made.session, template, visit=visit) for visit in (2, 3))
    common_to_plays = shared_by_plays(made.session)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        left, right = rendered(a, template), rendered(b, template)
        assert len(left) == len(right)
        shared = [p for p in range(len(left)) if made.shared_text(i, p)]
        others = [p for p in range(len(left)) if not made.shared_text(i, p)]
        assert all(left[p] == right[p] for p in shared)
        assert equal_runs(left, right, others) == []
        assert common(left, right) >= min(common_to_plays[i], len(left))


@settings(deadline=None)
@given(sessions(), modest)
def test_sessions_share_nothing(made: Made, template: Template) -> None:
    """Plays of two sessions have no words in common, were they recorded alike."""
    one = prompts(made.session, template, key=1, visit=2)
    other = prompts(made.session, template, key=3, visit=4)
    for a, b in zip(one, other, strict=True):
        left, right = rendered(a, template), rendered(b, template)
        assert equal_runs(left, right, range(len(left))) == []


@settings(deadline=None)
@given(sessions(), templates)
def test_the_same_play_is_the_same_text(made: Made, template: Template) -> None:
    """Equal keys give equal bytes."""
    assert prompts(made.session, template) == prompts(made.session, template)


@settings(deadline=None, max_examples=200)
@given(sessions(), templates, st.randoms(use_true_random=False))
def test_order_of_asking_changes_nothing(
    made: Made, template: Template, shuffler: random.Random
) -> None:
    """Calls have the same bytes in whatever order they are asked for."""
    order = list(range(len(made.session.calls)))
    shuffler.shuffle(order)
    play = conversation(made.session, template)
    asked = {i: play.prompt(i) for i in order}
    assert [asked[i] for i in sorted(asked)] == prompts(made.session, template)


TREE = session_of(call(640), call(1280, 0, 640), call(1920, 1, 1280), call(1300, 0, 640))


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3), (0, 3, 1, 2), (2, 3, 1, 0), (0, 2, 1, 3), (2, 1, 0, 3), (3, 2, 1, 0)]
)
def test_children_before_their_parents(order: tuple[int, ...]) -> None:
    """A call that is asked for after its child is what it would have been before it."""
    play = conversation(TREE, Template(8, 5, 10))
    asked = {i: play.prompt(i) for i in order}
    assert [asked[i] for i in sorted(asked)] == prompts(TREE, Template(8, 5, 10))


def held_bytes(root: object) -> int:
    """How many bytes of text are kept alive by *root*."""
    seen: set[int] = set()
    pending, total = [root], 0
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        total += len(item) if isinstance(item, bytes) else 0
        pending += gc.get_referents(item)
    return total


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (0, 2, 1, 3), (3, 2, 1, 0)])
def test_no_finished_call_is_kept(order: tuple[int, ...]) -> None:
    """When all calls were asked for, nothing of their text is kept."""
    play = conversation(TREE, Template())
    play.prompt(order[0])
    for i in order[1:]:
        play.prompt(i)
    assert held_bytes(play) == 0


@settings(deadline=None)
@given(sessions())
def test_nothing_is_kept_of_a_play_in_order(made: Made) -> None:
    """When all calls of any session were asked for in their order, no text is kept."""
    play = conversation(made.session, Template())
    for i in range(len(made.session.calls)):
        play.prompt(i)
    assert held_bytes(play) == 0


@st.composite
def some_asked(draw: st.DrawFn) -> tuple[Made, list[int]]:
    """A session, and some of its calls in any order."""
    made = draw(sessions())
    calls = st.sampled_from(range(len(made.session.calls)))
    return made, draw(st.lists(calls, unique=True))


@settings(deadline=None, max_examples=200)
@given(some_asked(), templates, st.sampled_from(["messages", "text", "ids"]))
def test_what_is_not_asked_for_changes_nothing(
    case: tuple[Made, list[int]], template: Template, form: Form
) -> None:
    """Calls have the same bytes where only some are asked for, in whatever order; afterwards no
    text of any call is kept."""
    made, asked = case
    template = replace(template, form=form)
    whole = prompts(made.session, template)
    play = Conversation(made.session, template, session_key=1, visit_key=2, asked=asked)
    for i in asked:
        assert play.prompt(i) == whole[i]
    assert held_bytes(play) == 0


@settings(deadline=None, max_examples=200)
@given(some_asked(), modest, st.data())
def test_what_is_not_asked_for_changes_no_live_history(
    case: tuple[Made, list[int]], template: Template, data: st.DataObject
) -> None:
    """With the server's answers in them prompts are the same, too, whichever of the calls were
    answered by when; afterwards no text of any call is kept."""
    made, asked = case

    def play(calls: list[int] | None) -> LiveConversation:
        return LiveConversation(made.session, template, session_key=1, visit_key=2, asked=calls)

    some, whole, unanswered = play(asked), play(None), list[int]()
    for i in asked:
        assert some.prompt(i) == whole.prompt(i)
        unanswered.append(i)
        while data.draw(st.booleans()) and unanswered:
            j = unanswered.pop(data.draw(st.integers(0, len(unanswered) - 1)))
            turn = data.draw(st.sampled_from([None, b'{"role":"assistant","content":"%d"}' % j]))
            for each in (some, whole):
                each.answered(j, Served(turn, made.session.calls[j].isl, 7))
    for j in unanswered:
        some.answered(j, Served(b"late", 1, 1))
    assert held_bytes(some) == 0


U, A, S = "user", "assistant", "system"


@pytest.mark.parametrize(
    ("calls", "lengths"),
    [
        ([call(640)], [(U, 640)]),
        ([call(1)], [(U, 1)]),
        ([call(640, system=256)], [(S, 256), (U, 384)]),
        ([call(640, system=300)], [(S, 256), (U, 384)]),
        ([call(640, system=63)], [(U, 640)]),
        ([call(640, system=600)], [(S, 576), (U, 64)]),
        ([call(640, system=640)], [(U, 640)]),
        ([call(640), call(1280, 0, 640)], [(U, 640), (A, 64), (U, 576)]),
        ([call(640, osl=63), call(1280, 0, 640)], [(U, 1280)]),
        ([call(640, osl=5000), call(1280, 0, 640)], [(U, 640), (A, 576), (U, 64)]),
        ([call(640), call(1280, 0, 512)], [(U, 512), (A, 64), (U, 704)]),
        ([call(640), call(1280, 0, 448)], [(U, 1280)]),
        ([call(640), call(660, 0, 640)], [(U, 660)]),
        ([call(640), call(640, 0, 640)], [(U, 640)]),
        ([call(640), call(100, 0, 64)], [(U, 100)]),
        (
            [call(640, system=256), call(1280, 0, 640, system=256)],
            [(S, 256), (U, 384), (A, 64), (U, 576)],
        ),
        ([call(640, system=256), call(640, 0, 128, system=256)], [(S, 256), (U, 384)]),
        ([call(640, system=256), call(640, 0, 128)], [(S, 128), (U, 512)]),
        ([call(640, system=256), call(640, 0, 256, system=256)], [(S, 256), (U, 384)]),
        (
            [call(640, osl=330), call(1280, 0, 640), call(1280, 1, 704)],
            [(U, 640), (A, 64), (U, 576)],
        ),
        (
            [call(640, osl=330), call(1280, 0, 640), call(1280, 1, 640)],
            [(U, 1280)],
        ),
    ],
)
def test_outlines(calls: list[Call], lengths: list[tuple[str, int]]) -> None:
    """Inherited messages keep their starts, and a continued prompt gets an answer between."""
    last = prompts(session_of(*calls), Template())[-1]
    assert [(role, len(words)) for role, words in parsed(last)] == lengths
    assert last.overlong == 0


@pytest.mark.parametrize(
    ("calls", "lengths", "overlong"),
    [
        ([call(640)], [(U, 632)], 0),
        ([call(640, system=256)], [(S, 251), (U, 376)], 0),
        ([call(640), call(1280, 0, 640)], [(U, 640), (A, 59), (U, 563)], 0),
        ([call(9)], [(U, 1)], 0),
        ([call(8)], [(U, 1)], 1),
        ([call(1)], [(U, 1)], 8),
        ([call(640), call(640, 0, 640)], [(U, 640)], 8),
        ([call(640), call(645, 0, 640)], [(U, 640)], 3),
        ([call(640), call(650, 0, 640)], [(U, 642)], 0),
    ],
)
def test_payment(calls: list[Call], lengths: list[tuple[str, int]], overlong: int) -> None:
    """Each new message pays at its start, the last one at its end, and nothing shared ever pays."""
    last = prompts(session_of(*calls), Template(prompt=8, system=5, pair=10))[-1]
    assert [(role, len(words)) for role, words in parsed(last)] == lengths
    assert last.overlong == overlong


def test_refused_system_role() -> None:
    """Where the server takes no system message, its words lead the first user message."""
    session = session_of(call(640, system=256), call(1280, 0, 640, system=256))
    with_role, without = (prompts(session, Template(0, system, 0)) for system in (0, None))
    for one, other in zip(with_role, without, strict=True):
        assert parsed(other)[0][0] == "user"
        words = [[word for _, part in parsed(prompt) for word in part] for prompt in (one, other)]
        assert words[0] == words[1]


def test_known_words() -> None:
    """Measured prompts have the roles and numbers of words that were asked for, all different."""
    roles: list[Role] = ["system", "user", "assistant", "user"]
    one, other = (known_words("messages", roles, [20, 220, 1, 20], key) for key in (1, 2))
    found = parsed(Prompt(one, 0))
    assert [(role, len(words)) for role, words in found] == list(
        zip(roles, [20, 220, 1, 20], strict=True)
    )
    assert found[0][1] != found[3][1]
    assert one != other


def texts(form: Form, template: Template) -> list[list[str]]:
    """The prompts of TREE in a form without roles, as words or ids."""
    found = []
    for made in prompts(TREE, replace(template, form=form)):
        (only,) = made.messages
        value = json.loads(only)
        found.append([str(part) for part in value] if form == "ids" else value.split())
    return found


@pytest.mark.parametrize("form", ["text", "ids"])
def test_prompts_without_roles(form: Form) -> None:
    """A prompt is one text, or one list of ids, of the recorded length, less what is added."""
    assert [len(words) for words in texts(form, Template())] == [640, 1280, 1920, 1300]
    assert [len(words) for words in texts(form, Template(prompt=1))] == [639, 1279, 1919, 1299]


@pytest.mark.parametrize("form", ["text", "ids"])
def test_prompts_without_roles_share_what_was_recorded(form: Form) -> None:
    """Call and parent begin with the same words, and differ after them."""
    first, second, third, other = texts(form, Template())
    assert (common(first, second), common(second, third)) == (640, 1280)
    assert (common(first, other), common(second, other)) == (640, 640)


@pytest.mark.parametrize("per_word", [1.3, 2.0, 0.75])
def test_words_of_another_length(per_word: float) -> None:
    """Where a word is no whole token, there are fewer or more of them, to a word a message."""
    template = Template(prompt=8, system=5, pair=10, tokens_per_word=per_word)
    for made, recorded in zip(prompts(TREE, template), TREE.calls, strict=True):
        parts = parsed(made)
        counted = sum(len(words) for _, words in parts) * per_word
        counted += 8 + 10 * sum(role == "assistant" for role, _ in parts)
        assert counted == pytest.approx(recorded.isl, abs=per_word * len(parts))


@pytest.mark.parametrize("per_word", [1.3, 0.75])
def test_words_of_another_length_share_what_was_recorded(per_word: float) -> None:
    """The shared part is the same text, whatever a word costs."""
    template = Template(tokens_per_word=per_word)
    first, second, third, _ = (
        [word for _, words in parsed(made) for word in words] for made in prompts(TREE, template)
    )
    assert common(first, second) >= 640 / per_word - 1
    assert common(second, third) >= 1280 / per_word - 2


WITH_TOOLS = Template(prompt=8, system=1, pair=29, head=123, tools=True)


def test_tool_results_answer_the_calls_before_them() -> None:
    """Each assistant's turn makes one call, and the next message is the result of that call."""
    for made in prompts(TREE, WITH_TOOLS):
        messages = [json.loads(message) for message in made.messages]
        for before, after in itertools.pairwise(messages):
            if before["role"] != "assistant":
                assert "tool_calls" not in before
                continue
            (made_call,) = before["tool_calls"]
            assert after["role"] == "tool"
            assert after["tool_call_id"] == made_call["id"]
            assert json.loads(made_call["function"]["arguments"]) == {}
        ids = [call["id"] for each in messages for call in each.get("tool_calls", ())]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch("[a-z0-9]{9}", name) for name in ids)


def test_the_list_of_tools_is_paid_by_the_first_message() -> None:
    """With tools a prompt is as long as recorded, and its shared part stays the same bytes."""
    made = prompts(TREE, WITH_TOOLS)
    for each, recorded in zip(made, TREE.calls, strict=True):
        messages = [json.loads(message) for message in each.messages]
        words = sum(len(message["content"].split()) for message in messages)
        pairs = sum(message["role"] == "assistant" for message in messages)
        assert words + 123 + 8 + 29 * pairs == recorded.isl
    assert made[2].messages[: len(made[1].messages) - 1] == made[1].messages[:-1]


@pytest.mark.parametrize("per_word", [2.0, 7.0])
def test_a_part_too_small_for_a_word_is_empty(per_word: float) -> None:
    """Where the one token that is left is less than a word, the message has no words."""
    session = session_of(call(64), call(65, 0, 64))
    for made in prompts(session, Template(prompt=64, tokens_per_word=per_word)):
        assert all(json.loads(message)["role"] == "user" for message in made.messages)
