"""Where the server's cache fell short, and why."""

from __future__ import annotations

from agentreplay.metrics.fidelity import Found, shortfalls


def found(
    call: int,
    reuse: int,
    cached: int,
    *,
    sent_s: float | None = None,
    took_s: float = 0.1,
    play: tuple[int, int] = (0, 0),
) -> Found:
    """A call of a session with blocks of 64; calls are a second apart."""
    sent_ns = int((call if sent_s is None else sent_s) * 1e9)
    return Found(sent_ns, sent_ns + int(took_s * 1e9), play, "s", call, 64, reuse, cached)


def reasons(*calls: Found) -> list[str]:
    return [each.reason for each in shortfalls(calls).first]


def test_less_than_a_block_is_no_shortfall() -> None:
    """Whole blocks of the recording or of the server are the finest that can be told."""
    calls = [found(0, 0, 0), found(1, 640, 576), found(2, 1280, 1152)]
    assert shortfalls(calls).short == 0
    assert shortfalls([found(0, 640, 512), found(1, 1408, 1280)]).server_block == 256
    assert shortfalls([found(0, 640, 512), found(1, 1408, 1280)]).short == 0


def test_shortfalls_are_counted_and_the_first_are_named() -> None:
    """Of ten calls that found nothing the first five are listed, in order of sending."""
    calls = [found(n, 640, 0, sent_s=20 - n) for n in range(10)]
    result = shortfalls(calls)
    assert (result.calls, result.short) == (10, 10)
    assert [each.call for each in result.first] == [9, 8, 7, 6, 5]


def test_nothing_found_is_eviction_or_routing() -> None:
    """A server that finds nothing of a prompt has lost it, or never had it."""
    assert reasons(found(0, 0, 0), found(1, 640, 640), found(2, 6400, 0)) == [
        "nothing found: evicted, or sent to another server"
    ]


def test_the_same_limit_twice_is_the_template() -> None:
    """Found up to one and the same token, again and again: what follows was rewritten."""
    calls = [found(0, 0, 0), found(1, 6400, 640), found(2, 7680, 640)]
    assert (
        reasons(*calls)
        == ["always found up to token 640 only: the template rewrites what follows"] * 2
    )


def test_part_of_it_once_is_eviction() -> None:
    """Found in part, once: the rest has gone since."""
    calls = [found(0, 0, 0), found(1, 6400, 640), found(2, 7680, 7680)]
    assert reasons(*calls) == ["found in part: evicted since"]


def test_what_is_still_being_computed_can_not_be_found() -> None:
    """A call sent while another of its play had no token yet could not find its prompt."""
    calls = [found(0, 0, 0, took_s=5), found(1, 640, 0)]
    assert reasons(*calls) == ["sent while another prompt of the session was still being computed"]


def test_what_others_are_computing_may_not_be_found() -> None:
    """A play's first call may find nothing while the play that it shares with is at work."""
    calls = [found(0, 0, 0, took_s=5), found(0, 640, 0, sent_s=1, play=(1, 0))]
    assert reasons(*calls) == [
        "sent while a prompt that begins alike may still have been computed, or evicted"
    ]
