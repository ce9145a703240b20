"""A unit: one process tree that the supervisor owns, an engine instance or the router, in one shape."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.address import url_host
from orchestrator.engines.base import HttpCall, LogHint, Probes, Word
from orchestrator.errors import LaunchError
from orchestrator.topology.plan import LOCAL, FollowerPlan, InstancePlan, Plan, RouterPlan
from orchestrator.topology.router_plan import TAKE_OVER

ROUTER = "router"
"""The router's name among the units; no instance may have it."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom an engine is to be: by which adapter it is asked, what is known of it beforehand, and what it must
    tell of itself. `silenced` are lint rules that say nothing about it."""

    engine: str
    base_dir: str
    options: Mapping[str, Any]
    facts: Mapping[str, Any]
    expects: Mapping[str, Any]
    silenced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """What the supervisor needs to know of a process it keeps.

    `follows` names the instance whose process 0 ends this one, of a further process of it on another node.
    `serving` are further calls that say whether it can do its work (the router's: whether it has found
    engines to send to); they hold up nothing but the word "ready". `keys` maps a port to the bearer token
    that probes send there; the key 0 stands for any other port. `files` are written before every start, by
    absolute path, with their text.
    """

    name: str
    pool: str
    role: str
    url: str
    argv: tuple[Word, ...]
    env: Mapping[str, Word]
    ports: Mapping[str, int]
    probes: Probes
    digest: str
    hints: tuple[LogHint, ...] = ()
    cwd: str | None = None
    max_restarts: int = 5
    drain_s: float = 30.0
    keys: Mapping[int, str] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    serving: tuple[HttpCall, ...] = ()
    follows: str = ""
    address: str = ""
    asked_at: str = ""
    """Where it is probed, if that is not `url`."""
    takes_over: bool = False
    """A new process of it takes over from the one that runs: it is started beside that, not after it."""

    @property
    def host(self) -> str:
        """The address that it listens on: that of `url`, or `address` where it has none."""
        return url_host(self.url) if self.url else self.address

    @property
    def instance(self) -> str:
        """The instance (or router) that it is a process of."""
        return self.follows or self.name

    node: str = ""
    """The topology's node that it runs on."""
    elsewhere: bool = False
    """Whether another host than this one may run it, so that what listens here tells nothing of it."""
    identity: Identity | None = None
    """Whom it is to be; None where nothing is known that it would tell."""
    wrapped: bool = False
    """Whether a program of the user's starts it, so that its processes may be anybody's children."""

    @property
    def is_router(self) -> bool:
        """Whether this is the router and not an engine."""
        return self.name == ROUTER


def _digest(given: str, argv: tuple[Word, ...], env: Mapping[str, Word], cwd: str | None) -> str:
    """The planner's digest, or for plans made by hand one over what is run."""
    if given:
        return given
    what = [[w.text for w in argv], sorted((k, w.text) for k, w in env.items()), cwd]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def of_instance(plan: InstancePlan, engine_key: str | None, base_dir: str = ".") -> Unit:
    """The unit of an engine instance that pdctl launches."""
    return Unit(
        name=plan.name,
        pool=plan.pool,
        role=plan.role.value,
        url=plan.url,
        argv=plan.argv,
        env=plan.env,
        ports=plan.ports,
        probes=plan.probes,
        digest=_digest(plan.digest, plan.argv, plan.env, plan.cwd),
        hints=plan.hints,
        cwd=plan.cwd,
        files=plan.files,
        max_restarts=plan.max_restarts,
        drain_s=plan.drain_s,
        keys={0: engine_key} if engine_key else None,
        identity=_identity(plan, base_dir),
        wrapped=plan.wrapped,
        node=plan.node,
    )


def _identity(plan: InstancePlan, base_dir: str) -> Identity | None:
    if not plan.expects:
        return None
    return Identity(plan.engine, base_dir, plan.options, plan.facts, plan.expects, plan.silenced)


def of_follower(plan: InstancePlan, follower: FollowerPlan, engine_key: str | None) -> Unit:
    """The unit of a further process of an instance on several nodes."""
    return replace(
        of_instance(plan, engine_key),
        name=follower.name,
        url=follower.url,
        argv=follower.argv,
        env=follower.env,
        ports=follower.ports,
        probes=follower.probes,
        files=follower.files,
        digest=_digest(follower.digest, follower.argv, follower.env, plan.cwd),
        follows=plan.name,
        identity=None,
        address=follower.address,
        node=follower.node,
    )


def of_router(plan: RouterPlan) -> Unit:
    """The router's unit. It is up once it answers at all: whether it finds engines is not its own doing."""
    keys: dict[int, str] = {}
    if plan.credentials.client_keys:
        keys[0] = plan.credentials.client_keys[0]
    if plan.credentials.admin_key:
        keys[plan.admin_port] = plan.credentials.admin_key
    ports = {"http": plan.port}
    if plan.admin_port:
        ports["admin"] = plan.admin_port
    return Unit(
        name=ROUTER,
        pool="",
        role=ROUTER,
        url=plan.url,
        argv=plan.argv,
        env=plan.env,
        ports=ports,
        probes=replace(plan.probes, ready=(plan.probes.live,)),
        digest=_digest(plan.digest, plan.argv, plan.env, plan.cwd),
        cwd=plan.cwd,
        max_restarts=plan.max_restarts,
        drain_s=plan.drain_s,
        keys=keys or None,
        serving=plan.probes.ready,
        asked_at=plan.admin_url if plan.tls is not None and plan.tls.client_ca is not None else "",
        takes_over=any(word.text == TAKE_OVER for word in plan.argv),
    )


def units_of(plan: Plan) -> dict[str, Unit]:
    """Every unit of the plan's node by name, in the plan's order, the router last; external instances left
    out.

    Raises LaunchError (`bad-plan`) for a name that is used twice or cannot be a file's, and for a hint that
    is no regular expression.
    """
    key = plan.router.credentials.engine_key if plan.router else None
    found: list[Unit] = []
    for instance in plan.instances:
        if not instance.external and plan.node in (None, instance.node):
            found.append(of_instance(instance, key, plan.base_dir))
        followers = (f for f in instance.followers if plan.node in (None, f.node))
        found += [of_follower(instance, f, key) for f in followers]
    found = [replace(unit, elsewhere=plan.launcher != LOCAL) for unit in found]
    if plan.router is not None and plan.router.argv and plan.node in (None, plan.router.node):
        found.append(of_router(plan.router))
    units: dict[str, Unit] = {}
    for unit in found:
        if unit.name in units or not _NAME.fullmatch(unit.name):
            raise LaunchError(
                f"an instance cannot be called {unit.name!r}: names are unique, of letters, digits, '.', "
                f"'_' and '-', and {ROUTER!r} is the router's",
                reason="bad-plan",
            )
        for hint in unit.hints:
            try:
                re.compile(hint.pattern)
            except re.error as error:
                raise LaunchError(
                    f"{unit.name}: the log hint {hint.pattern!r} of its engine adapter: {error}",
                    reason="bad-plan",
                ) from error
        units[unit.name] = unit
    return units


def secrets_of(plan: Plan) -> frozenset[str]:
    """Every secret text in the plan, so that it can be struck out of what is shown."""
    words = [w for i in plan.instances for p in i.processes for w in (*p.argv, *p.env.values())]
    found: list[str | None] = []
    if plan.router is not None:
        words += [*plan.router.argv, *plan.router.env.values()]
        keys = plan.router.credentials
        found += [*keys.client_keys, keys.engine_key, keys.admin_key]
    found += [w.text for w in words if w.secret]
    return frozenset(text for text in found if text)
