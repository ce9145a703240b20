"""What `pdctl up` would change, in words: a plan against the lockfile and what lives of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch.paths import StateDir, reaching
from orchestrator.launch.reconcile import Current, Target, reconcile
from orchestrator.launch.status import InstanceStatus
from orchestrator.launch.unit import ROUTER, Unit, units_of
from orchestrator.topology.lockfile import Locked, Lockfile, locked, parse
from orchestrator.topology.plan import Plan

_RELOADED = "the running router takes it up, no stream is touched"
_NOWHERE = object()


class Action(StrEnum):
    """What becomes of a process."""

    STARTED = "started"
    REPLACED = "replaced"
    REMOVED = "removed"
    RELOADED = "reloaded"


@dataclass(frozen=True, slots=True)
class Change:
    """One process that `up` would touch, and why: what differs of it, one flag or variable a line."""

    name: str
    action: Action
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """All that `up` would do. `order` says how what serves is replaced; `notes` are about what it would leave
    as it is although something is new."""

    changes: tuple[Change, ...] = ()
    unchanged: tuple[str, ...] = ()
    order: str = ""
    notes: tuple[str, ...] = field(default=())


def read_lock(state: StateDir) -> Lockfile | None:
    """The lockfile of a state directory; None if nothing was launched there yet. Raises LaunchError for one
    that cannot be read."""
    try:
        with reaching(state.lockfile):
            return parse(state.lockfile.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise LaunchError(
            f"{state.lockfile} is no lockfile of this version of pdctl; the next `pdctl up` writes it anew",
            reason="state-damaged",
        ) from None


def diff(plan: Plan, lock: Lockfile | None, running: Sequence[InstanceStatus]) -> Changes:
    """What `up` with `plan` would do to the deployment of `lock`, as it stands in `running`."""
    units, new = units_of(plan), locked(plan)
    old: Mapping[str, Locked] = {} if lock is None else lock.processes
    have = {
        i.name: Current(
            i.role, old[i.name].digest if i.name in old else "", i.state, frozenset(i.ports.values())
        )
        for i in running
        if i.state is not State.STOPPED
    }
    found = reconcile({name: _target(unit) for name, unit in units.items()}, have)
    replaced = {name for wave in found.waves for name in wave}
    lives = {i.name: i for i in running}
    changes = [Change(n, Action.STARTED, tuple(_start(n, new, old, lives))) for n in found.start]
    changes += [
        Change(n, Action.REPLACED, tuple(differences(old.get(n), new.processes[n]))) for n in sorted(replaced)
    ]
    changes += [Change(n, Action.REMOVED) for n in found.remove]
    kept = [n for n in units if n in have and n not in replaced and n not in found.start]
    if lock is not None and ROUTER in kept and (why := tuple(_reload(lock, new))):
        changes.append(Change(ROUTER, Action.RELOADED, (*why, _RELOADED)))
        kept.remove(ROUTER)
    order = list(units)
    changes.sort(key=lambda c: order.index(c.name) if c.name in order else len(order))
    return Changes(
        tuple(changes), tuple(kept), _order(found.waves, have), tuple(_notes(kept, old, new.processes))
    )


def differences(old: Locked | None, new: Locked) -> Iterator[str]:
    """What of a process differs, a line each: command line, environment, place."""
    if old is None:
        yield "what it was started with is not known"
        return
    before, after = _flags(old.argv), _flags(new.argv)
    told = [
        *_mapping(before, after, ""),
        *_mapping(old.env, new.env, "env "),
        *_mapping({"": old.node}, {"": new.node}, "node"),
        *_mapping({"": old.url}, {"": new.url}, "address"),
        *_mapping({"": _numbers(old.devices)}, {"": _numbers(new.devices)}, "GPUs"),
        *_mapping(_texts(old.ports), _texts(new.ports), "port "),
        *_mapping({"": old.cwd or ""}, {"": new.cwd or ""}, "folder"),
    ]
    yield from told
    if not told and old.digest != new.digest:
        yield "a secret in its command line or environment, or another process of its instance, differs"


def _start(
    name: str, new: Lockfile, old: Mapping[str, Locked], lives: Mapping[str, InstanceStatus]
) -> Iterator[str]:
    process, status = new.processes[name], lives.get(name)
    if status is not None and status.state is not State.STOPPED:
        yield f"it is {status.state.value}" + (f": {status.last_error}" if status.last_error else "")
    elif name in old:
        yield "it does not run"
        yield from differences(old[name], process)
    else:
        gpus = f", GPUs {_numbers(process.devices)}" if process.devices else ""
        yield f"new: node {process.node}{gpus}, {process.url or 'no HTTP'}"


def _reload(old: Lockfile, new: Lockfile) -> Iterator[str]:
    seen = list(_tree(old.router, new.router, ""))
    yield from seen
    yield from _mapping(old.external, new.external, "external ")
    if not seen and old.router_sha256 != new.router_sha256:
        yield "a key differs"


def _order(waves: Sequence[Sequence[str]], have: Mapping[str, Current]) -> str:
    ready = [wave for wave in waves if any(have[n].state is State.READY for n in wave)]
    if not ready:
        return ""
    if len(ready) == 1 and len(ready[0]) > 1:
        return f"all at once, with a gap: {', '.join(ready[0])}"
    return (
        "one after the other: " + ", ".join(" with ".join(wave) for wave in ready) if len(ready) > 1 else ""
    )


def _notes(kept: Sequence[str], old: Mapping[str, Locked], new: Mapping[str, Locked]) -> Iterator[str]:
    for name in kept:
        before, after = old[name].version if name in old else None, new[name].version
        if before is not None and after is not None and before != after:
            yield (
                f"{name}: version {before} was launched, {after} is installed now; `up` leaves the process "
                "as it is, `pdctl restart` takes the new one"
            )


def _target(unit: Unit) -> Target:
    return Target(unit.role, unit.digest, frozenset(unit.ports.values()), unit.instance)


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """A command line as flags with their values; what stands before the first flag is the command."""
    flags: dict[str, list[str]] = {}
    name = "command"
    for word in argv:
        if word.startswith("--"):
            name = word
            flags.setdefault(name, [])
        else:
            flags.setdefault(name, []).append(word)
    return {name: " ".join(values) for name, values in flags.items()}


def _mapping(old: Mapping[str, str], new: Mapping[str, str], what: str) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        label = f"{what}{name}".strip()
        if before is None:
            yield f"{label} {after} is added".replace("  ", " ")
        elif after is None:
            yield f"{label} {before} is gone".replace("  ", " ")
        else:
            yield f"{label} {before or 'none'} -> {after or 'none'}"


def _tree(old: Any, new: Any, place: str) -> Iterator[str]:
    """The leaves that differ, by their dotted place."""
    old, new = _plain(old), _plain(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _tree(old.get(key, _NOWHERE), new.get(key, _NOWHERE), f"{place}.{key}".lstrip("."))
    elif old != new:
        yield f"{place} {_text(old)} -> {_text(new)}"


def _plain(value: Any) -> Any:
    """As JSON would have it: the lockfile was read from there."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _text(value: Any) -> str:
    return "none" if value is _NOWHERE or value is None else str(value)


def _texts(ports: Mapping[str, int]) -> dict[str, str]:
    return {purpose: str(port) for purpose, port in ports.items()}


def _numbers(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices))
