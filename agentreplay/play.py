"""One play of a recorded session: which calls are free, when they are due, what they say. Pure.

The scheduler does the waiting and sending; everything it has to know about a session is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentreplay import plan as planning
from agentreplay.metrics.record import Record, Request
from agentreplay.opening import Opening
from agentreplay.plan import Plan, Visit
from agentreplay.prompt.live import LiveConversation, LivePrompt, Served
from agentreplay.prompt.messages import Conversation, Prompt, Template
from agentreplay.prompt.words import mix
from agentreplay.trace.model import Session
from agentreplay.trace.prefix import Sent, shares_over_set
from agentreplay.trace.structure import in_order
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
        text: Whether bodies are made; where nothing leaves the machine they are empty.
    """

    model: str
    template: Template
    fields: dict[str, Any]
    api: Api = chat.API
    limit: str | None = None
    min_tokens: bool = False
    text: bool = True

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
        session: What is played, in causal order.
        dialect: How requests must look.
        sent: What plays have sent so far; None where there are no others.
        opening: The state it begins in, where it is a lane's first and has a warm-up.

    Attributes:
        waiting: When each call is to be sent that waits for nothing but its time, in nanoseconds;
            empty until the play has begun.
        in_flight: Calls sent and not ended, warm-up included.
        over: Nothing more of it will be sent.
    """

    def __init__(
        self,
        plan: Plan,
        visit: Visit,
        session: Session,
        dialect: Dialect,
        sent: Sent | None = None,
        opening: Opening | None = None,
    ) -> None:
        session = in_order(session, plan.order)
        calls = session.calls
        self.opening = opening
        self.waiting: dict[int, int] = {}
        self.in_flight = 0
        self.over = False
        self._plan = plan
        self._visit = visit
        self._session = session
        self._dialect = dialect
        self._start_ns: int | None = None
        self._ended_ns: dict[int, int] = {}
        self._awaited = [len(call.after) for call in calls]
        self._followers: list[list[int]] = [[] for _ in calls]
        for i, call in enumerate(calls):
            for j in call.after:
                self._followers[j].append(i)
        self._first = opening.begun if opening else 0
        self._reached_s = opening.at_s if opening else 0.0
        self._unprimed = set(opening.primers) if opening else set()
        self._free = {i for i, call in enumerate(calls) if not call.after and i >= self._first}
        asked: Sequence[int] = range(len(calls))
        if opening is not None:
            asked = (*opening.primers, *range(opening.begun, len(calls)))
            for i in set(range(opening.begun)) - self._unprimed:
                self._free.update(self._freed_by(i))
        session_key, visit_key = _keys(plan, visit, session)
        conversation = LiveConversation if plan.history == "live" else Conversation
        self._conversation: LiveConversation | Conversation | None = None
        if dialect.text:
            self._conversation = conversation(
                session,
                dialect.template,
                session_key=session_key,
                visit_key=visit_key,
                asked=asked,
            )
        self._first_bodies: dict[int, bytes] = {}
        self._made: dict[int, _Made] = {}
        self._skipped_ns: dict[int, tuple[int, int]] = {}
        self._sends = (sent or Sent(plan)).play(session, visit)

    def away_s(self) -> float | None:
        """How far the next call is away when the play begins; None where none is free then."""
        return min(map(self._away_s, self._free), default=None)

    def _away_s(self, i: int) -> float:
        """How far the free call *i* is away from the moment at which the play begins."""
        if self._plan.timing == "recorded":
            return (self._session.calls[i].start_s - self._reached_s) / self._plan.speed
        return planning.gap_s(self._plan, self._gap_s(i))

    def _gap_s(self, i: int) -> float:
        """The recorded wait before call *i*."""
        call = self._session.calls[i]
        if self.opening is not None and i in self._free:
            return call.start_s - self._reached_s
        return call.gap_s

    def end_warmup(self) -> None:
        """Send no more of the warm-up: a primer that was not sent counts as done."""
        for i in self._unprimed:
            self._free.update(self._freed_by(i))
        self._unprimed = set()

    def begin(self, at_ns: int, sooner_s: float = 0.0) -> None:
        """Begin at an instant, with every free call by *sooner_s* sooner than it is away."""
        self._start_ns = at_ns - round(sooner_s * 1e9)
        for i in sorted(self._free):  # in this order they are sent where they are due together
            self.waiting[i] = self._start_ns + round(self._away_s(i) * 1e9)

    def end(self, i: int, at_ns: int) -> list[int]:
        """Note that call *i* has ended; returns the calls that wait for their time only from now.

        Before the play has begun there are none, and they are free when it begins.
        """
        self.in_flight -= 1
        self._ended_ns[i] = at_ns
        freed = self._freed_by(i)
        if self._start_ns is None:
            self._free.update(freed)
            return []
        for j in freed:
            self.waiting[j] = self._due_ns(j)
        return freed

    def _freed_by(self, i: int) -> list[int]:
        """The calls that wait for none any more but were not sent, call *i* having ended."""
        freed = []
        for j in self._followers[i]:
            self._awaited[j] -= 1
            if not self._awaited[j] and j >= self._first:
                freed.append(j)
        return freed

    def _due_ns(self, i: int) -> int:
        """When call *i* is to be sent that an end has freed."""
        call, plan = self._session.calls[i], self._plan
        since = max(self._ended_ns.get(j, 0) for j in call.after)
        if plan.timing == "recorded":
            return max(since, self._recorded_ns(i))
        return since + round(planning.gap_s(plan, call.gap_s) * 1e9)

    def _recorded_ns(self, i: int) -> int:
        """When call *i* would be sent at its recorded time; with timing `recorded` only."""
        assert self._start_ns is not None
        return self._start_ns + round(self._away_s(i) * 1e9)

    def next_ns(self) -> int:
        """When the next call is to be sent of those that wait for their time only."""
        return min(self.waiting.values())

    def cap_idle(self, now_ns: int) -> bool:
        """Keep the play within its limit of idle time; whether that moved what waits in it.

        To be called when nothing of it is in flight any more.
        """
        cap_s = self._plan.max_tree_idle_s
        if cap_s is None or self.in_flight or self.over or not self.waiting:
            return False
        skip_ns = self.next_ns() - now_ns - round(cap_s * 1e9)
        if skip_ns <= 0:
            return False
        i = self._move(skip_ns)
        tree_ns, idle_ns = self._skipped_ns.get(i, (0, 0))
        self._skipped_ns[i] = tree_ns + skip_ns, idle_ns
        return True

    def skip_idle(self, skip_ns: int, *, first: bool) -> None:
        """Move all that waits forward, nothing being in flight anywhere.

        Args:
            skip_ns: By how much.
            first: Its next call is the next of all, and carries the skip in its record.
        """
        i = self._move(skip_ns)
        if first:
            tree_ns, idle_ns = self._skipped_ns.get(i, (0, 0))
            self._skipped_ns[i] = tree_ns, idle_ns + skip_ns

    def _move(self, by_ns: int) -> int:
        """Move all that waits forward, and what is free later with it; returns the next call."""
        assert self._start_ns is not None
        self._start_ns -= by_ns
        for i in self.waiting:
            self.waiting[i] -= by_ns
        return min(self.waiting, key=lambda i: (self.waiting[i], i))

    def make_first(self) -> None:
        """Make the bodies of what is due when the play begins; `body` hands them over."""
        self._first_bodies = {i: self.body(i) for i in sorted(self._free) if self._away_s(i) <= 0}

    def body(self, i: int, *, warmup: bool = False) -> bytes:
        """The bytes of call *i*; to be asked for once."""
        if (made := self._first_bodies.pop(i, None)) is not None:
            return made
        if self._conversation is None:
            self._made[i] = _Made(0, "recorded", None)
            return b""
        prompt = self._conversation.prompt(i)
        self._made[i] = _made(prompt)
        max_tokens = 1 if warmup else max(1, self._session.calls[i].osl)
        return self._dialect.body(prompt.messages, max_tokens)

    def answered(self, i: int, record: Record, payloads: Sequence[bytes]) -> None:
        """Note the successful answer to call *i*, which goes back in a live history."""
        if isinstance(self._conversation, LiveConversation):
            isl = record.isl if record.isl is not None else self._session.calls[i].isl
            served = Served(served_turn(payloads), isl, record.osl or 0)
            self._conversation.answered(i, served)

    def request(self, i: int, due_ns: int | None = None) -> Request:
        """Call *i*, whose body was made, as it is about to be sent.

        To be asked for in the order of sending: it notes what the server has seen by then.

        Args:
            i: The call.
            due_ns: When it is to be sent as one of the warm-up; None for what waited its time.
        """
        session, plan = self._session, self._plan
        call, made = session.calls[i], self._made.pop(i)
        seen = self._sends.send(i)
        self.in_flight += 1
        warmup = due_ns is not None
        if due_ns is None:
            due_ns = self.waiting.pop(i)
        elif i < self._first:
            self._unprimed.discard(i)
        else:
            self._first = i + 1
            self._free.discard(i)
            self._reached_s = call.start_s
        planned_ns, cut_s = due_ns, 0.0
        if plan.timing == "recorded" and not warmup:
            planned_ns = self._recorded_ns(i)
        if plan.timing == "think" and not warmup:
            gap_s = self._gap_s(i)
            cut_s = gap_s / plan.speed - planning.gap_s(plan, gap_s)
        tree_ns, idle_ns = self._skipped_ns.pop(i, (0, 0))
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
            warmup=warmup,
            first=self._first,
            tree_skip_s=tree_ns / 1e9,
            idle_skip_s=idle_ns / 1e9,
        )


def _keys(plan: Plan, visit: Visit, session: Session) -> tuple[int, int]:
    """What the text is made of: of tools and system prompt, and of all the rest."""
    alike: tuple[int, ...] = (_SYSTEM, visit.session)
    own = mix(plan.salt, _VISIT, visit.place)
    if shares_over_set(session, plan):
        alike = (_SET_SYSTEM,)
        own = mix(plan.salt, _LAP, visit.lap)
    if plan.share_system == "pass":
        alike += (visit.lap,)
    elif plan.share_system == "play":
        alike += (visit.place,)
    return mix(plan.salt, *alike), own
