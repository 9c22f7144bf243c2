"""A model of continuous batching with a prefix cache, as an inference server does it.

Rule: pure arithmetic. The engine knows no clock: `Engine.step` says what a step costs, and whoever
drives it lets that time pass.

What it leaves out: a job's whole output is reserved when it is admitted, so nothing is ever
preempted; and generated tokens fill memory but never enter the prefix cache, because the
assistant turns that a replay sends next are other words than those generated here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice


@dataclass(frozen=True, slots=True)
class Profile:
    """How big and how fast a simulated server is.

    Attributes:
        name: What it is called.
        context_tokens: Most tokens of a prompt and its answer together.
        step_s: What a step costs, whatever it does.
        prefill_token_s: What each prompt token adds to its step.
        decode_seq_s: What each decoding sequence adds to a step.
        step_tokens: Most tokens computed in one step.
        max_seqs: Most sequences that run at once.
        kv_tokens: Tokens that the memory holds, for running sequences and the cache together.
        block_size: Tokens a block; memory and cache deal in whole blocks.
    """

    name: str
    context_tokens: int
    step_s: float
    prefill_token_s: float
    decode_seq_s: float
    step_tokens: int
    max_seqs: int
    kv_tokens: int
    block_size: int

    def __post_init__(self) -> None:
        if self.step_tokens < self.max_seqs:
            raise ValueError(f"profile {self.name}: step_tokens must allow max_seqs decodes")
        if self.kv_tokens // self.block_size < -(-self.context_tokens // self.block_size):
            raise ValueError(f"profile {self.name}: kv_tokens must hold one full context")


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        # Fast enough that sessions which open with 50k cold tokens show something in a minute.
        Profile(
            name="demo",
            context_tokens=1_000_000,
            step_s=0.010,
            prefill_token_s=1 / 400_000,
            decode_seq_s=0.000_02,
            step_tokens=8192,
            max_seqs=256,
            kv_tokens=20_000_000,
            block_size=64,
        ),
        # Small enough that a handful of agents saturates it.
        Profile(
            name="slow",
            context_tokens=262_144,
            step_s=0.025,
            prefill_token_s=1 / 8_000,
            decode_seq_s=0.002,
            step_tokens=2048,
            max_seqs=4,
            kv_tokens=1_000_000,
            block_size=16,
        ),
    )
}


@dataclass(slots=True, eq=False)
class Job:
    """One request, and how far it has got.

    Attributes:
        blocks: Names of the prompt's whole blocks. A name stands for its block and all before it.
        isl: Prompt tokens.
        osl: Tokens to generate.
        cached: Prompt tokens found in the cache when the job was admitted.
        prefilled: Prompt tokens that need no more computing, `cached` included.
        generated: Tokens generated so far.
    """

    blocks: Sequence[int]
    isl: int
    osl: int
    cached: int = 0
    prefilled: int = 0
    generated: int = 0
    _reserved: int = field(default=0, init=False, repr=False)  # blocks it occupies in all
    _named: int = field(default=0, init=False, repr=False)  # leading blocks that others can find


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        cost_s: How long it takes.
        gained: The jobs that gained one token, in order of admission.
    """

    cost_s: float
    gained: list[Job]


class Engine:
    """Jobs in, steps out.

    A step decodes one token for every running sequence, then spends the rest of its token budget
    on prompts, first come, first served; a prompt that doesn't fit is continued in the next step.
    A job waits for admission until its blocks fit, and everything behind it waits with it.

    Attributes:
        looked_up: Prompt tokens of all jobs admitted so far.
        found: Those of them that were in the cache.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.looked_up = self.found = 0
        self._capacity = profile.kv_tokens // profile.block_size
        self._waiting: deque[Job] = deque()
        self._prefilling: Job | None = None
        self._decoding: list[Job] = []
        self._held: dict[int, int] = {}  # findable block -> running jobs that hold it
        self._idle: dict[int, None] = {}  # findable, held by none; least recently used first
        self._nameless = 0  # blocks of running jobs that can't be found
        self._stuck = False  # the first in the queue didn't fit, and nothing has changed since

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._decoding or self._prefilling or self._waiting)

    @property
    def running(self) -> int:
        """Jobs that are admitted and not yet finished."""
        return len(self._decoding) + (self._prefilling is not None)

    @property
    def waiting(self) -> int:
        """Jobs that wait for admission."""
        return len(self._waiting)

    @property
    def held_tokens(self) -> int:
        """Memory that running jobs hold."""
        return (len(self._held) + self._nameless) * self.profile.block_size

    @property
    def idle_tokens(self) -> int:
        """Memory that only the cache holds: free for the asking."""
        return len(self._idle) * self.profile.block_size

    def submit(self, job: Job) -> None:
        """Queue *job*; a ValueError if it could never run."""
        if job.isl < 1 or job.osl < 1:
            raise ValueError("a job needs at least one token in and one token out")
        job._reserved = -(-(job.isl + job.osl) // self.profile.block_size)
        if job._reserved > self._capacity:
            raise ValueError(
                f"{job.isl} + {job.osl} tokens never fit into {self.profile.kv_tokens} tokens"
            )
        self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Forget *job*, wherever it has got to; nothing happens if it has finished."""
        if job is self._prefilling:
            self._prefilling = None
            self._release(job)
        elif job in self._decoding:
            self._decoding.remove(job)
            self._release(job)
        elif job in self._waiting:
            self._waiting.remove(job)
            self._stuck = False

    def step(self) -> Step:
        """Do one batch."""
        profile, decoding = self.profile, self._decoding
        room = left = profile.step_tokens - len(decoding)
        computed: list[Job] = []
        while left and (job := self._prefilling or self._admit(len(decoding) + len(computed))):
            take = min(left, job.isl - job.prefilled)
            job.prefilled += take
            left -= take
            computed.append(job)
            self._prefilling = job if job.prefilled < job.isl else None
        for job in computed:
            self._name(job)
        gained = decoding + [job for job in computed if job.prefilled == job.isl]
        self._decoding = []
        for job in gained:
            job.generated += 1
            if job.generated < job.osl:
                self._decoding.append(job)
            else:
                self._release(job)
        cost_s = (
            profile.step_s
            + (room - left) * profile.prefill_token_s
            + len(decoding) * profile.decode_seq_s
        )
        return Step(cost_s, gained)

    def _admit(self, running: int) -> Job | None:
        """Take the first in the queue, if a sequence and its blocks are free."""
        if self._stuck or not self._waiting or running >= self.profile.max_seqs:
            return None
        job, held, idle = self._waiting[0], self._held, self._idle
        hits: list[int] = []
        hits_idle = 0
        # The last token is always computed, because its computing yields the first new one.
        for block in job.blocks[: (job.isl - 1) // self.profile.block_size]:
            if block in idle:
                hits_idle += 1
            elif block not in held:
                break
            hits.append(block)
        new = job._reserved - len(hits)
        if len(held) + hits_idle + self._nameless + new > self._capacity:
            self._stuck = True
            return None
        for block in hits:
            idle.pop(block, None)
            held[block] = held.get(block, 0) + 1
        self._nameless += new
        excess = len(held) + len(idle) + self._nameless - self._capacity
        # All in one go: to find its first key, a dict has to walk over the gaps at its front.
        for block in list(islice(idle, max(0, excess))):
            del idle[block]
        job._named = len(hits)
        job.cached = job.prefilled = len(hits) * self.profile.block_size
        self.looked_up += job.isl
        self.found += job.cached
        return self._waiting.popleft()

    def _name(self, job: Job) -> None:
        """Make findable what has been computed; equal blocks of two jobs become one."""
        new = job.blocks[job._named : job.prefilled // self.profile.block_size]
        for block in new:
            self._idle.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        self._nameless -= len(new)
        job._named += len(new)
        if job.prefilled == job.isl:
            self._stuck = False  # the first in the queue may need fewer new blocks now

    def _release(self, job: Job) -> None:
        """Give back all blocks; those with a name stay findable until their room is needed."""
        # Last block first: without those before it, a block is of no use, so it has to go earlier.
        for block in reversed(job.blocks[: job._named]):
            if (holders := self._held.pop(block) - 1) > 0:
                self._held[block] = holders
            else:
                self._idle[block] = None
        self._nameless -= job._reserved - job._named
        self._stuck = False
