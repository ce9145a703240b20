"""Which living processes of earlier controllers are whose, as a pure function of records and findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.lifecycle import State
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.launch.base import Found
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.state import Record
from orchestrator.launch.unit import ROUTER, Unit

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
    children of it may be left (with its identity, if it is of this boot). `leaving` are routers that the one
    among the adoptions takes over from, or has taken over from, the newest first."""

    adoptions: tuple[Adoption, ...]
    ended: tuple[tuple[Record, Identity | None], ...]
    leaving: tuple[Adoption, ...] = ()

    @property
    def kept(self) -> frozenset[Mark]:
        """The marks of all that is adopted."""
        return frozenset(one.mark for one in (*self.adoptions, *self.leaving))


def inherit(
    records: Mapping[str, Record],
    found: Sequence[Found],
    state_id: str,
    boot: str,
    alive: Callable[[Identity], bool],
    serving: int | None = None,
) -> Inheritance:
    """Match `records` with what lives.

    A recorded process is adopted by its identity. A record without one is of a controller that died
    between starting a process and writing its pid down: the marked leader of that incarnation is the one.
    Without any record (the database is gone) the newest marked leader is. Everything else that is marked
    is a stray, but for routers: two of them live while one takes over from the other, which serves until then
    and finishes its streams after that. `serving` is the pid of the one that answers as the router; if it is
    the older one and the newer one is gone, it goes on as the router.
    """
    adoptions: list[Adoption] = []
    ended: list[tuple[Record, Identity | None]] = []
    leaving: list[Adoption] = []
    by_name: dict[str, list[Found]] = {}
    for item in found:
        by_name.setdefault(item.mark.name, []).append(item)
    for name in dict.fromkeys((*records, *by_name)):
        record = records.get(name)
        # Of several, the oldest process: the others may be its children with sessions of their own.
        leaders = sorted(by_name.get(name, ()), key=lambda f: (-f.mark.incarnation, f.identity.ticks))
        newest = record.incarnation if record else leaders[0].mark.incarnation
        older = [f for f in leaders if f.mark.incarnation < newest] if name == ROUTER else []
        alone = len(older) == len(leaders) > 0 and older[0].identity.pid == serving
        recorded = record.identity(boot) if record else None
        twin = _recorded(record, leaders)
        if record is not None and twin is not None:
            adoptions.append(Adoption(_resumable(record), twin.identity, twin.mark))
        elif record is not None and recorded is not None and alive(recorded):
            mark = Mark(state_id, name, record.incarnation)
            adoptions.append(Adoption(_resumable(record), recorded, mark))
        elif record is not None and alone:
            adoptions.append(_as(older.pop(0), State.READY, record, boot))
        else:
            if record is not None:
                leaders = [f for f in leaders if record.pid is None and f.mark.incarnation == newest]
                if not leaders and (record.pid is not None or record.state in _GOES_ON):
                    ended.append((record, recorded))
            if leaders:
                adoptions.append(_as(leaders[0], State.STARTING, record, boot))
        leaving += [_as(one, State.READY, record, boot) for one in older]
    return Inheritance(tuple(adoptions), tuple(ended), tuple(leaving))


def _recorded(record: Record | None, leaders: Sequence[Found]) -> Found | None:
    """The leader that `record` tells of, wherever it runs: on another host, neither its pid nor the boot says
    anything here."""
    if record is None or record.pid is None:
        return None
    known = (record.incarnation, record.pid, record.ticks)
    return next((f for f in leaders if (f.mark.incarnation, f.identity.pid, f.identity.ticks) == known), None)


def _as(found: Found, state: State, record: Record | None, boot: str) -> Adoption:
    """What was found, adopted in `state`; the numbering goes on from `record`."""
    mark, identity = found.mark, found.identity
    known = record or Record(mark.name, incarnation=mark.incarnation)
    digest = found.digest or known.digest
    known = replace(known, state=state, digest=digest, pid=identity.pid, ticks=identity.ticks, boot=boot)
    return Adoption(known, identity, mark)


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
