"""Whose the living processes are that an earlier controller left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.lifecycle import State
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.launch.adopt import Adoption, Inheritance, inherit, unit_for
from orchestrator.launch.base import Found
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.state import Record
from orchestrator.launch.unit import ROUTER, Unit

BOOT = "boot-1"
LEADER = Identity(100, 5000)
READY = Record("p1", digest="d", incarnation=3, state=State.READY, pid=100, ticks=5000, boot=BOOT)


def found(identity: Identity = LEADER, incarnation: int = 3, name: str = "p1", digest: str = "d") -> Found:
    return Found(Mark("id", name, incarnation), identity, digest)


def run(
    records: list[Record], findings: list[Found], *alive: Identity, serving: int | None = None
) -> Inheritance:
    return inherit({r.name: r for r in records}, findings, "id", BOOT, lambda i: i in alive, serving)


def adoption(record: Record, identity: Identity = LEADER) -> Adoption:
    return Adoption(record, identity, Mark("id", record.name, record.incarnation))


def test_a_recorded_process_goes_on_where_it_was() -> None:
    assert run([READY], [found()], LEADER) == Inheritance((adoption(READY),), ())


def test_it_needs_no_marker_for_that() -> None:
    """An engine may overwrite its environment with its title."""
    assert run([READY], [], LEADER) == Inheritance((adoption(READY),), ())


@pytest.mark.parametrize("state", [State.DRAINING, State.STOPPING, State.STARTING])
def test_a_stop_or_a_start_under_way_goes_on(state: State) -> None:
    record = replace(READY, state=state)
    assert run([record], [], LEADER).adoptions == (adoption(record),)


@pytest.mark.parametrize("state", [State.BACKOFF, State.FATAL])
def test_what_was_being_removed_after_a_failure_is_removed(state: State) -> None:
    assert run([replace(READY, state=state)], [], LEADER).adoptions[0].record.state is State.STOPPING


def test_a_dead_process_is_told_with_its_identity_for_its_children() -> None:
    assert run([READY], []) == Inheritance((), ((READY, LEADER),))


def test_a_reused_pid_is_not_ours() -> None:
    assert run([READY], [], Identity(100, 9999)) == Inheritance((), ((READY, LEADER),))


def test_nothing_is_believed_across_boots() -> None:
    record = replace(READY, boot="boot-0")
    assert run([record], [], LEADER) == Inheritance((), ((record, None),))


def test_controller_killed_between_fork_and_record() -> None:
    intent = replace(READY, state=State.STARTING, pid=None, ticks=None)
    other = found(Identity(90, 4000), incarnation=2)
    adopted = replace(intent, pid=100, ticks=5000, boot=BOOT)
    assert run([intent], [other, found()], LEADER) == Inheritance((adoption(adopted),), ())


def test_controller_killed_between_record_and_fork() -> None:
    intent = replace(READY, state=State.STARTING, pid=None, ticks=None)
    assert run([intent], []) == Inheritance((), ((intent, None),))


def test_without_a_database_the_marker_tells_enough() -> None:
    newest, older = found(Identity(200, 8000), incarnation=4), found()
    record = Record("p1", digest="d", incarnation=4, state=State.STARTING, pid=200, ticks=8000, boot=BOOT)
    assert run([], [older, newest], LEADER) == Inheritance((adoption(record, Identity(200, 8000)),), ())


def test_of_several_leaders_the_oldest_process_is_the_one() -> None:
    child = found(Identity(101, 5001))
    assert run([], [child, found()]).adoptions[0].identity == LEADER


OLDER = Identity(50, 4000)
"""The router of incarnation 2, from which the one on record takes over."""
ROUTERS = [found(LEADER, 3, ROUTER), found(OLDER, 2, ROUTER, "older")]


@pytest.mark.parametrize("state", [State.STARTING, State.READY])
def test_case_43_controller_killed_while_a_router_takes_over_both_live_on(state: State) -> None:
    record = replace(READY, name=ROUTER, state=state)
    left = run([record], ROUTERS, LEADER, serving=OLDER.pid)
    assert left.adoptions == (adoption(record),)
    older = replace(record, state=State.READY, digest="older", pid=50, ticks=4000)
    assert left.leaving == (Adoption(older, OLDER, Mark("id", ROUTER, 2)),)
    assert left.kept == {Mark("id", ROUTER, 2), Mark("id", ROUTER, 3)}


@pytest.mark.parametrize(
    "record",
    [
        replace(READY, name=ROUTER, state=State.STARTING),
        replace(READY, name=ROUTER, state=State.STARTING, pid=None, ticks=None),
        replace(READY, name=ROUTER, state=State.BACKOFF, pid=None, ticks=None),
    ],
)
def test_case_43_a_router_whose_successor_has_died_goes_on_as_the_router(record: Record) -> None:
    left = run([record], ROUTERS[1:], serving=OLDER.pid)
    going_on = replace(record, state=State.READY, digest="older", pid=50, ticks=4000)
    assert left == Inheritance((Adoption(going_on, OLDER, Mark("id", ROUTER, 2)),), ())


def test_a_router_that_has_handed_over_to_one_that_died_only_finishes_what_it_has() -> None:
    record = replace(READY, name=ROUTER)
    left = run([record], ROUTERS[1:], serving=None)
    assert (left.adoptions, left.ended) == ((), ((record, LEADER),))
    assert [one.identity for one in left.leaving] == [OLDER]


def test_without_a_database_the_newer_router_takes_over_from_the_older() -> None:
    left = run([], ROUTERS, serving=OLDER.pid)
    assert [(a.identity, a.record.state) for a in left.adoptions] == [(LEADER, State.STARTING)]
    assert [one.identity for one in left.leaving] == [OLDER]


def test_an_older_engine_is_a_stray() -> None:
    left = run([READY], [found(), found(OLDER, 2)], LEADER)
    assert left == Inheritance((adoption(READY),), ())


def test_a_stopped_unit_leaves_nothing_to_do() -> None:
    record = replace(READY, state=State.STOPPED, pid=None, ticks=None)
    assert run([record], []) == Inheritance((), ())


def test_the_unit_of_a_record_is_the_last_plan_s_if_it_is_the_same() -> None:
    probes = Probes(ready=(HttpCall("GET", "/ready"),), live=HttpCall("GET", "/health"))
    unit = Unit("p1", "p", "prefill", "http://127.0.0.1:1", (), {}, {"http": 1}, probes, "d")
    assert unit_for(READY, {"p1": unit}) is unit
    other = unit_for(replace(READY, digest="e", drain_s=7.0), {"p1": unit})
    assert (other.name, other.digest, other.drain_s, other.max_restarts) == ("p1", "e", 7.0, 0)
    assert not other.argv
    assert not other.probes.ready
