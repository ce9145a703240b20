"""uncached_shortest, least_slack, edf and fcfs: what each goes by."""

import pytest

from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_waiting

A = make_waiting(arrived_s=3.0, work_s=0.1, first_token_by_s=9.0, latest_start_s=8.9)
B = make_waiting(arrived_s=1.0, work_s=5.0, first_token_by_s=10.0, latest_start_s=5.0)
C = make_waiting(arrived_s=2.0, work_s=0.2, first_token_by_s=6.0, latest_start_s=5.8)


@pytest.mark.parametrize(
    ("name", "order"),
    [("uncached-shortest", "ACB"), ("least-slack", "BCA"), ("edf", "CAB"), ("fcfs", "BCA")],
)
def test_the_order(name, order):
    policy = make_policy(name, {})
    named = {"A": A, "B": B, "C": C}
    assert "".join(sorted(named, key=lambda n: policy.key(named[n]))) == order
