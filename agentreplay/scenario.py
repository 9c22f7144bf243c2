"""Named scenarios: the rules of published benchmarks as values of options. Pure.

Everything a scenario sets is an ordinary option, and stands here as people write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_CHOOSING = ("since", "until", "project", "recorded-model", "min-calls", "sample")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A versioned set of rules. Options are named without their dashes.

    Attributes:
        name: What it is asked for by.
        version: Raised when a rule changes.
        about: What it is, in one line.
        options: Values that it insists on.
        defaults: Values that hold where nothing else is given.
        least: Least values of options that have a default here.
        limits: Limits of the verdict, by their names for `--allow`. `window_s` is the window of a
            run of the least duration; one that was let through with less is held to its own.
        without: Options that must not be given. Those that choose sessions are among them, since
            the content hash names the whole set.
        pinned: Only published sets of a named revision are replayed.
        whole_passes: The set is played once; more is allowed, less is not.
    """

    name: str
    version: int
    about: str
    options: Mapping[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    pinned: bool = False
    whole_passes: bool = False

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    def rules(self) -> list[tuple[str, str]]:
        """Every rule: an option as it would be given, and how far it binds."""
        found = [(written(name, value), "always") for name, value in self.options.items()]
        for name, value in self.defaults.items():
            least = f"; {self.least[name]} at least" if name in self.least else ""
            found.append((written(name, value), f"unless given{least}"))
        if self.whole_passes:
            found.append(
                (written("sessions", "N"), "unless given: as many as the set has; or more")
            )
        found += [
            (f"--allow {name}={value}", "limit of the verdict")
            for name, value in self.limits.items()
        ]
        found += [(written(name), "not to be given") for name in self.without]
        if self.pinned:
            found.append((PINNED, "form of every path"))
        return found


PINNED = "hf://OWNER/NAME@REVISION"


def written(name: str, value: str | None = None) -> str:
    """An option as it is given on the command line."""
    return f"--{name}" if value is None else f"--{name} {value}"


_AGENTX = {
    "order": "recorded",
    "timing": "think",
    "speed": "1",
    "max-gap": "none",
    "max-idle": "10s",
    "warmup-duration": "0s",
    "ramp": "0s",
    "history": "recorded",
    "share-system": "session",
    "on-error": "end-session",
}

_SCENARIOS = (
    Scenario(
        name="agentx",
        version=1,
        about="AgentX of SemiAnalysis InferenceX, as its published curves are run",
        options={
            **_AGENTX,
            "max-tree-idle": "300s",
            "start": "spread:25%-75%",
            "warmup-calls": "10",
            "failure-limit": "10%",
            "seed": "42",
        },
        defaults={"duration": "3600s"},
        least={"duration": "900s"},
        limits={
            "error_rate": "10%",
            "context_overflow_rate": "1%",
            "coverage": "98%",
            "window_s": "900s",
            "usage_missing": "0%",
        },
        without=("sessions", "requests", "retry-busy", *_CHOOSING),
    ),
    Scenario(
        name="agentx-mvp",
        version=1,
        about="AgentX with the defaults of its public harness",
        options={
            **_AGENTX,
            "max-tree-idle": "none",
            "start": "spread:0%-100%",
            "warmup-calls": "0",
        },
        defaults={"duration": "1800s", "seed": "42"},
        least={"duration": "900s"},
        limits={
            "error_rate": "100%",
            "context_overflow_rate": "1%",
            "coverage": "98%",
            "window_s": "900s",
            "usage_missing": "0%",
        },
        without=("sessions", "requests", "failure-limit", "retry-busy", *_CHOOSING),
        pinned=True,
    ),
    Scenario(
        name="mlperf-agentic",
        version=1,
        about="agentic inference of MLPerf Endpoints: each session one call at a time",
        options={
            "order": "serial",
            "timing": "think",
            "speed": "1",
            "max-gap": "none",
            "max-tree-idle": "none",
            "max-idle": "none",
            "start": "beginning",
            "warmup-calls": "0",
            "warmup-duration": "0s",
            "ramp": "0s",
            "history": "recorded",
            "share-system": "pass",
            "session-header": "X-Session-ID",
        },
        without=("duration", "requests", *_CHOOSING),
        whole_passes=True,
    ),
)

SCENARIOS = {scenario.name: scenario for scenario in _SCENARIOS}
