"""Prompts whose assistant turns are the server's own answers. Pure.

A call that continues another sends what that one sent, the answer it got, and a new part that is
sized by the usage the server stated. What continues nothing is sent as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from agentreplay.prompt import words
from agentreplay.prompt.messages import Conversation, Template, encoded
from agentreplay.trace.model import Session
from agentreplay.trace.structure import TAIL_BLOCKS


class Served(NamedTuple):
    """What came of a call.

    Attributes:
        turn: The answer as a message; None where it can't go back.
        isl: Input tokens as the server counted them.
        osl: Output tokens as the server counted them.
    """

    turn: bytes | None
    isl: int
    osl: int


@dataclass(frozen=True, slots=True)
class LivePrompt:
    """The messages of one call.

    Attributes:
        messages: Each message as JSON.
        overlong: As in `messages.Prompt`; 0 where the length follows the server's answers.
        live: The last assistant's turn is the server's own.
        substituted: It would have been, but could not go back.
        seen: Tokens that the server has seen before, where that follows from its answers.
        recorded_until: How many leading tokens are those of the recording.
    """

    messages: tuple[bytes, ...]
    overlong: int
    live: bool
    substituted: bool
    seen: int | None
    recorded_until: int


class LiveConversation:
    """The prompts of one play with the server's answers in them.

    Tell it with `answered` what came of each call; a call whose predecessor was not answered in
    full is sent as recorded. The arguments are those of `messages.Conversation`.
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
        self._template = template
        self._session_key = session_key
        self._visit_key = visit_key
        self._sent: dict[int, LivePrompt] = {}
        self._served: dict[int, Served] = {}
        self._children = [0] * len(session.calls)
        for i in range(len(session.calls)) if asked is None else asked:
            parent = session.calls[i].parent
            if parent is not None and parent >= 0:
                self._children[parent] += 1

    def answered(self, i: int, served: Served) -> None:
        """Note the answer to call *i*."""
        if self._children[i]:
            self._served[i] = served

    def prompt(self, i: int) -> LivePrompt:
        """The messages of call *i*, which may be asked for once."""
        parent = self._session.calls[i].parent
        if parent is not None and parent < 0:
            parent = None  # what other sessions sent is sent as recorded
        made = self._continued(i, parent) if parent is not None else None
        made = made or self._recorded(i, parent)
        if self._children[i]:
            self._sent[i] = made
        if parent is not None:
            self._children[parent] -= 1
            if not self._children[parent]:
                self._sent.pop(parent, None)
                self._served.pop(parent, None)
        return made

    def _continued(self, i: int, parent: int) -> LivePrompt | None:
        """What the parent sent, its answer, and a new part; None where call *i* rewrites it."""
        call, template = self._session.calls[i], self._template
        sent, served = self._sent.get(parent), self._served.get(parent)
        if sent is None or served is None or served.turn is None:
            return None
        if not self._goes_on(i, parent):
            return None
        seen = served.isl + served.osl
        count = max(1, round((call.isl - seen - template.pair) / template.tokens_per_word))
        new = words.text(words.mix(self._visit_key, self._session.name(i)), 0, count)
        return LivePrompt(
            messages=(*sent.messages, served.turn, encoded("messages", "user", new)),
            overlong=0,
            live=True,
            substituted=False,
            seen=seen,
            recorded_until=sent.recorded_until,
        )

    def _goes_on(self, i: int, parent: int) -> bool:
        """Whether call *i* keeps the prompt of its parent, but for the tail."""
        block = self._session.block_size
        whole = (self._session.calls[parent].isl // block - TAIL_BLOCKS) * block
        return self._session.calls[i].shared >= whole

    def _recorded(self, i: int, parent: int | None) -> LivePrompt:
        """The prompt as recorded, of which the server has seen what it was sent as recorded."""
        made = Conversation(
            self._session,
            self._template,
            session_key=self._session_key,
            visit_key=self._visit_key,
            asked=(i,),
        ).prompt(i)
        call, sent, substituted = self._session.calls[i], None, False
        if parent is not None:
            sent, served = self._sent.get(parent), self._served.get(parent)
            broken = served is not None and served.turn is None
            substituted = broken and self._goes_on(i, parent)
        return LivePrompt(
            messages=made.messages,
            overlong=made.overlong,
            live=False,
            substituted=substituted,
            seen=min(call.shared, sent.recorded_until) if sent else None,
            recorded_until=call.isl,
        )
