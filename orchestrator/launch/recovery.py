"""What a controller does first: adopts what an earlier one left running, and ends what belongs to nobody."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.lifecycle import State
from orchestrator.errors import LaunchError
from orchestrator.launch.adopt import Adoption, inherit, unit_for
from orchestrator.launch.base import Found, Process
from orchestrator.launch.fleet import Fleet
from orchestrator.launch.keeper import Keeper
from orchestrator.launch.postmortem import found_dead
from orchestrator.launch.process import Mark, alive, boot_id
from orchestrator.launch.shell import Shell
from orchestrator.launch.state import Record
from orchestrator.launch.unit import ROUTER, Unit, secrets_of, units_of
from orchestrator.topology.plan import parse

log = logging.getLogger(__name__)


async def recover(fleet: Fleet) -> None:
    """Make the fleet of what lives and what is on record."""
    shell = fleet.shell
    fleet.records = shell.store.records()
    units = _last_units(fleet)
    found = shell.launcher.find()
    serving = await _serving(shell, found, fleet.records.get(ROUTER))
    left = inherit(fleet.records, found, shell.state.id, boot_id(), alive, serving)
    for record, leader in left.ended:
        gone = _buried(shell, record, units.get(record.name))
        if leader is not None:
            mark = Mark(shell.state.id, record.name, record.incarnation)
            await shell.launcher.adopt(leader, mark).sweep(0.0)
        fleet.records[record.name] = gone
        shell.store.put(gone)
    before = [_adopted(fleet, one, units) for one in left.leaving]
    for adoption in left.adoptions:
        record = adoption.record
        log.info("%s: adopted pid %d, which is %s", record.name, adoption.identity.pid, record.state)
        process = shell.launcher.adopt(adoption.identity, adoption.mark)
        follows = before[0] if before and record.name == ROUTER else None
        fleet.keep(Keeper(unit_for(record, units), shell, record, process, follows))
    await shell.launcher.sweep_strays(left.kept)


async def _serving(shell: Shell, found: Sequence[Found], record: Record | None) -> int | None:
    """The pid of the process that answers as the router, where it is not clear who that is."""
    pid = None if record is None else record.pid
    doubtful = any(one.mark.name == ROUTER and one.identity.pid != pid for one in found)
    return await shell.router.pid() if doubtful else None


def _adopted(fleet: Fleet, adoption: Adoption, units: dict[str, Unit]) -> Process:
    """A router that another one follows goes on until it has handed over and finished what it has."""
    shell, record = fleet.shell, adoption.record
    log.info("%s: pid %d serves until another has taken over", record.name, adoption.identity.pid)
    process = shell.launcher.adopt(adoption.identity, adoption.mark)
    keeper = Keeper(unit_for(record, units), shell, record, process)
    keeper.superseded = True
    fleet.see_off(keeper)
    return process


def _buried(shell: Shell, record: Record, unit: Unit | None) -> Record:
    """The record of a unit that ended unwatched, with what is known of its end."""
    gone = replace(record, state=State.STOPPED, pid=None, ticks=None)
    if record.state in (State.DRAINING, State.STOPPING):
        # One that was told to end did what it was told.
        return gone
    failure, code = found_dead(shell.state, record, unit, shell.secrets, shell.oom)
    log.warning("%s: %s", record.name, failure.full)
    for line in failure.lines:
        log.warning("%s: | %s", record.name, line)
    return replace(gone, last_error=failure.full, exit_code=code)


def _last_units(fleet: Fleet) -> dict[str, Unit]:
    """The units of the plan that was being run; none if it cannot be read any more."""
    path = fleet.shell.state.plan
    try:
        plan = parse(path.read_bytes())
        units = units_of(plan)
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("%s is not used: %s", path, error.strerror or error)
        return {}
    except (ValueError, LaunchError):
        # Not the error itself: it quotes what it did not like, and plans hold keys.
        log.warning("%s is not used: it is no plan of this version", path)
        return {}
    fleet.instances = {i.name: i for i in plan.instances}
    fleet.shell.secrets |= secrets_of(plan)
    return units
