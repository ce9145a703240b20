"""What `pdctl ps` and `logs` read: how a deployment stands, with a controller or without, and its logs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from orchestrator.core.breaker import Circuit
from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch import control
from orchestrator.launch.adopt import inherit, unit_for
from orchestrator.launch.launchers import Launchers
from orchestrator.launch.local import LocalLauncher
from orchestrator.launch.oom import OomWatch
from orchestrator.launch.paths import StateDir, controller_pid, reaching
from orchestrator.launch.postmortem import found_dead
from orchestrator.launch.process import alive, boot_id
from orchestrator.launch.state import Record, read_plan, read_records
from orchestrator.launch.status import OPERATOR, UNWATCHED, InstanceStatus, Phase, Status, router_last
from orchestrator.launch.unit import Unit, secrets_of, units_of
from orchestrator.topology.plan import Plan, parse

ROUTER_S = 2.0
"""How long `ps` waits for a router that is slow to tell of its endpoints."""


async def status(state: StateDir) -> Status:
    """How things stand, from the controller; without one, from its records and the process table."""
    found = await _status(state)
    found = replace(found, instances=_marked(state, found.instances))
    return await _routed(state, found) if found.instances or found.external else found


async def _routed(state: StateDir, found: Status) -> Status:
    """`found` with what the router says of the instances; as it is where no router answers."""
    # Here and not above: it loads an HTTP client, which only those who look at what runs need.
    from orchestrator.launch.routerlink import SocketRouterLink, link_of

    link = SocketRouterLink(state.router)
    plan = _plan(state)
    router = plan.router if plan is not None else None
    if plan is not None and router is not None and router.remote_admin_url:
        link = link_of(state.router, plan, link)
    seen = await link.seen(ROUTER_S)
    if seen is None:
        return found
    instances = tuple(
        replace(i, circuit=e.circuit, bad_pairs=tuple(seen.bad_with(i.name)))
        if (e := seen.endpoints.get(i.name)) is not None
        else i
        for i in found.instances
    )
    external = tuple(
        f"{line}  circuit {e.circuit}"
        if (e := seen.endpoints.get(line.split()[0])) is not None and e.circuit != Circuit.CLOSED
        else line
        for line in found.external
    )
    return replace(found, instances=instances, external=external, bad_pairs=seen.bad)


def _marked(state: StateDir, instances: tuple[InstanceStatus, ...]) -> tuple[InstanceStatus, ...]:
    """`instances` with a word at those that an operator has drained."""
    try:
        told = json.loads(state.gates.read_bytes())
        names = {name for name, holders in told.items() if OPERATOR in holders}
    except (OSError, ValueError, AttributeError, TypeError):
        # None ever was; or the router says in its log what is wrong with the file.
        return instances
    word = "drained: given nothing new until `pdctl drain --undo`"
    return tuple(
        replace(i, detail="; ".join(filter(None, (word, i.detail)))) if i.name in names else i
        for i in instances
    )


async def _status(state: StateDir) -> Status:
    if controller_pid(state) is not None:
        try:
            return await control.status(state)
        except LaunchError as error:
            # It may have ended while it was asked.
            if error.reason not in ("no-controller", "controller-gone"):
                raise
    records, problem = _records(state)
    try:
        alive_now = Launchers(state).find()
    except LaunchError as error:
        # The cluster cannot be reached: what runs there is not shown, and the reason is.
        alive_now, problem = LocalLauncher(state).find(), error.message
    boot, units = boot_id(), _units(state)
    left = inherit(records, alive_now, state.id, boot, alive)
    living = {a.record.name: a.record for a in left.adoptions}
    found: list[InstanceStatus] = []
    for name in dict.fromkeys((*records, *living)):
        record = living.get(name)
        if record is not None:
            found.append(_unwatched(state, _told(record, units), lives=True))
        elif not _stopped(records[name]):
            found.append(_unwatched(state, _dead(state, records[name], units.get(name)), lives=False))
    phase = Phase.UNWATCHED if found else Phase.STOPPED
    return Status(phase, problem=problem, instances=router_last(found))


def _records(state: StateDir) -> tuple[Mapping[str, Record], str]:
    """The records, or why they cannot be read: what lives is found without them."""
    try:
        return read_records(state.db), ""
    except LaunchError as error:
        if error.reason == "state-newer":
            raise
        return {}, error.message


def _told(record: Record, units: Mapping[str, Unit]) -> Record:
    """The record of one that lives; what it does not know itself, the plan does."""
    unit = unit_for(record, units)
    return replace(record, pool=unit.pool, role=unit.role, url=unit.url, ports=unit.ports)


def _dead(state: StateDir, record: Record, unit: Unit | None) -> Record:
    """The record of one that was not stopped on purpose, with what is known of its end."""
    if record.state in (State.FATAL, State.STOPPED):
        return record
    # Without secrets to strike out: no line of its log is shown here.
    failure, code = found_dead(state, record, unit, (), OomWatch())
    return replace(record, state=State.STOPPED, last_error=failure.full, exit_code=code)


def _stopped(record: Record) -> bool:
    """Whether a unit that does not live was stopped on purpose."""
    if record.state is State.STOPPED:
        return UNWATCHED not in record.last_error
    return record.state in (State.DRAINING, State.STOPPING)


def _unwatched(state: StateDir, record: Record, *, lives: bool) -> InstanceStatus:
    """One unit without a controller."""
    now_s = time.time()
    return InstanceStatus(
        name=record.name,
        pool=record.pool,
        role=record.role,
        state=record.state,
        url=record.url,
        ports=dict(record.ports),
        log=str(state.log(record.name)),
        pid=record.pid if lives else None,
        uptime_s=now_s - record.started_s if lives and record.started_s else None,
        since_s=max(0.0, now_s - record.changed_s),
        restarts=record.restarts,
        incarnation=record.incarnation,
        exit_code=record.exit_code,
        last_error=record.last_error,
    )


def _units(state: StateDir) -> Mapping[str, Unit]:
    """The units of the plan that was being run, for what their adapters make of a log; none if it cannot be
    read."""
    try:
        plan = _plan(state)
        return {} if plan is None else units_of(plan)
    except LaunchError:
        return {}


def _plan(state: StateDir) -> Plan | None:
    """The plan that is being run; None if it cannot be read."""
    try:
        return parse(state.plan.read_bytes())
    except (OSError, ValueError):
        return None


def secrets(state: StateDir) -> frozenset[str]:
    """The secrets of the plan in `state`, to be struck out of what is shown; none if there is no plan.

    Raises LaunchError when there may be secrets and none can be told.
    """
    try:
        with reaching(state.plan):
            return secrets_of(parse(state.plan.read_bytes()))
    except FileNotFoundError:
        return frozenset()
    except ValueError:
        # Cut off, or of another version; it is remembered once more as it was asked for.
        return _asked_for(state)


def _asked_for(state: StateDir) -> frozenset[str]:
    try:
        data = read_plan(state.db)
        return frozenset() if data is None else secrets_of(parse(data))
    except ValueError:
        return frozenset()


def log_files(state: StateDir, name: str | None) -> list[tuple[str, Path]]:
    """(name, path) of the log of one unit (or `controller`), or of all units. Raises LaunchError."""
    known: dict[str, Path] = {}
    with reaching(state.logs), suppress(FileNotFoundError):
        known = {path.stem: path for path in sorted(state.logs.iterdir()) if path.suffix == ".log"}
    if name is not None:
        if name not in known:
            shown = ", ".join(known) or "none yet"
            raise LaunchError(f"no log of {name!r} in {state.logs}; there are: {shown}", reason="no-instance")
        return [(name, known[name])]
    units = [(n, path) for n, path in known.items() if n != "controller"]
    if not units:
        raise LaunchError(f"no logs in {state.logs}; was it ever up?", reason="no-instance")
    return units
