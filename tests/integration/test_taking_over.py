"""What is replaced while others serve: routers that hand over, instances that are drained or hang."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from asking import COMPLETION, flowing, limited
from deployment import GUARD_S, Deployment, eventually, sim

from orchestrator.launch.paths import controller_pid

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]
SLOW = 100
TOKENS = 600


@contextmanager
def asking(made: Deployment, *, kept: bool) -> Iterator[list[object]]:
    """A client that asks without a pause, on one connection or on a new one each time; what it got."""
    got: list[object] = []
    over = threading.Event()
    limits = None if kept else httpx.Limits(max_keepalive_connections=0)
    body = limited(COMPLETION, {"prompt": "once more"}, 2)

    def ask() -> None:
        with httpx.Client(
            base_url=made.url, timeout=GUARD_S, trust_env=False, limits=limits or httpx.Limits()
        ) as client:
            while not over.is_set():
                try:
                    got.append(client.post(COMPLETION, json=body).status_code)
                except httpx.HTTPError as error:
                    got.append(repr(error))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield got
    finally:
        over.set()
        thread.join()


def test_case_42_a_restarted_router_hands_over_what_it_listens_on(deploy: Deploy) -> None:
    made = deploy({"prefill": sim("prefill"), "decode": sim("decode", instances=2)}).up()
    before = made.pids()
    body = {**limited(COMPLETION, {"prompt": "a long story"}, TOKENS), "ignore_eos": True}
    with (
        asking(made, kept=True) as on_one,
        asking(made, kept=False) as on_many,
        made.fault("decode-0", "slow", factor=SLOW),
        made.fault("decode-1", "slow", factor=SLOW),
        flowing(made.client, body) as text,
    ):
        eventually(lambda: len(on_one) > 3 and len(on_many) > 3)
        restarting = made.start("restart", "router")
        eventually(lambda: made.pids()["router"] not in (None, before["router"]))
        seen = len(on_one), len(on_many)
        eventually(lambda: len(on_one) > seen[0] + 3 and len(on_many) > seen[1] + 3)
        assert not text.done()
        for name in ("decode-0", "decode-1"):
            httpx.delete(f"{made.engines()[name]}/sim/faults", trust_env=False)
        assert len(text.result(GUARD_S)) > TOKENS
        assert restarting.wait(GUARD_S) == 0, restarting.communicate()
    assert set(on_one) == set(on_many) == {200}
    assert {**made.pids(), "router": 0} == {**before, "router": 0}
    assert "took over from the router before" in made.log("router")
    assert len([m for m in made.marked().values() if m.name == "router"]) == 1, "the old one has gone"
    made.at_rest(well=True)


def test_case_43_a_controller_killed_while_a_router_takes_over_costs_nobody_anything(deploy: Deploy) -> None:
    made = deploy({"prefill": sim("prefill"), "decode": sim("decode", instances=2)}).up()
    first, url = made.pids()["router"], made.engines()["decode-1"]
    assert first
    assert made.pdctl("drain", "decode-1").returncode == 0

    def kill_controller() -> None:
        controller = controller_pid(made.state)
        assert controller
        os.kill(controller, signal.SIGKILL)
        eventually(lambda: controller_pid(made.state) is None)

    def routers() -> set[int]:
        return {identity.pid for identity, mark in made.marked().items() if mark.name == "router"}

    def serving() -> int:
        return int(httpx.get(f"{made.admin_url}/health", trust_env=False).json()["pid"])

    body = {**limited(COMPLETION, {"prompt": "a long story"}, TOKENS), "ignore_eos": True}
    with (
        asking(made, kept=False) as got,
        made.fault("decode-0", "slow", factor=SLOW),
        flowing(made.client, body) as text,
    ):
        eventually(lambda: len(got) > 3)
        # The new router waits a while for engines that it cannot find.
        httpx.post(f"{url}/sim/faults", json=[{"kind": "refuse", "for_s": 200}], trust_env=False)
        restarting = made.start("restart", "router")
        eventually(lambda: len(routers()) == 2)
        second = next(iter(routers() - {first}))
        kill_controller()
        restarting.wait(GUARD_S)
        made.pdctl("up", "--detach", "--timeout", "1s")
        eventually(lambda: serving() == second)
        kill_controller()
        made.pdctl("up", "--detach", "--timeout", "1s")
        assert routers() == {first, second}, "the older one has a stream to finish"
        httpx.delete(f"{made.engines()['decode-0']}/sim/faults", trust_env=False)
        assert len(text.result(GUARD_S)) > TOKENS
        eventually(lambda: routers() == {second})
    assert set(got) == {200}
    made.up()
    assert made.pids()["router"] == second
    made.at_rest()


def test_another_mode_of_scheduling_takes_another_router(deploy: Deploy) -> None:
    made = deploy(scheduling={"profile": "round-robin"}).up()
    before = made.pids()
    made.up("--set", "scheduling.profile=slo")
    after = made.pids()
    assert after["router"] != before["router"]
    assert {**after, "router": 0} == {**before, "router": 0}
    assert made.client.post(COMPLETION, json=limited(COMPLETION, {"prompt": "x"}, 2)).status_code == 200


def test_case_44_a_router_that_cannot_start_leaves_the_one_before_in_place(deploy: Deploy) -> None:
    made = deploy().up()
    before = made.pids()
    with asking(made, kept=False) as got:
        bad = made.pdctl("up", "--detach", "--set", "router.env.PYTHONHOME=/nowhere")
    assert bad.returncode == 3
    assert "the new router did not take over, the one before serves on" in bad.stderr
    assert set(got) == {200}
    assert made.pids() == before
    made.up()
    assert made.client.post(COMPLETION, json=limited(COMPLETION, {"prompt": "x"}, 2)).status_code == 200


def test_a_drained_instance_stays_so_until_that_is_undone(deploy: Deploy) -> None:
    made = deploy({"prefill": sim("prefill"), "decode": sim("decode", instances=2)}).up()
    body = {**limited(COMPLETION, {"prompt": "a story"}, TOKENS), "ignore_eos": True}
    with (
        made.fault("decode-0", "slow", factor=SLOW),
        made.fault("decode-1", "slow", factor=SLOW),
        flowing(made.client, body) as text,
    ):
        busy = next(n for n in ("decode-0", "decode-1") if made.engine_state(n)["calls"])
        late = made.pdctl("drain", busy, "--timeout", "200ms")
        assert late.returncode == 3
        assert "1 requests and" in late.stderr
        waiting = made.start("drain", busy)
        httpx.delete(f"{made.engines()[busy]}/sim/faults", trust_env=False)
        assert len(text.result(GUARD_S)) > TOKENS
        assert waiting.wait(GUARD_S) == 0
    assert "drained: given nothing new" in made.pdctl("ps").stdout
    made.pdctl("restart", "router")
    made.pdctl("restart", busy)
    eventually(lambda: made.endpoints()[busy]["joined"])
    assert made.endpoints()[busy]["gates"] == ["operator"]
    for _ in range(6):
        assert made.client.post(COMPLETION, json=limited(COMPLETION, {"prompt": "x"}, 2)).status_code == 200
    assert made.metrics().get(f'pdctl_endpoint_ready{{endpoint="{busy}"}}', 0) == 0
    assert made.pdctl("drain", "nobody").returncode == 3
    opened = made.pdctl("drain", busy, "--undo")
    assert (opened.returncode, opened.stdout) == (0, f"{busy} is given work again\n")
    made.serves(busy)
    assert "drained" not in made.pdctl("ps").stdout


def hangs(made: Deployment, pid: int | None) -> None:
    """Wait until another process is in the place of decode-0, and all is as before."""
    eventually(lambda: made.pids()["decode-0"] not in (None, pid), lambda: made.log("controller"))
    assert "hung: " in made.ps()["decode-0"]["last_error"]
    made.serves()
    assert made.client.post(COMPLETION, json=limited(COMPLETION, {"prompt": "x"}, 2)).status_code == 200
    made.at_rest()


def test_case_40_an_engine_whose_scheduler_hangs_is_started_anew(deploy: Deploy) -> None:
    made = deploy(router={"timeouts": {"stall": "2s"}}).up()
    pid = made.pids()["decode-0"]
    with made.fault("decode-0", "slow", factor=SLOW):
        body = {**limited(COMPLETION, {"prompt": "a story"}, TOKENS), "ignore_eos": True}
        with flowing(made.client, body) as text, made.fault("decode-0", "freeze"):
            hangs(made, pid)
        with pytest.raises(AssertionError, match="engine-hung"):
            text.result(GUARD_S)


def test_case_39_a_stopped_engine_is_started_anew_and_a_drained_one_is_left(deploy: Deploy) -> None:
    made = deploy(router={"timeouts": {"first_token": "2s", "stall": "2s"}}).up()
    pid = made.pids()["decode-0"]
    assert pid
    assert made.pdctl("drain", "decode-0").returncode == 0
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: made.endpoints()["decode-0"]["hung"])
    assert made.pids()["decode-0"] == pid
    assert made.pdctl("drain", "decode-0", "--undo").returncode == 0
    hangs(made, pid)
