"""The shipped profiles: complete, buildable, and priced as their comment says."""

import copy

import pytest

from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.scheduling import SchedulingProfile
from orchestrator.errors import ParamError
from orchestrator.policy.build import build
from orchestrator.policy.profiles import BASES, PROFILES, ROLES, complete


@pytest.mark.parametrize("name", PROFILES)
def test_each_builds_and_has_every_role(name):
    late = PROFILES[name]["mode"] == "late"
    assert set(PROFILES[name]) == {"mode", *ROLES} | ({"order"} if late else set())
    assert isinstance(build(name), LateProfile if late else SchedulingProfile)


def test_completing_fills_in_missing_roles_and_leaves_the_shipped_alone():
    before = copy.deepcopy(dict(PROFILES))
    mine = complete({"decode": {"picker": "round-robin"}})
    assert mine["decode"] == {"picker": "round-robin"}
    assert mine["prefill"] == PROFILES["priced"]["prefill"]
    mine["mode"] = "other"
    assert before == PROFILES
    assert complete() == PROFILES["default"]


def test_what_is_left_out_is_that_of_the_modes_base():
    assert complete({"mode": "late", "late": {"others": 2.0}}) == {**PROFILES["slo"], "late": {"others": 2.0}}
    assert complete({}) == PROFILES["priced"]
    assert all(PROFILES[base]["mode"] == mode for mode, base in BASES.items())
    assert PROFILES["default"]["mode"] in BASES


def test_an_unknown_name():
    with pytest.raises(ParamError, match="did you mean 'round-robin'"):
        complete("roundrobin")


@pytest.mark.parametrize("role", ["prefill", "unified"])
def test_prices_are_as_documented(role):
    """A backlog token costs half of what a cached one is worth, a request as much as 128 of them."""
    steps = {s["use"]: s for s in PROFILES["priced"][role]["scorers"]}
    cached = steps["prefix-affinity"]["weight"] / steps["prefix-affinity"]["full_tokens"]
    backlog = steps["token-load"]["weight"] / steps["token-load"]["scale_tokens"]
    request = steps["queue-depth"]["weight"] / steps["queue-depth"]["scale_requests"]
    assert (cached / backlog, request / backlog) == (2, 128)


@pytest.mark.parametrize("role", ["prefill", "unified"])
def test_by_price_load_can_always_outweigh_affinity(role):
    """Case 31: whatever the cache says, enough load moves traffic on."""
    scorers = build("priced").__getattribute__(role).scorers
    affinity = sum(s.weight for s in scorers if getattr(s.policy, "needs_load", False))
    load = sum(s.weight for s in scorers if getattr(s.policy, "measures_load", False))
    assert load > affinity > 0
