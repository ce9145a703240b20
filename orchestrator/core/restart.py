"""When a failed instance is started again and when it is given up, as a pure decision."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

OUTLIVES = "PDCTL_OUTLIVES"
"""Environment variable of processes that finish what they have when their instance's leader has died."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient to be. The delay before try n is `base_s * factor**(n-1)`, at most `cap_s`, give or
    take the share `jitter`, so that instances felled by one cause do not come back in step.

    An instance is given up at the failure that follows `max_restarts` restarts within `window_s`.
    Having been ready for `stable_s` wipes the slate.
    """

    max_restarts: int = 5
    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 60.0
    jitter: float = 0.2
    window_s: float = 3600.0
    stable_s: float = 300.0

    def for_start(self, max_restarts: int, ready_timeout_s: float) -> RestartPolicy:
        """This policy for an instance whose every start may take up to `ready_timeout_s`.

        The window is stretched to hold that many whole starts: an engine that fails after ten minutes of
        loading must run out of tries too.
        """
        window_s = max(self.window_s, (max_restarts + 1) * (ready_timeout_s + self.cap_s))
        return RestartPolicy(
            max_restarts, self.base_s, self.factor, self.cap_s, self.jitter, window_s, self.stable_s
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """Start again after `delay_s`; it will be the `attempt`-th restart in a row."""

    delay_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it down; `failures` counts those that led here."""

    failures: int


Failures = tuple[float, ...]
"""The times of the failures that still count, oldest first."""


def after_failure(
    policy: RestartPolicy, failures: Failures, now_s: float, ready_s: float | None, rng: Random
) -> tuple[Failures, Retry | GiveUp]:
    """What to do about a failure at `now_s`, and the failures that count from now on.

    `ready_s` is how long the failed incarnation had been ready, None if it never was.
    """
    if ready_s is not None and ready_s >= policy.stable_s:
        failures = ()
    recent = (*(at for at in failures if now_s - at < policy.window_s), now_s)
    if len(recent) > policy.max_restarts:
        return recent, GiveUp(len(recent))
    try:
        delay_s = min(policy.cap_s, policy.base_s * policy.factor ** (len(recent) - 1))
    except OverflowError:
        delay_s = policy.cap_s
    return recent, Retry(delay_s * (1.0 + policy.jitter * rng.uniform(-1.0, 1.0)), len(recent))
