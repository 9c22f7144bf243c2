"""Which of the recorded sessions are meant. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Head:
    """What is asked of a session before it is chosen.

    Attributes:
        date_s: Unix time of its start; None where the recording has no dates.
        project: The project it worked on; None where not recorded.
        models: The models of its calls.
        calls: How many calls it has.
    """

    date_s: float | None
    project: str | None
    models: Collection[str | None]
    calls: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Which sessions are meant; without anything, all.

    Attributes:
        since_s: Sessions that began at this Unix time or later.
        until_s: Sessions that began before this Unix time.
        project: Sessions whose project has this in its name, whatever the case.
        model: Sessions of which a call's model has this in its name, whatever the case.
        min_calls: Sessions of at least so many calls.
        sample: So many of the others, drawn at random.
        seed: Of the drawing.
    """

    since_s: float | None = None
    until_s: float | None = None
    project: str | None = None
    model: str | None = None
    min_calls: int | None = None
    sample: int | None = None
    seed: int = 42

    @property
    def looks_inside(self) -> bool:
        """Whether heads are needed to choose."""
        wanted = (self.since_s, self.until_s, self.project, self.model, self.min_calls)
        return any(each is not None for each in wanted)

    def refusal(self, head: Head) -> str | None:
        """Why a session is not meant, in words; None where it is."""
        if self.since_s is not None or self.until_s is not None:
            if head.date_s is None:
                return "without a date"
            if self.since_s is not None and head.date_s < self.since_s:
                return "before --since"
            if self.until_s is not None and head.date_s >= self.until_s:
                return "after --until"
        if self.project is not None and not _within(self.project, head.project):
            return "of other projects"
        if self.model is not None and not any(_within(self.model, model) for model in head.models):
            return "of other models"
        if self.min_calls is not None and head.calls < self.min_calls:
            return "of fewer calls"
        return None

    def drawn(self, indices: Sequence[int]) -> list[int]:
        """The sample of those that are meant, in their order."""
        if self.sample is None or self.sample >= len(indices):
            return list(indices)
        return sorted(Random(self.seed).sample(list(indices), self.sample))


def _within(part: str, whole: str | None) -> bool:
    return whole is not None and part.casefold() in whole.casefold()
