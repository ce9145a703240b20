"""Launch profiles: YAML by engine and hardware, found by name among installed packages or by path."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import Field, ValidationError

from orchestrator import plugins
from orchestrator.core.types import Role
from orchestrator.engines.base import Setting
from orchestrator.errors import Problem
from orchestrator.topology.known import EXTENSION, json_schema
from orchestrator.topology.prior import Prior
from orchestrator.topology.problems import close_to, translate
from orchestrator.topology.settings import as_settings, layered
from orchestrator.topology.source import Place, Source, read
from orchestrator.topology.strict import Strict
from orchestrator.topology.values import CountOrNone, Duration, DurationOrZero, Env, Flags, Scope, Text

GROUP = "pdctl.profiles"
DEFAULT = "default"
"""The profile of a pool that names none, where its engine has one of this name."""


class RoleProfile(Strict):
    """What a profile sets for one role beyond what it sets for all."""

    gpus: bool | None = Field(None, description="Whether each rank takes a GPU.")
    transfer: Text | None = Field(None, description="KV transfer backend or connector.")
    flags: Flags = Field(default_factory=dict, description="Engine flags, as in a pool.")
    env: Env = Field(default_factory=dict, description="Environment, as in a pool.")
    ready_timeout: Duration | None = Field(None, description="How long an instance may take to get ready.")
    drain_timeout: DurationOrZero | None = Field(None, description="How long a stop waits before KILL.")
    max_restarts: CountOrNone | None = Field(None, description="Restarts in a row before giving up.")


class ProfileFile(RoleProfile):
    """A launch profile: what differs by hardware or site, never by protocol."""

    description: Text = Field(description="One sentence: which machines it is for.")
    card: Text | None = Field(
        None, description="The GPU it is for, a part of its name (`H200`); held against a node's `fabric`."
    )
    tried: bool = Field(True, description="`false`: written from documentation; nobody has run it yet.")
    prior: Prior | None = Field(None, description="How fast the engine is, as far as it is known.")
    extends: Text | None = Field(
        None, description="The profile it builds on: `engine/name`, or a path relative to this file."
    )
    roles: dict[Role, RoleProfile] = Field(
        default_factory=dict, description="What is different for a role; goes over the rest of the file."
    )


@dataclass(frozen=True, slots=True)
class LaunchProfile:
    """A profile resolved for one role, everything it extends included; each setting with its origin."""

    name: str | None = None
    gpus: bool = True
    transfer: str | None = None
    flags: dict[str, Setting] = field(default_factory=dict)
    env: dict[str, Setting] = field(default_factory=dict)
    ready_timeout_s: float | None = None
    drain_s: float = 30.0
    max_restarts: int = 5
    tried: bool = True
    card: str | None = None
    prior: Prior | None = None


def shipped_roots() -> list[Traversable]:
    """The folders of every installed package of profiles."""
    modules = [plugins.resolve(GROUP, name) for name in plugins.known(GROUP)]
    return [importlib.resources.files(m) for m in modules if isinstance(m, ModuleType)]


def known_profiles(roots: Sequence[Traversable], engine: str) -> list[str]:
    """The names of the profiles installed for `engine`, sorted."""
    folders = [root / engine for root in roots if (root / engine).is_dir()]
    files = [f.name for folder in folders for f in folder.iterdir() if f.name.endswith(".yaml")]
    return sorted({name.removesuffix(".yaml") for name in files})


class Finder:
    """Looks profiles up; each file is read once. `roots` are folders that hold `engine/name.yaml`."""

    def __init__(self, roots: Sequence[Traversable], base: Path) -> None:
        self._roots = roots
        self._base = base
        self._read: dict[str, tuple[Source, ProfileFile | None]] = {}

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files that were read."""
        return tuple(self._read)

    def find(self, reference: str | None, engine: str, role: Role) -> tuple[LaunchProfile, list[Problem]]:
        """The profile `reference` (None: the default one, if any) for `role`, and what is wrong with it.

        A finding without a file is about the reference itself.
        """
        if reference is None:
            if DEFAULT not in known_profiles(self._roots, engine):
                return LaunchProfile(), []
            reference = DEFAULT
        if _is_path(reference):
            path: Traversable = self._base / Path(reference).expanduser()
            return self._resolve(path, reference, role, ())
        name = reference if "/" in reference else f"{engine}/{reference}"
        return self._named(name, role, ())

    def _named(self, name: str, role: Role, seen: tuple[str, ...]) -> tuple[LaunchProfile, list[Problem]]:
        engine, _, short = name.partition("/")
        for root in self._roots:
            path = root / engine / f"{short}.yaml"
            if path.is_file():
                return self._resolve(path, name, role, seen)
        hint = close_to(short, known_profiles(self._roots, engine)) or "write ./file.yaml for one of your own"
        return LaunchProfile(), [Problem(f"there is no launch profile {name!r}", hint=hint)]

    def _resolve(
        self, path: Traversable, name: str, role: Role, seen: tuple[str, ...]
    ) -> tuple[LaunchProfile, list[Problem]]:
        key = os.path.normpath(str(path))
        if key in seen:
            return LaunchProfile(), [Problem(f"{name!r} extends this profile in turn")]
        source, parsed = self._parsed(path, name)
        if parsed is None:
            return LaunchProfile(), source.problems
        base, problems = LaunchProfile(), list[Problem]()
        if parsed.extends is not None:
            base, problems = self._base_of(path, parsed.extends, role, source, (*seen, key))
        layers: list[tuple[RoleProfile, Place]] = [(parsed, ())]
        if role in parsed.roles:
            layers.append((parsed.roles[role], ("roles", role.value)))
        for layer, place in layers:
            base = _over(base, layer, source, place)
        tried, prior = base.tried and parsed.tried, parsed.prior or base.prior
        card = parsed.card or base.card
        return replace(base, name=name, tried=tried, prior=prior, card=card), problems

    def _base_of(
        self, path: Traversable, extends: str, role: Role, source: Source, seen: tuple[str, ...]
    ) -> tuple[LaunchProfile, list[Problem]]:
        if _is_path(extends):
            target = Path(str(path)).parent / Path(extends).expanduser()
            profile, problems = self._resolve(target, extends, role, seen)
        else:
            profile, problems = self._named(extends, role, seen)
        return profile, [
            p if p.file else source.problem(("extends",), p.message, hint=p.hint) for p in problems
        ]

    def _parsed(self, path: Traversable, name: str) -> tuple[Source, ProfileFile | None]:
        key = str(path)
        if key not in self._read:
            short = Path(name).name if _is_path(name) else f"{name}.yaml"
            source = read(path, short)
            parsed = _validated(source) if source.data or not source.problems else None
            self._read[key] = source, None if source.problems else parsed
        return self._read[key]


def _is_path(reference: str) -> bool:
    return reference.startswith((".", "/", "~")) or reference.endswith((".yaml", ".yml"))


def _validated(source: Source) -> ProfileFile | None:
    try:
        # Profiles are shared between sites: nothing in them is looked up in anyone's environment.
        data = {k: v for k, v in source.data.items() if not k.startswith(EXTENSION)}
        return ProfileFile.model_validate(data, context=Scope({}))
    except ValidationError as error:
        source.problems += translate(error, source, json_schema(ProfileFile))
        return None


def _over(base: LaunchProfile, layer: RoleProfile, source: Source, place: Place) -> LaunchProfile:
    """`base` with `layer` over it."""

    def settings(kind: str, values: dict[str, Any]) -> dict[str, Setting]:
        return as_settings(
            values, lambda name: f"profile {source.origin((*place, kind, name))}", flags=kind == "flags"
        )

    changed: dict[str, Any] = {
        "gpus": layer.gpus,
        "transfer": layer.transfer,
        "ready_timeout_s": layer.ready_timeout,
        "drain_s": layer.drain_timeout,
        "max_restarts": layer.max_restarts,
    }
    return replace(
        base,
        flags=layered(base.flags, settings("flags", layer.flags)),
        env=layered(base.env, settings("env", layer.env)),
        **{name: value for name, value in changed.items() if value is not None},
    )
