"""transfer-cost: what each pair costs beyond prefill."""

import pytest

from orchestrator.core.prediction import Exposed
from orchestrator.policy import Role
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import FakePredictor, make_context, make_endpoint, make_request

P0, P1 = make_endpoint("p0", Role.PREFILL), make_endpoint("p1", Role.PREFILL)
D0, D1 = make_endpoint("d0", Role.DECODE), make_endpoint("d1", Role.DECODE)


class Links(FakePredictor):
    """Knows the link of each pair, and counts how often it is asked."""

    def __init__(self, **fixed_s):
        super().__init__()
        self.fixed_s, self.asked = fixed_s, 0

    def exposed(self, prefill, decode):
        self.asked += 1
        return Exposed(self.fixed_s[f"{prefill.id}_{decode.id}"], 1e-6, 500)


def costs(policy, candidates, predictor, role, prefill=None, ready=(P0, P1, D0, D1)):
    context = make_context(ready, role, prefill=prefill, predictor=predictor)
    return policy.score(make_request(prompt_tokens=1000), candidates, context)


def test_on_the_decode_side_from_the_prefill_endpoint_chosen():
    policy, links = make_policy("transfer-cost", {}), Links(p1_d0=0.5, p1_d1=0.1)
    assert costs(policy, [D0, D1], links, Role.DECODE, P1) == [0.5005, 0.1005]


def test_on_the_prefill_side_to_the_nearest_that_is_ready():
    policy, links = make_policy("transfer-cost", {}), Links(p0_d0=0.3, p0_d1=0.2, p1_d0=0.1, p1_d1=0.4)
    assert costs(policy, [P0, P1], links, Role.PREFILL) == [0.2005, 0.1005]
    assert costs(policy, [P0, P1], links, Role.PREFILL, ready=(P0, P1, D1)) == [0.2005, 0.4005]
    assert costs(policy, [P0, P1], links, Role.PREFILL, ready=(P0, P1)) == [0.0, 0.0]


def test_a_unified_endpoint_has_its_first_step():
    alone = make_endpoint("u")
    assert costs(make_policy("transfer-cost", {}), [alone], Links(u_u=0.01), Role.UNIFIED) == [0.0105]


def test_each_pair_is_asked_for_once_until_something_is_learned():
    policy, links = make_policy("transfer-cost", {}), Links(p1_d0=0.5, p1_d1=0.1)
    for _ in range(3):
        costs(policy, [D0, D1], links, Role.DECODE, P1)
    assert links.asked == 2
    links.version, links.fixed_s["p1_d0"] = 1, 0.7
    assert costs(policy, [D0, D1], links, Role.DECODE, P1) == pytest.approx([0.7005, 0.1005])


def test_without_a_predictor_it_says_nothing():
    assert costs(make_policy("transfer-cost", {}), [D0, D1], None, Role.DECODE, P1) == [0.0, 0.0]
