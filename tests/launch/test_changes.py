"""What `up` would change, in words: processes that come, go and differ, and by what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.launch.changes import Action, Change, Changes, diff, read_lock
from orchestrator.launch.paths import StateDir
from orchestrator.launch.status import InstanceStatus
from orchestrator.launch.testing import instance, plan, router, word
from orchestrator.topology.lockfile import dump, locked, parse
from orchestrator.topology.plan import InstancePlan, Plan, RouterPlan


def p(name: str = "p0", *flags: str, digest: str = "a", **more: object) -> InstancePlan:
    port = 9000 + 10 * int(name[1:])
    return instance(name, Role.PREFILL, port, ["python", "-m", "engine", *flags], digest=digest, **more)


def made(*instances: InstancePlan, front: RouterPlan | None = None) -> Plan:
    return plan(Path("/state"), *instances, router=front)


FRONT = router(8000, 8001, ["router"], digest="r")


def running(of: Plan, **states: State) -> list[InstanceStatus]:
    """Every process of a plan, READY unless said otherwise."""
    return [
        InstanceStatus(n, "", lock.role, states.get(n, State.READY), lock.url, lock.ports, "")
        for n, lock in locked(of).processes.items()
    ]


def told(before: Plan, after: Plan, **states: State) -> Changes:
    # Through bytes, as it is read from disk.
    return diff(after, parse(dump(locked(before))), running(before, **states))


def test_an_equal_plan_changes_nothing() -> None:
    same = made(p(), p("p1"), front=FRONT)
    assert told(same, same) == Changes(unchanged=("p0", "p1", "router"))


def test_what_was_never_launched_is_new() -> None:
    found = diff(made(p(node="a", devices=(0, 1))), None, [])
    assert found.changes == (Change("p0", Action.STARTED, ("new: node a, GPUs 0,1, http://127.0.0.1:9000",)),)


def test_every_kind_of_difference_is_named() -> None:
    before = p("p0", "--tp", "2", "--old", "--same", "x", env={"A": word("1"), "GONE": word("1")})
    after = p(
        "p0", "--tp", "4", "--new", "x", "--same", "x",
        digest="b", env={"A": word("2"), "MORE": word("m")}, node="b", devices=(4,),
        ports={"http": 9000, "events": 9001}, cwd="/w",
    )  # fmt: skip
    (change,) = told(made(before), made(after)).changes
    assert change == Change(
        "p0",
        Action.REPLACED,
        (
            "--tp 2 -> 4",
            "--old is gone",
            "--new x is added",
            "env A 1 -> 2",
            "env GONE 1 is gone",
            "env MORE m is added",
            "node local -> b",
            "GPUs none -> 4",
            "port events 9001 is added",
            "folder none -> /w",
        ),
    )


def test_a_secret_that_differs_is_said_and_not_shown() -> None:
    before = p("p0", env={"KEY": word("hunter2-before", secret=True)})
    after = p("p0", digest="b", env={"KEY": word("hunter2-after", secret=True)})
    found = told(made(before), made(after))
    assert "a secret in its command line" in found.changes[0].why[0]
    assert b"hunter2" not in dump(locked(made(before)))
    assert "hunter2" not in repr(found)


def test_what_is_gone_is_removed_and_what_failed_is_started() -> None:
    before = made(p(), p("p1"), p("p2"))
    found = told(before, made(p(), p("p1")), p1=State.FATAL)
    assert [(c.name, c.action) for c in found.changes] == [("p1", Action.STARTED), ("p2", Action.REMOVED)]
    assert found.changes[0].why == ("it is fatal",)
    assert found.unchanged == ("p0",)


def test_what_was_stopped_is_started_with_what_differs() -> None:
    found = diff(made(p("p0", "--new")), locked(made(p())), [])
    assert found.changes == (Change("p0", Action.STARTED, ("it does not run", "--new is added")),)


def test_the_order_of_replacements_is_told() -> None:
    before = made(p(), p("p1"))
    found = told(before, made(p(digest="b"), p("p1", digest="b")))
    assert found.order == "one after the other: p0, p1"
    decode = replace(p("p1"), role=Role.DECODE)
    together = told(made(p(), decode), made(p(digest="b"), replace(decode, digest="b")))
    assert together.order == "all at once, with a gap: p0, p1"


def test_a_router_that_only_decides_otherwise_is_reloaded() -> None:
    after = replace(FRONT, timeouts=replace(FRONT.timeouts, prefill_s=60.0), scheduling={"prefill": {"x": 1}})
    (change,) = told(made(p(), front=FRONT), made(p(), front=after)).changes
    assert (change.name, change.action) == ("router", Action.RELOADED)
    assert change.why[:2] == ("timeouts.prefill_s 300.0 -> 60.0", "scheduling.prefill none -> {'x': 1}")
    keys = replace(FRONT, credentials=replace(FRONT.credentials, client_keys=("a-key",)))
    other = replace(FRONT, credentials=replace(FRONT.credentials, client_keys=("b-key",)))
    (change,) = told(made(p(), front=keys), made(p(), front=other)).changes
    assert change.why[0] == "a key differs"


def test_external_engines_that_come_and_go_are_told_with_the_router() -> None:
    outside = replace(p("p1"), external=True, argv=())
    (change,) = told(made(p(), front=FRONT), made(p(), outside, front=FRONT)).changes
    assert change.why[0] == "external p1 http://127.0.0.1:9010 is added"


def test_a_new_version_beside_an_equal_command_line_is_noted() -> None:
    found = told(made(p(version="1.0")), made(p(version="1.1")))
    assert found.changes == ()
    assert "p0: version 1.0 was launched, 1.1 is installed now" in found.notes[0]


def test_a_lockfile_that_is_none_is_refused(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert read_lock(state) is None
    state.lockfile.write_text("{}")
    with pytest.raises(LaunchError, match="the next `pdctl up` writes it anew") as caught:
        read_lock(state)
    assert caught.value.reason == "state-damaged"
