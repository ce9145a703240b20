"""The conformance kit: every shipped policy passes it, and each way to break a contract is caught."""

import math

import pytest

from orchestrator import plugins
from orchestrator.clock import FakeClock
from orchestrator.core.prediction import Predictor
from orchestrator.errors import ParamError, PluginError
from orchestrator.policy.build import GROUP
from orchestrator.policy.guard import Budget
from orchestrator.policy.testing import (
    FakePredictor,
    FakePrefix,
    check,
    check_policy,
    make_context,
    make_endpoint,
    make_request,
    make_waiting,
)


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


class Orders:
    def __init__(self, answer):
        self.answer, self.calls = answer, 0

    def key(self, waiting):
        self.calls += 1
        return self.answer(waiting, self.calls)


class Defers:
    def __init__(self, answer):
        self.answer, self.calls = answer, 0

    def key(self, waiting):
        return waiting.work_s

    def defer(self, queue, now_s, capacity):
        self.calls += 1
        return self.answer(queue, self.calls)


class Picks:
    def __init__(self, answer):
        self.answer = answer

    def pick(self, request, scored, context):
        return self.answer(scored)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (object(), "has no method filter, score .*, key or pick"),
        (Filters(lambda c, n: [*c, make_endpoint("stranger")]), "not all of which it was given"),
        (Filters(lambda c, n: [*c, c[0]]), "kept an endpoint twice"),
        (Filters(lambda c, n: c[n % 2 :]), "when asked the same again"),
        (Scores(lambda c, n: [0.5]), "scores for"),
        (Scores(lambda c, n: [math.nan] * len(c)), "not all finite"),
        (Scores(lambda c, n: [1.1] * len(c)), "a share is not in 0..1"),
        (Scores(lambda c, n: [1.0 / n] * len(c)), "when asked the same again"),
        (Minutes(lambda c, n: [0.0] * len(c)), "unit is 'minutes'"),
        (Picks(lambda s: None), "picked None, which it was not given"),
        (Orders(lambda w, n: math.nan), "a key is no number"),
        (Orders(lambda w, n: float(n)), "when asked the same again"),
        (Defers(lambda q, n: [make_waiting()]), "put off what was not in the queue"),
        (Defers(lambda q, n: [q[0], q[0]]), "put a request off twice"),
        (Defers(lambda q, n: q[n % 2 :]), "puts off others when asked the same again"),
    ],
)
def test_a_broken_contract_is_caught(policy, says):
    with pytest.raises(AssertionError, match=says):
        check_policy(policy)


def test_costs_in_seconds_need_not_be_shares():
    check_policy(Seconds(lambda c, n: [7.5] * len(c)))


def test_an_order_may_leave_some_out_and_have_no_end():
    check_policy(Orders(lambda w, n: math.inf))
    check_policy(Defers(lambda q, n: q[:2]))


def slow(*takes_s):
    """A filter each call of which takes so long by its clock, the last figure from then on."""
    clock = FakeClock()

    def answer(candidates, n):
        clock.advance(takes_s[min(n, len(takes_s)) - 1])
        return candidates

    return Filters(answer), clock.now_s


def test_a_call_that_takes_too_long_each_time_breaks_the_contract():
    policy, clock = slow(0.006)
    with pytest.raises(
        AssertionError, match=r"round 0: took 6.0 ms, 3 times in a row; a call may take 5.0 ms"
    ):
        check_policy(policy, clock=clock)
    check_policy(policy, clock=clock, budget=None)
    check_policy(policy, clock=clock, budget=Budget(call_s=0.01))


def test_a_hiccup_does_not():
    policy, clock = slow(0.006, 0.006, 0.0)
    check_policy(policy, clock=clock)


def test_large_fleets_and_predictions_are_tried_too():
    sizes, predicted = set(), set()

    class Looks:
        def filter(self, request, candidates, context):
            sizes.add(len(candidates))
            predicted.add(context.predictor is not None)
            return candidates

    check_policy(Looks())
    assert sizes == {*range(1, 9), 64}
    assert predicted == {True, False}


def test_makers_give_what_a_policy_is_given():
    prefix = FakePrefix({"a": 3})
    assert prefix.cached_blocks("a", (1, 2)) == 2
    assert prefix.cached_blocks("b", (1, 2)) == 0
    context = make_context([make_endpoint("a")], prefix=prefix, now_s=4.0)
    assert (context.snapshot.endpoints[0].id, context.now_s, context.prefix) == ("a", 4.0, prefix)
    waiting = make_waiting(work_s=3.0)
    assert (waiting.work_s, waiting.first_token_by_s, waiting.request) == (3.0, 2.0, make_request())


def test_the_fake_predictor_is_one():
    predictor: Predictor = FakePredictor({"slow": 2.0}, tail=0.5)
    fast, slow = make_endpoint("fast"), make_endpoint("slow")
    assert [predictor.prefill(e).seconds(1000, 200) for e in (fast, slow)] == pytest.approx([0.08, 0.16])
    assert [predictor.exposed(fast, e).seconds(9) for e in (fast, slow)] == [0.02, 0.04]
    assert predictor.step(slow).seconds(0, 0) == 0.024
    assert predictor.tail_s("slow", 2.0, 0.99) == 1.0
    assert predictor.output_tokens(None, 50) == 50
    assert predictor.reference_s("m", 1000) == pytest.approx(0.1)
