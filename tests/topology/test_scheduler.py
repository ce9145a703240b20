"""The scheduler of a plan's router: of the mode its profile says, with the plan's classes and limits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from orchestrator.core.late.scheduler import LateScheduler
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.scheduling import ImmediateScheduler
from orchestrator.errors import ParamError, PluginError
from orchestrator.policy.build import build
from orchestrator.predictor import StagePredictor
from orchestrator.topology.plan import Limits, RouterPlan, Timeouts
from orchestrator.topology.scheduler import AnyScheduler, adopt, bounded, make_predictor, make_scheduler

LATE = {"mode": "late", "order": {"use": "uncached-shortest"}}
IMMEDIATE = "round-robin"


@pytest.fixture
def router(site, pair: str) -> RouterPlan:
    return site.plan(pair + "slo_classes: {own: {ttft: 3s}}\n").router


def made(router: RouterPlan, profile: object) -> AnyScheduler:
    return make_scheduler(
        router,
        build(profile),  # type: ignore[arg-type]
        make_predictor(router.predictor, "."),
        rng=Random(1),
        serves=lambda path, endpoint: True,
        on_policy_error=lambda name, error: None,
        on_accounting_error=lambda error: None,
    )


def test_the_profile_says_which_mode(router: RouterPlan) -> None:
    assert isinstance(made(router, LATE), LateScheduler)
    assert isinstance(made(router, IMMEDIATE), ImmediateScheduler)


@pytest.mark.parametrize("profile", [LATE, IMMEDIATE])
def test_the_plans_classes_arrive_and_a_reload_brings_others(router: RouterPlan, profile: object) -> None:
    scheduler = made(router, profile)
    assert scheduler.classes["own"].ttft.seconds == 3.0  # type: ignore[union-attr]
    assert {"realtime", "interactive", "batch"} < scheduler.classes.keys()
    given = {name: value for name, value in router.slo_classes.items() if name != "own"}
    before = scheduler.profile
    adopt(scheduler, replace(router, slo_classes=given), build(profile))  # type: ignore[arg-type]
    assert "own" not in scheduler.classes
    assert scheduler.profile is not before


def test_the_lower_bound_on_the_queue_holds(router: RouterPlan) -> None:
    profile = build({**LATE, "late": {"max_queue": 50}})
    assert isinstance(profile, LateProfile)
    for limit, most in ((10, 10), (1000, 50)):
        bound = bounded(replace(router, limits=Limits(max_queue=limit)), profile)
        assert bound.settings.max_queue == most
        assert bound.order is profile.order


def test_a_reload_keeps_the_routers_bound(router: RouterPlan) -> None:
    router = replace(router, limits=Limits(max_queue=7), timeouts=Timeouts(queue_s=12.0))
    scheduler = made(router, LATE)
    adopt(scheduler, router, build(LATE))
    assert isinstance(scheduler, LateScheduler)
    assert scheduler.profile.settings.max_queue == 7


def test_a_predictor_is_made_by_its_name_and_parameters() -> None:
    assert isinstance(make_predictor({"use": "stages"}, "."), StagePredictor)
    with pytest.raises(PluginError, match="stages"):
        make_predictor({"use": "stage"}, ".")
    with pytest.raises(ParamError):
        make_predictor({"use": "stages", "bogus": 1}, ".")
