"""The simulated engine: what a step may do, what memory holds, and what the cache finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentreplay.sim.engine import PROFILES, Engine, Job, Profile, Step

TINY = Profile(
    name="tiny",
    context_tokens=128,
    step_s=1.0,
    prefill_token_s=0.01,
    decode_seq_s=0.1,
    step_tokens=16,
    max_seqs=4,
    kv_tokens=128,
    block_size=4,
)


def job(conversation: int, isl: int, osl: int) -> Job:
    """A prompt that begins as every other prompt of its conversation does."""
    return Job([conversation * 1000 + n for n in range(isl // TINY.block_size)], isl, osl)


def drain(engine: Engine) -> list[Step]:
    """Step until all is done."""
    steps = []
    while engine.busy:
        steps.append(engine.step())
    return steps


def finish(engine: Engine, *jobs: Job) -> list[Step]:
    """Run *jobs* one after another."""
    steps = []
    for each in jobs:
        engine.submit(each)
        steps += drain(engine)
    return steps


def test_a_lone_job_costs_its_prompt_and_its_steps() -> None:
    """A job on an idle engine costs its prefill and a step for each chunk and later token."""
    steps = finish(Engine(TINY), job(0, isl=40, osl=5))
    # 40 prompt tokens are chunks of 16, 16 and 8, and the last one yields the first token.
    costs = [1.16, 1.16, 1.08, 1.1, 1.1, 1.1, 1.1]
    assert [step.cost_s for step in steps] == pytest.approx(costs)


def test_the_last_chunk_of_a_prompt_yields_the_first_token() -> None:
    """A job gains its first token in the step that computes the end of its prompt."""
    one = job(0, isl=17, osl=3)
    assert [step.gained for step in finish(Engine(TINY), one)] == [[], [one], [one], [one]]


def test_decodes_come_before_prompts() -> None:
    """A step spends its budget on decodes first, and prompts get what is left."""
    engine = Engine(TINY)
    first, second = job(0, isl=8, osl=9), job(1, isl=40, osl=1)
    engine.submit(first)
    engine.step()
    engine.submit(second)
    assert engine.step().gained == [first]
    assert second.prefilled == TINY.step_tokens - 1


def test_what_a_prompt_leaves_of_the_budget_goes_to_the_next() -> None:
    """Two prompts that fit into one step together are computed in one step."""
    engine = Engine(TINY)
    both = [job(0, isl=8, osl=1), job(1, isl=8, osl=1)]
    for each in both:
        engine.submit(each)
    assert [step.gained for step in drain(engine)] == [both]


def test_no_more_sequences_run_than_the_profile_allows() -> None:
    """A job waits while `max_seqs` others run, though budget and memory are free."""
    engine = Engine(TINY)
    for n in range(TINY.max_seqs + 1):
        engine.submit(job(n, isl=1, osl=2))
    assert [len(step.gained) for step in drain(engine)] == [4, 4, 1, 1]


def test_admission_waits_for_memory_and_keeps_the_order() -> None:
    """A job that doesn't fit yet holds up a later one that would."""
    engine = Engine(TINY)
    big, wide, small = job(0, isl=60, osl=4), job(1, isl=70, osl=2), job(2, isl=4, osl=1)
    for each in (big, wide, small):
        engine.submit(each)
    gained = [each for step in drain(engine) for each in step.gained]
    assert gained == [big] * 4 + [wide, small, wide]


def test_a_job_that_never_fits_is_refused() -> None:
    """A job that is bigger than the memory is refused, and one that just fills it is not."""
    engine = Engine(TINY)
    with pytest.raises(ValueError, match="never fit"):
        engine.submit(job(0, isl=125, osl=4))
    assert finish(engine, job(0, isl=125, osl=3))


@pytest.mark.parametrize(("isl", "osl"), [(0, 1), (1, 0)])
def test_a_job_without_tokens_is_refused(isl: int, osl: int) -> None:
    """A job needs at least one token on either side."""
    with pytest.raises(ValueError, match="at least one token"):
        Engine(TINY).submit(job(0, isl, osl))


@pytest.mark.parametrize(
    ("isl", "cached"),
    [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (40, 36)],
)
def test_hits_are_whole_blocks_without_the_last_token(isl: int, cached: int) -> None:
    """A repeated prompt finds its whole blocks, save the one that holds its last token."""
    again = job(0, isl, osl=1)
    finish(Engine(TINY), job(0, isl, osl=1), again)
    assert again.cached == cached


def test_a_shared_beginning_is_found() -> None:
    """A longer prompt finds all that an earlier one of its conversation left, and no more."""
    longer, other = job(0, isl=60, osl=1), job(1, isl=60, osl=1)
    finish(Engine(TINY), job(0, isl=42, osl=1), longer, other)
    assert (longer.cached, other.cached) == (40, 0)


def test_blocks_are_found_once_they_are_computed() -> None:
    """A prompt that starts beside an unfinished one finds what that one has computed so far."""
    engine = Engine(TINY)
    first, second = job(0, isl=28, osl=9), job(0, isl=28, osl=1)
    engine.submit(first)
    engine.submit(second)
    engine.step()
    engine.step()
    assert (first.prefilled, second.cached) == (28, 16)


def test_generated_tokens_are_not_found() -> None:
    """A prompt that goes on after an answer finds the prompt before it, but not the answer."""
    longer = job(0, isl=40, osl=1)
    finish(Engine(TINY), job(0, isl=20, osl=20), longer)
    assert longer.cached == 20


def test_the_least_recently_used_blocks_go_first() -> None:
    """Eviction takes the ends of the prompt that was unused for longest, and spares the other."""
    engine = Engine(TINY)
    finish(engine, *(job(n, isl=41, osl=1) for n in (0, 1, 0)), job(2, isl=60, osl=1))
    old, new = job(1, isl=41, osl=1), job(0, isl=41, osl=1)
    finish(engine, new, old)
    # The 16 blocks of the third prompt found 12 free ones, and took 4 from the older prompt.
    assert (old.cached, new.cached) == (24, 40)


def test_blocks_in_use_are_never_evicted() -> None:
    """A job that needs room waits for a running one instead of taking its blocks."""
    engine = Engine(TINY)
    first = job(0, isl=60, osl=30)
    engine.submit(first)
    engine.submit(job(1, isl=60, osl=1))
    drain(engine)
    again = job(0, isl=61, osl=1)
    finish(engine, again)
    assert again.cached == 60


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_cancelling_frees_everything(steps: int) -> None:
    """A job that is cancelled waiting, in prefill or decoding leaves no memory held."""
    engine = Engine(TINY)
    one = job(0, isl=40, osl=20)
    engine.submit(one)
    for _ in range(steps):
        engine.step()
    engine.cancel(one)
    assert (engine.busy, engine.held_tokens, engine.running, engine.waiting) == (False, 0, 0, 0)


def test_cancelling_lets_the_next_in() -> None:
    """A job that waited for a cancelled one's memory runs in the next step."""
    engine = Engine(TINY)
    big, next_one = job(0, isl=100, osl=8), job(1, isl=16, osl=8)
    engine.submit(big)
    engine.submit(next_one)
    for _ in range(8):
        engine.step()
    engine.cancel(big)
    assert engine.step().gained == [next_one]


def test_cancelling_a_finished_job_does_nothing() -> None:
    """A job that has finished can be cancelled without effect."""
    engine = Engine(TINY)
    one, other = job(0, isl=40, osl=1), job(1, isl=40, osl=9)
    finish(engine, one)
    engine.submit(other)
    engine.step()
    held = engine.held_tokens
    engine.cancel(one)
    assert engine.held_tokens == held


Action = tuple[str, int, int, int]
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 3), st.integers(1, 100), st.integers(1, 28)),
        st.tuples(st.just("step"), st.integers(1, 5), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(actions)
def test_laws_hold_whatever_happens(script: list[Action]) -> None:
    """Budget and memory are never exceeded, order is kept, and every token is made once."""
    engine = Engine(TINY)
    jobs: list[Job] = []
    cancelled: set[Job] = set()
    tokens: dict[Job, int] = {}

    def step() -> None:
        before = [each.prefilled for each in jobs]
        step = engine.step()
        prompt_tokens = sum(
            each.prefilled - (was or each.cached) for each, was in zip(jobs, before, strict=True)
        )
        decodes = sum(each in tokens for each in step.gained)
        assert prompt_tokens + decodes <= TINY.step_tokens
        assert step.cost_s == pytest.approx(1.0 + 0.01 * prompt_tokens + 0.1 * decodes)
        assert cancelled.isdisjoint(step.gained)
        for each in step.gained:
            tokens[each] = tokens.get(each, 0) + 1

    def check() -> None:
        assert engine.held_tokens + engine.idle_tokens <= TINY.kv_tokens
        assert engine.running <= TINY.max_seqs

    for name, a, b, c in script:
        if name == "submit":
            jobs.append(job(a, b, c))
            engine.submit(jobs[-1])
        elif name == "step":
            for _ in range(a):
                step()
                check()
        elif a < len(jobs):
            engine.cancel(jobs[a])
            if tokens.get(jobs[a], 0) < jobs[a].osl:
                cancelled.add(jobs[a])
        check()
    while engine.busy:
        step()
        check()
    assert engine.held_tokens == 0
    done = [each for each in jobs if each not in cancelled]
    assert all((tokens[each], each.prefilled) == (each.osl, each.isl) for each in done)
    assert all(each.cached % TINY.block_size == 0 and each.cached < each.isl for each in done)
    assert [each for each in tokens if each not in cancelled] == done


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=8))
def test_unlike_prompts_hold_what_they_reserve(sizes: list[tuple[int, int]]) -> None:
    """While prompts share nothing, running jobs hold exactly their own tokens in whole blocks."""
    engine = Engine(TINY)
    jobs = [job(n, isl, osl) for n, (isl, osl) in enumerate(sizes)]
    for each in jobs:
        engine.submit(each)
    while engine.busy:
        engine.step()
        running = [each for each in jobs if each.prefilled and each.generated < each.osl]
        blocks = sum(-(-(each.isl + each.osl) // TINY.block_size) for each in running)
        assert engine.held_tokens == blocks * TINY.block_size


@pytest.mark.parametrize(
    ("step_tokens", "kv_tokens"), [(TINY.max_seqs - 1, 128), (TINY.step_tokens, 127)]
)
def test_a_profile_that_could_stall_is_refused(step_tokens: int, kv_tokens: int) -> None:
    """A profile has to allow all its decodes in one step and hold one full context."""
    with pytest.raises(ValueError, match="profile bad"):
        Profile("bad", 128, 1.0, 0.01, 0.1, step_tokens, TINY.max_seqs, kv_tokens, 4)


def test_profiles_are_found_by_their_names() -> None:
    """Every profile is listed under its own name."""
    assert {name: profile.name for name, profile in PROFILES.items()} == {
        "demo": "demo",
        "slow": "slow",
    }
