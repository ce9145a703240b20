"""The settings of late binding as a profile writes them, under `late`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.core.lateprofile import LateSettings
from orchestrator.policy.params import DurationOrZero, Params

_DEFAULTS = LateSettings()

Share = Annotated[float, Field(ge=0, lt=1)]


class LateParams(Params):
    """The fields of `core.lateprofile.LateSettings`; durations are written with their unit."""

    candidates: int = Field(default=_DEFAULTS.candidates, ge=1)
    others: float = Field(default=_DEFAULTS.others, ge=0)
    hand_ahead: DurationOrZero = _DEFAULTS.hand_ahead_s
    hand_ahead_work: DurationOrZero = _DEFAULTS.hand_ahead_work_s
    unit_tokens: int = Field(default=_DEFAULTS.unit_tokens, ge=0)
    on_time_quantile: float = Field(default=_DEFAULTS.on_time_quantile, gt=0, lt=1)
    wait_for_warm: bool = _DEFAULTS.wait_for_warm
    batch_reserve: int = Field(default=_DEFAULTS.batch_reserve, ge=0)
    max_queue: int = Field(default=_DEFAULTS.max_queue, ge=1)
    spare: dict[DurationOrZero, Share] = Field(default=dict(_DEFAULTS.spare))
    overcommit: float = Field(default=_DEFAULTS.overcommit, gt=0)
    slices: DurationOrZero = _DEFAULTS.slices_s

    def settings(self) -> LateSettings:
        """As the core takes them."""
        return LateSettings(
            candidates=self.candidates,
            others=self.others,
            hand_ahead_s=self.hand_ahead,
            hand_ahead_work_s=self.hand_ahead_work,
            unit_tokens=self.unit_tokens,
            on_time_quantile=self.on_time_quantile,
            wait_for_warm=self.wait_for_warm,
            batch_reserve=self.batch_reserve,
            max_queue=self.max_queue,
            spare=tuple(sorted(self.spare.items())),
            overcommit=self.overcommit,
            slices_s=self.slices,
        )
