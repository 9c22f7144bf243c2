"""A recorded prompt as chat messages whose bytes share what the recording shares. Pure.

A prompt is cut into messages at *starts*: token positions with a role. A call inherits the starts
of its parent that lie below what the two share, so nothing of a shared prefix ever changes, and
adds the assistant's and the user's new parts after it. The chat template of the server adds
tokens of its own; each message gives up as many at its start, and the last one at its end, so
that the server counts the recorded length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentreplay.prompt import words
from agentreplay.trace.model import Session

Role = Literal["system", "user", "assistant"]

MIN_PART_TOKENS = 64
"""A message that is made anew is at least this long (and at least a block): it has to pay for the
template, and a real one is seldom shorter."""


Form = Literal["messages", "text", "ids"]
"""What a prompt is sent as: chat messages, one text, or one list of token ids."""


@dataclass(frozen=True, slots=True)
class Template:
    """How the server counts a prompt: what its chat template adds, and what a word costs.

    Attributes:
        prompt: Tokens added to a prompt, with its last user message.
        system: To a system message; None where the server refuses that role.
        pair: To an assistant's message and the user's after it, together.
        tokens_per_word: What its tokenizer makes of a word.
        head: Tokens added at the very start of a prompt, as a list of tools is.
        tools: Assistant turns make a tool call, and what follows them is its result.
        form: What prompts are sent as.
    """

    prompt: int = 0
    system: int | None = 0
    pair: int = 0
    tokens_per_word: float = 1.0
    head: int = 0
    tools: bool = False
    form: Form = "messages"


TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "work",
            "description": "Do the next piece of work.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)
"""The list of tools that goes with tool messages."""


class Part(NamedTuple):
    """Where a message starts, in tokens of the prompt, and whose it is."""

    start: int
    role: Role


Outline = tuple[Part, ...]

_FLAT: Outline = (Part(0, "user"),)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The messages of one call.

    Attributes:
        messages: Each message as JSON.
        overlong: Tokens by which the prompt exceeds the recorded length: it was too short to pay
            for the template.
    """

    messages: tuple[bytes, ...]
    overlong: int


def outline(session: Session, i: int, parent: Outline, *, system: bool = True) -> Outline:
    """Cut the prompt of call *i* into messages.

    Args:
        session: The recorded session.
        i: Index of the call among the session's prompts.
        parent: The outline of the call's parent; empty where it has none.
        system: Whether the server takes system messages.
    """
    prompts, block = session.prompts, session.block_size
    call = prompts[i]
    least = max(block, MIN_PART_TOKENS)
    system_end = call.system // block * block
    inherited = tuple(part for part in parent if part.start < call.shared)
    if not inherited:
        if system and system_end >= least and call.isl - system_end >= least:
            return Part(0, "system"), Part(system_end, "user")
        return (Part(0, "user"),)
    last = inherited[-1]
    if last.role == "system":
        start = max(call.shared, min(system_end, (call.isl - least) // block * block))
        return (*inherited, Part(start, "user"))
    if last.role == "assistant":
        return (*inherited, Part(call.shared, "user"))
    assert call.parent is not None
    before = prompts[call.parent]
    end = min(call.shared + before.osl, call.isl - MIN_PART_TOKENS) // block * block
    continued = call.shared >= (before.isl // block - 2) * block
    if continued and call.shared - last.start >= least and end - call.shared >= least:
        return (*inherited, Part(call.shared, "assistant"), Part(end, "user"))
    return inherited


class Conversation:
    """The prompts of one play of a session, in whatever order they are asked for.

    Keeps the messages of a call as bytes until the call itself was asked for and its last child
    has taken them over, so a history is never made or encoded twice. Of calls that are lent only
    the outlines are made.

    Args:
        session: The recorded session.
        template: How the server counts a prompt.
        session_key: Of text that plays of the session share.
        visit_key: Of all other text.
        asked: The calls whose prompts will be asked for; all where None.
    """

    def __init__(
        self,
        session: Session,
        template: Template,
        *,
        session_key: int,
        visit_key: int,
        asked: Iterable[int] | None = None,
    ) -> None:
        self._session = session
        self._prompts = session.prompts
        self._template = template
        self._session_key = session_key
        self._visit_key = visit_key
        self._made: dict[int, tuple[Outline, tuple[bytes, ...]]] = {}
        self._outlines: dict[int, Outline] = {}  # of lent calls and those above them
        self._uses = [0] * len(session.calls)  # by the call itself, and by each child
        for i in range(len(session.calls)) if asked is None else asked:
            self._expect(i)

    def _expect(self, i: int) -> None:
        """Count the uses that a call and those above it will have."""
        at: int | None = i
        while at is not None and at >= 0:
            self._uses[at] += 1
            if self._uses[at] > 1:
                break  # it is made already, or will be
            at = self._prompts[at].parent

    def prompt(self, i: int) -> Prompt:
        """The messages of call *i*, which may be asked for once."""
        missing: list[int] = []
        call: int | None = i
        while call is not None and call >= 0 and call not in self._made:
            missing.append(call)
            call = self._prompts[call].parent
        for each in reversed(missing):
            self._make(each)
        parts, messages = self._use(i)
        return Prompt(messages, self._overlong(i, parts))

    def _make(self, i: int) -> None:
        call = self._prompts[i]
        before: Outline = ()
        inherited: tuple[bytes, ...] = ()
        if call.parent is not None and call.parent < 0:
            before = self._outline(call.parent)
        elif call.parent is not None:
            before, inherited = self._use(call.parent)
        if self._template.form != "messages":
            self._made[i] = _FLAT, (self._flat(i, inherited),)
            return
        parts = outline(self._session, i, before, system=self._template.system is not None)
        # Messages below what is shared; of a lent call there are none, and they are made anew.
        kept = min(len(inherited), max(0, sum(part.start < call.shared for part in before) - 1))
        made = (self._message(i, parts, n) for n in range(kept, len(parts)))
        self._made[i] = parts, (*inherited[:kept], *made)

    def _outline(self, i: int) -> Outline:
        """The outline of a call, made without its messages."""
        missing: list[int] = []
        at: int | None = i
        while at is not None and at not in self._outlines:
            missing.append(at)
            at = self._prompts[at].parent
        for each in reversed(missing):
            parent = self._prompts[each].parent
            before = self._outlines[parent] if parent is not None else ()
            system = self._template.system is not None
            self._outlines[each] = outline(self._session, each, before, system=system)
        return self._outlines[i]

    def _flat(self, i: int, inherited: tuple[bytes, ...]) -> bytes:
        """A prompt without roles: what the parent's prompt begins with, and new words."""
        call, template = self._prompts[i], self._template
        known = 0
        if call.parent is not None and call.parent >= 0:
            known = min(call.shared, self._span(call.parent, _FLAT, 0)[1])
        new = self._text(i, known, self._span(i, _FLAT, 0)[1])
        end = words.WORD_BYTES * round(known / template.tokens_per_word)
        if not end:
            return encoded(template.form, "user", new)
        opening, closing = (b"[", b"]") if template.form == "ids" else (b'"', b'"')
        return b"".join((opening, memoryview(inherited[0])[1:end], *new, closing))

    def _use(self, i: int) -> tuple[Outline, tuple[bytes, ...]]:
        """What was made of call *i*, which is forgotten with its last use."""
        self._uses[i] -= 1
        return self._made[i] if self._uses[i] else self._made.pop(i)

    def _message(self, i: int, parts: Outline, n: int) -> bytes:
        start, stop = self._span(i, parts, n)
        pieces = self._text(i, start, stop)
        if not self._template.tools:
            return encoded(self._template.form, parts[n].role, pieces)
        caller = n if parts[n].role == "assistant" else n - 1
        calls = caller >= 0 and parts[caller].role == "assistant"
        return encoded_with_tools(parts[n].role, pieces, parts[caller].start if calls else None)

    def _span(self, i: int, parts: Outline, n: int) -> tuple[int, int]:
        """Which tokens of the prompt are message *n*'s words, when it has paid for the template."""
        call, template = self._prompts[i], self._template
        role, start = parts[n].role, parts[n].start
        if n == 0:
            start += template.head
        if role == "system":
            start += template.system or 0
        elif role == "assistant":
            start += template.pair // 2
        elif n and parts[n - 1].role == "assistant":
            start += template.pair - template.pair // 2
        if n + 1 < len(parts):
            stop = parts[n + 1].start
        else:
            stop = max(call.isl - template.prompt, min(call.shared, call.isl))
        return start, max(stop, start + 1)

    def _overlong(self, i: int, parts: Outline) -> int:
        template = self._template
        counted = template.head + template.prompt
        for n, part in enumerate(parts):
            start, stop = self._span(i, parts, n)
            counted += stop - start
            counted += {"system": template.system or 0, "assistant": template.pair, "user": 0}[
                part.role
            ]
        return counted - self._prompts[i].isl

    def _text(self, i: int, start: int, stop: int) -> list[bytes]:
        """The words for tokens *start* to *stop* of call *i*'s prompt, in pieces."""
        block = self._session.block_size
        pieces: list[bytes] = []
        owner: int | None = i
        while owner is not None and stop > start:
            call = self._prompts[owner]
            low = max(start, call.shared)
            if low < stop:
                system = min(max(call.system // block * block, low), stop)
                name = self._session.name(owner)
                own = self._words(words.mix(self._visit_key, name), system, stop)
                common = self._words(words.mix(self._session_key, name), low, system)
                pieces = [*common, *own, *pieces]
                stop = low
            owner = call.parent
        return pieces

    def _words(self, key: int, start: int, stop: int) -> list[bytes]:
        """Words for a range of tokens: the same ones for the same positions in every call."""
        per_word = self._template.tokens_per_word
        made = words.ids if self._template.form == "ids" else words.text
        return made(key, round(start / per_word), round(stop / per_word))


def encoded(form: Form, role: Role, pieces: Sequence[bytes]) -> bytes:
    """A message as JSON, of pieces that each begin with a separator; the first one's is cut."""
    opening, closing = b'{"role":"%b","content":"' % role.encode(), b'"}'
    if form == "ids":
        opening, closing = b"[", b"]"
    elif form == "text":
        opening = closing = b'"'
    first = memoryview(pieces[0])[1:] if pieces else b""  # a part of a word is none
    return b"".join((opening, first, *pieces[1:], closing))


def encoded_with_tools(role: Role, pieces: Sequence[bytes], call: int | None) -> bytes:
    """A message as JSON that makes the tool call of a number, or is its result.

    Ids have nine letters and digits: the narrowest form that a template demands.
    """
    if call is None:
        return encoded("messages", role, pieces)
    content = b"".join(pieces)[1:]  # a tool's result, or one turn: never a whole history
    name = b"c%08d" % (call % 10**8)
    if role == "assistant":
        made = b'{"id":"%b","type":"function","function":{"name":"work","arguments":"{}"}}' % name
        return b'{"role":"assistant","content":"%b","tool_calls":[%b]}' % (content, made)
    return b'{"role":"tool","tool_call_id":"%b","content":"%b"}' % (name, content)


def known_words(
    form: Form,
    roles: Sequence[Role],
    counts: Sequence[int],
    key: int,
    *,
    tools: bool = False,
) -> tuple[bytes, ...]:
    """Messages of given lengths in words, for measuring the template.

    With *tools* an assistant's message makes a tool call, and the one after it is its result.
    """
    made = words.ids if form == "ids" else words.text
    messages = []
    for n, (role, count) in enumerate(zip(roles, counts, strict=True)):
        pieces = made(words.mix(key, n), 0, count)
        calls = role == "assistant" or (n > 0 and roles[n - 1] == "assistant")
        if tools and calls:
            messages.append(encoded_with_tools(role, pieces, 1))
        else:
            messages.append(encoded(form, role, pieces))
    return tuple(messages)
