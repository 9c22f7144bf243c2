"""Runs of a system that is never the same twice, in virtual time.

Rule: a seed decides everything that varies. Every step of the engine takes longer or shorter, now
and then one stalls for all who are served, the whole server is a little faster or slower from one
run to the next, and each request has a network and a user of its own.
"""

from __future__ import annotations

import random

import anyio
from virtually import Outcome, replay

from agentreplay.client.stream import Reply, Sink
from agentreplay.metrics.compare import Measured
from agentreplay.metrics.record import Request
from agentreplay.metrics.window import Window
from agentreplay.plan import Plan
from agentreplay.play import Dialect
from agentreplay.prompt.messages import Template
from agentreplay.sim import virtual
from agentreplay.sim.engine import Engine, Profile, Step
from agentreplay.sim.server import SimServer
from agentreplay.trace.synth import synthesise

SIM = Dialect(
    "sim",
    Template(prompt=8, system=5, pair=10),
    {"stream_options": {"include_usage": True}, "ignore_eos": True},
)

TRACE = list(synthesise(24, 1, calls=(6, 14), largest_tokens=2048))


def profile(slower: float = 1.0) -> Profile:
    """A server whose steps take so many times as long."""
    return Profile(
        name="noisy",
        context_tokens=100_000,
        step_s=0.020 * slower,
        prefill_token_s=0.000_1,
        decode_seq_s=0.001 * slower,
        step_tokens=2_048,
        max_seqs=32,
        kv_tokens=1_000_000,
        block_size=64,
    )


class NoisyEngine(Engine):
    """Its steps vary by a fifth, and one in 500 stalls for 50 to 500 ms."""

    def __init__(self, profile: Profile, noise: random.Random) -> None:
        super().__init__(profile)
        self._noise = noise
        self._run = noise.lognormvariate(0.0, 0.01)

    def step(self) -> Step:
        step, noise = super().step(), self._noise
        stall_s = noise.uniform(0.05, 0.5) if noise.random() < 1 / 500 else 0.0
        factor = self._run * noise.lognormvariate(0.0, 0.2)
        return Step(step.cost_s * factor + stall_s, step.gained)


def noisy_run(plan: Plan, seed: int, slower: float = 1.0) -> Outcome:
    """A run of *plan* whose server's steps take *slower* times as long."""
    noise = random.Random(seed)
    servers: list[SimServer] = []

    async def serve() -> None:
        server = SimServer(profile(slower), virtual.clock)
        server.engine = NoisyEngine(server.profile, noise)
        servers.append(server)
        await server.run()

    async def stream(request: Request, body: bytes, sink: Sink) -> Reply:
        while not servers:
            await anyio.sleep(0)
        await anyio.sleep(noise.lognormvariate(-5.0, 0.5))  # the network: 7 ms
        reply = await servers[0].stream(request, body, sink)
        await anyio.sleep(noise.lognormvariate(-2.0, 1.0))  # tools and thinking: 0.1 s more
        return reply

    return replay(plan, TRACE, stream, dialect=SIM, server=serve)


def measured(outcome: Outcome) -> Measured:
    """What a comparison keeps of a run."""
    kept = Measured(Window.of(outcome.ending))
    for record in outcome.records:
        kept.add(record)
    return kept
