"""weighted-random: the better, the likelier."""

import math
from collections import Counter
from random import Random

import pytest

from orchestrator.policy import Scored
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_request


def counts(scored, n=4000, **params):
    policy = make_policy("weighted-random", params)
    context = make_context([], rng=Random(5))
    return Counter(policy.pick(make_request(), scored, context).endpoint for _ in range(n))


def test_a_temperature_apart_is_e_times_as_likely():
    drawn = counts([Scored("a", 1.5), Scored("b", 1.0)], temperature=0.5)
    assert drawn["a"] / drawn["b"] == pytest.approx(math.e, rel=0.15)


def test_near_zero_it_takes_the_best():
    assert set(counts([Scored("a", 1.01), Scored("b", 1.0)], temperature=1e-6)) == {"a"}


def test_equals_are_equally_likely():
    drawn = counts([Scored(i, 0.0) for i in "abcd"])
    assert all(900 < n < 1100 for n in drawn.values())
