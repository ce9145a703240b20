"""Backing off, giving up, and forgetting failures that lie behind a stable time."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.restart import Failures, GiveUp, RestartPolicy, Retry, after_failure

EXACT = RestartPolicy(max_restarts=5, base_s=1.0, factor=2.0, cap_s=10.0, jitter=0.0)


def fail_at(policy: RestartPolicy, *times_s: float) -> list[Retry | GiveUp]:
    failures: Failures = ()
    decisions = []
    for now_s in times_s:
        failures, decision = after_failure(policy, failures, now_s, None, Random(0))
        decisions.append(decision)
    return decisions


def test_delays_double_up_to_the_cap_then_it_gives_up() -> None:
    decisions = fail_at(EXACT, 0, 1, 2, 3, 4, 5)
    assert [d.delay_s for d in decisions if isinstance(d, Retry)] == [1, 2, 4, 8, 10]
    assert decisions[-1] == GiveUp(6)


def test_no_restart_at_all() -> None:
    assert fail_at(RestartPolicy(max_restarts=0), 0.0) == [GiveUp(1)]


def test_failures_older_than_the_window_do_not_count() -> None:
    policy = RestartPolicy(max_restarts=1, window_s=100.0, jitter=0.0)
    assert isinstance(fail_at(policy, 0.0, 99.9)[1], GiveUp)
    assert fail_at(policy, 0.0, 100.0)[1] == Retry(1.0, 1)


def test_a_stable_time_wipes_the_slate() -> None:
    before = (1.0, 2.0, 3.0, 4.0, 5.0)
    _, gave_up = after_failure(EXACT, before, 400.0, 299.0, Random(0))
    assert isinstance(gave_up, GiveUp)
    failures, decision = after_failure(EXACT, before, 400.0, 300.0, Random(0))
    assert (failures, decision) == ((400.0,), Retry(1.0, 1))


def test_an_engine_that_fails_after_a_long_load_runs_out_of_tries_too() -> None:
    policy = RestartPolicy().for_start(max_restarts=5, ready_timeout_s=1800.0)
    decisions = fail_at(policy, *(i * 1860.0 for i in range(1, 7)))
    assert isinstance(decisions[-1], GiveUp)


def test_for_start_changes_nothing_else() -> None:
    policy = RestartPolicy(base_s=3.0, jitter=0.5, stable_s=7.0, window_s=1e6)
    assert policy.for_start(5, 10.0) == policy


@given(
    policy=st.builds(
        RestartPolicy,
        max_restarts=st.integers(0, 30),
        base_s=st.floats(0.001, 100),
        factor=st.floats(1, 1e6),
        cap_s=st.floats(0.001, 1000),
        jitter=st.floats(0, 1),
    ),
    gaps=st.lists(st.floats(0, 1e5), min_size=1, max_size=40),
    seed=st.integers(),
)
def test_every_delay_is_within_the_cap_and_tries_are_bounded(
    policy: RestartPolicy, gaps: list[float], seed: int
) -> None:
    rng, now_s = Random(seed), 0.0
    failures: Failures = ()
    for gap in gaps:
        now_s += gap
        failures, decision = after_failure(policy, failures, now_s, None, rng)
        assert len(failures) <= policy.max_restarts + 1
        if isinstance(decision, GiveUp):
            assert decision.failures == len(failures) == policy.max_restarts + 1
            return
        assert 0 <= decision.delay_s <= policy.cap_s * (1 + policy.jitter) * (1 + 1e-9)


@given(seed=st.integers(), others=st.integers())
def test_jitter_comes_from_the_generator_given(seed: int, others: int) -> None:
    policy = RestartPolicy()
    one = after_failure(policy, (), 0.0, None, Random(seed))
    assert one == after_failure(policy, (), 0.0, None, Random(seed))
    assert isinstance(one[1], Retry)
    assert 0.8 <= one[1].delay_s <= 1.2
