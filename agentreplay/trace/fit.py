"""Sessions too long for a model's context: leave them out, or their longest calls. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from agentreplay.plan import Fit
from agentreplay.trace.model import Call, Session
from agentreplay.trace.structure import common_prefix, waiting


@dataclass(frozen=True, slots=True)
class Fitted:
    """What became of a session.

    Attributes:
        session: What is left of it; None where nothing is.
        calls: Calls that were left out.
        tokens: Their tokens, input and output.
    """

    session: Session | None
    calls: int
    tokens: int


def fitted(session: Session, context_tokens: int, policy: Fit) -> Fitted:
    """Leave out what needs more than *context_tokens* for prompt and answer together.

    With `drop-calls` only the calls that are too long, else the whole session.
    """
    too_long = {i for i, call in enumerate(session.calls) if needs(call) > context_tokens}
    if not too_long:
        return Fitted(session, 0, 0)
    if policy != "drop-calls" or len(too_long) == len(session.calls):
        return Fitted(None, len(session.calls), sum(map(needs, session.calls)))
    tokens = sum(needs(session.calls[i]) for i in too_long)
    return Fitted(without(session, too_long), len(too_long), tokens)


def needs(call: Call) -> int:
    """Tokens of context that a call takes: its prompt, and what is asked for."""
    return call.isl + max(1, call.osl)


def without(session: Session, dropped: Collection[int]) -> Session:
    """The session without some calls, which count as waits of their recorded length.

    Whoever waited for a dropped call waits for what that one waited for; whoever shared its
    prompt shares what it has in common with the calls that are left. Where sessions share
    prefixes, dropped calls are lent, so that everybody goes on sharing the same text.
    """
    if session.names:
        return _lending(session, dropped)
    calls = session.calls
    places: dict[int, int] = {}
    kept: list[Call] = []
    for i, call in enumerate(calls):
        if i in dropped:
            continue
        parent, shared = call.parent, call.shared
        if parent in dropped:
            shared, parent = max(((common_prefix(calls, i, j), j) for j in places), default=(0, 0))
        after = [places[j] for j in _awaited(calls, i, dropped)]
        places[i] = len(kept)
        inherits = parent is not None and shared > 0
        kept.append(
            call._replace(
                parent=places[parent] if parent is not None and inherits else None,
                shared=shared if inherits else 0,
            )
        )
        kept[-1] = waiting(kept, places[i], after)
    return replace(session, calls=tuple(kept))


def _lending(session: Session, dropped: Collection[int]) -> Session:
    """The session with the dropped calls behind those that other sessions lend."""
    calls, lent = session.calls, session.lent
    kept = [i for i in range(len(calls)) if i not in dropped]
    order = [*kept, *range(-len(lent), 0), *sorted(dropped)]  # of prompts
    places = {i: n if n < len(kept) else n - len(order) for n, i in enumerate(order)}
    prompts = [
        call._replace(parent=None if call.parent is None else places[call.parent])
        for call in map(session.prompts.__getitem__, order)
    ]
    sent = prompts[: len(kept)]
    for n, i in enumerate(kept):
        sent[n] = waiting(sent, n, [places[j] for j in _awaited(calls, i, dropped)])
    return replace(
        session,
        calls=tuple(sent),
        lent=tuple(prompts[len(kept) :]),
        names=tuple(map(session.name, order)),
    )


def _awaited(calls: tuple[Call, ...], i: int, dropped: Collection[int]) -> list[int]:
    """The calls that *i* waits for, those behind dropped ones in their place, each once."""
    found: dict[int, None] = {}
    pending = list(reversed(calls[i].after))
    while pending:
        j = pending.pop()
        if j in dropped:
            pending.extend(reversed(calls[j].after))
        else:
            found[j] = None
    return list(found)
