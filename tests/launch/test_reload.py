"""What a reload takes of a changed plan, what it tries before, and what it says when nobody answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.errors import LaunchError, TopologyError
from orchestrator.fabric import unix
from orchestrator.launch.paths import StateDir
from orchestrator.launch.reload import merge, rehearse, reload
from orchestrator.launch.state import Store
from orchestrator.policy.profiles import complete
from orchestrator.topology.plan import InstancePlan, Plan, RouterPlan, Timeouts, dump, parse

PROBES = Probes(ready=(), live=HttpCall("GET", "/health"))


def instance(name: str, **fields: Any) -> InstancePlan:
    return InstancePlan(
        name=name,
        pool=name[0],
        role=Role.PREFILL if name.startswith("p") else Role.DECODE,
        engine="sim",
        model="m",
        node="local",
        url=f"http://{name}.invalid",
        argv=(),
        env={},
        ports={},
        probes=PROBES,
        **{"digest": f"{name}-1", **fields},
    )


def plan(folder: Path, *instances: InstancePlan, **router: Any) -> Plan:
    usual: dict[str, Any] = {
        "kind": "pdctl",
        "host": "127.0.0.1",
        "port": 1,
        "admin_host": "127.0.0.1",
        "admin_port": 2,
        "url": "http://127.0.0.1:1",
        "admin_url": "http://127.0.0.1:2",
        "argv": (),
        "env": {},
        "probes": PROBES,
        "digest": "router-1",
        "scheduling": complete("priced"),
    }
    own = RouterPlan(**{**usual, **router})
    return Plan(
        name="test",
        file=str(folder / "topology.yaml"),
        base_dir=str(folder),
        state_dir=str(folder / "state"),
        seed=7,
        instances=instances or (instance("p0"), instance("d0")),
        router=own,
    )


def test_of_the_router_everything_but_its_process_is_taken(tmp_path: Path) -> None:
    running = plan(tmp_path)
    changed = plan(
        tmp_path, scheduling=complete("random"), default_class="batch", timeouts=Timeouts(prefill_s=9.0)
    )
    merged, left = merge(changed, running)
    assert left == ()
    assert merged == changed
    moved = plan(tmp_path, scheduling=complete("random"), port=99, digest="router-2")
    merged, left = merge(moved, running)
    assert left == ("the router's own addresses, limits, environment or mode differ",)
    assert merged.router is not None
    assert (merged.router.port, merged.router.digest) == (1, "router-1")
    assert merged.router.scheduling == complete("random")


def test_of_instances_only_what_changes_no_process(tmp_path: Path) -> None:
    running = plan(tmp_path, instance("p0"), instance("p1"), instance("d0"))
    changed = plan(
        tmp_path, instance("p0", labels={"rack": "r1"}), instance("d0", digest="d0-2"), instance("d1")
    )
    merged, left = merge(changed, running)
    assert merged.instances == (instance("p0", labels={"rack": "r1"}), instance("p1"), instance("d0"))
    assert left == ("p1 differs or is gone", "d0 differs or is gone", "d1 is new")


@pytest.mark.parametrize("kind", ["none", "sglang"])
def test_another_router_does_not_reload(tmp_path: Path, kind: str) -> None:
    other = plan(tmp_path)
    assert other.router is not None
    other = replace(other, router=None if kind == "none" else replace(other.router, kind=kind))
    with pytest.raises(TopologyError, match=f"is '{kind}': only pdctl's own router reloads"):
        merge(other, plan(tmp_path))


def test_a_profile_is_rehearsed_on_idle_engines_as_the_plan_has_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "class Own:\n"
        "    def filter(self, request, candidates, context):\n"
        "        return [c for c in candidates if c.labels['rack'] == 'r1' and c.requests == 0]\n"
    )
    scheduling = complete({"prefill": {"filters": ["./own.py:Own"]}})
    rehearse(plan(tmp_path, instance("p0", labels={"rack": "r1"}), instance("d0"), scheduling=scheduling))
    unlabelled = plan(tmp_path, instance("p0"), instance("d0"), scheduling=scheduling)
    with pytest.raises(TopologyError, match=r"on 3 made-up requests policy .*KeyError: 'rack'") as caught:
        rehearse(unlabelled)
    assert caught.value.reason == "profile-refused"
    elsewhere = plan(tmp_path, instance("p0", labels={"rack": "r2"}), instance("d0"), scheduling=scheduling)
    with pytest.raises(TopologyError, match="it would refuse 3 of 3 made-up requests"):
        rehearse(elsewhere)


@pytest.mark.parametrize("name", ["slo", "predicted-shed"])
def test_shipped_profiles_pass(tmp_path: Path, name: str) -> None:
    rehearse(plan(tmp_path, scheduling=complete(name), slo_classes={"fast": {}}))


@asynccontextmanager
async def router(state: StateDir, *answers: tuple[int, Any]) -> AsyncIterator[list[Any]]:
    """A router's end: notes what it is asked, and answers in turn."""
    asked: list[Any] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(h.split(":")[1]) for h in head.split("\r\n") if h.startswith("content-length"))
        asked.append(json.loads(await reader.readexactly(length)))
        status, told = answers[len(asked) - 1]
        body = json.dumps(told).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body))
        )
        writer.write(body)
        writer.close()

    server = await asyncio.start_unix_server(talk, sock=unix.bind(state.router))
    try:
        yield asked
    finally:
        server.close()


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A deployment that nobody looks after, and runs `plan`."""
    made = StateDir(tmp_path / "state")
    made.create()
    made.plan.write_bytes(dump(plan(tmp_path)))
    return made


async def test_the_router_is_asked_to_try_it_and_then_to_read_it(state: StateDir, tmp_path: Path) -> None:
    changed = plan(tmp_path, scheduling=complete("random"))
    answers = ((200, {"reloaded": False, "policies": "fine"}), (200, {"reloaded": True}))
    async with router(state, *answers) as asked:
        done = await reload(changed)
    assert (done.policies, done.left) == ("fine", ())
    assert asked == [
        {"dry_run": True, "force": False, "scheduling": complete("random")},
        {"force": False},
    ]
    assert parse(state.plan.read_bytes()) == changed
    store = Store(state.db)
    assert store.plan() == dump(changed)
    store.close()


async def test_a_dry_run_asks_only(state: StateDir, tmp_path: Path) -> None:
    before = state.plan.read_bytes()
    async with router(state, (200, {"reloaded": False, "policies": "fine"})) as asked:
        await reload(plan(tmp_path, scheduling=complete("random")), dry_run=True)
    assert len(asked) == 1
    assert state.plan.read_bytes() == before


async def test_what_the_router_refuses_is_not_written(state: StateDir, tmp_path: Path) -> None:
    before = state.plan.read_bytes()
    refusal = {"error": {"message": "the plan in use stays: it would refuse all", "code": "profile-refused"}}
    async with router(state, (400, refusal)):
        with pytest.raises(TopologyError, match="it would refuse all") as caught:
            await reload(plan(tmp_path, scheduling=complete("random")))
    assert caught.value.reason == "profile-refused"
    assert state.plan.read_bytes() == before


async def test_what_fails_here_never_reaches_the_router(state: StateDir, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "class Own:\n    def filter(self, request, candidates, context):\n        1 / 0\n"
    )
    bad = plan(tmp_path, scheduling=complete({"prefill": {"filters": ["./own.py:Own"]}}))
    async with router(state, (200, {"policies": "bad"}), (200, {})) as asked:
        with pytest.raises(TopologyError, match="ZeroDivisionError"):
            await reload(bad)
        assert asked == []
        await reload(bad, force=True)
    assert [body["force"] for body in asked] == [True, True]


@pytest.mark.parametrize("answer", [(200, ["x"]), (500, {}), (404, {"error": "x"})])
async def test_an_answer_that_is_none(state: StateDir, tmp_path: Path, answer: tuple[int, Any]) -> None:
    async with router(state, answer):
        with pytest.raises(LaunchError, match="the router does not answer at"):
            await reload(plan(tmp_path), dry_run=True)


async def test_nobody_answers(state: StateDir, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the router does not answer at") as caught:
        await reload(plan(tmp_path))
    assert caught.value.reason == "no-router"


async def test_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nothing runs in") as caught:
        await reload(plan(tmp_path))
    assert caught.value.reason == "not-running"


async def test_what_runs_is_of_another_version(state: StateDir, tmp_path: Path) -> None:
    state.plan.write_bytes(b"{}")
    with pytest.raises(LaunchError, match="is no plan of this version"):
        await reload(plan(tmp_path))
