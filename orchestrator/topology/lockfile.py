"""The lockfile: what was launched, word by word without secrets, with the versions and files behind it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator import __version__
from orchestrator.core.placement import Seat
from orchestrator.engines.base import Word
from orchestrator.topology import plan as plans
from orchestrator.topology.inputs import Held
from orchestrator.topology.mask import masked, shown
from orchestrator.topology.plan import Plan, RouterPlan

FILE = "lock.json"
"""Its name in the state directory."""

SCHEMA = 1
"""Of the file; another one is not read."""

ROUTER = "router"
"""What the router's process is called."""

_PROCESS = frozenset(
    (
        *("argv", "env", "probes", "url", "admin_url", "remote_admin_url", "digest", "cwd", "max_restarts"),
        *("drain_s", "node"),
    )
)
"""Fields of a router's plan that are about its process, and no settings."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One process as it was launched: secrets in `argv` and `env` are masked, but count in `digest`.

    `instance` is the one that it is a process of.
    """

    instance: str
    role: str
    node: str
    url: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ports: Mapping[str, int]
    digest: str
    devices: tuple[int, ...] = ()
    cwd: str | None = None
    engine: str = ""
    profile: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Lockfile:
    """What a state directory's deployment was made of when it was last changed.

    `plan_sha256` is over the whole plan, `sources` has a SHA-256 by path of the files that it was made from,
    `router` the settings that a running router takes up by a reload, and `router_sha256` is over them with
    their secrets.
    """

    schema: int
    pdctl: str
    written: str
    name: str
    topology: str
    node: str | None
    plan_sha256: str
    sources: Mapping[str, str]
    processes: Mapping[str, Locked] = field(default_factory=dict)
    external: Mapping[str, str] = field(default_factory=dict)
    """URLs of engines that others run, by name."""
    router: Mapping[str, Any] = field(default_factory=dict)
    router_sha256: str = ""


_ADAPTER: TypeAdapter[Lockfile] = TypeAdapter(Lockfile)


def locked(plan: Plan, wall_s: float = 0.0) -> Lockfile:
    """`plan` as its lockfile has it, written at `wall_s` (seconds since the epoch)."""
    router = plan.router
    seen = masked(plan).router
    return Lockfile(
        schema=SCHEMA,
        pdctl=__version__,
        written=datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds"),
        name=plan.name,
        topology=plan.file,
        node=plan.node,
        plan_sha256=hashlib.sha256(plans.dump(plan)).hexdigest(),
        sources=plan.sources,
        processes=dict(_processes(plan)),
        external={i.name: i.url for i in plan.instances if i.external},
        router={} if seen is None else _settings(seen),
        router_sha256=_digest({} if router is None else _settings(router)),
    )


def dump(lock: Lockfile) -> bytes:
    """The file's bytes."""
    return _ADAPTER.dump_json(lock, indent=1)


def parse(data: bytes) -> Lockfile:
    """A lockfile from `dump`'s bytes. Raises ValueError on anything else, and for another schema."""
    lock = _ADAPTER.validate_json(data)
    if lock.schema != SCHEMA:
        raise ValueError(f"schema {lock.schema}")
    return lock


def held(folder: Path, name: str) -> dict[str, Held]:
    """Where the processes of the deployment `name` were launched, by its lockfile in a state directory.

    Empty where there is none that can be read, or it is of one node of several: others could not know of it.
    """
    try:
        lock = parse((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    if lock.node is not None or lock.name != name:
        return {}
    return {
        process: Held(Seat(of.node, of.devices), of.ports)
        for process, of in lock.processes.items()
        if process != ROUTER
    }


def _processes(plan: Plan) -> Iterator[tuple[str, Locked]]:
    """What is run on the plan's node, by name, the router last."""
    for instance in plan.instances:
        common = Locked(
            *(instance.name, instance.role.value, "", "", (), {}, {}, ""),
            cwd=instance.cwd,
            engine=instance.engine,
            profile=instance.profile,
            version=instance.version,
        )
        for process in () if instance.external else instance.processes:
            if plan.node in (None, process.node):
                yield (
                    process.name,
                    replace(
                        common,
                        node=process.node,
                        url=process.url,
                        argv=tuple(map(shown, process.argv)),
                        env=_shown(process.env),
                        ports=dict(process.ports),
                        digest=process.digest,
                        devices=process.devices,
                    ),
                )
    router = plan.router
    if router is not None and router.argv and plan.node in (None, router.node):
        ports = {"http": router.port, "admin": router.admin_port}
        argv, env = tuple(map(shown, router.argv)), _shown(router.env)
        made = Locked(ROUTER, ROUTER, router.node, router.url, argv, env, ports, router.digest)
        yield ROUTER, replace(made, cwd=router.cwd, engine=router.kind, version=__version__)


def _settings(router: RouterPlan) -> dict[str, Any]:
    """What a router is configured with beyond its process, as plain data."""
    return {name: value for name, value in asdict(router).items() if name not in _PROCESS}


def _digest(settings: Mapping[str, Any]) -> str:
    # As JSON: a plan that came over the control socket has lists where another has tuples.
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _shown(env: Mapping[str, Word]) -> dict[str, str]:
    return {name: shown(word) for name, word in env.items()}
