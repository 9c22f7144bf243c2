"""Prefix reuse: how much of a prompt was seen before. Pure.

Both figures come from one ledger: over a recording in its own order it gives the theoretical
reuse of the trace, over a run in order of sending the reuse that a server with an endless cache
could have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentreplay.plan import Plan, Visit
from agentreplay.trace.model import Call, Session


@dataclass(slots=True)
class Ledger:
    """Which prefixes of a session's prompts have been sent.

    The new tokens of a call, from its `shared` to its end, are named by the call. Whoever holds
    one of them holds all tokens before it, so for each call the furthest position that was sent
    says everything.

    Attributes:
        session: Whose prompts are asked for.
        sent: The furthest position by the call's name; several sessions of a set may share it.
    """

    session: Session
    sent: dict[int, int] = field(default_factory=dict)
    _prompts: tuple[Call, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._prompts = self.session.prompts

    def seen(self, i: int, limit: int | None = None) -> int:
        """How many leading tokens (whole blocks) of call *i*'s first *limit* were sent before."""
        end = self._whole(i, limit)
        at: int | None = i
        while at is not None:
            call = self._prompts[at]
            sent = self.sent.get(self.session.name(at), 0)
            if sent > call.shared:
                return min(sent, end)
            end = min(end, call.shared)
            at = call.parent
        return 0

    def add(self, i: int, limit: int | None = None) -> list[tuple[int, int]]:
        """Note that the first *limit* tokens of call *i*'s prompt are being sent.

        Returns what is new: names, and the furthest position of each.
        """
        end, new = self._whole(i, limit), []
        at: int | None = i
        while at is not None and self.sent.get(name := self.session.name(at), 0) < end:
            call = self._prompts[at]
            if end > call.shared:
                self.sent[name] = end
                new.append((name, end))
            end = min(end, call.shared)
            at = call.parent
        return new

    def _whole(self, i: int, limit: int | None) -> int:
        tokens = self._prompts[i].isl if limit is None else min(limit, self._prompts[i].isl)
        return tokens // self.session.block_size * self.session.block_size


def shared_by_plays(session: Session) -> list[int]:
    """For each call, how many leading tokens every play of the session has in common.

    A block belongs to all plays where it lies wholly inside the `system` tokens of the call that
    first held it, and what follows a block of one play only can't be found by another.
    """
    block, prompts = session.block_size, session.prompts
    common = [0] * len(prompts)
    first = -len(session.lent)
    for i in sorted(range(first, len(session.calls)), key=session.name):
        call = prompts[i]
        whole = min(call.system, call.isl) // block * block
        if call.parent is not None:
            inherited = common[call.parent]
            whole = inherited if inherited < call.shared else max(call.shared, whole)
        common[i] = whole
    return common[: len(session.calls)]


def before_system(session: Session) -> list[int]:
    """For each call, how many leading tokens come before any of a system prompt.

    The counterpart of `shared_by_plays`: what plays have in common that share all but system
    prompts.
    """
    block, prompts = session.block_size, session.prompts
    common = [0] * len(prompts)
    first = -len(session.lent)
    for i in sorted(range(first, len(session.calls)), key=session.name):
        call = prompts[i]
        whole = min(call.system, call.isl) // block * block
        common[i] = call.shared if whole > call.shared else call.isl
        if call.parent is not None and common[call.parent] < call.shared:
            common[i] = common[call.parent]
    return common[: len(session.calls)]


class Whose(NamedTuple):
    """Which plays can find what was sent.

    Attributes:
        system: It is what plays have in common that share system prompts, or all but these.
        lap: Those of this pass over the set; None for all passes.
        session: Those of this session; None for all sessions.
    """

    system: bool
    lap: int | None
    session: int | None


class News(NamedTuple):
    """That so many leading tokens of a named prompt were sent."""

    whose: Whose
    name: int
    end: int


@dataclass(frozen=True, slots=True)
class Sends:
    """What one play sends, and how much of it was sent before.

    Attributes:
        own: What was sent of all that it sends.
        common: What was sent of leading tokens only.
        limits: How many of each call's these are.
        tell: Takes what is new of either.
    """

    own: Ledger
    common: Ledger
    limits: Sequence[int]
    tell: Callable[[list[tuple[int, int]], list[tuple[int, int]]], None]

    def send(self, i: int) -> int:
        """Note that call *i* is being sent; how many of its leading tokens were before."""
        seen = max(self.own.seen(i), self.common.seen(i, self.limits[i]))
        self.tell(self.own.add(i), self.common.add(i, self.limits[i]))
        return seen


class Sent:
    """What plays have sent, as far as later ones can find it again.

    Plays of a session have tools and system prompt in common (`Plan.share_system`). Where sessions
    share prefixes, all plays of one pass over the set have everything in common, and all passes the
    system prompts; or, where no two plays share those, what comes before them. What was sent in a
    pass is forgotten when every lane has left it.

    Where several processes play the lanes of a plan, each tells the others what it has sent.

    Args:
        plan: What is sent.
        lanes: How many lanes play; all of the plan's where None.
        tell: Takes what plays of other lanes can find.
    """

    def __init__(
        self,
        plan: Plan,
        lanes: int | None = None,
        tell: Callable[[News], None] | None = None,
    ) -> None:
        self._plan = plan
        self._lanes = plan.users if lanes is None else lanes
        self._tell = tell
        self._sent: dict[Whose, dict[int, int]] = {}
        self._lap_of: dict[int, int] = {}
        self._oldest = 0

    def play(self, session: Session, visit: Visit) -> Sends:
        """A play that begins."""
        self._enter(visit)
        over_set, limits = shares_over_set(session, self._plan), shared_by_plays(session)
        own = Whose(False, visit.lap, None) if over_set else None
        common: Whose | None
        if self._plan.share_system == "play":
            own, common = None, own
            limits = before_system(session) if over_set else limits
        else:
            lap = visit.lap if self._plan.share_system == "pass" else None
            common = Whose(True, lap, None if over_set else visit.session)

        def tell(*new: list[tuple[int, int]]) -> None:
            if self._tell is not None:
                for whose, names in zip((own, common), new, strict=True):
                    if whose is not None:
                        for name, end in names:
                            self._tell(News(whose, name, end))

        return Sends(
            Ledger(session, self._known(own)), Ledger(session, self._known(common)), limits, tell
        )

    def learn(self, news: Iterable[News]) -> None:
        """Note what was sent elsewhere."""
        for whose, name, end in news:
            if whose.lap is None or whose.lap >= self._oldest:
                known = self._known(whose)
                known[name] = max(end, known.get(name, 0))

    def _known(self, whose: Whose | None) -> dict[int, int]:
        return {} if whose is None else self._sent.setdefault(whose, {})

    def _enter(self, visit: Visit) -> None:
        """A lane goes on to a pass over the set."""
        self._lap_of[visit.lane] = visit.lap
        oldest = min(self._lap_of.values())
        if len(self._lap_of) == self._lanes and oldest > self._oldest:
            self._oldest = oldest
            gone = [each for each in self._sent if each.lap is not None and each.lap < oldest]
            for whose in gone:
                del self._sent[whose]


def shares_over_set(session: Session, plan: Plan) -> bool:
    """Whether plays of a session share text with those of other sessions.

    Where the server's own answers are sent back, nothing of them is in another session.
    """
    return bool(session.names) and plan.history != "live"


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt tokens and whole blocks, and how many of each had been seen before."""

    tokens: int = 0
    seen_tokens: int = 0
    blocks: int = 0
    seen_blocks: int = 0

    def __add__(self, other: Reuse) -> Reuse:
        return Reuse(
            self.tokens + other.tokens,
            self.seen_tokens + other.seen_tokens,
            self.blocks + other.blocks,
            self.seen_blocks + other.seen_blocks,
        )

    @property
    def by_tokens(self) -> float | None:
        """Seen tokens / all input tokens; None without input."""
        return self.seen_tokens / self.tokens if self.tokens else None

    @property
    def by_blocks(self) -> float | None:
        """Seen blocks / all whole blocks; None without a block."""
        return self.seen_blocks / self.blocks if self.blocks else None


def seen_tokens(session: Session, sent: dict[int, int] | None = None) -> list[int]:
    """How many leading tokens of each prompt of a recorded session had been sent before, in order
    of the recorded starts, nothing ever evicted.

    Args:
        session: The session.
        sent: What sessions of the set that share prefixes have sent before, which is added to;
            None to look at this one alone.
    """
    ledger = Ledger(session, sent if sent is not None and session.names else {})
    seen = []
    for i in range(len(session.calls)):
        seen.append(ledger.seen(i))
        ledger.add(i)
    return seen


def reuse_of(session: Session, seen: Sequence[int]) -> Reuse:
    """What `seen_tokens` comes to."""
    block = session.block_size
    return Reuse(
        tokens=sum(call.isl for call in session.calls),
        seen_tokens=sum(seen),
        blocks=sum(call.isl // block for call in session.calls),
        seen_blocks=sum(seen) // block,
    )


def session_reuse(session: Session, sent: dict[int, int] | None = None) -> Reuse:
    """Reuse of one recorded session; see `seen_tokens`."""
    return reuse_of(session, seen_tokens(session, sent))
