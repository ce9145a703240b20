"""One instance's life as a pure machine: the lifecycle table joined with the restart decision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from orchestrator.core.lifecycle import Effect, Event, State, step
from orchestrator.core.restart import Failures, GiveUp, RestartPolicy, after_failure

Effects = tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """Where an instance is and what led there. Told what happened, it says what to do.

    `incarnation` numbers its processes, over all lives under one name; `restarts` counts those started
    because the one before failed. `retry_s` is the back-off that entering BACKOFF asks for. Times are
    seconds of one monotonic clock.
    """

    policy: RestartPolicy
    state: State = State.PENDING
    incarnation: int = 0
    restarts: int = 0
    failures: Failures = ()
    ready_at_s: float | None = None
    retry_s: float = 0.0

    def on(self, event: Event, now_s: float) -> tuple[Life, Effects]:
        """The life after `event`, and what it asks for. Raises IllegalTransition."""
        state, effects = step(self.state, event)
        life = replace(self, state=state)
        if Effect.SPAWN in effects:
            again = self.state is State.BACKOFF
            life = replace(
                life, incarnation=self.incarnation + 1, restarts=self.restarts + again, ready_at_s=None
            )
        elif event is Event.PROBED:
            life = replace(life, ready_at_s=now_s)
        return life, effects

    def spent(self, now_s: float) -> bool:
        """Whether a failure now would be followed by no further try."""
        recent = sum(now_s - at < self.policy.window_s for at in self.failures)
        return recent >= self.policy.max_restarts

    def failed(self, now_s: float, rng: Random, *, hopeless: bool = False) -> tuple[Life, Effects]:
        """The life after a failure: another try is due, or the tries are spent.

        `hopeless`: no further try can end otherwise (the program does not exist).
        """
        ready_s = None if self.ready_at_s is None else now_s - self.ready_at_s
        failures, decision = after_failure(self.policy, self.failures, now_s, ready_s, rng)
        life = replace(self, failures=failures)
        if hopeless or isinstance(decision, GiveUp):
            return life.on(Event.GAVE_UP, now_s)
        return replace(life, retry_s=decision.delay_s).on(Event.CRASHED, now_s)
