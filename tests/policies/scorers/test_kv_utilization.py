"""kv-utilization: the share of memory left free with the request there."""

import pytest

from orchestrator.policy import Inflight, Load, Role
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def scores(endpoints, role=Role.DECODE, **request):
    fields = {"prompt_tokens": 1000, "max_tokens": 200, **request}
    policy = make_policy("kv-utilization", {})
    return policy.score(make_request(**fields), endpoints, make_context(endpoints, role))


def with_kv(used, total, **fields):
    return make_endpoint(f"{used}/{total}", load=Load(0.0, 1, 0, used, total), **fields)


def test_larger_memory_takes_more():
    assert scores([with_kv(4_800, 10_000), with_kv(4_800, 20_000)]) == pytest.approx([0.4, 0.7])


def test_on_a_prefill_endpoint_the_request_is_its_prompt():
    assert scores([with_kv(4_000, 10_000)], Role.PREFILL) == [0.5]


def test_what_went_there_since_the_report_counts_and_below_nothing_is_nothing():
    busier = with_kv(4_800, 10_000, inflight=Inflight(1, 0, 2_000))
    assert scores([busier, with_kv(50_000, 10_000)]) == pytest.approx([0.2, 0.0])


def test_one_that_tells_no_capacity_gets_the_mean():
    silent = make_endpoint("silent", facts={"kv_total_tokens": 0})
    assert scores([with_kv(4_800, 10_000), silent, with_kv(4_800, 20_000)])[1] == pytest.approx(0.55)
    assert scores([silent, make_endpoint("too")]) == [1.0, 1.0]
