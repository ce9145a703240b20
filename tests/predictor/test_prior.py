"""What is believed before anything was seen."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.prediction import Curve
from orchestrator.core.types import Endpoint, Role
from orchestrator.predictor import prior

TOLD = {
    "prefill": {"token_s": 250e-6, "token2_s": 3e-9, "fixed_s": 0.004, "floor_s": 0.02},
    "exposed": {"fixed_s": 0.02, "token_s": 1e-6, "cap_tokens": 8192},
    "step": {"base_s": 0.012, "request_s": 60e-6, "token_s": 50e-9},
}


def endpoint(facts: dict[str, Any], name: str = "p0") -> Endpoint:
    return Endpoint(name, "p", Role.PREFILL, "any", "m", "http://p0", True, facts=facts)


def test_a_launch_profile_is_taken_as_it_is() -> None:
    it = endpoint({"prior": TOLD})
    assert prior.prefill(it).coefs == (0.004, 250e-6, 3e-9, 0.02)
    belief, cap = prior.exposed(it, endpoint({}, "d0"))
    assert (belief.coefs, cap) == ((0.02, 1e-6), 8192)
    assert prior.step(it).coefs == (0.012, 60e-6, 50e-9)
    assert prior.reference(it) == Curve(250e-6, 3e-9, 0.004, 0.02)


def test_the_hand_off_may_be_told_by_either_side() -> None:
    belief, _ = prior.exposed(endpoint({}), endpoint({"prior": TOLD}, "d0"))
    assert belief.coefs == (0.02, 1e-6)


def test_without_one_it_is_generic_and_unsure() -> None:
    told, generic = prior.prefill(endpoint({"prior": TOLD})), prior.prefill(endpoint({}))
    assert generic.coefs == prior.PREFILL
    assert generic.speed_sd > 2 * told.speed_sd
    assert prior.reference(endpoint({})) is None


def test_what_a_profile_leaves_out_is_most_unsure() -> None:
    belief = prior.prefill(endpoint({"prior": {"prefill": {"token_s": 250e-6, "token2_s": 0.0}}}))
    assert belief.coefs[1] == 250e-6
    assert belief.coefs[2] == pytest.approx(250e-12)  # hardly anything, but it can grow
    assert belief.shape_sds[2] > belief.shape_sds[1]
    assert prior.reference(endpoint({"prior": {"prefill": {"token_s": 250e-6}}})) == Curve(250e-6)


@pytest.mark.parametrize(
    "facts",
    [
        {"prior": None},
        {"prior": 3},
        {"prior": {"prefill": []}},
        {"prior": {"prefill": {"token_s": "fast"}}},
        {"prior": {"prefill": {"token_s": -1.0}}},
        {"prior": {"prefill": {"token_s": float("nan")}}},
        {"prior": {"prefill": {"token_s": float("inf")}}},
    ],
)
def test_nonsense_is_as_good_as_nothing(facts: dict[str, Any]) -> None:
    assert prior.prefill(endpoint(facts)) == prior.prefill(endpoint({}))
    assert prior.reference(endpoint(facts)) is None
