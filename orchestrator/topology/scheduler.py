"""The scheduler of a plan's router: what the router runs, a replay tries and a test builds alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, cast

from orchestrator.core.choosing import OnPolicyError
from orchestrator.core.late.scheduler import LateScheduler
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.prediction import Predictor
from orchestrator.core.scheduling import ImmediateScheduler, SchedulingProfile, Serves
from orchestrator.errors import AccountingError
from orchestrator.policy.build import Profile
from orchestrator.policy.loading import make_policy
from orchestrator.topology.plan import RouterPlan
from orchestrator.topology.slo import slo_classes

PREDICTORS = "pdctl.predictors"
"""The entry points that predictors are registered under."""

AnyScheduler = ImmediateScheduler | LateScheduler
"""The scheduler of either mode; the same port and the same books."""


def make_predictor(given: Mapping[str, Any], base_dir: str) -> Predictor:
    """The predictor that a plan names with its parameters. Raises PluginError or ParamError."""
    params = {name: value for name, value in given.items() if name != "use"}
    made = make_policy(given["use"], params, base_dir, group=PREDICTORS)
    return cast(Predictor, made)  # checked when the plan was made


def make_scheduler(
    router: RouterPlan,
    profile: Profile,
    predictor: Predictor,
    *,
    rng: Random,
    serves: Serves,
    on_policy_error: OnPolicyError,
    on_accounting_error: Callable[[AccountingError], None],
    block_tokens: int = 128,
) -> AnyScheduler:
    """The scheduler for a built profile, with the plan's classes and limits."""
    classes = slo_classes(router)
    if isinstance(profile, LateProfile):
        return LateScheduler(
            bounded(router, profile),
            predictor,
            rng=rng,
            classes=classes,
            serves=serves,
            block_tokens=block_tokens,
            max_wait_s=min(router.timeouts.queue_s, router.timeouts.total_s),
            on_policy_error=on_policy_error,
            on_accounting_error=on_accounting_error,
        )
    return ImmediateScheduler(
        profile,
        rng=rng,
        serves=serves,
        block_tokens=block_tokens,
        predictor=predictor,
        classes=classes,
        on_policy_error=on_policy_error,
        on_accounting_error=on_accounting_error,
    )


def adopt(scheduler: AnyScheduler, router: RouterPlan, profile: Profile) -> None:
    """Give a scheduler that runs another profile of its mode, and the plan's classes."""
    scheduler.classes = slo_classes(router)
    if isinstance(scheduler, LateScheduler):
        assert isinstance(profile, LateProfile)
        scheduler.profile = bounded(router, profile)
    else:
        assert isinstance(profile, SchedulingProfile)
        scheduler.profile = profile


def bounded(router: RouterPlan, profile: LateProfile) -> LateProfile:
    """The profile with the router's own bound on its queue, if that is the lower one."""
    most = min(router.limits.max_queue, profile.settings.max_queue)
    return replace(profile, settings=replace(profile.settings, max_queue=most))
