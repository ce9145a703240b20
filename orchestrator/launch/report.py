"""What `pdctl ps` and `logs` read: how a deployment stands, with a controller or without, and its logs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch import control
from orchestrator.launch.oom import OomWatch
from orchestrator.launch.paths import StateDir, controller_pid, reaching
from orchestrator.launch.postmortem import found_dead
from orchestrator.launch.process import alive, boot_id
from orchestrator.launch.state import Record, read_records
from orchestrator.launch.status import UNWATCHED, InstanceStatus, Phase, Status, parse_status, router_last
from orchestrator.launch.unit import secrets_of, units_of
from orchestrator.topology.plan import Plan, parse


async def status(state: StateDir) -> Status:
    """How things stand, from the controller; without one, from its records and the process table."""
    if controller_pid(state) is not None:
        return parse_status((await control.call(state, "status"))["status"])
    records, plan, boot = read_records(state.db), _plan(state), boot_id()
    units = units_of(plan) if plan is not None else {}
    struck = secrets_of(plan) if plan is not None else frozenset()
    found: list[InstanceStatus] = []
    for record in records.values():
        identity = record.identity(boot)
        lives = identity is not None and alive(identity)
        if not lives:
            if _stopped(record):
                continue
            if record.state not in (State.FATAL, State.STOPPED):
                failure, code = found_dead(state, record, units.get(record.name), struck, OomWatch())
                record = replace(record, last_error=failure.full, exit_code=code)
        found.append(_unwatched(state, record, lives=lives))
    return Status(Phase.UNWATCHED if found else Phase.STOPPED, instances=router_last(found))


def _stopped(record: Record) -> bool:
    """Whether a unit that does not live was stopped on purpose."""
    if record.state is State.STOPPED:
        return UNWATCHED not in record.last_error
    return record.state in (State.DRAINING, State.STOPPING)


def _unwatched(state: StateDir, record: Record, *, lives: bool) -> InstanceStatus:
    """One unit without a controller."""
    now_s = time.time()
    failed = record.state is State.FATAL
    return InstanceStatus(
        name=record.name,
        pool=record.pool,
        role=record.role,
        state=record.state if lives or failed else State.STOPPED,
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


def _plan(state: StateDir) -> Plan | None:
    """The plan that was being run; None if there is none that can be read."""
    try:
        with reaching(state.plan):
            return parse(state.plan.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def secrets(state: StateDir) -> frozenset[str]:
    """The secrets of the plan in `state`, to be struck out of what is shown; none if there is no plan."""
    plan = _plan(state)
    return secrets_of(plan) if plan is not None else frozenset()


def log_files(state: StateDir, name: str | None) -> list[tuple[str, Path]]:
    """(name, path) of the log of one unit (or `controller`), or of all units. Raises LaunchError."""
    known = {path.stem: path for path in sorted(state.logs.glob("*.log"))}
    if name is not None:
        if name not in known:
            shown = ", ".join(known) or "none yet"
            raise LaunchError(f"no log of {name!r} in {state.logs}; there are: {shown}", reason="no-instance")
        return [(name, known[name])]
    units = [(n, path) for n, path in known.items() if n != "controller"]
    if not units:
        raise LaunchError(f"no logs in {state.logs}; was it ever up?", reason="no-instance")
    return units
