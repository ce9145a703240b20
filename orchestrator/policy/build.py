"""From a scheduling profile as plain data to the policies it names: what both `check` and the router call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator import plugins
from orchestrator.core.choosing import RoleProfile, Step
from orchestrator.core.contracts import Filter, Order, Picker, Scorer
from orchestrator.core.duration import parse_duration
from orchestrator.core.lateprofile import LateProfile, LateRole, LateSettings
from orchestrator.core.scheduling import SchedulingProfile
from orchestrator.errors import ParamError, PluginError, Problem
from orchestrator.policy.late import LateParams
from orchestrator.policy.loading import GROUP as GROUP
from orchestrator.policy.loading import Place, validated
from orchestrator.policy.loading import make_policy as make_policy
from orchestrator.policy.loading import params_model as params_model
from orchestrator.policy.params import RESERVED
from orchestrator.policy.profiles import ROLES, complete, mode_of
from orchestrator.policy.worth import AsShare, InSeconds

Profile = SchedulingProfile | LateProfile

_KINDS: Mapping[str, tuple[type, str]] = {
    "filters": (Filter, "filter"),
    "scorers": (Scorer, "score"),
    "order": (Order, "key"),
    "picker": (Picker, "pick"),
}

_UNITS = {"immediate": "share", "late": "seconds"}


def build(profile: str | Mapping[str, Any], base_dir: str | os.PathLike[str] = ".") -> Profile:
    """The profile with its policies loaded, their parameters validated.

    `profile` is a shipped name or a mapping: `mode`, and for each of `prefill`, `decode` and `unified`
    (one left out is that of the mode's base profile, see `profiles.complete`) `filters` and `scorers`; in
    mode `immediate` also `picker`, in mode `late` at the top `order` and the settings `late`. A step is a
    mapping with `use` (see `plugins.resolve`; files are relative to `base_dir`), a scorer's `weight` or
    `worth`, and the policy's parameters; or the bare reference. Raises ParamError with every finding and
    its path.
    """
    data = complete(profile)
    mode = mode_of(data)
    builder = _Builder(base_dir, mode)
    built = _late(builder, data) if mode == "late" else _immediate(builder, data)
    if builder.findings:
        raise ParamError(builder.findings)
    return built


def _immediate(builder: _Builder, data: Mapping[str, Any]) -> SchedulingProfile:
    for key in ("order", "late"):
        if key in data:
            builder.refuse((key,), f"`{key}` belongs to mode 'late'", "write `mode: late`, or leave it out")
    builder.only((), data, ("mode", *ROLES), beside=("order", "late"))
    if builder.mode not in _UNITS:
        builder.refuse(("mode",), f"mode is {builder.mode!r}", "the modes are 'immediate' and 'late'")
    roles = {role: builder.role((role,), data[role]) for role in ROLES}
    return SchedulingProfile(**roles, headers=frozenset(builder.headers))


def _late(builder: _Builder, data: Mapping[str, Any]) -> LateProfile:
    builder.only((), data, ("mode", "order", *ROLES, "late"))
    order = builder.step(("order",), data["order"])
    roles = {role: builder.late_role((role,), data[role]) for role in ROLES}
    settings = builder.settings(("late",), data.get("late"))
    headers = frozenset(builder.headers)
    return LateProfile(order=order or _NO_ORDER, **roles, settings=settings, headers=headers)


class _Builder:
    """Collects findings while it builds, so that a user sees them all at once."""

    def __init__(self, base_dir: str | os.PathLike[str], mode: str) -> None:
        self.findings: list[tuple[Place, Problem]] = []
        self.headers: set[str] = set()
        self.mode = mode
        self._base_dir = base_dir

    def refuse(self, path: Place, message: str, hint: str | None = None) -> None:
        self.findings.append((path, Problem(message, field=_dotted(path), hint=hint)))

    def only(
        self, path: Place, data: Mapping[str, Any], known: Iterable[str], beside: Iterable[str] = ()
    ) -> None:
        """Refuse the keys of `data` that are not known; those `beside` were told of already."""
        for key in data:
            if key not in known and key not in beside:
                close = plugins.nearest(str(key), known)
                hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
                self.refuse((*path, key), f"unknown field {key!r}", hint)

    def role(self, path: Place, data: Any) -> RoleProfile:
        data = self._mapping(path, data, ("filters", "scorers", "picker"))
        filters = self._steps((*path, "filters"), data)
        scorers = self._steps((*path, "scorers"), data)
        given = data.get("picker")
        picker = self.step((*path, "picker"), "max-score" if given is None else given)
        self._check_load((*path, "scorers"), [step.policy for step in scorers])
        return RoleProfile(filters=tuple(filters), scorers=tuple(scorers), picker=picker or _NO_PICKER)

    def late_role(self, path: Place, data: Any) -> LateRole:
        if isinstance(data, Mapping) and "picker" in data:
            hint = "leave it out: who costs the least is taken"
            self.refuse((*path, "picker"), "mode 'late' has no picker", hint)
        data = self._mapping(path, data, ("filters", "scorers"), beside=("picker",))
        filters, scorers = self._steps((*path, "filters"), data), self._steps((*path, "scorers"), data)
        return LateRole(filters=tuple(filters), scorers=tuple(scorers))

    def settings(self, path: Place, data: Any) -> LateSettings:
        if data is None:  # left out, or a key in YAML with nothing under it
            return LateSettings()
        if not isinstance(data, Mapping):
            self.refuse(path, f"must be a mapping of {', '.join(LateParams.model_fields)}, not {data!r}")
            return LateSettings()
        try:
            made = validated("late", LateParams, data)
        except ParamError as error:
            self._take(path, error)
            return LateSettings()
        assert isinstance(made, LateParams)
        return made.settings()

    def step(self, path: Place, item: Any) -> Step[Any] | None:
        """The step that `item` describes, at `path`; None, with a finding, if it is none that fits there."""
        item = {"use": item} if isinstance(item, str) else item
        use = item.get("use") if isinstance(item, Mapping) else None
        if not isinstance(use, str):
            self.refuse(path, f"must be a policy's name, or a mapping with `use`, not {item!r}")
            return None
        kind = str(next(part for part in reversed(path) if part in _KINDS))
        params = {k: v for k, v in item.items() if k not in RESERVED}
        weight = self._weight(path, item, kind)
        try:
            policy = make_policy(use, params, self._base_dir)
        except PluginError as error:
            for problem in error.problems:
                self.findings.append(((*path, "use"), problem))
            return None
        except ParamError as error:
            self._take(path, error)
            return None
        if not isinstance(policy, _KINDS[kind][0]):
            self._wrong_kind(path, use, policy, kind)
            return None
        if isinstance(policy, Scorer) and kind == "scorers":
            policy = self._in_unit(path, use, policy, item)
        elif "worth" in item:
            self.refuse((*path, "worth"), "only scorers have a worth")
        self.headers.update(name.lower() for name in getattr(policy, "headers", ()))
        return Step(use, policy, weight)

    def _mapping(
        self, path: Place, data: Any, known: Iterable[str], beside: Iterable[str] = ()
    ) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            self.refuse(path, f"must be a mapping of {', '.join(known)}, not {data!r}")
            return {}
        self.only(path, data, known, beside)
        return data

    def _steps(self, path: Place, data: Mapping[str, Any]) -> list[Step[Any]]:
        listed = data.get(str(path[-1]))
        if listed is None:  # left out, or a key in YAML with nothing under it
            return []
        if not isinstance(listed, list | tuple):
            self.refuse(path, f"must be a list, not {listed!r}")
            return []
        steps: list[Step[Any]] = []
        for i, item in enumerate(listed):
            step = self.step((*path, i), item)
            if step is not None:
                same = sum(s.name.split("#")[0] == step.name for s in steps)
                name = f"{step.name}#{same + 1}" if same else step.name
                steps.append(Step(name, step.policy, step.weight))
        return steps

    def _take(self, path: Place, error: ParamError) -> None:
        """The findings of something at `path`."""
        for below, problem in zip(error.paths, error.problems, strict=True):
            self.refuse((*path, *below), problem.message, problem.hint)

    def _weight(self, path: Place, item: Mapping[str, Any], kind: str) -> float:
        weight = item.get("weight", 1.0)
        if "weight" not in item:
            return 1.0
        if kind != "scorers":
            self.refuse((*path, "weight"), "only scorers have a weight")
        elif self.mode == "late":
            hint = "seconds are added as they are: leave it out, or change the scorer's own parameters"
            self.refuse((*path, "weight"), "mode 'late' has no weights", hint)
        elif isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            self.refuse((*path, "weight"), f"a weight is a positive number, not {weight!r}")
        else:
            return float(weight)
        return 1.0

    def _in_unit(self, path: Place, use: str, scorer: Scorer, item: Mapping[str, Any]) -> Scorer:
        """The scorer in the unit of the mode: its own, or by its `worth`."""
        wanted = _UNITS.get(self.mode, "share")
        if scorer.unit not in _UNITS.values():
            message = f"{use!r} scores in {scorer.unit!r}"
            self.refuse((*path, "use"), message, "a scorer's `unit` is 'share' or 'seconds'")
        elif scorer.unit == wanted:
            if "worth" in item:
                hint = f"leave it out: {use!r} scores in {wanted} by itself"
                self.refuse((*path, "worth"), f"`worth` is for scorers that do not score in {wanted}", hint)
        elif "worth" not in item:
            example = "what a share of 0 costs" if wanted == "seconds" else "seconds that are a whole share"
            self.refuse(
                (*path, "use"),
                f"{use!r} scores in {scorer.unit!r}, and mode {self.mode!r} takes {wanted}",
                f"give it a rate, such as `worth: 200ms` ({example}), or use another scorer",
            )
        else:
            return self._converted(path, scorer, item["worth"], wanted)
        return scorer

    def _converted(self, path: Place, scorer: Scorer, worth: Any, wanted: str) -> Scorer:
        try:
            worth_s = parse_duration(worth)
            if worth_s <= 0:
                raise ValueError("a worth is more than zero")
        except ValueError as error:
            self.refuse((*path, "worth"), str(error))
            return scorer
        return InSeconds(scorer, worth_s) if wanted == "seconds" else AsShare(scorer, worth_s)

    def _wrong_kind(self, path: Place, use: str, policy: object, kind: str) -> None:
        fits = [other for other, (protocol, _) in _KINDS.items() if isinstance(policy, protocol)]
        if fits:
            hint = f"it belongs under `{fits[0]}`"
        elif kind == "scorers" and hasattr(policy, "score"):
            hint = "a scorer has a class attribute `unit`: 'share' or 'seconds'"
        else:
            hint = f"under `{kind}` belongs a class with a method `{_KINDS[kind][1]}`"
        self.refuse((*path, "use"), f"{use!r} does not fit under `{kind}`", hint)

    def _check_load(self, path: Place, scorers: list[Any]) -> None:
        leaning = [s for s in scorers if getattr(s, "needs_load", False)]
        if leaning and not any(getattr(s, "measures_load", False) for s in scorers):
            self.refuse(
                path,
                f"{type(leaning[0]).__name__} is the whole ranking: a popular prefix or session would draw "
                "all traffic to one endpoint, however loaded",
                "add a scorer that measures load, such as token-load or queue-depth",
            )


class _Never:
    """Stands in for a policy that was refused; the profile it is in is never returned."""

    def pick(self, request: Any, scored: Any, context: Any) -> Any:
        """Never called."""
        raise AssertionError("a refused profile was used")

    def key(self, waiting: Any) -> float:
        """Never called."""
        raise AssertionError("a refused profile was used")


_NO_PICKER: Step[Picker] = Step("refused", _Never())
_NO_ORDER: Step[Order] = Step("refused", _Never())


def _dotted(path: Place) -> str:
    return ".".join(map(str, path))
