"""The conformance kit: every shipped policy passes it, and each way to break a contract is caught."""

import math

import pytest

from orchestrator import plugins
from orchestrator.errors import ParamError, PluginError
from orchestrator.policy.build import GROUP
from orchestrator.policy.testing import FakePrefix, check, check_policy, make_context, make_endpoint


@pytest.mark.parametrize("name", plugins.known(GROUP))
def test_every_shipped_policy_conforms(name):
    check(name)


def test_with_parameters_and_from_a_file(tmp_path):
    check("queue-depth-limit", max=1, max_waiting=1)
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def filter(self, request, candidates, context):\n        return candidates[1:]\n"
    )
    check("./mine.py:Mine", base_dir=tmp_path)
    with pytest.raises(ParamError):
        check("queue-depth-limit", max=0)
    with pytest.raises(PluginError):
        check("./other.py:Mine", base_dir=tmp_path)


class Filters:
    def __init__(self, answer):
        self.answer, self.calls = answer, 0

    def filter(self, request, candidates, context):
        self.calls += 1
        return self.answer(candidates, self.calls)


class Scores(Filters):
    unit = "share"
    filter = None

    def score(self, request, candidates, context):
        self.calls += 1
        return self.answer(candidates, self.calls)


class Seconds(Scores):
    unit = "seconds"


class Minutes(Scores):
    unit = "minutes"


class Picks:
    def __init__(self, answer):
        self.answer = answer

    def pick(self, request, scored, context):
        return self.answer(scored)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (object(), "has no method filter, score"),
        (Filters(lambda c, n: [*c, make_endpoint("stranger")]), "not all of which it was given"),
        (Filters(lambda c, n: [*c, c[0]]), "kept an endpoint twice"),
        (Filters(lambda c, n: c[n % 2 :]), "when asked the same again"),
        (Scores(lambda c, n: [0.5]), "scores for"),
        (Scores(lambda c, n: [math.nan] * len(c)), "not all finite"),
        (Scores(lambda c, n: [1.1] * len(c)), "a share is not in 0..1"),
        (Scores(lambda c, n: [1.0 / n] * len(c)), "when asked the same again"),
        (Minutes(lambda c, n: [0.0] * len(c)), "unit is 'minutes'"),
        (Picks(lambda s: None), "picked None, which it was not given"),
    ],
)
def test_a_broken_contract_is_caught(policy, says):
    with pytest.raises(AssertionError, match=says):
        check_policy(policy)


def test_costs_in_seconds_need_not_be_shares():
    check_policy(Seconds(lambda c, n: [7.5] * len(c)))


def test_makers_give_what_a_policy_is_given():
    prefix = FakePrefix({"a": 3})
    assert prefix.cached_blocks("a", (1, 2)) == 2
    assert prefix.cached_blocks("b", (1, 2)) == 0
    context = make_context([make_endpoint("a")], prefix=prefix, now_s=4.0)
    assert (context.snapshot.endpoints[0].id, context.now_s, context.prefix) == ("a", 4.0, prefix)
