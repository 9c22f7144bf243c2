"""The way between the driver of a run and a worker: messages in order, or its end. Values only."""

from __future__ import annotations

from typing import Protocol

from agentreplay.workers.messages import Message


class LinkLost(Exception):  # noqa: N818 - it says what is wrong, not that something is
    """The other side is gone; the words say why, where that is known."""


class Link(Protocol):
    """One end of it. Nobody but one task sends, and one receives."""

    async def send(self, message: Message) -> None:
        """Hand a message over; one that is cancelled while it waits for room has been, too.

        Raises:
            LinkLost: the other side is gone.
        """

    async def receive(self) -> Message:
        """The next message, when it has come.

        Raises:
            LinkLost: the other side is gone.
        """
