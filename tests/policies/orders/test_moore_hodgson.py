"""moore-hodgson: on one endpoint no plan has more on time; on several, those in front are on time."""

import itertools
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_waiting

POLICY = make_policy("moore-hodgson", {})


def waiting(work_s, slack_s, now_s=0.0):
    """One that has to start within `slack_s`."""
    start_s = now_s + slack_s
    return make_waiting(work_s=work_s, latest_start_s=start_s, first_token_by_s=start_s + work_s)


def by_key(jobs):
    return sorted(jobs, key=POLICY.key)


def on_time(jobs, endpoints=1, now_s=0.0):
    """How many of `jobs`, one after the other on the first endpoint that is free, start in time."""
    free = [now_s] * endpoints
    good = 0
    for job in jobs:
        start_s = min(free)
        free[free.index(start_s)] = start_s + job.work_s
        good += start_s <= job.latest_start_s + 1e-9
    return good


# Whole seconds, so that sums are exact.
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
    queue = by_key(given)
    plan = POLICY.plan(queue, 0.0, 1)
    assert sorted(map(id, plan)) == sorted(map(id, queue))
    most = max(
        n
        for n in range(len(queue) + 1)
        for some in itertools.combinations(queue, n)
        if on_time(sorted(some, key=lambda w: w.first_token_by_s)) == n
    )
    front = sorted(plan[:most], key=lambda w: w.first_token_by_s)
    assert on_time(front) == most


@given(jobs, st.integers(2, 4))
def test_on_several_endpoints_those_in_front_are_on_time(given, endpoints):
    queue = by_key(given)
    plan = POLICY.plan(queue, 0.0, endpoints)
    assert sorted(map(id, plan)) == sorted(map(id, queue))
    # Those in front are as sorted as the queue was; where that ends, those put off begin.
    places = {id(w): i for i, w in enumerate(queue)}
    order = [places[id(w)] for w in plan]
    breaks = [i for i in range(1, len(order)) if order[i] < order[i - 1]]
    assert len(breaks) <= 1
    front = plan[: breaks[0]] if breaks else plan
    if breaks:
        served = sorted(front, key=lambda w: w.latest_start_s + w.work_s)
        assert on_time(served, endpoints) == len(front)


def test_the_longest_is_put_off_and_not_the_last():
    long, short, other = waiting(10.0, 0.5), waiting(1.0, 10.4), waiting(1.0, 10.5)
    assert POLICY.plan([short, other, long], 0.0, 1) == [short, other, long]
    early, late = waiting(2.0, 0.0), waiting(1.0, 1.5)
    assert POLICY.plan([late, early], 0.0, 1) == [late, early]


def test_one_that_is_too_late_on_its_own_does_not_push_out_another():
    fine, hopeless = waiting(3.0, 1.0), waiting(1.0, -2.0)
    assert POLICY.plan([hopeless, fine], 0.0, 1) == [fine, hopeless]


def test_the_order_given_stays_among_equals():
    """The queue's order has more in it than the key, such as priority."""
    queue = [waiting(2.0, 9.0), waiting(1.0, 9.0), waiting(0.5, -1.0), waiting(3.0, 9.0)]
    assert POLICY.plan(queue, 0.0, 1) == [queue[0], queue[1], queue[3], queue[2]]
