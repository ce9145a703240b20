"""The shipped profiles: complete, buildable, and priced as their comment says."""

import copy

import pytest

from orchestrator.errors import ParamError
from orchestrator.policy.build import build
from orchestrator.policy.profiles import PROFILES, ROLES, complete


@pytest.mark.parametrize("name", PROFILES)
def test_each_builds_and_has_every_role(name):
    assert set(PROFILES[name]) == {"mode", *ROLES}
    assert build(name)


def test_completing_fills_in_missing_roles_and_leaves_the_shipped_alone():
    before = copy.deepcopy(dict(PROFILES))
    mine = complete({"decode": {"picker": "round-robin"}})
    assert mine["decode"] == {"picker": "round-robin"}
    assert mine["prefill"] == PROFILES["default"]["prefill"]
    mine["mode"] = "other"
    assert before == PROFILES
    assert complete() == PROFILES["default"]


def test_an_unknown_name():
    with pytest.raises(ParamError, match="did you mean 'round-robin'"):
        complete("roundrobin")


@pytest.mark.parametrize("role", ["prefill", "unified"])
def test_in_the_default_load_can_always_outweigh_affinity(role):
    """Case 31: whatever the cache says, enough load moves traffic on."""
    scorers = build("default").__getattribute__(role).scorers
    affinity = sum(s.weight for s in scorers if getattr(s.policy, "needs_load", False))
    load = sum(s.weight for s in scorers if getattr(s.policy, "measures_load", False))
    assert load > affinity > 0
