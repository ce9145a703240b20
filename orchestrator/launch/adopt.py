"""Which living processes of earlier controllers are whose, as a pure function of records and findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.lifecycle import State
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.launch.base import Found
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.state import Record
from orchestrator.launch.unit import Unit

_GOES_ON = frozenset({State.STARTING, State.READY, State.DRAINING, State.STOPPING})


@dataclass(frozen=True, slots=True)
class Adoption:
    """A living process and the record to go on with."""

    record: Record
    identity: Identity
    mark: Mark


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What an earlier controller left: processes to adopt, and units whose leader ended unwatched, so that
    children of it may be left (with its identity, if it is of this boot)."""

    adoptions: tuple[Adoption, ...]
    ended: tuple[tuple[Record, Identity | None], ...]


def inherit(
    records: Mapping[str, Record],
    found: Sequence[Found],
    state_id: str,
    boot: str,
    alive: Callable[[Identity], bool],
) -> Inheritance:
    """Match `records` with what lives.

    A recorded process is adopted by its identity. A record without one is of a controller that died
    between starting a process and writing its pid down: the marked leader of that incarnation is the one.
    Without any record (the database is gone) the newest marked leader is. Everything else that is marked
    is a stray.
    """
    adoptions: list[Adoption] = []
    ended: list[tuple[Record, Identity | None]] = []
    by_name: dict[str, list[Found]] = {}
    for item in found:
        by_name.setdefault(item.mark.name, []).append(item)
    for name in dict.fromkeys((*records, *by_name)):
        record = records.get(name)
        # Of several, the oldest process: the others may be its children with sessions of their own.
        leaders = sorted(by_name.get(name, ()), key=lambda f: (-f.mark.incarnation, f.identity.ticks))
        recorded = record.identity(boot) if record else None
        if record is not None and recorded is not None and alive(recorded):
            mark = Mark(state_id, name, record.incarnation)
            adoptions.append(Adoption(_resumable(record), recorded, mark))
            continue
        if record is not None:
            leaders = [f for f in leaders if record.pid is None and f.mark.incarnation == record.incarnation]
            if not leaders and (record.pid is not None or record.state in _GOES_ON):
                ended.append((record, recorded))
        if leaders:
            leader = leaders[0]
            known = record or Record(name, digest=leader.digest, incarnation=leader.mark.incarnation)
            known = replace(
                known,
                state=State.STARTING,
                pid=leader.identity.pid,
                ticks=leader.identity.ticks,
                boot=boot,
            )
            adoptions.append(Adoption(known, leader.identity, leader.mark))
    return Inheritance(tuple(adoptions), tuple(ended))


def unit_for(record: Record, units: Mapping[str, Unit]) -> Unit:
    """The unit a record tells of; one without command or probes if no plan tells more. Such a unit can be
    watched and stopped, and the next plan replaces it."""
    unit = units.get(record.name)
    if unit is not None and unit.digest == record.digest:
        return unit
    return Unit(
        name=record.name,
        pool=record.pool,
        role=record.role,
        url=record.url,
        argv=(),
        env={},
        ports=record.ports,
        probes=Probes(ready=(), live=HttpCall("GET", "/")),
        digest=record.digest,
        max_restarts=0,
        drain_s=record.drain_s,
    )


def _resumable(record: Record) -> Record:
    """The record in a state that a living process can be in."""
    if record.state in _GOES_ON:
        return record
    # It had failed and was being removed when its controller died: that goes on.
    return replace(record, state=State.STOPPING)
