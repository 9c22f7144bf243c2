"""Virtual time: a clock that jumps, and nothing else changes."""

from __future__ import annotations

import asyncio
import signal

import anyio
import pytest

from agentreplay.sim import virtual


def test_sleeps_take_their_time_on_the_clock() -> None:
    """After sleeping an hour in pieces, the clock shows an hour, to the nanosecond."""

    async def main() -> int:
        for _ in range(3600):
            await anyio.sleep(1.0)
        return virtual.clock()

    assert virtual.run(main) == 3600 * 10**9


@pytest.mark.parametrize("left_ns", [1, 2, 999, 10**9 + 1])
def test_a_deadline_is_met_to_the_nanosecond(left_ns: int) -> None:
    """After days of virtual time, a sleep of whole nanoseconds ends on exactly that nanosecond."""

    async def main() -> int:
        await anyio.sleep(200_000)
        start_ns = virtual.clock()
        await anyio.sleep(left_ns / 1e9)
        return virtual.clock() - start_ns

    assert virtual.run(main) == left_ns


def test_the_rest_of_a_nanosecond_ends() -> None:
    """A sleep shorter than the clock can show still ends, within a nanosecond or two."""

    async def main() -> int:
        await anyio.sleep(10**-12)
        return virtual.clock()

    assert virtual.run(main) <= 2


def test_the_same_program_takes_the_same_course() -> None:
    """Tasks that sleep and meet each other do so in the same order every time."""

    async def main() -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        lock = anyio.Lock()

        async def task(n: int) -> None:
            for k in range(20):
                await anyio.sleep(((n * 7 + k * 13) % 11) / 10)
                async with lock:
                    await anyio.sleep(0.01)
                    seen.append((virtual.clock(), n))

        async with anyio.create_task_group() as group:
            for n in range(10):
                group.start_soon(task, n)
        return seen

    assert virtual.run(main) == virtual.run(main)


def test_the_clock_never_goes_back() -> None:
    """Each look at the clock shows at least what the one before showed."""

    async def main() -> list[int]:
        seen = []
        for k in range(1000):
            seen.append(virtual.clock())
            await anyio.sleep((k % 5) * 1e-7)
        return seen

    seen = virtual.run(main)
    assert seen == sorted(seen)


def test_each_run_begins_at_zero() -> None:
    """A run's clock starts at zero, whatever ran before."""

    async def main() -> int:
        start_ns = virtual.clock()
        await anyio.sleep(1)
        return start_ns

    assert [virtual.run(main), virtual.run(main)] == [0, 0]


def test_a_timeout_comes_when_it_is_due() -> None:
    """A timeout of anyio ends a wait after exactly its virtual time."""

    async def main() -> int:
        with anyio.move_on_after(2.5):
            await anyio.sleep(100)
        return virtual.clock()

    assert virtual.run(main) == 2_500_000_000


def test_a_deadlock_is_an_error() -> None:
    """Waiting for what can never come raises instead of hanging."""

    async def main() -> None:
        await anyio.sleep(1)
        await anyio.Event().wait()

    with pytest.raises(RuntimeError, match="virtual time stands still"):
        virtual.run(main)


def test_signals_arrive() -> None:
    """A signal handler of the loop runs while others sleep."""

    async def main() -> int:
        arrived = anyio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, arrived.set)
        signal.raise_signal(signal.SIGUSR1)
        with anyio.move_on_after(1000):
            await arrived.wait()
        return virtual.clock()

    assert virtual.run(main) == 0


def test_an_exception_comes_out() -> None:
    """What the program raises, `run` raises."""

    async def main() -> None:
        await anyio.sleep(1)
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        virtual.run(main)


def test_there_is_no_virtual_clock_elsewhere() -> None:
    """Reading the virtual clock on a real loop is an error, not a wrong time."""

    async def main() -> None:
        virtual.clock()

    with pytest.raises(RuntimeError, match="no virtual time"):
        anyio.run(main)
