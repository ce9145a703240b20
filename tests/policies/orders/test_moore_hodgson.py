"""moore-hodgson: on one endpoint nobody could put off fewer; on several, those who stay are on time."""

import itertools
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_waiting
from policies.orders.moore_hodgson import CROWD

POLICY = make_policy("moore-hodgson", {})


def waiting(work_s, slack_s, now_s=0.0):
    """One that has to start within `slack_s`."""
    start_s = now_s + slack_s
    return make_waiting(work_s=work_s, latest_start_s=start_s, first_token_by_s=start_s + work_s)


def split(jobs, endpoints=1):
    """Those who stay, who is due first at the front, and those put off; as if nobody came meanwhile."""
    deferred = POLICY.defer(tuple(jobs), 0.0, endpoints * CROWD)
    assert len(set(map(id, deferred))) == len(deferred)
    out = {id(w) for w in deferred}
    return sorted((w for w in jobs if id(w) not in out), key=POLICY.key), deferred


def on_time(jobs, endpoints=1):
    """How many of `jobs`, one after the other on the first endpoint that is free, start in time."""
    free = [0.0] * endpoints
    good = 0
    for job in jobs:
        start_s = min(free)
        free[free.index(start_s)] = start_s + job.work_s
        good += start_s <= job.latest_start_s + 1e-9
    return good


# Whole seconds times what the sums are divided by, so that they are exact.
jobs = st.lists(
    st.builds(
        waiting,
        st.integers(1, 50).map(float),
        st.one_of(st.integers(-10, 80).map(float), st.just(inf)),
    ),
    min_size=1,
    max_size=7,
)


@given(jobs)
def test_on_one_endpoint_no_subset_is_larger(given):
    stay, deferred = split(given)
    assert len(stay) + len(deferred) == len(given)
    most = max(
        n
        for n in range(len(given) + 1)
        for some in itertools.combinations(given, n)
        if on_time(sorted(some, key=POLICY.key)) == n
    )
    assert len(stay) == on_time(stay) == most


@given(jobs, st.integers(2, 4))
def test_on_several_endpoints_those_who_stay_are_on_time(given, endpoints):
    stay, deferred = split(given, endpoints)
    assert len(stay) + len(deferred) == len(given)
    assert on_time(stay, endpoints) == len(stay)


def test_the_longest_is_put_off_and_not_the_last():
    long, short, other = waiting(10.0, 0.5), waiting(1.0, 10.4), waiting(1.0, 10.5)
    assert split([short, other, long]) == ([short, other], [long])
    early, late = waiting(2.0, 0.0), waiting(1.0, 1.5)
    assert split([late, early]) == ([late], [early])


def test_one_that_is_too_late_on_its_own_does_not_push_out_another():
    fine, hopeless = waiting(3.0, 1.0), waiting(1.0, -2.0)
    assert split([hopeless, fine]) == ([fine], [hopeless])


def test_nobody_is_put_off_for_one_that_is_promised_nothing():
    plain = make_waiting(work_s=50.0, latest_start_s=inf, first_token_by_s=inf)
    fine = waiting(3.0, 1.0)
    assert split([plain, fine]) == ([fine, plain], [])


@pytest.mark.parametrize(("second_s", "stays"), [(8.2, True), (8.1, False)])
def test_a_quarter_is_left_to_those_who_come_meanwhile(second_s, stays):
    first, second = waiting(13.0, 0.0), waiting(6.0, second_s)
    assert POLICY.defer([first, second], 0.0, 2.0) == ([] if stays else [first])
