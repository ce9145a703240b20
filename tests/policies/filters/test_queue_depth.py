"""queue-depth-limit: the count is what is reported and what went there since."""

import pytest

from orchestrator.policy import Inflight, Load
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def kept(endpoint, **params):
    policy = make_policy("queue-depth-limit", params)
    return bool(policy.filter(make_request(), [endpoint], make_context([endpoint])))


@pytest.mark.parametrize(
    ("load", "inflight", "at_load", "requests"),
    [
        (None, 3, 0, 3),
        (Load(0.0, running=2, waiting=1), 0, 0, 3),
        (Load(0.0, running=2, waiting=1), 2, 2, 3),
        (Load(0.0, running=2, waiting=1), 5, 2, 6),
        (Load(0.0, running=2, waiting=1), 1, 2, 2),
        (Load(0.0), 4, 4, 4),
    ],
)
def test_fewer_than_max(load, inflight, at_load, requests):
    endpoint = make_endpoint(load=load, inflight=Inflight(inflight), inflight_at_load=Inflight(at_load))
    assert kept(endpoint, max=requests + 1)
    assert not kept(endpoint, max=requests)


def test_the_default_is_64():
    assert kept(make_endpoint(inflight=Inflight(63)))
    assert not kept(make_endpoint(inflight=Inflight(64)))


def test_fewer_than_max_waiting_in_the_engines_own_queue():
    endpoint = make_endpoint(
        load=Load(0.0, running=20, waiting=2), inflight=Inflight(8), inflight_at_load=Inflight(5)
    )
    assert kept(endpoint, max=100, max_waiting=6)
    assert not kept(endpoint, max=100, max_waiting=5)
    assert kept(make_endpoint(inflight=Inflight(50)), max_waiting=1)  # nothing is reported
