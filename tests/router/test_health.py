"""Joining and leaving, in both directions (cases 29, 39, 41)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.router.health import Answer, Health, Thresholds


def fit(thresholds: Thresholds = Thresholds()) -> Health:
    health = Health(thresholds)
    for _ in range(thresholds.join_after):
        health.observe(Answer.OK, 0.0, False)
    assert health.fit
    return health


def test_it_takes_several_good_answers_in_a_row_to_join() -> None:
    health = Health(Thresholds(join_after=3))
    changes = [
        health.observe(a, 0.0, False) for a in (Answer.OK, Answer.OK, Answer.SLOW, Answer.OK, Answer.OK)
    ]
    assert changes == [False] * 5
    assert not health.fit
    assert health.observe(Answer.OK, 0.0, False)
    assert health.fit


def test_it_takes_several_bad_answers_in_a_row_to_leave() -> None:
    health = fit(Thresholds(leave_after=3))
    for answer in (Answer.FAILING, Answer.FAILING, Answer.OK, Answer.FAILING, Answer.FAILING):
        assert not health.observe(answer, 0.0, False)
    assert health.observe(Answer.FAILING, 0.0, False)
    assert not health.fit


def test_a_refused_connection_leaves_at_once() -> None:
    assert fit().observe(Answer.REFUSED, 0.0, True)


def test_an_engine_that_says_no_more_work_is_obeyed_at_once() -> None:
    assert fit().observe(Answer.UNAVAILABLE, 0.0, True)


def test_case_29_a_4xx_never_counts_as_unhealthy() -> None:
    health = fit()
    for _ in range(50):
        assert not health.observe(Answer.REJECTED, 0.0, False)
    assert health.fit


def test_a_4xx_does_not_join_either() -> None:
    health = Health()
    for _ in range(50):
        health.observe(Answer.REJECTED, 0.0, False)
    assert not health.fit


def test_case_39_a_slow_answer_of_a_busy_engine_is_not_death() -> None:
    health = fit(Thresholds(leave_after=2, patience_s=60.0))
    for second in range(1, 60):
        assert not health.observe(Answer.SLOW, float(second), True)
    assert health.fit


def test_patience_with_a_busy_engine_ends() -> None:
    health = fit(Thresholds(leave_after=2, patience_s=60.0))
    assert not health.observe(Answer.SLOW, 60.0, True)
    assert health.observe(Answer.SLOW, 61.0, True)


def test_a_slow_answer_of_an_idle_engine_counts() -> None:
    health = fit(Thresholds(leave_after=2))
    assert not health.observe(Answer.SLOW, 1.0, False)
    assert health.observe(Answer.SLOW, 2.0, False)


@given(st.lists(st.tuples(st.sampled_from(Answer), st.booleans()), max_size=60))
def test_it_is_fit_only_after_enough_good_answers_and_says_when_it_changes(
    history: list[tuple[Answer, bool]],
) -> None:
    thresholds = Thresholds()
    health = Health(thresholds)
    was = False
    for step, (answer, busy) in enumerate(history):
        changed = health.observe(answer, float(step), busy)
        assert changed == (health.fit != was)
        if health.fit and not was:
            assert [a for a, _ in history[step + 1 - thresholds.join_after : step + 1]] == [
                Answer.OK
            ] * thresholds.join_after
        was = health.fit
