"""The scheduling profile in force: watched while it decides, replaced only by one that was tried before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from orchestrator.core.choosing import OnPolicyError
from orchestrator.core.contracts import Scheduler
from orchestrator.core.inflight import Ledger
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.scheduling import SchedulingProfile, Serves
from orchestrator.core.slo import Classes
from orchestrator.core.types import RequestView
from orchestrator.errors import Problem, TopologyError
from orchestrator.policy.build import Profile, build
from orchestrator.policy.dryrun import Report, dry_run, take
from orchestrator.policy.guard import Guard
from orchestrator.router.over import Over

KEPT = 64
"""Requests remembered to try a new profile on: as many as take some milliseconds to decide."""

REFUSED = "profile-refused"
"""The reason of a reload that is refused for what the new profile did with recorded requests."""


class Made(Protocol):
    """What of a scheduler a new profile is tried with."""

    ledger: Ledger
    prefix: PrefixIndex
    classes: Classes

    @property
    def predictor(self) -> Predictor | None:
        """None where nothing is predicted."""
        ...


class Policies:
    """Builds, watches and replaces the router's scheduling profile.

    `recent` are the last requests that a decision was asked for. Raises TopologyError for a profile that does
    not build.
    """

    def __init__(
        self,
        scheduling: Mapping[str, Any],
        base_dir: str,
        now_s: Callable[[], float],
        on_error: OnPolicyError,
    ) -> None:
        self.recent: deque[RequestView] = deque(maxlen=KEPT)
        self._now_s = now_s
        self._guard = Guard(now_s, on_error)
        self.use(scheduling, base_dir)

    def watched(self) -> Profile:
        """The profile in force, its policies under watch."""
        return self._guard.watch(self._built)

    @property
    def waits(self) -> bool:
        """Whether requests wait in the router where nobody may take them now."""
        return isinstance(self._built, LateProfile)

    def over(self, scheduler: Scheduler) -> Scheduler:
        """`scheduler` with its decisions timed and the requests it is offered remembered."""
        return Over(scheduler, self._guard, self._now_s, self.recent.append)

    def tried(
        self, scheduling: Mapping[str, Any], base_dir: str, made: Made, serves: Serves, *, force: bool = False
    ) -> str:
        """What the profile `scheduling` does with the recorded requests, in a sentence.

        Nothing is tried where it is the one in force, policies' code included. Raises TopologyError for one
        that does not build, for one that does badly unless `force`, and for one of another mode: requests in
        flight belong to the scheduler of theirs.
        """
        report = self._report(scheduling, base_dir, made, serves)
        if report is None:
            return "the profile is the one in use"
        why = report.why_not()
        if why is not None and not force:
            problem = Problem(why, field="scheduling.profile", hint="it is not used; `--force` would")
            raise TopologyError([problem], reason=REFUSED)
        return why or report.says()

    def _report(
        self, scheduling: Mapping[str, Any], base_dir: str, made: Made, serves: Serves
    ) -> Report | None:
        new = build(scheduling, base_dir)
        if type(new) is not type(self._built):
            problem = Problem(
                f"the router runs a profile of mode {_mode(self._built)!r}, and this one is {_mode(new)!r}",
                hint="to change the mode run `pdctl up`, then `pdctl restart TOPOLOGY router`",
            )
            raise TopologyError([problem])
        if scheduling == self._scheduling and _classes(new) == _classes(self._built):
            return None
        now_s = self._now_s()
        samples = take(
            tuple(self.recent),
            made.ledger.snapshot(now_s),
            serves,
            made.prefix,
            now_s=now_s,
            predictor=made.predictor,
            classes=made.classes,
        )
        return dry_run(self._twin, new, samples, self._now_s)

    def use(self, scheduling: Mapping[str, Any], base_dir: str) -> Profile:
        """The profile `scheduling`, in force and watched from now on."""
        self._built = build(scheduling, base_dir)
        # Policies may keep state: those in force must not see what is only tried. Made now, for when another
        # is tried a file of this one may have been edited.
        self._twin = build(scheduling, base_dir)
        self._scheduling = scheduling
        return self.watched()


def _mode(profile: Profile) -> str:
    return "late" if isinstance(profile, LateProfile) else "immediate"


def _classes(profile: Profile) -> list[type]:
    """The classes of all its policies: a plug-in file that was edited has another class."""
    roles = (profile.prefill, profile.decode, profile.unified)
    policies: list[Any] = [s.policy for role in roles for s in role.filters]
    policies += [s.policy for role in roles for s in role.scorers]
    if isinstance(profile, SchedulingProfile):
        policies += [role.picker.policy for role in (profile.prefill, profile.decode, profile.unified)]
    else:
        policies.append(profile.order.policy)
    return [type(getattr(policy, "scorer", policy)) for policy in policies]
