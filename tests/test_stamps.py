"""When bytes arrived: the kernel's stamps beside the process's own, and clocks that are set."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentreplay.client.arrivals import ANCILLARY_BYTES, COMPARE_NS, STEP_NS, Arrivals
from agentreplay.client.connection import Place, connect
from agentreplay.client.health import LoopWatch
from agentreplay.metrics.summary import ClockStep

MS = 1_000_000
S = 1_000_000_000

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what comes by TCP")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection; what the second sends comes at once."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as theirs,
    ):
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ours, theirs


@linux
def test_both_sources_agree(pair: tuple[socket.socket, socket.socket]) -> None:
    """Of the same reads the kernel's stamp lies between the sending and the process's own."""
    ours, theirs = pair
    arrivals = Arrivals(time.monotonic_ns)
    assert arrivals.ask(ours)
    waited_ns, stamps = [], []
    while arrivals.by_kernel < 200:  # the kernel may take a moment to begin
        before_ns = time.monotonic_ns()
        theirs.send(b"data: x\n\n")
        _, ancillary, _, _ = ours.recvmsg(100, ANCILLARY_BYTES)
        stamp_ns, read_ns = arrivals.stamp(ancillary), time.monotonic_ns()
        assert before_ns <= stamp_ns <= read_ns
        waited_ns.append(read_ns - stamp_ns)
        stamps.append(stamp_ns)
    assert stamps == sorted(stamps)
    assert arrivals.longest_wait_ns <= max(waited_ns)
    assert arrivals.steps == []


class Nobody:
    """The owner of a connection of which nothing is to become."""

    def gone(self, cause: Exception | None) -> None:
        raise AssertionError(cause)

    def closed(self) -> None:
        pass


@linux
def test_late_reading_is_no_late_arrival() -> None:
    """While the loop stands still a server sends; the stamp is of the sending, not of the reading.

    The wait is told.
    """

    async def main() -> None:
        arrivals = Arrivals(time.monotonic_ns)
        reads: list[int] = []
        came = asyncio.Event()

        def received(at_ns: int, data: bytes) -> None:
            reads.append(at_ns)
            came.set()

        with socket.create_server(("127.0.0.1", 0)) as server:
            place = Place("http", "127.0.0.1", server.getsockname()[1])
            ours = await connect(place, arrivals, None, None)
            ours.owner, ours.received = Nobody(), received
            theirs, _ = server.accept()
            sent_ns: list[int] = []

            def send() -> None:
                sent_ns.append(time.monotonic_ns())
                theirs.send(b"x")
                sent_ns.append(time.monotonic_ns())

            while not arrivals.by_kernel:
                came.clear()
                theirs.send(b"x")
                await came.wait()
            reads.clear()
            came.clear()
            thread = threading.Thread(target=send)
            thread.start()
            thread.join()  # the loop stands still
            time.sleep(0.02)
            await came.wait()
            assert sent_ns[0] <= reads[0] <= sent_ns[1]
            assert arrivals.longest_wait_ns >= 20 * MS
            ours.abort()
            theirs.close()

    asyncio.run(main())


class Clocks:
    """A clock of the run and one of the system, which can be set."""

    def __init__(self) -> None:
        self.run_ns = 0
        self.wall_ns = 1_700_000_000 * S

    def go(self, by_ns: int) -> None:
        """Time goes by."""
        self.run_ns += by_ns
        self.wall_ns += by_ns

    def stamped(self, ago_ns: int = 0) -> list[tuple[int, int, bytes]]:
        """What the kernel says of bytes that came so long ago."""
        return [(1, 35, struct.pack("@ll", *divmod(self.wall_ns - ago_ns, S)))]

    def arrivals(self) -> Arrivals:
        """Stamps by these clocks."""
        arrivals = Arrivals(lambda: self.run_ns, kernel=True, wall=lambda: self.wall_ns)
        arrivals.begin()
        return arrivals


@given(st.lists(st.tuples(st.integers(0, 3 * S), st.integers(0, S)), max_size=30))
def test_stamps_are_of_the_arrival(reads: list[tuple[int, int]]) -> None:
    """With clocks that nobody sets, each stamp is the moment in which the bytes came."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    for gap_ns, wait_ns in reads:
        clocks.go(gap_ns)
        came_ns, stamp = clocks.run_ns, clocks.stamped()
        clocks.go(wait_ns)
        assert arrivals.stamp(stamp) == came_ns
    assert arrivals.steps == []
    assert arrivals.longest_wait_ns == max((wait_ns for _, wait_ns in reads), default=0)
    assert arrivals.source == ("kernel" if reads else None)


steps = st.integers(-(10**6) * S, 10**6 * S)
acts = st.tuples(st.integers(0, 3 * S), st.integers(0, STEP_NS), st.none() | steps)


@given(st.lists(acts, max_size=30))
def test_a_clock_that_is_set_moves_no_stamp_far(reads: list[tuple[int, int, int | None]]) -> None:
    """However the clock is set, a stamp is no later than its reading and off by no more than twice
    the least step, as long as reads wait no longer than that; each larger step is told."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    for gap_ns, wait_ns, step_ns in reads:
        clocks.go(gap_ns)
        if step_ns is not None:
            clocks.wall_ns += step_ns
        came_ns, stamp = clocks.run_ns, clocks.stamped()
        clocks.go(wait_ns)
        found = arrivals.stamp(stamp)
        assert found <= clocks.run_ns
        assert abs(found - came_ns) <= 2 * STEP_NS
    for told in arrivals.steps:
        assert told.from_ns <= told.to_ns
        assert abs(told.by_ns) > STEP_NS


@pytest.mark.parametrize("by_ns", [-3600 * S, -2 * MS, 2 * MS, 3600 * S])
def test_a_step_is_told_with_when_and_how_far(by_ns: int) -> None:
    """It is found at the first read after it; then the process stamps until a second is over."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    clocks.go(500 * MS)
    arrivals.stamp(clocks.stamped(ago_ns=1000))
    before_the_step = clocks.stamped()
    clocks.wall_ns += by_ns
    clocks.go(10 * MS)
    assert arrivals.stamp(clocks.stamped(ago_ns=1000)) == clocks.run_ns
    assert arrivals.stamp(before_the_step) == clocks.run_ns
    assert arrivals.steps == [ClockStep(0, 510 * MS, by_ns)]
    clocks.go(COMPARE_NS + 1)
    assert arrivals.stamp(clocks.stamped(ago_ns=1000)) == clocks.run_ns - 1000
    assert (arrivals.by_kernel, arrivals.by_process) == (2, 2)
    assert arrivals.source == "mixed"


def test_reads_without_a_stamp_are_stamped_when_they_are_read() -> None:
    """Where the kernel says nothing, the moment of reading counts, and is counted as such."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    clocks.go(7)
    assert arrivals.stamp([]) == 7
    assert arrivals.source == "process"


def test_what_can_not_be_asked_is_not_stamped() -> None:
    """A socket that takes no such option, or a kernel that is not to be asked, says so."""
    with socket.socket() as closed:
        closed.close()
        assert Arrivals(time.monotonic_ns, kernel=True).ask(closed) is False
    with socket.socket() as open_one:
        assert Arrivals(time.monotonic_ns, kernel=False).ask(open_one) is False


def test_health_says_who_stamped() -> None:
    """The source, the longest wait and the steps stand in how the client kept up."""
    clocks = Clocks()
    arrivals = clocks.arrivals()
    watch = LoopWatch(lambda: clocks.run_ns)
    unread = watch.health(arrivals)
    assert (unread.stamps, unread.read_delay_max_s, unread.clock_steps) == (None, None, ())
    clocks.go(S)
    arrivals.stamp(clocks.stamped(ago_ns=3 * MS))
    read = watch.health(arrivals)
    assert (read.stamps, read.read_delay_max_s, read.clock_steps) == ("kernel", 0.003, ())


@linux
def test_the_runs_time_may_begin_later() -> None:
    """Clocks are compared when the first connection asks for stamps, not before: a run whose time
    begins after the client was made has no step of its clock."""
    clocks = Clocks()
    clocks.go(3600 * S)
    arrivals = Arrivals(lambda: clocks.run_ns, wall=lambda: clocks.wall_ns)
    clocks.run_ns = 0
    with socket.socket() as connection:
        assert arrivals.ask(connection)
    assert arrivals.stamp(clocks.stamped()) == 0
    assert (arrivals.source, arrivals.steps) == ("kernel", [])
