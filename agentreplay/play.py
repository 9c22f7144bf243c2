"""One play of a recorded session: which calls are free, when they are due, what they say. Pure.

The scheduler does the waiting and sending; everything it has to know about a session is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentreplay import plan as planning
from agentreplay.metrics.record import Record, Request
from agentreplay.plan import Plan, Visit
from agentreplay.prompt.live import LiveConversation, LivePrompt, Served
from agentreplay.prompt.messages import Conversation, Prompt, Template
from agentreplay.prompt.words import mix
from agentreplay.trace.model import Session
from agentreplay.trace.prefix import Sent, shares_over_set
from agentreplay.trace.structure import recorded_order
from agentreplay.wire import chat
from agentreplay.wire.api import Api
from agentreplay.wire.turn import served_turn

_SYSTEM, _VISIT, _SET_SYSTEM, _LAP = 1, 2, 3, 4  # what a key of text is for


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests must look for one endpoint.

    Attributes:
        model: The served model.
        template: How the server counts a prompt.
        fields: Further fields of each body.
        api: The API it is asked by.
        limit: Name of the field that limits the output; None for the API's first.
        min_tokens: Whether the least output is asked for too.
    """

    model: str
    template: Template
    fields: dict[str, Any]
    api: Api = chat.API
    limit: str | None = None
    min_tokens: bool = False

    @property
    def forces_output(self) -> bool:
        """Whether requests ask for an output of exactly the recorded length."""
        return self.min_tokens or bool(self.fields.get("ignore_eos"))

    def body(self, messages: Sequence[bytes], max_tokens: int) -> bytes:
        """A request of given messages and output length."""
        lengths = {self.limit or self.api.limits[0]: max_tokens}
        if self.min_tokens:
            lengths["min_tokens"] = max_tokens
        return self.api.body(self.model, messages, {**lengths, **self.fields})


class _Made(NamedTuple):
    """What is kept of a prompt besides its bytes, until it is sent."""

    overlong: int
    history: str
    seen: int | None


def _made(prompt: Prompt | LivePrompt) -> _Made:
    if isinstance(prompt, Prompt):
        return _Made(prompt.overlong, "recorded", None)
    history = "live" if prompt.live else "substituted" if prompt.substituted else "recorded"
    return _Made(prompt.overlong, history, prompt.seen)


class Play:
    """A visit while it is played. Calls become free, are sent, end, and free others.

    Args:
        plan: Gaps, order and the salt of the text.
        visit: Who plays, and the play's own key.
        session: What is played.
        dialect: How requests must look.
        start_ns: When the play begins.
        sent: What plays have sent so far; None where there are no others.

    Attributes:
        free: The calls that wait for nothing.
    """

    def __init__(
        self,
        plan: Plan,
        visit: Visit,
        session: Session,
        dialect: Dialect,
        start_ns: int,
        sent: Sent | None = None,
    ) -> None:
        if plan.order == "recorded":
            session = recorded_order(session)
        calls = session.calls
        self._plan = plan
        self._visit = visit
        self._session = session
        self._dialect = dialect
        self._start_ns = start_ns
        self._ended_ns: dict[int, int] = {}
        self._awaited = [len(call.after) for call in calls]
        self._followers: list[list[int]] = [[] for _ in calls]
        for i, call in enumerate(calls):
            for j in call.after:
                self._followers[j].append(i)
        session_key = mix(plan.salt, _SYSTEM, visit.session)
        visit_key = mix(plan.salt, _VISIT, visit.place)
        if shares_over_set(session, plan):
            session_key, visit_key = mix(plan.salt, _SET_SYSTEM), mix(plan.salt, _LAP, visit.lap)
        conversation = LiveConversation if plan.history == "live" else Conversation
        self._conversation: LiveConversation | Conversation = conversation(
            session,
            dialect.template,
            session_key=session_key,
            visit_key=visit_key,
        )
        self._made: dict[int, _Made] = {}
        self._sends = (sent or Sent(plan)).play(session, visit)
        self.free = [i for i, call in enumerate(calls) if not call.after]

    def end(self, i: int, at_ns: int) -> list[int]:
        """Note that call *i* has ended; returns the calls that have become free by it."""
        self._ended_ns[i] = at_ns
        freed = []
        for j in self._followers[i]:
            self._awaited[j] -= 1
            if not self._awaited[j]:
                freed.append(j)
        return freed

    def due_ns(self, i: int) -> int:
        """When the free call *i* is to be sent."""
        call, plan = self._session.calls[i], self._plan
        since = max((self._ended_ns[j] for j in call.after), default=self._start_ns)
        if plan.timing == "recorded":
            return max(since, self._recorded_ns(i))
        return since + round(planning.gap_s(plan, call.gap_s) * 1e9)

    def _recorded_ns(self, i: int) -> int:
        start_s = self._session.calls[i].start_s / self._plan.speed
        return self._start_ns + round(start_s * 1e9)

    def body(self, i: int) -> bytes:
        """The bytes of call *i*; to be asked for once."""
        prompt = self._conversation.prompt(i)
        self._made[i] = _made(prompt)
        max_tokens = max(1, self._session.calls[i].osl)
        return self._dialect.body(prompt.messages, max_tokens)

    def answered(self, i: int, record: Record, payloads: Sequence[bytes]) -> None:
        """Note the successful answer to call *i*, which goes back in a live history."""
        if isinstance(self._conversation, LiveConversation):
            isl = record.isl if record.isl is not None else self._session.calls[i].isl
            served = Served(served_turn(payloads), isl, record.osl or 0)
            self._conversation.answered(i, served)

    def request(self, i: int) -> Request:
        """Call *i*, whose body was made, as it is about to be sent.

        To be asked for in the order of sending: it notes what the server has seen by then.
        """
        call, session, plan = self._session.calls[i], self._session, self._plan
        made = self._made.pop(i)
        seen = self._sends.send(i)
        cut_s, due_ns = 0.0, self.due_ns(i)
        planned_ns = self._recorded_ns(i) if plan.timing == "recorded" else due_ns
        if plan.timing == "think":
            cut_s = call.gap_s / plan.speed - planning.gap_s(plan, call.gap_s)
        return Request(
            lane=self._visit.lane,
            visit=self._visit.number,
            session=session.id,
            index=self._visit.session,
            call=i,
            calls=len(session.calls),
            agent=call.agent,
            due_ns=planned_ns,
            isl=call.isl,
            osl=call.osl,
            overlong=made.overlong,
            block=session.block_size,
            shared=call.shared,
            reuse=seen if made.seen is None else made.seen,
            history=made.history,
            recorded_s=call.end_s - call.start_s if call.timed else None,
            gap_cut_s=cut_s,
            behind_s=(due_ns - planned_ns) / 1e9,
        )
