"""True sessions of coding agents, invented from a seed, and the logs they would have left.

Written from the description of the formats and real files, not from the readers: what the two
make of the same bytes is the test. `claude_code(seed)` and `codex(seed)` make a `World`: what
really happened (a prompt is a list of segments, so what two prompts share is known), and the
files that would tell of it.

The clocks: everything happens in true time (ms since 1970); a log's stamps are true time less the
steps back that its machine's clock has made by then. A call begins with the stamp of the last
input before it: no log says how many milliseconds later it was sent.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
import zstandard

Segment = tuple[int, int]
"""A piece of text, by its number, and its length in tokens."""

Record = dict[str, Any]

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
NINE_O_CLOCK = 1_767_603_600_000
TTL = 5 * MINUTE


@dataclass(eq=False, slots=True)
class TrueSession:
    """A session as the formats mean it; a machine's clock goes with it.

    Attributes:
        steps: When its clock was set back, and by how much.
    """

    name: str
    steps: list[tuple[int, int]] = field(default_factory=list)

    def logged(self, at_ms: int) -> int:
        """What the machine's clock showed."""
        return at_ms - sum(back for when, back in self.steps if when <= at_ms)


@dataclass(eq=False, slots=True)
class TrueAgent:
    """A conversation of its own.

    Attributes:
        kind: "main"; "sync", whose end its maker waits for; "async", whose end it doesn't wait
            for; "helper", which the program itself started.
        maker: The call that made it.
        joined_by: The maker's call that could only begin when this agent had ended.
        woken: Calls that began because this agent, in the background, had ended.
        system: Tokens of its tools and system prompt.
    """

    session: TrueSession
    kind: str
    system: int
    maker: TrueCall | None = None
    joined_by: TrueCall | None = None
    woken: list[TrueCall] = field(default_factory=list)
    calls: list[TrueCall] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class TrueCall:
    """One LLM request.

    Attributes:
        inputs_ms: The stamp that its start is told from.
        osl: Output tokens as far as the log can say: of an interrupted call the placeholder.
        limit_ms: Its start is known within so many ms only.
        after_compaction: The first call after the agent's prompt was rewritten.
        rolled_back: The first call after turns were taken back.
    """

    agent: TrueAgent
    start_ms: int
    model: str
    prompt: tuple[Segment, ...]
    inputs_ms: int
    end_ms: int = 0
    osl: int = 0
    cached: int = 0
    limit_ms: int = 0
    after_compaction: bool = False
    rolled_back: bool = False
    names: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        name = length = 0
        for number, tokens in self.prompt:
            name = hash((name, number, tokens))
            length += tokens
            self.names.append(name)
            self.lengths.append(length)

    @property
    def isl(self) -> int:
        return self.lengths[-1]

    @property
    def session(self) -> TrueSession:
        return self.agent.session

    def shares(self, other: TrueCall) -> int:
        """How many leading tokens the two prompts have in common."""
        low, high = 0, min(len(self.names), len(other.names))
        while low < high:
            middle = (low + high) // 2
            if self.names[middle] == other.names[middle]:
                low = middle + 1
            else:
                high = middle
        return self.lengths[low - 1] if low else 0

    def continues(self, other: TrueCall) -> bool:
        """Whether its prompt begins with the whole of the other's."""
        return self.shares(other) == other.isl

    def clean(self) -> bool:
        """Whether no step of the clock lies inside it, or makes it seem to be before another."""
        steps = self.session.steps
        if any(self.inputs_ms <= when <= self.end_ms for when, _ in steps):
            return False
        before = [when for when, _ in steps if when < self.inputs_ms]
        return all(
            self.session.logged(self.start_ms) > self.session.logged(when - 1) for when in before
        )


@dataclass(slots=True)
class World:
    """What happened, and what was written about it.

    Attributes:
        files: The bytes of each file, by its path below the folder that is read.
        features: What happened, and how often.
    """

    seed: int
    calls: list[TrueCall] = field(default_factory=list)
    agents: list[TrueAgent] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    features: Counter[str] = field(default_factory=Counter)


def iso(at_ms: int) -> str:
    """A stamp as both formats write it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


class _Inventor:
    """What inventing takes in both formats."""

    def __init__(self, seed: int, only: Iterable[str] | None) -> None:
        self.rng = random.Random(seed)
        self.world = World(seed)
        self.only = None if only is None else frozenset(only)
        self.count = 0
        self.lengths: set[int] = set()
        self.shared: dict[tuple[str, ...], Segment] = {}

    def chance(self, what: str, likely: float, possible: bool = True) -> bool:
        """Whether something happens this time."""
        happens = self.rng.random() < likely and possible
        if not happens or (self.only is not None and what not in self.only):
            return False
        self.world.features[what] += 1
        return True

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def number(self) -> int:
        self.count += 1
        return self.count

    def identity(self, what: str = "") -> str:
        """An id like those of the programs."""
        text = hashlib.md5(f"{self.world.seed}/{what}/{self.number()}".encode()).hexdigest()
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"

    def segment(self, low: int, high: int) -> Segment:
        return self.number(), self.between(low, high)

    def common(self, *key: str, low: int, high: int) -> Segment:
        """A piece of text that is the same wherever it is asked for."""
        if key not in self.shared:
            self.shared[key] = self.segment(low, high)
        return self.shared[key]

    def agent(
        self, session: TrueSession, kind: str, system: int, maker: TrueCall | None = None
    ) -> TrueAgent:
        agent = TrueAgent(session, kind, system, maker)
        self.world.agents.append(agent)
        return agent

    def split(self, context: list[Segment]) -> None:
        """Make the prompt's length one that no other has, and its end a piece of its own."""
        number, tokens = context.pop()
        tokens += 12
        total = sum(length for _, length in context) + tokens
        while total in self.lengths:
            tokens, total = tokens + 1, total + 1
        self.lengths.add(total)
        tail = self.between(1, 10)
        context += [(number, tokens - tail), (self.number(), tail)]

    def output(self) -> int:
        return self.rng.choice(
            (self.between(3, 60), self.between(60, 600), self.between(600, 4000))
        )

    def step_clocks(self, sessions: Sequence[TrueSession], made_ms: Sequence[int] = ()) -> None:
        """Set some machines' clocks back, once or twice, but not just after one of *made_ms*."""
        for session in sessions:
            spans = [c for c in self.world.calls if c.session is session]
            if spans and self.chance("clock step", 0.2):
                low = min(call.inputs_ms for call in spans) + 1
                high = max(call.end_ms for call in spans)
                for _ in range(self.between(1, 2)):
                    soon = self.rng.random() < 0.2
                    at_ms = self.between(low, min(high, low + 9 * SECOND) if soon else high)
                    if not any(0 <= at_ms - made <= MINUTE for made in made_ms):
                        session.steps.append((at_ms, self.between(200, 9 * SECOND)))


# --- Claude Code ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    at_ms: int | None
    order: tuple[int, int]
    session: TrueSession
    build: Callable[[], Record]
    parent: str | None = None


@dataclass(eq=False, slots=True)
class _Talk:
    """A conversation while it goes on: where it is written, and what the next prompt holds."""

    agent: TrueAgent
    folder: str
    path: str
    base: Record
    model: str
    context: list[Segment]
    system: list[Segment]
    since_ms: int = 0
    last: str | None = None
    linked: dict[str, _Line] = field(default_factory=dict)
    order_ms: int | None = None
    points: list[tuple[str | None, list[Segment], bool]] = field(default_factory=list)
    notices: list[tuple[int, list[TrueAgent]]] = field(default_factory=list)
    to_join: list[TrueAgent] = field(default_factory=list)
    to_wake: list[TrueAgent] = field(default_factory=list)
    rewritten: bool = False
    results: list[int] = field(default_factory=list)
    call_uuids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Use:
    id: str
    at_ms: int
    name: str


class _Claude(_Inventor):
    """A few projects of a few users, in one version's way of writing."""

    def __init__(self, seed: int, only: Iterable[str] | None, layout: str | None = None) -> None:
        super().__init__(seed, only)
        rng = self.rng
        picked = rng.choice(("inline", "flushed", "beside", "below", "below", "below"))
        self.layout = layout or picked
        self.world.features[self.layout] += 1
        self.version = {"inline": "1.0.98", "flushed": "1.0.71", "beside": "2.0.28"}.get(
            self.layout, "2.1.157"
        )
        self.new = self.layout == "below"
        self.final_usage = self.chance("final usage on all lines", 0.6, self.new)
        self.several = self.chance("several blocks a line", 0.25)
        self.siblings = self.chance("results beside each other", 0.8, self.new)
        self.odd_parent = self.chance("next call linked to last tool", 0.3, self.siblings)
        self.eager = self.chance("tools run early", 0.5, self.new and not self.several)
        self.agent_id = self.layout in ("beside", "below") and rng.random() < 0.7
        self.in_chain = self.chance("progress in the chain", 0.5, self.new)
        self.cache = not self.chance("no cache", 0.06)
        self.system_ttl = HOUR if self.chance("system kept an hour", 0.4) else TTL
        self.models = ["claude-opus-4-8", "claude-haiku-4-5"]
        self.lines: dict[str, list[_Line]] = {}
        self.sessions: list[TrueSession] = []

    # What is written

    def put(self, path: str, line: _Line) -> None:
        self.lines.setdefault(path, []).append(line)

    def loose(self, talk: _Talk, at_ms: int, record: Record, stamped: bool = False) -> None:
        """A line that is in no chain; most such have no stamp."""
        whole = record | {"sessionId": talk.base["sessionId"]}
        self.put(
            talk.path,
            _Line(
                at_ms if stamped else None,
                (talk.order_ms or at_ms, self.number()),
                talk.agent.session,
                lambda: whole,
            ),
        )

    def add(
        self, talk: _Talk, at_ms: int, build: Record | Callable[[], Record], parent: str | None = ""
    ) -> str:
        """A line in the chain, after *parent* or else after the last one."""
        uuid = self.identity()
        before = talk.last if parent == "" else parent
        make = build if callable(build) else lambda: build
        line = _Line(
            at_ms,
            (talk.order_ms or at_ms, self.number()),
            talk.agent.session,
            lambda: talk.base | {"parentUuid": before, "uuid": uuid} | make(),
            before,
        )
        self.put(talk.path, line)
        talk.linked[uuid] = line
        talk.last = uuid
        return uuid

    def user(self, talk: _Talk, at_ms: int, content: object, **fields: object) -> str:
        message = {"role": "user", "content": content}
        return self.add(talk, at_ms, {"type": "user", "message": message} | fields)

    def usage(self, call: TrueCall, last: bool, placeholder: int) -> Record:
        out = call.osl if last or self.final_usage else min(placeholder, call.osl)
        tail = call.prompt[-1][1]
        if not self.cache:
            return {"input_tokens": call.isl, "output_tokens": out}
        created = call.isl - tail - call.cached
        return {
            "input_tokens": tail,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": call.cached,
            "cache_creation": {
                "ephemeral_5m_input_tokens": created,
                "ephemeral_1h_input_tokens": 0,
            },
            "output_tokens": out,
            "service_tier": "standard",
        }

    def answer(
        self, talk: _Talk, call: TrueCall, blocks: list[tuple[int, Record]], cut: bool
    ) -> dict[str, str]:
        """The lines of one answer; the line that each of its tools is on."""
        groups: list[list[tuple[int, Record]]] = []
        for block in blocks:
            if groups and self.several and self.rng.random() < 0.6:
                groups[-1].append(block)
            else:
                groups.append([block])
        message_id = f"msg_{self.identity()[:23]}"
        request_id = None if self.rng.random() < 0.1 else f"req_{self.identity()[:20]}"
        placeholder = self.between(1, 8)
        if cut:
            call.osl = placeholder
        uses: dict[str, str] = {}
        talk.call_uuids = []
        for i, group in enumerate(groups):
            last = i == len(groups) - 1
            content = [block for _, block in group]

            def build(
                content: list[Record] = content, last: bool = last, zeros: bool = False
            ) -> Record:
                stop = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
                usage = self.usage(call, last and not cut, placeholder)
                if zeros:
                    usage = dict.fromkeys(usage, 0)
                record = {
                    "type": "assistant",
                    "message": {
                        "id": message_id,
                        "type": "message",
                        "role": "assistant",
                        "model": call.model,
                        "content": content,
                        "stop_reason": stop if (self.final_usage or last) and not cut else None,
                        "usage": usage,
                    },
                }
                return record if request_id is None else record | {"requestId": request_id}

            uuid = self.add(talk, group[-1][0], build)
            talk.call_uuids.append(uuid)
            uses |= {b["id"]: uuid for b in content if b["type"] == "tool_use"}
            if last and not uses and self.chance("copy of a line with zeros", 0.03):
                self.add(talk, group[-1][0], partial(build, zeros=True))
        return uses

    # What happens

    def base(self, project: str, session_id: str) -> Record:
        return {
            "isSidechain": False,
            "userType": "external",
            "cwd": f"/w/{project}",
            "sessionId": session_id,
            "version": self.version,
            "gitBranch": "main",
        }

    def prompt_of(self, kind: str) -> list[Segment]:
        """Tools and system prompt of a type of agent; some types begin like the main agent."""
        tools = self.common("tools", kind if kind == "explore" else "main", low=4000, high=9000)
        return [tools, self.common("system", kind, low=2000, high=6000)]

    def call(self, talk: _Talk, start_ms: int) -> TrueCall:
        self.split(talk.context)
        call = TrueCall(
            talk.agent,
            start_ms,
            talk.model,
            tuple(talk.context),
            talk.since_ms,
            after_compaction=talk.rewritten,
        )
        talk.rewritten = False
        for agent in talk.to_join:
            agent.joined_by = call
        for agent in talk.to_wake:
            agent.woken.append(call)
        talk.to_join, talk.to_wake = [], []
        talk.agent.calls.append(call)
        self.world.calls.append(call)
        return call

    def failures(self, talk: _Talk, at_ms: int) -> tuple[int, bool]:
        """Attempts that fail: when the next is sent, and whether there is none."""
        failed = self.chance("api error", 0.07)
        gives_up = self.chance("api failure", 0.02, talk.agent.kind == "main")
        if not failed and not gives_up:
            return at_ms, False
        for attempt in range(1, self.between(1, 3) + 1):
            told_ms = at_ms + self.between(50, 20 * SECOND)
            retry = self.between(400, 9 * SECOND)
            error = self.rng.choice(
                ({"status": 529, "error": {"type": "overloaded_error"}},
                 {"cause": {"code": "ECONNRESET"}}, {})
            )  # fmt: skip
            self.add(
                talk,
                told_ms,
                {
                    "type": "system",
                    "subtype": "api_error",
                    "level": "error",
                    "error": error,
                    "retryInMs": self.rng.choice((retry, float(retry))),
                    "retryAttempt": attempt,
                    "maxRetries": 10,
                },
            )
            at_ms = told_ms + retry
        if gives_up:
            zeros = dict.fromkeys(
                ("input_tokens", "output_tokens", "cache_creation_input_tokens",
                 "cache_read_input_tokens"), 0)  # fmt: skip
            message = {
                "id": self.identity(),
                "model": "<synthetic>",
                "role": "assistant",
                "type": "message",
                "content": [{"type": "text", "text": "API Error"}],
                "stop_reason": "stop_sequence",
                "usage": zeros,
            }
            fields = {"isApiErrorMessage": True, "error": "rate_limit"}
            self.add(talk, at_ms, {"type": "assistant", "message": message} | fields)
        return at_ms, gives_up

    def turn(self, talk: _Talk, at_ms: int, calls: int, depth: int = 0) -> int:
        """Calls until an answer has no tools; when the turn ends."""
        main = talk.agent.kind == "main"
        while True:
            if self.chance("automatic compaction", 0.05, len(talk.agent.calls) > 2):
                at_ms = self.compact(talk, at_ms, automatic=True)
            elif self.chance("microcompaction", 0.05, len(talk.results) > 2):
                self.microcompact(talk, at_ms)
            start_ms, given_up = self.failures(talk, at_ms)
            if given_up:
                return start_ms
            if self.chance("interrupted before the answer", 0.02, main):
                cut_ms = start_ms + self.between(100, 4000)
                self.user(talk, cut_ms, [text("[Request interrupted by user]")])
                return cut_ms
            call = self.call(talk, start_ms)
            tools = 0 if calls <= 1 else self.rng.choice((1, 1, 1, 2, 3))
            if tools > 1:
                self.world.features["parallel tools"] += 1
            calls -= 1
            blocks, uses = self.blocks(start_ms, tools, depth)
            words = len(blocks) - len(uses)
            if self.chance("interrupted answer", 0.04, main and words > 0):
                blocks = blocks[: self.between(1, words)]
                call.end_ms = blocks[-1][0]
                self.answer(talk, call, blocks, cut=True)
                talk.context.append((self.number(), call.osl + self.between(0, 300)))
                cut_ms = call.end_ms + self.between(10, 3000)
                self.user(talk, cut_ms, [text("[Request interrupted by user]")])
                return cut_ms
            call.osl = self.output()
            call.end_ms = blocks[-1][0]
            talk.since_ms = uses[0].at_ms if self.eager and uses else call.end_ms
            lines = self.answer(talk, call, blocks, cut=False)
            thought = self.between(0, call.osl // 2) if self.rng.random() < 0.3 else 0
            talk.context.append((self.number(), max(1, call.osl - thought)))
            if not uses:
                return self.turn_ends(talk, call.end_ms)
            at_ms, interrupted = self.tools(talk, call, uses, lines, depth)
            if interrupted:
                return at_ms

    def blocks(
        self, at_ms: int, tools: int, depth: int
    ) -> tuple[list[tuple[int, Record]], list[_Use]]:
        """An answer's blocks with their ends, and its tools."""
        at_ms += self.between(300, 6000)
        blocks: list[tuple[int, Record]] = []
        uses: list[_Use] = []
        if self.rng.random() < 0.5:
            blocks.append((at_ms, {"type": "thinking", "thinking": "", "signature": "x"}))
            at_ms += self.between(1, 3000)
        if not tools or self.rng.random() < 0.5:
            blocks.append((at_ms, text("words")))
            at_ms += self.between(1, 4000)
        agents = bool(tools) and self.chance(
            "subagents" if depth == 0 else "nested subagents",
            0.3 if depth == 0 else 0.2,
            depth == 0 or (self.new and depth == 1),
        )
        for _ in range(tools):
            name = self.rng.choice(("Bash", "Read", "Edit"))
            if agents:
                name = "Agent" if self.new else "Task"
                if depth == 0 and self.chance("workflow", 0.15, self.new):
                    name = "Workflow"
            use = _Use(f"toolu_{self.identity()[:18]}", at_ms, name)
            uses.append(use)
            block = {"type": "tool_use", "id": use.id, "name": name, "input": {"prompt": "do"}}
            blocks.append((at_ms, block))
            at_ms += self.between(1, 5000)
        return blocks, uses

    def tools(
        self, talk: _Talk, call: TrueCall, uses: list[_Use], lines: dict[str, str], depth: int
    ) -> tuple[int, bool]:
        """Run an answer's tools; when its last input comes, and whether the user cut them off."""
        last_line = talk.last
        ends: list[tuple[int, _Use, Record]] = []
        plain = all(use.name not in ("Agent", "Task", "Workflow") for use in uses)
        cut = self.chance("interrupted tool", 0.03, plain and talk.agent.kind == "main")
        cut_ms = call.end_ms + self.between(1000, 20_000)
        progress: dict[str, str] = {}
        for use in uses:
            begin_ms = (use.at_ms if self.eager else call.end_ms) + self.between(1, 9)
            result: Record = {"stdout": "", "stderr": "", "interrupted": cut}
            if use.name in ("Agent", "Task"):
                child, result, done_ms = self.subagent(talk, call, begin_ms, depth)
                if child is not None and self.chance("progress copies", 0.5, self.new):
                    self.copies(talk, use, child, lines, progress)
            elif use.name == "Workflow":
                result, done_ms = self.workflow(talk, call, begin_ms)
            else:
                slow = self.rng.random() < 0.1
                high = 8 * MINUTE if slow else self.rng.choice((60, 3000, 30_000))
                done_ms = begin_ms + self.between(1, high)
                if slow and self.chance("progress", 0.5, self.new):
                    middle_ms = (begin_ms + done_ms) // 2
                    data = {"type": "bash_progress", "output": "", "elapsedTimeSeconds": 3}
                    uuid = self.add(
                        talk,
                        middle_ms,
                        {"type": "progress", "data": data, "toolUseID": use.id},
                        lines[use.id],
                    )
                    if self.in_chain:
                        progress[use.id] = uuid
            ends.append((cut_ms if cut else done_ms, use, result))
        ends.sort(key=lambda end: end[0])
        placed: dict[str, str] = {}
        before = last_line
        for at_ms, use, result in ends:
            parent = progress.get(use.id, lines[use.id]) if self.siblings else before
            segment = self.segment(5, self.rng.choice((200, 2000, 20_000)))
            talk.context.append(segment)
            talk.results.append(segment[0])
            content: Record = {"type": "tool_result", "tool_use_id": use.id, "content": "out"}
            if cut:
                content["is_error"] = True
            message = {"role": "user", "content": [content]}
            talk.last = parent
            before = self.add(
                talk, at_ms, {"type": "user", "message": message, "toolUseResult": result}
            )
            placed[use.id] = before
        at_ms = ends[-1][0]
        if cut:
            self.user(talk, at_ms + 1, [text("[Request interrupted by user for tool use]")])
            return at_ms + 1, True
        if self.odd_parent:
            talk.last = placed[uses[-1].id]
        return self.injected(talk, at_ms, uses), False

    def injected(self, talk: _Talk, at_ms: int, uses: list[_Use]) -> int:
        """What the program adds to the tools' results before it sends them; when it is done."""
        if self.chance("queued prompt", 0.05, talk.agent.kind == "main"):
            typed = uses[-1].at_ms + 1
            entry: Record = {"type": "queue-operation", "content": "also this"}
            self.loose(talk, typed, entry | {"operation": "enqueue"}, stamped=True)
            self.loose(talk, at_ms, entry | {"operation": "remove"}, stamped=True)
            at_ms = self.attach(talk, at_ms, "queued_command")
        for _, children in [n for n in talk.notices if n[0] <= at_ms]:
            self.world.features["notice while at work"] += 1
            at_ms = self.attach(talk, at_ms, "queued_command")
            talk.to_wake += children
        talk.notices = [n for n in talk.notices if n[0] > at_ms]
        if self.chance("attachment after results", 0.15):
            at_ms = self.attach(talk, at_ms, "task_reminder")
        return at_ms

    def attach(self, talk: _Talk, at_ms: int, kind: str) -> int:
        at_ms += self.between(0, 30)
        talk.context.append(self.segment(10, 600))
        self.add(talk, at_ms, {"type": "attachment", "attachment": {"type": kind}})
        return at_ms

    def turn_ends(self, talk: _Talk, at_ms: int) -> int:
        if talk.agent.kind == "main" and self.rng.random() < 0.5:
            for subtype in ("stop_hook_summary", "turn_duration"):
                at_ms += self.between(1, 200)
                self.add(talk, at_ms, {"type": "system", "subtype": subtype, "durationMs": 5})
        return at_ms

    def compact(self, talk: _Talk, at_ms: int, automatic: bool) -> int:
        """Put a summary in the place of the conversation; when that is done."""
        helper = self.chance("logged compaction", 0.4, self.new and talk.agent.kind == "main")
        took = self.between(4 * SECOND, 60 * SECOND)
        if helper:
            ended_ms = self.helper(talk, at_ms + 2, "acompact", sync=True)
            took = ended_ms - at_ms + self.between(1, 50)
        before_ms, at_ms = at_ms, at_ms + took
        metadata: Record = {"trigger": "auto" if automatic else "manual", "preTokens": 1}
        kept = []
        if self.chance("preserved messages", 0.3, self.new and len(talk.call_uuids) > 0):
            kept = list(talk.call_uuids)
        anchor = self.identity()
        if kept:
            metadata["preservedMessages"] = {"anchorUuid": anchor, "uuids": kept}
        self.add(
            talk,
            at_ms,
            {
                "type": "system",
                "subtype": "compact_boundary",
                "parentUuid": None,
                "logicalParentUuid": talk.last,
                "content": "Conversation compacted",
                "compactMetadata": metadata,
            },
            None,
        )
        at_ms += self.between(0, 5)
        message = {"role": "user", "content": "This session is being continued"}
        fields = {"isCompactSummary": True, "isVisibleInTranscriptOnly": True}
        self.add(talk, at_ms, {"type": "user", "message": message, "uuid": anchor} | fields)
        talk.linked[anchor] = talk.linked.pop(talk.last or "")
        talk.last = anchor
        talk.context = [*talk.system, self.segment(800, 6000)]
        for uuid in kept:
            line = talk.linked[uuid]
            parent = talk.last

            def again(line: _Line = line, parent: str = parent) -> Record:
                return line.build() | {"parentUuid": parent}

            order = (talk.order_ms or at_ms, self.number())
            talk.linked[uuid] = _Line(line.at_ms, order, line.session, again, parent)
            self.put(talk.path, talk.linked[uuid])
            talk.last = uuid
            talk.context.append(self.segment(5, 800))
        if kept:
            talk.points = []  # two lines with one uuid: going back to before them is ambiguous
        talk.results = []
        talk.rewritten = True
        if self.rng.random() < 0.3:
            at_ms = self.attach(talk, at_ms, "compact_file_reference")
        assert at_ms >= before_ms
        return at_ms

    def microcompact(self, talk: _Talk, at_ms: int) -> None:
        """Blank old results where they stand."""
        old = set(talk.results[: self.between(1, len(talk.results) - 1)])
        talk.results = [number for number in talk.results if number not in old]
        context = []
        for number, tokens in talk.context:
            context.append((self.number(), min(tokens, 8)) if number in old else (number, tokens))
        talk.context = context
        talk.rewritten = True
        self.add(
            talk,
            at_ms,
            {
                "type": "system",
                "subtype": "microcompact_boundary",
                "content": "Context microcompacted",
                "microcompactMetadata": {"trigger": "auto", "tokensSaved": 9},
            },
        )

    # Agents

    def agent_path(self, talk: _Talk, name: str, below: str = "") -> str:
        session = f"{talk.folder}/{talk.base['sessionId']}"
        if self.layout in ("inline", "flushed"):
            return f"{session}.jsonl"
        if self.layout == "beside":
            return f"{talk.folder}/agent-{name}.jsonl"
        return f"{session}/subagents/{below}agent-{name}.jsonl"

    def talk(self, maker: _Talk, agent: TrueAgent, name: str, kind: str, below: str = "") -> _Talk:
        base = maker.base | {"isSidechain": True}
        base.pop("agentId", None)
        if self.agent_id:
            base["agentId"] = name
        system = self.prompt_of(kind)
        model = maker.model
        if kind == "explore" and self.rng.random() < 0.5:
            model = self.models[1]
        path = self.agent_path(maker, name, below)
        return _Talk(agent, maker.folder, path, base, model, list(system), system)

    def subagent(
        self, talk: _Talk, call: TrueCall, at_ms: int, depth: int
    ) -> tuple[_Talk | None, Record, int]:
        """Make an agent; it, the tool's result, and when that comes."""
        kind = self.rng.choice(("explore", "general", "general"))
        background = self.chance(
            "background agent", 0.3, self.layout in ("beside", "below") and depth == 0
        )
        name = self.identity()[:8]
        agent = self.agent(
            talk.agent.session,
            "async" if background else "sync",
            sum(tokens for _, tokens in self.prompt_of(kind)),
            call,
        )
        child = self.talk(talk, agent, name, kind)
        end_ms = self.work(child, at_ms + self.between(3, 60), depth + 1)
        result: Record = {"prompt": "do", "agentId": name}
        if background:
            talk.notices.append((end_ms + self.between(1, 50), [agent]))
            return child, result | {"status": "async_launched"}, at_ms + self.between(70, 90)
        talk.to_join.append(agent)
        last = agent.calls[-1] if agent.calls else call
        result |= {
            "status": "completed",
            "content": [text("done")],
            "totalDurationMs": end_ms - at_ms,
            "totalTokens": last.isl + last.osl,
            "totalToolUseCount": 3,
            "usage": {"input_tokens": 7, "output_tokens": last.osl},
        }
        if self.layout in ("inline", "flushed"):
            del result["agentId"]
        elif self.new and self.rng.random() < 0.3:
            meta = child.path.removesuffix(".jsonl") + ".meta.json"
            self.world.files[meta] = orjson.dumps({"agentType": kind, "description": "d"})
        return child, result, end_ms + self.between(1, 60)

    def work(self, child: _Talk, at_ms: int, depth: int) -> int:
        """An agent's whole life; when it ends."""
        first = len(self.lines.get(child.path, []))
        child.since_ms = at_ms
        child.context.append(self.segment(50, 3000))
        self.user(child, at_ms, "do")
        if self.chance("attachment of an agent", 0.2):
            at_ms = self.attach(child, at_ms, "skill_listing")
        end_ms = self.turn(child, at_ms, self.between(1, 6), depth)
        if self.layout == "flushed":
            for line in self.lines[child.path][first:]:
                line.order = (end_ms, line.order[1])
        return end_ms

    def workflow(self, talk: _Talk, call: TrueCall, at_ms: int) -> tuple[Record, int]:
        """Agents one after another and beside each other, in the background."""
        run = f"wf_{self.identity()[:8]}"
        begin_ms, agents = at_ms + 30, []
        for _ in range(self.between(1, 2)):
            ends = []
            for _ in range(self.between(1, 3)):
                agent = self.agent(talk.agent.session, "async", 0, call)
                agent.system = sum(tokens for _, tokens in self.prompt_of("general"))
                child = self.talk(talk, agent, self.identity()[:8], "general", f"workflows/{run}/")
                ends.append(self.work(child, begin_ms + self.between(1, 90), 2))
                agents.append(agent)
            begin_ms = max(ends)
        folder = self.agent_path(talk, "x", f"workflows/{run}/").rpartition("/")[0]
        self.world.files[f"{folder}/journal.jsonl"] = b'{"type":"started","key":"v2:0"}\n'
        talk.notices.append((begin_ms + 5, agents))
        result = {"isAsync": True, "status": "async_launched", "runId": run, "taskId": "t"}
        return result, at_ms + self.between(5, 25)

    def helper(self, talk: _Talk, at_ms: int, name: str, sync: bool = False) -> int:
        """A call of the program's own, with the conversation and a question; when it ends."""
        agent = self.agent(talk.agent.session, "sync" if sync else "helper", talk.agent.system)
        agent.maker = talk.agent.calls[-1] if talk.agent.calls else None
        child = self.talk(talk, agent, f"{name}-{self.identity()[:6]}", "main")
        child.model, child.context = talk.model, list(talk.context)
        if name == "aside_question":
            chain: list[_Line] = []
            uuid = talk.last
            while uuid is not None:
                chain.append(talk.linked[uuid])
                uuid = talk.linked[uuid].parent
            for line in reversed(chain):

                def copy(line: _Line = line) -> Record:
                    record = line.build() | {"isSidechain": True}
                    return record | {"requestId": "req_btw"} if "requestId" in record else record

                self.put(child.path, _Line(line.at_ms, (at_ms, self.number()), line.session, copy))
            child.last = talk.last
        child.context.append(self.segment(20, 600))
        child.order_ms = child.since_ms = at_ms
        self.user(child, at_ms, "summarise or suggest")
        call = self.call(child, at_ms)
        blocks = [(at_ms + self.between(400, 8000), text("words"))]
        call.osl, call.end_ms = self.output(), blocks[0][0]
        self.answer(child, call, blocks, cut=False)
        if sync:
            talk.to_join.append(agent)
        return call.end_ms

    def copies(
        self, talk: _Talk, use: _Use, child: _Talk, lines: dict[str, str], chain: dict[str, str]
    ) -> None:
        """Lines that show the user what an agent does, with its messages in them."""
        for uuid in child.call_uuids[:2]:
            line = child.linked[uuid]

            def build(line: _Line = line) -> Record:
                message = line.build() | {"timestamp": iso(line.session.logged(line.at_ms or 0))}
                data = {"type": "agent_progress", "message": message, "prompt": "do"}
                return {"type": "progress", "data": data, "parentToolUseID": use.id}

            parent = chain.get(use.id, lines[use.id])
            added = self.add(talk, line.at_ms or 0, build, parent)
            if self.in_chain:
                chain[use.id] = added

    # Sessions

    def session(self, folder: str, project: str, session_id: str, at_ms: int) -> int:
        """A whole session, and what comes of it; when it ends."""
        talk = self.main(folder, project, session_id)
        if self.chance("summaries at the top", 0.3):
            self.loose(talk, at_ms - 9, {"type": "summary", "summary": "s", "leafUuid": "gone"})
        if self.new:
            self.titles(talk, at_ms - 5)
        if self.chance("warm-up", 0.3, self.layout == "beside"):
            agent = self.agent(talk.agent.session, "helper", talk.agent.system)
            child = self.talk(talk, agent, self.identity()[:8], "explore")
            agent.system = sum(tokens for _, tokens in child.system)
            child.context.append(self.segment(5, 20))
            child.since_ms = at_ms - 3
            self.user(child, at_ms - 3, "Warmup")
            self.turn(child, at_ms - 3, 1, 2)
        return self.go_on(talk, at_ms, self.between(2, 5), project)

    def main(self, folder: str, project: str, session_id: str) -> _Talk:
        session = TrueSession(f"{folder}/{session_id}")
        self.sessions.append(session)
        base = self.base(project, session_id)
        system = self.prompt_of("main")
        agent = self.agent(session, "main", sum(tokens for _, tokens in system))
        talk = _Talk(
            agent,
            folder,
            f"{folder}/{session_id}.jsonl",
            base,
            self.models[0],
            list(system),
            system,
        )
        talk.context.append(self.common("memory", project, low=200, high=3000))
        return talk

    def titles(self, talk: _Talk, at_ms: int) -> None:
        for kind in ("mode", "permission-mode", "ai-title", "last-prompt"):
            self.loose(talk, at_ms, {"type": kind, "mode": "default"})
        snapshot = {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}
        self.loose(talk, at_ms, snapshot)

    def go_on(self, talk: _Talk, at_ms: int, turns: int, project: str) -> int:
        for i in range(turns):
            if i:
                talk, at_ms = self.pause(talk, at_ms, project)
            talk.points.append((talk.last, list(talk.context), talk.rewritten))
            talk.context.append(self.segment(10, 2500))
            at_ms = self.prompt(talk, at_ms)
            at_ms = self.turn(talk, at_ms, self.between(1, 7))
            at_ms = self.notified(talk, at_ms, at_ms + self.between(0, 3 * MINUTE))
        return self.notified(talk, at_ms, at_ms + 10 * HOUR)

    def prompt(self, talk: _Talk, at_ms: int) -> int:
        """A person's words; when all that goes with them is there."""
        talk.since_ms = at_ms - 1
        content: object = "fix it" if self.rng.random() < 0.5 else [text("fix it")]
        self.user(talk, at_ms, content)
        if self.chance("attachment after a prompt", 0.3):
            talk.context.append(self.segment(10, 2000))
            attached_ms = at_ms + self.between(-1, 20)
            line = {"type": "attachment", "attachment": {"type": "skill_listing"}}
            self.add(talk, attached_ms, line)
            self.lines[talk.path][-1].order = (max(at_ms, attached_ms), self.number())
            at_ms = max(at_ms, attached_ms)
        if self.new and self.rng.random() < 0.3:
            self.titles(talk, at_ms)
        return at_ms

    def notified(self, talk: _Talk, at_ms: int, until_ms: int) -> int:
        """Turns that begin because agents in the background have ended; when they are over."""
        while talk.notices:
            talk.notices.sort(key=lambda notice: notice[0])
            if talk.notices[0][0] > until_ms:
                break
            notice_ms, children = talk.notices.pop(0)
            at_ms = talk.since_ms = max(at_ms + 5, notice_ms)
            self.world.features["notice when idle"] += 1
            talk.to_wake += children
            talk.context.append(self.segment(50, 900))
            entry = {"type": "queue-operation", "content": "<task-notification>"}
            self.loose(talk, at_ms - 2, entry | {"operation": "enqueue"}, stamped=True)
            self.user(talk, at_ms, "<task-notification>done", origin={"kind": "task-notification"})
            at_ms = self.turn(talk, at_ms, self.between(1, 2))
        return at_ms

    def pause(self, talk: _Talk, at_ms: int, project: str) -> tuple[_Talk, int]:
        """What may lie between two turns; the conversation that goes on, and when."""
        if self.chance("suggestion", 0.25, self.new):
            self.helper(talk, at_ms + self.between(5, 50), "aprompt_suggestion")
        at_ms += self.between(2 * SECOND, 4 * MINUTE)
        if self.chance("side question", 0.15, self.new):
            self.helper(talk, at_ms, "aside_question")
            at_ms += self.between(1, 20 * SECOND)
        if self.chance("idle", 0.2):
            at_ms += self.between(TTL + SECOND, 3 * HOUR)
        if self.chance("resumed later", 0.1):
            at_ms += self.between(5 * HOUR, 60 * HOUR)
            self.titles(talk, at_ms - 3)
        if self.chance("rewind", 0.15, len(talk.points) > 1):
            self.rewind(talk, self.between(1, len(talk.points) - 1))
        elif self.chance("rewind to the start", 0.08, bool(talk.points)):
            self.rewind(talk, 0)
        elif self.chance("compaction", 0.1):
            command = "<command-name>/compact</command-name>"
            self.user(talk, at_ms, command)
            at_ms = self.compact(talk, at_ms, automatic=False) + self.between(SECOND, MINUTE)
        if self.chance("model switch", 0.15):
            self.user(talk, at_ms - 50, "<command-name>/model</command-name>")
            talk.model = self.models[talk.model == self.models[0]]
        if self.chance("resumed in a new file", 0.12, not self.new and not talk.notices):
            return self.resumed(talk, at_ms, project), at_ms + SECOND
        if self.chance("fork", 0.1, self.new):
            fork = self.resumed(talk, at_ms, project, fork=True)
            self.go_on(fork, at_ms + self.between(SECOND, MINUTE), self.between(1, 2), project)
            at_ms += self.between(SECOND, 2 * MINUTE)
        return talk, at_ms

    def rewind(self, talk: _Talk, point: int) -> None:
        talk.last, context, talk.rewritten = talk.points[point]
        talk.context = list(context)
        talk.points = talk.points[:point]
        numbers = {number for number, _ in context}
        talk.results = [number for number in talk.results if number in numbers]
        talk.call_uuids = []

    def resumed(self, talk: _Talk, at_ms: int, project: str, fork: bool = False) -> _Talk:
        """The conversation in a new file that begins with a copy of the old one."""
        new = self.main(talk.folder, project, self.identity())
        chain: list[tuple[str, _Line]] = []
        uuid = talk.last
        while uuid is not None:
            chain.append((uuid, talk.linked[uuid]))
            uuid = talk.linked[uuid].parent
        if not fork:
            self.loose(new, at_ms - 1, {"type": "summary", "summary": "s", "leafUuid": talk.last})
        renamed = {uuid: self.identity() if fork else uuid for uuid, _ in chain}
        for uuid, line in reversed(chain):

            def copy(line: _Line = line, uuid: str = uuid) -> Record:
                record = line.build()
                source = {"sessionId": record["sessionId"], "messageUuid": record["uuid"]}
                record = record | {
                    "sessionId": new.base["sessionId"],
                    "uuid": renamed[uuid],
                    "parentUuid": renamed.get(line.parent or ""),
                }
                return record | {"forkedFrom": source} if fork else record

            copied = _Line(line.at_ms, (at_ms, self.number()), line.session, copy)
            copied.parent = renamed.get(line.parent or "")
            self.put(new.path, copied)
            new.linked[renamed[uuid]] = copied
        new.last = renamed[talk.last] if talk.last is not None else None
        new.model, new.context = talk.model, list(talk.context)
        new.results = list(talk.results)
        new.rewritten = talk.rewritten
        return new

    # All of it

    def caches(self) -> None:
        """What the server reads from its cache: the longest beginning that was sent lately."""
        kept: dict[tuple[str, int], tuple[int, int]] = {}  # first and last use
        for call in sorted(self.world.calls, key=lambda call: call.start_ms):
            marks = {0, 1, len(call.names) - 2}
            hit = -1
            for i, name in enumerate(call.names[:-1]):
                used = kept.get((call.model, name))
                ttl = self.system_ttl if i <= 1 else TTL
                if used and used[0] + 1000 <= call.start_ms <= used[1] + ttl:
                    hit = i
                    kept[call.model, name] = (used[0], call.start_ms)
            if self.cache and hit >= 0:
                call.cached = call.lengths[hit]
            for i in marks:
                first = kept.get((call.model, call.names[i]), (call.start_ms, 0))[0]
                if i > hit:
                    first = call.start_ms
                kept[call.model, call.names[i]] = (first, call.start_ms)

    def render(self) -> None:
        for path, lines in self.lines.items():
            rows = []
            for line in sorted(lines, key=lambda line: line.order):
                record = line.build()
                if line.at_ms is not None:
                    record = record | {"timestamp": iso(line.session.logged(line.at_ms))}
                rows.append(orjson.dumps(record))
            data = b"\n".join(rows) + b"\n"
            if self.chance("line that is being written", 0.05):
                data += rows[-1][: len(rows[-1]) // 2]
            self.world.files[path] = data

    def invent(self) -> World:
        same_ids = self.chance("same ids elsewhere", 0.5)
        ids = [self.identity() for _ in range(2)]
        at_ms = NINE_O_CLOCK
        users = ["ann", "bob"] if self.chance("several users", 0.3) else ["ann"]
        for user in users:
            for project in ("one", "two")[: self.between(1, 2)]:
                folder = f"{user}/.claude/projects/-w-{project}"
                for i in range(self.between(1, 2)):
                    name = ids[i] if same_ids else self.identity()
                    self.session(folder, project, name, at_ms)
                    at_ms += self.between(0, 40 * MINUTE)
        self.step_clocks(self.sessions)
        self.caches()
        self.render()
        return self.world


def text(words: str) -> Record:
    """A block of text."""
    return {"type": "text", "text": words}


def claude_code(seed: int, only: Iterable[str] | None = None, layout: str | None = None) -> World:
    """A world of Claude Code's; *only* some features, to see which of them matters."""
    return _Claude(seed, only, layout).invent()


# --- Codex ---------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Row:
    """A line of a rollout; its stamp is true time on its own machine's clock."""

    at_ms: int
    session: TrueSession
    type: str
    payload: Record
    count: str = ""
    call: TrueCall | None = None


@dataclass(eq=False, slots=True)
class _Thread:
    """A thread while it goes on."""

    agent: TrueAgent
    id: str
    home: str
    made_ms: int
    project: str
    model: str
    context: list[Segment]
    system: list[Segment]
    rows: list[_Row] = field(default_factory=list)
    copied: int = 0
    goes_on: bool = False
    since_ms: int = 0
    points: list[list[Segment]] = field(default_factory=list)
    children: list[tuple[_Thread, int]] = field(default_factory=list)
    to_join: list[TrueAgent] = field(default_factory=list)
    plain: bool = True
    rewritten: bool = False
    rolled_back: bool = False
    loose_ms: int = 0

    @property
    def name(self) -> str:
        stamp = iso(self.made_ms)[:19].replace(":", "-")
        return f"rollout-{stamp}-{self.id}.jsonl"

    def in_time(self) -> list[_Row]:
        """The lines as they stand in the file."""
        own = sorted(self.rows[self.copied :], key=lambda row: row.at_ms)
        return self.rows[: self.copied] + own


class _Codex(_Inventor):
    """A few threads of one or two users, in one version's way of writing."""

    def __init__(self, seed: int, only: Iterable[str] | None) -> None:
        super().__init__(seed, only)
        rng = self.rng
        self.new = rng.random() < 0.6
        self.version = "0.114.0" if self.new else "0.66.0"
        self.world.features["new" if self.new else "old"] += 1
        self.late = self.chance("late counts", 0.5, not self.new)
        self.restamped = rng.random() < 0.5
        self.repeats = self.chance("repeated counts", 0.5)
        self.models = ["gpt-5.1-codex-max", "gpt-5.1-codex-mini"]
        self.threads: list[_Thread] = []
        self.absent: set[str] = set()

    # What is written

    def add(
        self,
        thread: _Thread,
        at_ms: int,
        kind: str,
        payload: Record,
        count: str = "",
        call: TrueCall | None = None,
    ) -> None:
        row = _Row(at_ms, thread.agent.session, kind, payload, count, call)
        thread.rows.append(row)

    def item(self, thread: _Thread, at_ms: int, kind: str, **fields: object) -> None:
        self.add(thread, at_ms, "response_item", {"type": kind} | fields)

    def event(self, thread: _Thread, at_ms: int, kind: str, **fields: object) -> None:
        self.add(thread, at_ms, "event_msg", {"type": kind} | fields)

    def counted(
        self, thread: _Thread, at_ms: int, count: str, call: TrueCall | None = None
    ) -> None:
        """A token count: of a "call", a "repeat", "null", or the "zeros" of a compaction."""
        self.add(thread, at_ms, "event_msg", {"type": "token_count"}, count, call)

    def said(self, thread: _Thread, at_ms: int, role: str, words: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": words}]
        self.item(thread, at_ms, "message", role=role, content=content)

    def thread(
        self,
        agent: TrueAgent,
        home: str,
        project: str,
        made_ms: int,
        before: _Thread | None = None,
        **fields: object,
    ) -> _Thread:
        """A new thread with its first line, and where *before* is given with a copy of that."""
        system = [self.common("instructions", low=2000, high=9000)]
        thread = _Thread(
            agent,
            self.identity(),
            home,
            made_ms,
            project,
            self.models[0] if before is None else before.model,
            [*system, self.common("project", project, low=200, high=3000)],
            system,
            plain=before is None,
        )
        agent.system = system[0][1]
        self.threads.append(thread)
        early = self.between(0, 20 * SECOND) if before is None and not fields else 0
        meta = {
            "id": thread.id,
            "timestamp": iso(made_ms - early),
            "cwd": f"/w/{project}",
            "originator": "codex_cli_rs",
            "cli_version": self.version,
            "source": "cli",
            "model_provider": "openai",
            "base_instructions": {"text": "be good"},
        }
        self.add(thread, made_ms, "session_meta", meta | fields)
        if before is None:
            self.said(thread, made_ms + 1, "developer", "<permissions instructions>")
            self.said(thread, made_ms + 1, "user", "<environment_context>here")
            return thread
        at_ms = made_ms
        for row in [row for row in before.in_time() if row.at_ms <= made_ms]:
            if self.restamped:
                at_ms += self.rng.choice((0, 0, 1))
                row = _Row(min(at_ms, made_ms + 300), agent.session, row.type, row.payload, "copy")
            else:
                row = _Row(row.at_ms, row.session, row.type, row.payload, "copy")
            thread.rows.append(row)
        thread.copied = len(thread.rows)
        thread.context = list(before.context)
        thread.goes_on = self.chance("totals go on", 0.7)
        return thread

    # What happens

    def call(self, thread: _Thread, start_ms: int) -> TrueCall:
        self.split(thread.context)
        call = TrueCall(
            thread.agent,
            start_ms,
            thread.model,
            tuple(thread.context),
            thread.since_ms,
            after_compaction=thread.rewritten,
            rolled_back=thread.rolled_back,
            limit_ms=thread.loose_ms,
        )
        thread.rewritten = thread.rolled_back = False
        thread.loose_ms = 0
        for agent in thread.to_join:
            agent.joined_by = call
        thread.to_join = []
        thread.agent.calls.append(call)
        self.world.calls.append(call)
        return call

    def turn(self, thread: _Thread, at_ms: int, calls: int, depth: int = 0) -> int:
        """A person's (or a maker's) words and the calls after them; when the turn ends."""
        turn_id = self.identity()
        context = {"cwd": f"/w/{thread.project}", "model": thread.model, "effort": "medium"}
        if self.new:
            context["turn_id"] = turn_id
            self.event(thread, at_ms, "task_started", turn_id=turn_id)
            at_ms += self.between(0, 9)
            self.add(thread, at_ms, "turn_context", context)
        at_ms += self.between(0, 9)
        thread.since_ms = at_ms - 20
        thread.points.append(list(thread.context))
        thread.context.append(self.segment(10, 2500))
        self.said(thread, at_ms, "user", "fix it")
        self.event(thread, at_ms, "user_message", message="fix it")
        if not self.new:
            self.add(thread, at_ms + self.between(0, 20), "turn_context", context)
            self.item(thread, at_ms + 21, "ghost_snapshot", ghost_commit={"id": "c"})
        if self.repeats and thread.agent.calls and self.rng.random() < 0.3:
            self.counted(thread, at_ms + 30, "repeat")
        if not thread.agent.calls and self.rng.random() < 0.6:
            self.counted(thread, at_ms + 200, "null")
        at_ms = self.calls(thread, at_ms, calls, depth, context)
        if self.new:
            at_ms += self.between(0, 40)
            self.event(thread, at_ms, "task_complete", turn_id=turn_id, last_agent_message="ok")
        return at_ms

    def calls(self, thread: _Thread, at_ms: int, calls: int, depth: int, context: Record) -> int:
        while True:
            if self.chance("automatic compaction", 0.06, len(thread.agent.calls) > 2):
                at_ms = self.compact(thread, at_ms)
            waits = [child for child in thread.children if child[0].agent.kind == "sync"]
            tools = self.rng.choice((1, 1, 1, 2, 3)) if calls > 1 else int(bool(waits))
            calls -= 1
            end_ms = at_ms + self.between(700, 6000)
            wrote: list[tuple[int, str]] = []
            for kind in ("reasoning", "message"):
                if (kind == "message" and not tools) or self.rng.random() < 0.5:
                    wrote.append((end_ms, kind))
                    end_ms += self.between(1, 3000)
            if self.chance("aborted answer", 0.03, depth == 0 and not waits and bool(wrote)):
                self.wrote(thread, wrote[:1])
                return self.aborted(thread, wrote[0][0] + self.between(1, 2000))
            call = self.call(thread, at_ms)
            self.wrote(thread, wrote)
            call.osl = self.output()
            name = "shell_command"
            if waits and (calls <= 1 or self.rng.random() < 0.5):
                name, tools = "wait_agent", 1
            elif tools and self.chance("spawned agents", 0.25, self.new and depth < 2):
                name = "spawn_agent"
            uses: list[tuple[int, str]] = []
            for _ in range(tools):
                use_id = f"call_{self.identity()[:12]}"
                uses.append((end_ms, use_id))
                ids = [child.id for child, _ in waits] if name == "wait_agent" else []
                arguments = orjson.dumps({"targets": ids} if ids else {}).decode()
                fields = {"name": name, "arguments": arguments, "call_id": use_id}
                if name == "shell_command" and self.rng.random() < 0.3:
                    custom = {"name": "apply_patch", "input": "x", "call_id": use_id}
                    self.item(thread, end_ms, "custom_tool_call", **custom)
                else:
                    self.item(thread, end_ms, "function_call", **fields)
                end_ms += self.between(0, 3000)
            last_ms = uses[-1][0] if uses else wrote[-1][0]
            call.end_ms = last_ms
            thread.context.append((self.number(), call.osl))
            at_ms, cut = self.outputs(thread, call, uses, name, depth)
            if not uses:
                return at_ms
            if cut:
                return self.aborted(thread, at_ms, noted=True)
            if not self.new:
                self.add(thread, at_ms, "turn_context", context)
            if self.repeats and self.rng.random() < 0.6:
                self.counted(thread, at_ms + self.between(0, 650), "repeat")

    def wrote(self, thread: _Thread, parts: list[tuple[int, str]]) -> None:
        """What stands in an answer before its tools; all of it twice."""
        for at_ms, kind in parts:
            if kind == "reasoning":
                self.event(thread, at_ms, "agent_reasoning", text="hm")
                self.item(thread, at_ms, "reasoning", summary=[], encrypted_content="x")
            else:
                self.event(thread, at_ms, "agent_message", message="words")
                self.said(thread, at_ms, "assistant", "words")

    def aborted(self, thread: _Thread, at_ms: int, noted: bool = False) -> int:
        if not noted:
            thread.context.append(self.segment(3, 200))
        self.said(thread, at_ms, "user", "<turn_aborted>the user interrupted")
        self.event(thread, at_ms, "turn_aborted", reason="interrupted")
        thread.context.append(self.segment(20, 40))
        return at_ms

    def outputs(
        self, thread: _Thread, call: TrueCall, uses: list[tuple[int, str]], name: str, depth: int
    ) -> tuple[int, bool]:
        """The call's token count, and what its tools gave; when the last came, whether cut."""
        last_ms = call.end_ms
        slow = self.chance("count a second later", 0.08)
        delay = self.between(1100, 3000) if slow else self.between(0, 400)
        cut = self.chance("aborted tool", 0.03, bool(uses) and name == "shell_command")
        cut_ms = last_ms + delay + self.between(1, 9000)
        ends: list[tuple[int, str]] = []
        counted_ms = last_ms + delay
        if not self.late:
            self.counted(thread, counted_ms, "call", call)
        for at_ms, use_id in uses:
            begin_ms = (at_ms if self.late else counted_ms) + self.between(1, 9)
            high = self.rng.choice((60, 3000, 30_000, 8 * MINUTE))
            done_ms = cut_ms if cut else begin_ms + self.between(1, high)
            if name == "spawn_agent":
                done_ms = self.spawn(thread, call, begin_ms, depth, use_id)
            elif name == "wait_agent":
                waited = [c for c in thread.children if c[0].agent.kind == "sync"]
                thread.children = [c for c in thread.children if c not in waited]
                thread.to_join += [child.agent for child, _ in waited]
                done_ms = max([begin_ms, *(end for _, end in waited)]) + self.between(5, 40)
            ends.append((done_ms, use_id))
        ends.sort()
        for at_ms, use_id in ends:
            self.item(thread, at_ms, "function_call_output", call_id=use_id, output="out")
            thread.context.append(self.segment(5, self.rng.choice((200, 2000, 20_000))))
        if self.late:
            counted_ms = ends[-1][0] + self.between(0, 500) if ends else counted_ms
            self.counted(thread, counted_ms, "call", call)
        if counted_ms - last_ms <= 1000 and (not ends or counted_ms < ends[0][0]):
            call.end_ms = counted_ms
        thread.since_ms = min([last_ms, *(at_ms for at_ms, _ in ends)])
        return (ends[-1][0] if ends else counted_ms), cut

    def compact(self, thread: _Thread, at_ms: int, told: bool = True) -> int:
        """Put a summary in the place of the conversation; when that is done."""
        told = self.chance("logged compaction", 0.6, told)
        if told:
            before = list(thread.context)
            thread.context.append(self.segment(100, 400))
            call = self.call(thread, at_ms)
            thread.context = before
            call.osl = self.output()
            at_ms = call.end_ms = at_ms + self.between(2 * SECOND, 40 * SECOND)
            self.counted(thread, at_ms, "call", call)
            at_ms += self.between(0, 3)
            thread.loose_ms = 3
        else:
            at_ms += self.between(2 * SECOND, 40 * SECOND)
        thread.since_ms = at_ms - 3
        self.add(thread, at_ms, "compacted", {"message": "summary", "replacement_history": []})
        self.event(thread, at_ms, "context_compacted")
        if self.chance("zeros after a compaction", 0.5):
            self.counted(thread, at_ms, "zeros")
        elif self.chance("totals replaced by the window", 0.3):
            thread.plain = False
            self.counted(thread, at_ms, "window")
        thread.context = [*thread.system, self.segment(200, 800), self.segment(800, 6000)]
        thread.points = []
        thread.rewritten = True
        return at_ms

    # Threads

    def spawn(self, thread: _Thread, call: TrueCall, at_ms: int, depth: int, use_id: str) -> int:
        """Make an agent; when the tool that makes it is done."""
        background = self.chance("background agent", 0.3)
        agent = self.agent(thread.agent.session, "async" if background else "sync", 0, call)
        source = {
            "parent_thread_id": thread.id,
            "depth": depth + 1,
            "agent_path": None,
            "agent_nickname": "Ada",
            "agent_role": "explorer",
        }
        copies = self.chance("agent with the history", 0.4)
        made_ms = at_ms + self.between(5, 40)
        child = self.thread(
            agent,
            thread.home,
            thread.project,
            made_ms,
            thread if copies else None,
            source={"subagent": {"thread_spawn": source}},
        )
        child.model = thread.model
        begin_ms = made_ms + self.between(310, 900)
        end_ms = self.turn(child, begin_ms, self.between(1, 5), depth + 1)
        if not background:
            thread.children.append((child, end_ms))
        done_ms = begin_ms + self.between(1, 30)
        self.event(
            thread, done_ms, "collab_agent_spawn_end", call_id=use_id, new_thread_id=child.id
        )
        return done_ms

    def review(self, thread: _Thread, at_ms: int) -> int:
        """A review that the user asked for: an agent's, which the user waits for."""
        self.event(thread, at_ms, "entered_review_mode", prompt="review")
        maker = thread.agent.calls[-1] if thread.agent.calls else None
        agent = self.agent(thread.agent.session, "sync", 0, maker)
        child = self.thread(
            agent,
            thread.home,
            thread.project,
            at_ms + 5,
            source={"subagent": "review"},
            parent_thread_id=thread.id,
        )
        child.model = thread.model
        at_ms = self.turn(child, at_ms + 30, self.between(1, 4), 2)
        self.event(thread, at_ms + 20, "exited_review_mode", review_output=None)
        thread.to_join.append(agent)
        return at_ms + 20

    def go_on(self, thread: _Thread, at_ms: int, turns: int) -> int:
        for i in range(turns):
            if i:
                at_ms = self.pause(thread, at_ms)
            at_ms = self.turn(thread, at_ms, self.between(1, 7))
        return at_ms

    def pause(self, thread: _Thread, at_ms: int) -> int:
        at_ms += self.between(2 * SECOND, 4 * MINUTE)
        if self.chance("idle", 0.2):
            at_ms += self.between(15 * MINUTE, 3 * HOUR)
        if self.chance("resumed later", 0.15):
            at_ms += self.between(5 * HOUR, 60 * HOUR)
            if self.chance("totals begin anew", 0.5):
                thread.plain = False
                thread.rows[-1].count = thread.rows[-1].count or "reset"
        if self.chance("rollback", 0.15, len(thread.points) > 1):
            turns = self.between(1, len(thread.points) - 1)
            self.event(thread, at_ms, "thread_rolled_back", num_turns=turns)
            thread.context = list(thread.points[-turns])
            thread.points = thread.points[:-turns]
            thread.rolled_back = True
        elif self.chance("compaction", 0.1):
            turn_id = self.identity()
            at_ms += 20
            thread.since_ms = at_ms
            if self.new:
                self.event(thread, at_ms, "task_started", turn_id=turn_id)
            at_ms = self.compact(thread, at_ms, told=self.new)
            thread.loose_ms = 0
            if self.new:
                self.event(thread, at_ms, "task_complete", turn_id=turn_id)
            at_ms += self.between(SECOND, MINUTE)
        if self.chance("model switch", 0.15):
            thread.model = self.models[thread.model == self.models[0]]
        if self.chance("review", 0.08, self.new):
            at_ms = self.review(thread, at_ms) + self.between(SECOND, MINUTE)
        # Just after a compaction a fork's first call would leave in the cache what no earlier call
        # of this thread had.
        if self.chance("fork", 0.12, not thread.rewritten):
            session = TrueSession("")
            agent = self.agent(session, "main", 0)
            fork = self.thread(
                agent, thread.home, thread.project, at_ms, thread, forked_from_id=thread.id
            )
            session.name = fork.id
            self.go_on(fork, at_ms + self.between(7 * SECOND, MINUTE), self.between(1, 2))
            at_ms += self.between(SECOND, 2 * MINUTE)
        return at_ms

    # All of it

    def caches(self) -> None:
        """Whole steps of 128 tokens of what was sent lately; now and then another server's."""
        sent: dict[tuple[str, int], int] = {}
        for call in sorted(self.world.calls, key=lambda call: call.start_ms):
            for name, length in zip(call.names, call.lengths, strict=True):
                if call.start_ms - sent.get((call.model, name), -HOUR) > 2 * TTL:
                    break
                call.cached = length
            if self.chance("another server's cache", 0.05, call.cached > 0):
                call.cached = self.rng.choice((0, call.agent.system))
            call.cached = min(call.cached, call.isl - 1) // 128 * 128
            call.cached = call.cached if call.cached >= 1024 else 0
            sent |= dict.fromkeys(((call.model, name) for name in call.names), call.start_ms)

    def render(self) -> None:
        keys = (
            "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens",
            "total_tokens",
        )  # fmt: skip
        for thread in self.threads:
            total = last = dict.fromkeys(keys, 0)
            without_last = self.chance("totals alone", 0.04, thread.plain)
            for row in thread.in_time():
                if row.count == "copy":
                    info = row.payload.get("info")
                    if info and thread.goes_on:
                        total = info["total_token_usage"]
                        last = info.get("last_token_usage", total)
                    continue
                if row.count == "call" and row.call is not None:
                    isl, osl = row.call.isl, row.call.osl
                    values = (isl, row.call.cached, osl, osl // 3, isl + osl)
                    last = dict(zip(keys, values, strict=True))
                    total = {key: total[key] + last[key] for key in keys}
                elif row.count == "zeros":
                    last = dict.fromkeys(keys, 0) | {"total_tokens": 9000}
                elif row.count == "window":
                    total = dict.fromkeys(keys, 0) | {"total_tokens": 258_400}
                    last = dict.fromkeys(keys, 0) | {"total_tokens": 100}
                elif row.count == "reset":
                    total = dict.fromkeys(keys, 0)
                if row.payload.get("type") == "token_count":
                    info = {
                        "total_token_usage": total,
                        "last_token_usage": last,
                        "model_context_window": 258_400,
                    }
                    if without_last:
                        del info["last_token_usage"]
                    nothing = row.count == "null" or not total["input_tokens"]
                    row.payload["info"] = None if nothing and row.count != "window" else info
                    row.payload["rate_limits"] = None
            self.write(thread)

    def write(self, thread: _Thread) -> None:
        if thread.id in self.absent:
            return
        rows = []
        for row in thread.in_time():
            stamp = iso(row.session.logged(row.at_ms))
            rows.append(
                orjson.dumps({"timestamp": stamp, "type": row.type, "payload": row.payload})
            )
        data = b"\n".join(rows) + b"\n"
        part = b"\n".join(rows[: len(rows) // 2 + 1]) + b"\n"
        day = iso(thread.made_ms)[:10].replace("-", "/")
        live = f"{thread.home}/.codex/sessions/{day}/{thread.name}"
        archived = f"{thread.home}/.codex/archived_sessions/{thread.name}"
        files = self.world.files
        if self.chance("archived", 0.1):
            files[archived] = data
        elif self.chance("archived copy", 0.1):
            files[live] = files[archived] = data
        elif self.chance("older archived copy", 0.1):
            files[live], files[archived] = data, part
        elif self.chance("packed", 0.1):
            files[live + ".zst"] = packed(data)
        elif self.chance("packed copy", 0.1):
            files[live], files[live + ".zst"] = data, packed(data)
        else:
            files[live] = data

    def invent(self) -> World:
        at_ms = NINE_O_CLOCK
        sessions = []
        for home in ("ann", "bob")[: self.between(1, 2)]:
            for project in ("one", "two")[: self.between(1, 2)]:
                session = TrueSession("")
                agent = self.agent(session, "main", 0)
                thread = self.thread(agent, home, project, at_ms)
                session.name = thread.id
                self.go_on(thread, at_ms + self.between(2, 2000), self.between(2, 5))
                at_ms += self.between(0, 40 * MINUTE)
        sessions = list({id(agent.session): agent.session for agent in self.world.agents}.values())
        self.caches()
        forks = any(thread.copied and thread.agent.kind == "main" for thread in self.threads)
        for thread in self.threads:
            main = thread.agent.kind == "main" and not thread.copied
            if self.chance("maker's file missing", 0.3, main and forks):
                self.leave_out(thread)
        # A call that seems older than a file with copies in it is a copy, as far as one can tell.
        self.step_clocks(sessions, [thread.made_ms for thread in self.threads if thread.copied])
        self.render()
        return self.world

    def leave_out(self, thread: _Thread) -> None:
        """As if a session's own files had been deleted; its forks are still there."""
        gone = {t.id for t in self.threads if t.agent.session is thread.agent.session}
        self.absent |= gone
        world = self.world
        world.calls = [c for c in world.calls if c.session is not thread.agent.session]
        world.agents = [a for a in world.agents if a.session is not thread.agent.session]


def packed(data: bytes) -> bytes:
    """As zstd packs it."""
    return zstandard.ZstdCompressor().compress(data)


def codex(seed: int, only: Iterable[str] | None = None) -> World:
    """A world of Codex's; *only* some features, to see which of them matters."""
    return _Codex(seed, only).invent()
