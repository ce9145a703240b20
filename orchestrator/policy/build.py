"""From a scheduling profile as plain data to the policies it names: what both `check` and the router call."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator import plugins
from orchestrator.core.choosing import RoleProfile, Step
from orchestrator.core.contracts import Filter, Picker, Scorer
from orchestrator.core.scheduling import SchedulingProfile
from orchestrator.errors import ParamError, PluginError, Problem
from orchestrator.policy.params import RESERVED, Params
from orchestrator.policy.profiles import ROLES, complete

GROUP = "pdctl.policies"

Place = tuple[str | int, ...]

_KINDS: Mapping[str, tuple[type, str]] = {
    "filters": (Filter, "filter"),
    "scorers": (Scorer, "score"),
    "picker": (Picker, "pick"),
}


def build(profile: str | Mapping[str, Any], base_dir: str | os.PathLike[str] = ".") -> SchedulingProfile:
    """The profile with its policies loaded, their parameters validated.

    `profile` is a shipped name or a mapping: `mode`, and for each of `prefill`, `decode` and `unified`
    (one left out is the default profile's) `filters`, `scorers` and `picker`. A step is a mapping with
    `use` (see `plugins.resolve`; files are relative to `base_dir`), a scorer's `weight`, and the
    policy's parameters; or the bare reference. Raises ParamError with every finding and its path.
    """
    data = complete(profile)
    builder = _Builder(base_dir)
    builder.only((), data, ("mode", *ROLES))
    mode = data.get("mode", "immediate")
    if mode != "immediate":
        builder.refuse(("mode",), f"mode is {mode!r}", "the mode that exists is 'immediate'")
    roles = {role: builder.role((role,), data[role]) for role in ROLES}
    if builder.findings:
        raise ParamError(builder.findings)
    return SchedulingProfile(**roles, headers=frozenset(builder.headers))


def make_policy(use: str, params: Mapping[str, Any], base_dir: str | os.PathLike[str] = ".") -> object:
    """The policy that `use` names, given `params`. Raises PluginError or ParamError."""
    cls = plugins.resolve(GROUP, use, base_dir)
    if not isinstance(cls, type):
        raise ParamError([(("use",), Problem(f"{use!r} is no class", hint="name the policy's class"))])
    model = params_model(use, cls)
    if model is None and params:
        raise ParamError([((name,), Problem(f"{use} takes no parameters", field=name)) for name in params])
    arguments = () if model is None else (_validated(use, model, params),)
    try:
        return cls(*arguments)
    except Exception as error:  # a constructor may check more than a schema can say
        problem = Problem(f"{use} does not start: {type(error).__name__}: {error}")
        raise ParamError([((), problem)]) from error


def params_model(use: str, cls: type) -> type[Params] | None:
    """The model of a policy's parameters: what its constructor's one argument is annotated with.

    None if it takes none. Raises ParamError for a constructor that fits neither.
    """
    try:
        arguments = list(inspect.signature(cls, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        problem = Problem(f"{use}: the constructor's arguments cannot be read: {error}")
        raise ParamError([(("use",), problem)]) from error
    if not arguments:
        return None
    hint = arguments[0].annotation
    if len(arguments) == 1 and isinstance(hint, type) and issubclass(hint, Params):
        return hint
    message = f"{use}: the constructor must take nothing, or one argument annotated with a subclass of Params"
    raise ParamError([(("use",), Problem(message, hint="see docs/policies.md"))])


def _validated(use: str, model: type[Params], params: Mapping[str, Any]) -> Params:
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        raise ParamError([_finding(use, model, found) for found in error.errors()]) from None


def _finding(use: str, model: type[Params], error: Any) -> tuple[Place, Problem]:
    """One of pydantic's findings as ours: the parameter, what is wrong, what may have been meant."""
    path: Place = tuple(error["loc"])
    name = ".".join(map(str, path))
    if error["type"] == "extra_forbidden":
        close = plugins.nearest(str(path[-1]), model.model_fields)
        known = ", ".join(model.model_fields) or "none"
        hint = f"did you mean {close!r}?" if close else f"its parameters: {known}"
        return path, Problem(f"{use} has no parameter {name!r}", field=name, hint=hint)
    if error["type"] == "missing":
        return path, Problem(f"{use} needs the parameter {name!r}", field=name)
    return path, Problem(f"{use}: {error['msg']}, not {error['input']!r}", field=name)


class _Builder:
    """Collects findings while it builds, so that a user sees them all at once."""

    def __init__(self, base_dir: str | os.PathLike[str]) -> None:
        self.findings: list[tuple[Place, Problem]] = []
        self.headers: set[str] = set()
        self._base_dir = base_dir

    def refuse(self, path: Place, message: str, hint: str | None = None) -> None:
        self.findings.append((path, Problem(message, field=_dotted(path), hint=hint)))

    def only(self, path: Place, data: Mapping[str, Any], known: Iterable[str]) -> None:
        """Refuse the keys of `data` that are not known."""
        for key in data:
            if key not in known:
                close = plugins.nearest(str(key), known)
                hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
                self.refuse((*path, key), f"unknown field {key!r}", hint)

    def role(self, path: Place, data: Any) -> RoleProfile:
        if not isinstance(data, Mapping):
            self.refuse(path, f"must be a mapping of {', '.join(_KINDS)}, not {data!r}")
            data = {}
        self.only(path, data, _KINDS)
        filters = self._steps((*path, "filters"), data)
        scorers = self._steps((*path, "scorers"), data)
        given = data.get("picker")
        picker = self._step((*path, "picker"), "max-score" if given is None else given)
        self._check_scorers((*path, "scorers"), [step.policy for step in scorers])
        return RoleProfile(filters=tuple(filters), scorers=tuple(scorers), picker=picker or _NO_PICKER)

    def _steps(self, path: Place, data: Mapping[str, Any]) -> list[Step[Any]]:
        listed = data.get(str(path[-1]))
        if listed is None:  # left out, or a key in YAML with nothing under it
            return []
        if not isinstance(listed, list | tuple):
            self.refuse(path, f"must be a list, not {listed!r}")
            return []
        steps: list[Step[Any]] = []
        for i, item in enumerate(listed):
            step = self._step((*path, i), item)
            if step is not None:
                same = sum(s.name.split("#")[0] == step.name for s in steps)
                name = f"{step.name}#{same + 1}" if same else step.name
                steps.append(Step(name, step.policy, step.weight))
        return steps

    def _step(self, path: Place, item: Any) -> Step[Any] | None:
        item = {"use": item} if isinstance(item, str) else item
        use = item.get("use") if isinstance(item, Mapping) else None
        if not isinstance(use, str):
            self.refuse(path, f"must be a policy's name, or a mapping with `use`, not {item!r}")
            return None
        kind = next(part for part in reversed(path) if part in _KINDS)
        params = {k: v for k, v in item.items() if k not in RESERVED}
        weight = self._weight(path, item, kind == "scorers")
        try:
            policy = make_policy(use, params, self._base_dir)
        except PluginError as error:
            for problem in error.problems:
                self.findings.append(((*path, "use"), problem))
            return None
        except ParamError as error:
            for below, problem in zip(error.paths, error.problems, strict=True):
                self.refuse((*path, *below), problem.message, problem.hint)
            return None
        if not isinstance(policy, _KINDS[str(kind)][0]):
            self._wrong_kind(path, use, policy, str(kind))
            return None
        self.headers.update(name.lower() for name in getattr(policy, "headers", ()))
        return Step(use, policy, weight)

    def _weight(self, path: Place, item: Mapping[str, Any], weighted: bool) -> float:
        weight = item.get("weight", 1.0)
        if "weight" in item and not weighted:
            self.refuse((*path, "weight"), "only scorers have a weight")
        elif isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            self.refuse((*path, "weight"), f"a weight is a positive number, not {weight!r}")
            return 1.0
        return float(weight)

    def _wrong_kind(self, path: Place, use: str, policy: object, kind: str) -> None:
        fits = [other for other, (protocol, _) in _KINDS.items() if isinstance(policy, protocol)]
        if fits:
            hint = f"it belongs under `{fits[0]}`"
        elif kind == "scorers" and hasattr(policy, "score"):
            hint = "a scorer has a class attribute `unit`: 'share' or 'seconds'"
        else:
            hint = f"under `{kind}` belongs a class with a method `{_KINDS[kind][1]}`"
        self.refuse((*path, "use"), f"{use!r} does not fit under `{kind}`", hint)

    def _check_scorers(self, path: Place, scorers: list[Any]) -> None:
        for scorer in scorers:
            if scorer.unit != "share":
                self.refuse(
                    path,
                    f"{type(scorer).__name__} scores in {scorer.unit!r}",
                    "mode 'immediate' takes scorers whose unit is 'share'",
                )
        leaning = [s for s in scorers if getattr(s, "needs_load", False)]
        if leaning and not any(getattr(s, "measures_load", False) for s in scorers):
            self.refuse(
                path,
                f"{type(leaning[0]).__name__} is the whole ranking: a popular prefix or session would draw "
                "all traffic to one endpoint, however loaded",
                "add a scorer that measures load, such as token-load or queue-depth",
            )


class _Never:
    """Stands in for a picker that was refused; the profile it is in is never returned."""

    def pick(self, request: Any, scored: Any, context: Any) -> Any:
        """Never called."""
        raise AssertionError("a refused profile was used")


_NO_PICKER: Step[Picker] = Step("refused", _Never())


def _dotted(path: Place) -> str:
    return ".".join(map(str, path))
