"""A scorer in the unit of the other mode: what a share is worth in seconds, and the other way round."""

import pytest

from orchestrator.policy.testing import make_context, make_endpoint, make_request
from orchestrator.policy.worth import AsShare, InSeconds

ENDPOINTS = [make_endpoint(i) for i in "abc"]


class Fixed:
    def __init__(self, unit, *scores):
        self.unit, self.scores = unit, scores

    def score(self, request, candidates, context):
        return self.scores


def score(scorer):
    return scorer.score(make_request(), ENDPOINTS, make_context(ENDPOINTS))


def test_what_a_missing_share_costs():
    assert score(InSeconds(Fixed("share", 1.0, 0.5, 0.0), 0.2)) == [0.0, 0.1, 0.2]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_a_score_that_is_no_share_has_no_price(wrong):
    with pytest.raises(ValueError, match=r"not a number in 0\.\.1"):
        score(InSeconds(Fixed("share", 1.0, wrong, 0.0), 0.2))


def test_seconds_above_the_cheapest_as_a_share():
    assert score(AsShare(Fixed("seconds", 3.0, 3.5, 9.0), 2.0)) == [1.0, 0.75, 0.0]


def test_both_ways_is_the_same_order():
    there_and_back = AsShare(InSeconds(Fixed("share", 0.25, 0.75, 0.5), 4.0), 4.0)
    assert score(there_and_back) == [0.5, 1.0, 0.75]


def test_what_a_scorer_says_of_itself_stays():
    scorer = Fixed("share", 1.0)
    scorer.needs_load, scorer.headers = True, ("x-user",)
    wrapped = InSeconds(scorer, 1.0)
    assert (wrapped.needs_load, wrapped.headers, wrapped.unit) == (True, ("x-user",), "seconds")
    assert not hasattr(wrapped, "measures_load")
