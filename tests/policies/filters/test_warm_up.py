"""warm-up: a new endpoint gets a share that grows, and none is refused for it."""

from collections import Counter

import pytest

from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def times_kept(*since_s, now_s=100.0, n=2000, **params):
    """How often each endpoint is kept; one each for the times they became ready."""
    endpoints = [make_endpoint(f"e{i}", ready_since_s=s) for i, s in enumerate(since_s)]
    context = make_context(endpoints, now_s=now_s, rng=None)
    policy = make_policy("warm-up", params)
    counts = Counter()
    for i in range(n):
        kept = policy.filter(make_request(id=str(i)), endpoints, context)
        assert kept
        counts.update(e.id for e in kept)
    return [counts[e.id] / n for e in endpoints]


@pytest.mark.parametrize(
    ("age_s", "share"),
    [(0.0, 0.1), (3.0, 0.1), (6.0, 0.2), (15.0, 0.5), (29.0, 0.97), (30.0, 1.0), (99.0, 1.0)],
)
def test_its_share_grows_with_its_age(age_s, share):
    warm, new = times_kept(0.0, 100.0 - age_s)
    assert warm == 1.0
    assert new == pytest.approx(share, abs=0.03)


def test_how_fast_and_from_where():
    _, new = times_kept(0.0, 95.0, over="10s", least=0.01)
    assert new == pytest.approx(0.5, abs=0.03)
    _, new = times_kept(0.0, 100.0, over="10s", least=0.7)
    assert new == pytest.approx(0.7, abs=0.03)


def test_a_fleet_that_started_together_is_warm():
    assert times_kept(100.0, 100.0, 100.0) == [1.0, 1.0, 1.0]
    older, newer = times_kept(88.0, 94.0)
    assert older == 1.0
    assert newer == pytest.approx(0.5, abs=0.03)


def test_one_that_tells_no_time_is_warm():
    assert times_kept(None, None) == [1.0, 1.0]
    assert times_kept(None, 100.0)[0] == 1.0


def test_a_request_that_is_asked_for_again_is_not_drawn_again():
    """A late profile asks for each waiting request at every turn."""
    endpoints = [make_endpoint("old", ready_since_s=0.0), make_endpoint("new", ready_since_s=90.0)]
    policy = make_policy("warm-up", {})
    for i in range(50):
        context = make_context(endpoints, now_s=100.0)
        answers = {len(policy.filter(make_request(id=str(i)), endpoints, context)) for _ in range(5)}
        assert len(answers) == 1
