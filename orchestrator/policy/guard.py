"""The time budget of policies: who stalls is found, counted, and left out of the decisions for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ParamSpec, TypeVar

from orchestrator.core.choosing import OnPolicyError, RoleProfile, Step
from orchestrator.core.lateprofile import LateProfile, LateRole
from orchestrator.core.scheduling import SchedulingProfile
from orchestrator.errors import PolicyError
from orchestrator.policy.loading import METHODS

P = ParamSpec("P")
R = TypeVar("R")
ProfileT = TypeVar("ProfileT", bound=SchedulingProfile | LateProfile)
RoleT = TypeVar("RoleT", RoleProfile, LateRole)

STALLED = "policy-stalled"
"""The reason of a PolicyError about time."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What policies may take.

    A call may take `call_s`. After `strikes` in a row that took longer a policy is left out for
    `cooldown_s`; then it is tried again, and one more is enough. Policies are timed one by one for
    `watch_s` after anything has last taken too long.
    """

    call_s: float = 0.005
    strikes: int = 3
    cooldown_s: float = 30.0
    watch_s: float = 60.0


class Guard:
    """Keeps policies to their budget, for next to nothing while they do.

    Whoever makes decisions calls through `timed`, or tells what a call `took`: two readings of the clock for
    each. Once one has taken longer than a single call may, each call of every policy of the profiles that
    went through `watch` is timed, so that the one to blame is known by name. `on_error` is told of each call
    that took too long. A policy that is left out raises PolicyError when it is asked, which the scheduler
    takes as any other failure of it.

    A call that never returns cannot be interrupted from inside its process: nothing here helps against it.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_error: OnPolicyError,
        budget: Budget = Budget(),
        *,
        watching: bool = False,
    ) -> None:
        self.budget = budget
        self._clock = clock
        self._on_error = on_error
        self._watched: list[_Watched] = []
        self._calm_at_s = -inf
        self.watching = watching
        """Whether each policy is being timed; from the beginning, if so asked."""

    def watch(self, profile: ProfileT) -> ProfileT:
        """`profile` with its policies under watch; those of the profile given before are not any more."""
        self._watched = []
        parts = ("prefill", "decode", "unified")
        roles: dict[str, Any] = {name: self._role(getattr(profile, name)) for name in parts}
        if isinstance(profile, LateProfile):
            roles["order"] = self._step(profile.order)
        watched = replace(profile, **roles)
        if self.watching:
            self._begin()
        return watched

    def timed(self, decide: Callable[P, R]) -> Callable[P, R]:
        """`decide`, which asks policies, with its time taken."""
        clock = self._clock

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            began_s = clock()
            answer = decide(*args, **kwargs)
            self.took(began_s, clock())
            return answer

        return call

    def took(self, began_s: float, ended_s: float) -> None:
        """A call that asks policies has been made; of a short one it need only be told while `watching`."""
        if ended_s - began_s > self.budget.call_s:
            self._slow(ended_s)
        elif self.watching and ended_s >= self._calm_at_s:
            self._end()

    def overran(self, watched: _Watched, took_s: float, now_s: float) -> None:
        """A policy has taken too long."""
        budget = self.budget
        watched.strikes += 1
        said = f"a call took {took_s * 1e3:.1f} ms, {budget.call_s * 1e3:g} ms are allowed"
        if watched.strikes >= budget.strikes:
            watched.until_s = now_s + budget.cooldown_s
            watched.strikes = budget.strikes - 1
            said += f": left out for {budget.cooldown_s:g} s"
        self._slow(max(now_s, watched.until_s))
        message = f"policy {watched.name}: {said}"
        self._on_error(watched.name, PolicyError(message, policy=watched.name, reason=STALLED))

    def _slow(self, now_s: float) -> None:
        self._calm_at_s = max(self._calm_at_s, now_s + self.budget.watch_s)
        if not self.watching:
            self.watching = True
            self._begin()

    def _begin(self) -> None:
        for watched in self._watched:
            watched.time(self._clock)

    def _end(self) -> None:
        self.watching = False
        for watched in self._watched:
            watched.let()

    def _role(self, role: RoleT) -> RoleT:
        filters, scorers = self._steps(role.filters), self._steps(role.scorers)
        if isinstance(role, RoleProfile):
            return replace(role, filters=filters, scorers=scorers, picker=self._step(role.picker))
        return replace(role, filters=filters, scorers=scorers)

    def _steps(self, steps: Iterable[Step[Any]]) -> tuple[Step[Any], ...]:
        return tuple(map(self._step, steps))

    def _step(self, step: Step[Any]) -> Step[Any]:
        watched = _Watched(self, step.name, step.policy)
        self._watched.append(watched)
        return Step(step.name, watched, step.weight)


class _Watched:
    """A policy that can be timed: its methods are the policy's own while it is not."""

    def __init__(self, guard: Guard, name: str, policy: Any) -> None:
        self.name = name
        self.strikes = 0
        self.until_s = -inf
        self._guard = guard
        self._methods = {m: getattr(policy, m) for m in METHODS if callable(getattr(policy, m, None))}
        for trait in ("unit", "reason"):
            if hasattr(policy, trait):
                setattr(self, trait, getattr(policy, trait))
        self.let()

    def let(self) -> None:
        """Without taking its time."""
        for name, method in self._methods.items():
            setattr(self, name, method)

    def time(self, clock: Callable[[], float]) -> None:
        """Take the time of each call from now on."""
        for name, method in self._methods.items():
            setattr(self, name, self._timed(method, clock))

    def _timed(self, method: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
        most_s = self._guard.budget.call_s

        def call(*args: Any) -> Any:
            began_s = clock()
            if began_s < self.until_s:
                left_s = self.until_s - began_s
                raise PolicyError(f"it stalled, and is left out for another {left_s:.0f} s", reason=STALLED)
            try:
                return method(*args)
            finally:
                ended_s = clock()
                if ended_s - began_s > most_s:
                    self._guard.overran(self, ended_s - began_s, ended_s)
                else:
                    self.strikes = 0

        return call
