"""When an endpoint may be given work: a small machine fed with the answers to its probes, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.types import Role


class Answer(StrEnum):
    """What came of one round of readiness probes."""

    OK = "ok"
    REFUSED = "refused"
    """Nobody listens: the process is gone."""
    UNAVAILABLE = "unavailable"
    """503: the engine's own word that it wants no work (starting, draining, paused)."""
    FAILING = "failing"
    """Another 5xx, a broken answer, a host out of reach."""
    SLOW = "slow"
    """No answer in time."""
    REJECTED = "rejected"
    """4xx: the probe is at fault (a wrong key, say), which tells nothing of the engine."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much it takes to change one's mind.

    `join_after` good rounds in a row join; `leave_after` bad ones in a row leave. A slow answer counts
    as bad only while the engine has no work from us, or when its last good answer is older than
    `patience_s`: a long prefill or a compilation makes every answer slow, and is no death. An engine whose
    probes are fine but which has work and counts none of it for `stalled_s` is taken to hang.
    """

    join_after: int = 2
    leave_after: int = 3
    patience_s: float = 60.0
    stall_s: float = 120.0

    def stalled_s(self, role: Role, prefill_s: float) -> float:
        """How long an engine in `role` may have work and count none of it.

        Some count a prompt only when all of it is computed, so whoever computes prompts has a fifth more
        than a prefill's deadline, `prefill_s`: the deadline tells a request, this takes all new ones away.
        """
        return self.stall_s if role is Role.DECODE else max(self.stall_s, 1.2 * prefill_s)


class Health:
    """The readiness of one endpoint; `fit` says that it answers as it should.

    An endpoint starts unfit, and becomes fit and unfit by its own probes alone.
    """

    __slots__ = ("_bad", "_good", "_last_good_s", "_thresholds", "fit")

    def __init__(self, thresholds: Thresholds = Thresholds()) -> None:
        self._thresholds = thresholds
        self._good = 0
        self._bad = 0
        self._last_good_s = float("-inf")
        self.fit = False

    def observe(self, answer: Answer, now_s: float, busy: bool) -> bool:
        """Take in one answer; True when `fit` changed by it. `busy`: the engine has work from us."""
        before = self.fit
        if answer is Answer.OK:
            self._good += 1
            self._bad = 0
            self._last_good_s = now_s
            self.fit = self.fit or self._good >= self._thresholds.join_after
        elif answer in (Answer.REFUSED, Answer.UNAVAILABLE):
            self.reset()
        elif answer is Answer.FAILING or (answer is Answer.SLOW and not self._patient(now_s, busy)):
            self._good = 0
            self._bad += 1
            if self._bad >= self._thresholds.leave_after:
                self.fit = False
        else:
            self._good = 0
        return self.fit is not before

    @property
    def last_good_s(self) -> float:
        """When its probes were last answered well; minus infinity if they never were."""
        return self._last_good_s

    def _patient(self, now_s: float, busy: bool) -> bool:
        return busy and now_s - self._last_good_s < self._thresholds.patience_s

    def reset(self) -> None:
        """Unfit at once, and all that was counted forgotten."""
        self.fit = False
        self._good = self._bad = 0
