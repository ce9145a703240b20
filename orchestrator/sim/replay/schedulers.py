"""Scheduling profiles as ready schedulers, built as the router builds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from orchestrator.core.contracts import Scheduler
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.prediction import Predictor
from orchestrator.core.scheduling import ImmediateScheduler
from orchestrator.core.slo import Classes
from orchestrator.policy.build import build
from orchestrator.sim.replay.told import Told

MakePredictor = Callable[[], Predictor]


def make(
    profile: str | Mapping[str, Any],
    *,
    seed: int = 0,
    block_tokens: int = 128,
    classes: Classes | None = None,
    predictor: MakePredictor = Told,
    base_dir: str | os.PathLike[str] = ".",
) -> Scheduler:
    """A fresh scheduler of a shipped profile (by name), or of one written out.

    Raises ParamError for a profile that is not what it must be.
    """
    built = build(profile, base_dir)
    rng = Random(seed)
    if isinstance(built, LateProfile):
        from orchestrator.core.late.scheduler import LateScheduler

        return LateScheduler(built, predictor(), rng=rng, classes=classes, block_tokens=block_tokens)
    return ImmediateScheduler(
        built, rng=rng, block_tokens=block_tokens, predictor=predictor(), classes=classes
    )
