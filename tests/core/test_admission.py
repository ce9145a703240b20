"""Retry-After: from how long work has stayed, and never the same moment for everybody."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.admission import FIRST_RESIDENCE_S, MAX_RETRY_S, MIN_RETRY_S, Drain


def test_one_of_n_ends_every_nth_of_its_stay():
    drain = Drain()
    drain.finished(40.0)
    assert drain.retry_after_s(100.0, in_flight=10) == 4.0


def test_each_refused_request_is_given_the_next_end():
    drain = Drain()
    drain.finished(40.0)
    assert [drain.retry_after_s(100.0, 10) for _ in range(3)] == [4.0, 8.0, 12.0]
    assert drain.retry_after_s(110.0, 10) == 6.0  # 116 on the same time line
    assert drain.retry_after_s(500.0, 10) == 4.0  # old promises are past


def test_before_anything_has_finished():
    assert Drain().retry_after_s(0.0, in_flight=2) == FIRST_RESIDENCE_S / 2


def test_with_nothing_in_flight_it_says_the_least():
    assert Drain().retry_after_s(0.0, in_flight=0) == MIN_RETRY_S


def test_recent_stays_count_most():
    drain = Drain()
    for _ in range(50):
        drain.finished(100.0)
    for _ in range(50):
        drain.finished(10.0)
    assert 10.0 <= drain.retry_after_s(0.0, 1) < 11.0


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 10_000), st.floats(0, 1e4)), max_size=50))
def test_always_within_bounds(steps):
    drain = Drain()
    now_s = 0.0
    for residence_s, in_flight, later_s in steps:
        drain.finished(residence_s)
        now_s += later_s
        assert MIN_RETRY_S <= drain.retry_after_s(now_s, in_flight) <= MAX_RETRY_S + 1e-6
