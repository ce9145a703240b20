"""Engines, router and streams when the controller dies, the plan changes, or all is stopped."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import ioctl
from threading import Thread
from typing import Any

import httpx
import pytest
from asking import COMPLETION, flowing, limited
from deployment import GUARD_S, Deployment, eventually, sim

from orchestrator.core.lifecycle import State
from orchestrator.launch.paths import controller_pid

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]
SLOW = 200
"""Makes a decode step 120 ms: a stream of TOKENS outlasts whatever is done meanwhile, until this ends."""

TOKENS = 1500
WIDE = 410
"""Ports enough for two pools to keep theirs when one grows."""


IN_TURN = {"profile": "round-robin"}
DECODES = ("decode-0", "decode-1")


def pools(prefill: int = 1, decode: int = 1) -> dict[str, Any]:
    return {"prefill": sim("prefill", instances=prefill), "decode": sim("decode", instances=decode)}


def long(prompt: str = "hello") -> dict[str, Any]:
    return {**limited(COMPLETION, {"prompt": prompt}, TOKENS), "ignore_eos": True}


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two of each role and a controller; every test leaves it as it was."""
    folder = tmp_path_factory.mktemp("steady")
    with Deployment(folder, pools(prefill=2, decode=2), ports=WIDE, scheduling=IN_TURN) as made:
        yield made.up()


@contextmanager
def streams(made: Deployment, *decodes: str) -> Iterator[None]:
    """One stream on each of these decode instances, which get them in turn: they go on for as long as the
    context is open, and are whole at its end."""
    with ExitStack() as slow, ExitStack() as stack:
        for name in decodes:
            slow.enter_context(made.fault(name, "slow", factor=SLOW))
        flows = [stack.enter_context(flowing(made.client, long())) for _ in decodes]
        for name in decodes:
            made.at_work(name)
        yield
        assert not any(flow.done() for flow in flows)
        slow.close()
        texts = {flow.result(GUARD_S) for flow in flows}
        assert len(texts) == 1
        assert len(texts.pop()) > TOKENS


def right(made: Deployment, references: dict[str, httpx.Client]) -> None:
    """It serves, and rightly."""
    made.serves()
    body = limited(COMPLETION, {"prompt": "which way is the sea"}, 12)
    ours, theirs = (to.post(COMPLETION, json=body) for to in (made.client, references["sglang"]))
    assert ours.status_code == 200, ours.text
    assert ours.json()["choices"] == theirs.json()["choices"]


def meanwhile(made: Deployment) -> None:
    """It serves with what there is."""
    answer = made.client.post(COMPLETION, json=limited(COMPLETION, {"prompt": "meanwhile"}, 4))
    assert answer.status_code == 200, answer.text


def kill(pid: int | None) -> None:
    assert pid
    os.kill(pid, signal.SIGKILL)


def kill_controller(made: Deployment) -> None:
    kill(controller_pid(made.state))
    eventually(lambda: controller_pid(made.state) is None)


def test_case_43_the_controller_dies_and_the_next_adopts(
    steady: Deployment, references: dict[str, httpx.Client]
) -> None:
    """Case 43: what runs serves on; the next `up` starts what is missing, and nothing else."""
    before = steady.pids()
    with streams(steady, *DECODES):
        kill_controller(steady)
        right(steady, references)
        alone = steady.pdctl("ps")
        assert alone.stdout.count("READY") == 5
        assert "no controller runs" in alone.stderr
        kill(before["prefill-1"])
        steady.up()
        after = steady.pids()
    assert after["prefill-1"] not in (None, before["prefill-1"])
    assert {**after, "prefill-1": 0} == {**before, "prefill-1": 0}
    right(steady, references)
    steady.at_rest(well=True)


def test_one_decode_more_and_one_less(steady: Deployment, references: dict[str, httpx.Client]) -> None:
    """Only what differs is started or stopped, streams go on; what is removed is drained (case 42)."""
    two = steady.pids()
    with streams(steady, *DECODES):
        steady.up("--set", "pools.decode.instances=3")
        three = steady.pids()
        assert three.items() > two.items()
        assert three.keys() - two.keys() == {"decode-2"}
        right(steady, references)
    steady.at_rest(well=True)
    with streams(steady, *DECODES, "decode-2"):
        # The file says two, as it did all along.
        down_to_two = steady.start("up", "--detach")
        eventually(lambda: steady.endpoints()["decode-2"]["gated"])
        meanwhile(steady)
    ended_well(down_to_two)
    assert steady.pids() == two
    eventually(lambda: steady.endpoints().keys() == two.keys() - {"router"})
    right(steady, references)
    steady.at_rest(well=True)


def test_an_edited_file_changes_what_it_names(
    steady: Deployment, references: dict[str, httpx.Client]
) -> None:
    """An option of one pool and a time-out of the router: the pool is replaced, the rest is not."""
    before = steady.pids()
    steady.topology["pools"]["prefill"]["options"]["max-running"] = 8
    steady.topology["router"]["timeouts"] = {"total": "30m"}
    steady.write()
    steady.up()
    after = steady.pids()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"prefill-0", "prefill-1"}
    right(steady, references)
    steady.up()
    assert steady.pids() == after


def test_restarting_one_instance(steady: Deployment, references: dict[str, httpx.Client]) -> None:
    before = steady.status()
    assert steady.pdctl("restart", "prefill-0").returncode == 0
    with streams(steady, *DECODES):
        restart = steady.start("restart", "decode-0")
        eventually(lambda: steady.endpoints()["decode-0"]["gated"])
        meanwhile(steady)
    ended_well(restart)
    after = steady.status()
    fresh = {name for name in before if before[name].pid != after[name].pid}
    assert fresh == {"prefill-0", "decode-0"}
    for name in fresh:
        assert after[name].incarnation == before[name].incarnation + 1
        assert after[name].restarts == before[name].restarts, "asked for, so none of those that count"
    right(steady, references)


def test_the_router_is_killed(steady: Deployment, references: dict[str, httpx.Client]) -> None:
    before = steady.pids()
    kill(before["router"])
    eventually(lambda: steady.pids()["router"] not in (None, before["router"]))
    eventually(lambda: steady.status()["router"].state is State.READY)
    after = steady.pids()
    assert {**after, "router": 0} == {**before, "router": 0}
    right(steady, references)


def test_nothing_outlives_down_after_the_controller_died(deploy: Deploy) -> None:
    made = deploy().up()
    kill_controller(made)
    assert len(made.marked()) == 3
    down = made.pdctl("down")
    assert (down.returncode, down.stdout) == (0, "")
    assert "no controller runs; stopping what the last one left" in down.stderr
    assert not made.marked()
    assert controller_pid(made.state) is None
    assert refuses(made)


def test_a_crash_loop_ends_with_what_to_look_at(deploy: Deploy) -> None:
    bad = sim("prefill", max_restarts=1)
    bad["options"]["faults"] = "--unreadable"  # the plan cannot know what a script's text must be
    made = deploy({**pools(), "bad": bad})
    up = made.pdctl("up", "--detach")
    assert (up.returncode, up.stdout) == (3, "")
    assert "bad-0: FATAL after 1 restart: exited with code 2 before it was ready" in up.stderr
    assert f"log: {made.state.log('bad-0')}" in up.stderr
    assert "argument --faults: expected one argument" in up.stderr
    assert "check the pool's flags against its version" in up.stderr
    assert "Traceback" not in up.stderr
    states = {name: one["state"] for name, one in made.ps().items()}
    assert states.pop("bad-0") == "fatal"
    assert set(states.values()) == {"ready"}, "case 41: the others serve"
    meanwhile(made)


def test_a_port_that_is_taken(deploy: Deploy) -> None:
    made = deploy()
    for url, whose in ((made.url, "router"), (made.admin_url, "router")):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_server((host, int(port))):
            up = made.pdctl("up", "--detach")
        assert up.returncode == 3
        assert f"{whose}: port {port}" in up.stderr
        assert f"held by pid {os.getpid()}" in up.stderr
        assert "Traceback" not in up.stderr
        assert not made.marked()


def test_a_second_up_hands_over_its_plan(deploy: Deploy) -> None:
    made = deploy(pools(), ports=WIDE)
    first = made.start("up")
    assert first.stdout is not None
    assert first.stdout.readline() == f"{made.url}\n"
    before = made.pids()
    second = made.pdctl("up", "--set", "pools.decode.instances=2")
    assert (second.returncode, second.stdout) == (0, f"{made.url}\n")
    assert f"pid {first.pid} looks after this deployment; it takes over the plan" in second.stderr
    assert made.pids().items() > before.items()
    assert first.poll() is None
    assert made.pdctl("down").returncode == 0
    out, err = first.communicate(timeout=GUARD_S)
    assert (first.returncode, out) == (0, "")
    assert err.endswith("all stopped\n")


def ended_well(process: subprocess.Popen[str]) -> None:
    """The command that was started has done what it should."""
    _, told = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, told


class Terminal:
    """A command in a terminal of its own, of which it is the foreground process group."""

    def __init__(self, made: Deployment, command: str) -> None:
        self._leader, follower = pty.openpty()
        self.shown = ""
        self.process = made.start(
            command,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal says that its last user has left
            while chunk := os.read(self._leader, 4096):
                self.shown += chunk.decode()

    def type(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def end(self) -> int:
        code = self.process.wait(GUARD_S)
        self._reader.join(GUARD_S)
        os.close(self._leader)
        return code


def test_ctrl_c_in_a_terminal_drains_and_stops_all(deploy: Deploy) -> None:
    """Case 42: the stream that runs is whole before its engine is told to end."""
    made = deploy()
    terminal = Terminal(made, "up")
    eventually(lambda: made.url in terminal.shown, lambda: terminal.shown)
    with streams(made, "decode-0"):
        terminal.type(b"\x03")
        eventually(lambda: "DRAINING" in terminal.shown, lambda: terminal.shown)
        eventually(lambda: refuses(made))
    assert terminal.end() == 0
    assert "all stopped" in terminal.shown
    assert not made.marked()
    assert "KeyboardInterrupt" not in made.log("decode-0") + made.log("router")


def refuses(made: Deployment) -> bool:
    """Whether the router takes no new connection."""
    try:
        made.client.get("/health")
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        # Connected in the moment that the listener closed.
        return False
    return False
