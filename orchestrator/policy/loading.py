"""One policy from its reference and parameters: what every step of a profile becomes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator import plugins
from orchestrator.errors import ParamError, Problem
from orchestrator.policy.params import Params

GROUP = "pdctl.policies"

METHODS = ("filter", "score", "key", "defer", "pick")
"""The methods that a policy may be asked by."""

Place = tuple[str | int, ...]


def make_policy(
    use: str, params: Mapping[str, Any], base_dir: str | os.PathLike[str] = ".", *, group: str = GROUP
) -> object:
    """The policy (or other plug-in of `group`) that `use` names, given `params`.

    Raises PluginError or ParamError.
    """
    cls = plugins.resolve(group, use, base_dir)
    if not isinstance(cls, type):
        raise ParamError([(("use",), Problem(f"{use!r} is no class", hint="name the policy's class"))])
    model = params_model(use, cls)
    if model is None and params:
        raise ParamError([((name,), Problem(f"{use} takes no parameters", field=name)) for name in params])
    arguments = () if model is None else (validated(use, model, params),)
    try:
        policy = cls(*arguments)
    except Exception as error:  # a constructor may check more than a schema can say
        problem = Problem(f"{use} does not start: {type(error).__name__}: {error}")
        raise ParamError([((), problem)]) from error
    for name in METHODS:
        if inspect.iscoroutinefunction(getattr(policy, name, None)):
            hint = "a decision is made at once: make it a plain function, and get what it needs beforehand"
            raise ParamError([(("use",), Problem(f"{use}: `{name}` is async", hint=hint))])
    return policy


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


def validated(use: str, model: type[Params], params: Mapping[str, Any]) -> Params:
    """`params` as the model that `use` takes. Raises ParamError with every finding."""
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
    said = error["msg"].removeprefix("Value error, ")
    given = "" if not path or said.startswith(repr(error["input"])) else f", not {error['input']!r}"
    return path, Problem(f"{use}: {said}{given}", field=name)
