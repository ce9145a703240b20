"""What a policy is told where nothing is known: defaults that hold nobody back."""

from math import inf
from random import Random

import pytest

from orchestrator.core.decisions import Assign, Context, Waiting
from orchestrator.core.types import Role, Snapshot
from orchestrator.policy.testing import FakePrefix, make_request


def test_a_context_of_nothing_special_promises_nothing_and_waits_for_nothing():
    context = Context(Snapshot(0.0, ()), Role.PREFILL, 0.0, Random(1), FakePrefix({}))
    assert context.wait_s("p0") == 0.0
    assert context.step_limit_s("d0") == context.first_token_by_s == inf
    assert context.slo is context.predictor is context.prefill is None


def test_two_contexts_share_nothing_that_policies_leave_in_them():
    first, second = (Context(Snapshot(0.0, ()), Role.DECODE, 0.0, Random(1), FakePrefix({})) for _ in "ab")
    first.shared["seen"] = 1
    assert second.shared == {}


def test_what_waits_is_equal_to_itself_alone():
    request = make_request()
    one, other = (Waiting(request, 0.0, 0.1, inf, inf) for _ in "ab")
    assert one == one
    assert one != other


@pytest.mark.parametrize("missing", [{}, {"request_id": "r"}])
def test_a_yes_needs_a_request_and_a_route(missing):
    with pytest.raises(TypeError):
        Assign(**missing)


def test_the_time_of_day_goes_on_between_snapshots():
    seen = Snapshot(100.0, (), unix_s=1_700_000_000.0)
    assert Context(seen, Role.PREFILL, 103.0, Random(1), FakePrefix({})).unix_s == 1_700_000_003.0
