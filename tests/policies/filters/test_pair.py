"""pair: prefill and decode endpoints that go together."""

import pytest

from orchestrator.errors import ParamError
from orchestrator.policy import Role
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def prefill(endpoint_id, rack=None, **facts):
    labels = {} if rack is None else {"rack": rack}
    return make_endpoint(endpoint_id, Role.PREFILL, labels=labels, facts=facts)


def decode(endpoint_id, rack=None, ready=True, **facts):
    labels = {} if rack is None else {"rack": rack}
    return make_endpoint(endpoint_id, Role.DECODE, labels=labels, facts=facts, ready=ready)


P1, P2, P3 = prefill("p1", "r1"), prefill("p2", "r2"), prefill("p3")
D1, D2, D3 = decode("d1", "r1"), decode("d2", "r2"), decode("d3")
RACK = {"same": ["rack"]}


def partners(one, decodes, **params):
    context = make_context([one, *decodes], Role.DECODE, prefill=one)
    policy = make_policy("pair", params)
    return [e.id for e in policy.filter(make_request(), decodes, context)]


def with_partner(prefills, decodes, **params):
    context = make_context([*prefills, *decodes], Role.PREFILL)
    policy = make_policy("pair", params)
    return [e.id for e in policy.filter(make_request(), prefills, context)]


def test_the_same_rack():
    assert partners(P1, [D1, D2, D3], **RACK) == ["d1"]
    assert partners(P2, [D1, D2, D3], **RACK) == ["d2"]


def test_a_label_that_is_missing_is_not_the_same():
    assert partners(P3, [D1, D2, D3], strict=True, **RACK) == []


def test_without_a_partner_all_are_better_than_none_unless_it_is_strict():
    assert partners(P1, [D2, D3], **RACK) == ["d2", "d3"]
    assert partners(P1, [D2, D3], strict=True, **RACK) == []


def test_a_prefill_endpoint_needs_one_partner_that_is_ready():
    away = decode("d2", "r2", ready=False)
    assert with_partner([P1, P2, P3], [D1, D2], **RACK) == ["p1", "p2"]
    assert with_partner([P1, P2, P3], [D1, away], **RACK) == ["p1"]
    assert with_partner([P2, P3], [D1, away], **RACK) == ["p2", "p3"]
    assert with_partner([P2, P3], [D1, away], strict=True, **RACK) == []


def test_a_list_of_what_is_allowed():
    allow = [{"prefill": {"rack": "r1"}, "decode": {"rack": "r2"}}]
    assert partners(P1, [D1, D2, D3], allow=allow) == ["d2"]
    assert partners(P1, [D1, D2, D3], allow=allow, **RACK) == ["d1", "d2"]
    assert with_partner([P1, P2], [D2], allow=allow) == ["p1"]


def test_another_transfer_backend_never_goes_together():
    here, there, silent = decode("d1", x="y", transfer="a"), decode("d2", transfer="b"), decode("d3")
    one = prefill("p", transfer="a")
    assert partners(one, [here, there, silent]) == ["d1", "d3"]
    assert partners(one, [there]) == []
    assert partners(one, [there], same_transfer=False) == ["d2"]
    assert with_partner([one, prefill("q", transfer="c")], [here, there]) == ["p"]
    assert partners(prefill("q"), [here, there, silent]) == ["d1", "d2", "d3"]


def test_labels_do_not_undo_that():
    assert partners(prefill("p", "r1", transfer="a"), [decode("d1", "r1", transfer="b")], **RACK) == []


def test_unified_endpoints_need_no_partner():
    endpoints = [make_endpoint("u")]
    policy = make_policy("pair", {"same": ["rack"], "strict": True})
    assert list(policy.filter(make_request(), endpoints, make_context(endpoints))) == endpoints


def test_a_pair_that_is_spelt_wrong():
    with pytest.raises(ParamError) as caught:
        make_policy("pair", {"allow": [{"prefill": {"rack": "r1"}, "decod": {}}]})
    assert {p[:2] for p in caught.value.paths} == {("allow", 0)}
