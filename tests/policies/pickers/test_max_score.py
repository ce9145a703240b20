"""max-score: the best, and a fair draw among equals."""

from random import Random

from orchestrator.policy import Scored
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_request

SCORED = [Scored("a", 1.0), Scored("b", 1.0), Scored("c", 0.95), Scored("d", 0.2)]


def drawn(scored, **params):
    policy = make_policy("max-score", params)
    return {
        policy.pick(make_request(), scored, make_context([], rng=Random(seed))).endpoint for seed in range(40)
    }


def test_the_best():
    assert drawn(SCORED[1:]) == {"b"}


def test_a_draw_among_equals():
    assert drawn(SCORED) == {"a", "b"}


def test_nearly_equal_may_count_as_equal():
    assert drawn(SCORED, tolerance=0.1) == {"a", "b", "c"}
