"""queue-depth: fewer requests score more."""

from orchestrator.policy import Inflight, Load
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def scores(endpoints, **params):
    return make_policy("queue-depth", params).score(make_request(), endpoints, make_context(endpoints))


def test_each_request_above_the_least_costs_its_share():
    endpoints = [
        make_endpoint("own", inflight=Inflight(2)),
        make_endpoint("reported", load=Load(0.0, running=3, waiting=1)),
        make_endpoint("both", load=Load(0.0, running=3), inflight=Inflight(5), inflight_at_load=Inflight(1)),
    ]
    assert scores(endpoints, scale_requests=10) == [1.0, 0.8, 0.5]


def test_the_default_scale():
    endpoints = [make_endpoint("a"), make_endpoint("b", inflight=Inflight(64))]
    assert scores(endpoints) == [1.0, 0.75]


def test_without_a_scale_the_most_loaded_scores_nothing():
    endpoints = [make_endpoint(str(n), inflight=Inflight(n)) for n in (2, 4, 6)]
    assert scores(endpoints, scale_requests=None) == [1.0, 0.5, 0.0]
    assert scores(endpoints[:1] * 2, scale_requests=None) == [1.0, 1.0]
