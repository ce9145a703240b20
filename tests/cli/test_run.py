"""`pdctl up`, `down`, `ps`, `logs`, `restart` as a user runs them: real processes, signals and a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from portshare import free_ports

from orchestrator.launch import report, session
from orchestrator.launch.paths import StateDir, controller_pid
from orchestrator.launch.process import Table, send
from orchestrator.launch.status import Status, ps_object

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[1] / "data" / "launch"
PDCTL = [sys.executable, "-P", "-c", "from orchestrator.cli.main import run; run()"]
GUARD_S = 60.0


class Blind:
    """A view that sees nothing."""

    def show(self, status: Status) -> None: ...

    def say(self, text: str) -> None: ...


class Shop:
    """A folder with a topology of stand-in engines, and `pdctl` run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDir(folder / "state")
        self.env = {**os.environ, "SECRET": "sk-very-secret", "COLUMNS": "120"}
        for name in ("adapter.py", "engine.py"):
            shutil.copy(DATA / name, folder / name)
        self.write()

    def write(self, *, first: int | None = None, **pools: dict[str, Any]) -> None:
        """Write the topology; `a` and `b`, one instance each, unless `pools` says otherwise."""
        self.first = first or getattr(self, "first", None) or free_ports(10)
        pools = pools or {"a": {}, "b": {}}
        common = {"role": "unified", "engine": "./adapter.py:StandIn", "drain_timeout": "5s"}
        topology = {
            "name": "shop",
            "model": {"path": "m"},
            "state_dir": "./state",
            "nodes": [{"name": "local", "gpus": 8, "ports": f"{self.first}-{self.first + 9}"}],
            "router": {"kind": "none"},
            "pools": {name: common | pool for name, pool in pools.items()},
        }
        (self.folder / "topology.yaml").write_text(json.dumps(topology))

    def pdctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PDCTL, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=GUARD_S,
            check=False,
        )

    def start(self, *words: str, **how: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PDCTL, *words],
            cwd=self.folder,
            env=self.env,
            stdout=how.pop("stdout", subprocess.PIPE),
            stderr=how.pop("stderr", subprocess.PIPE),
            text=True,
            **how,
        )

    def ps(self) -> dict[str, dict[str, Any]]:
        """What `ps --json` shows, without a process for it."""
        return {i.name: ps_object(i) for i in asyncio.run(report.status(self.state)).instances}

    def down(self) -> None:
        """`down` for tests that are about something else."""
        assert asyncio.run(session.down(self.state, Blind()))

    def marked(self) -> int:
        return len(Table.take().marked(self.state.id))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    left = Table.take().marked(shop.state.id)
    controller = controller_pid(shop.state)
    for identity in left:
        send(identity, signal.SIGKILL)
    if controller:
        os.kill(controller, signal.SIGKILL)
    assert not left, "the test left orphans"
    assert controller is None, "the test left a controller"


def eventually(holds: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + GUARD_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def take_terminal() -> None:
    """In a child that leads its session: make standard input the terminal that Ctrl-C is typed at."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=GUARD_S)
    return process.returncode, out, err


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_detached_up_ps_logs_restart_down(shop: Shop) -> None:
    up = shop.pdctl("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert up.stdout.splitlines() == [f"http://127.0.0.1:{shop.first}", f"http://127.0.0.1:{shop.first + 1}"]
    assert "a-0              STARTING" in up.stderr
    listed = json.loads(shop.pdctl("ps", "--json").stdout)
    found = {i["name"]: i for i in listed}
    assert {n: (i["state"], i["pool"], i["restarts"]) for n, i in found.items()} == {
        "a-0": ("ready", "a", 0),
        "b-0": ("ready", "b", 0),
    }
    table = shop.pdctl("ps").stdout.splitlines()
    assert table[0].split() == ["INSTANCE", "ROLE", "STATE", "PID", "UPTIME", "RESTARTS", "URL"]
    assert table[1].split()[:4] == ["a-0", "unified", "READY", str(found["a-0"]["pid"])]
    both = shop.pdctl("logs")
    assert "a-0 | loading weights" in both.stdout
    one = shop.pdctl("logs", "topology.yaml", "b-0", "-n", "1")
    assert one.stdout == "loading weights\n"
    assert shop.pdctl("restart", "topology.yaml", "b-0").returncode == 0
    after = shop.ps()
    assert after["a-0"]["pid"] == found["a-0"]["pid"]
    assert (after["b-0"]["incarnation"], after["b-0"]["pid"] == found["b-0"]["pid"]) == (2, False)
    down = shop.pdctl("down")
    assert (down.returncode, down.stdout) == (0, "")
    assert down.stderr.endswith("all stopped\n")
    assert shop.pdctl("down").stderr == f"nothing runs in {shop.state.root}\n"
    assert shop.ps() == {}


def test_detached_up_that_fails_is_explained_and_left_to_look_at(shop: Shop) -> None:
    shop.write(
        a={}, b={"max_restarts": 1, "flags": {"say": "CUDA out of memory", "exit-after": 0, "exit-code": 4}}
    )
    up = shop.pdctl("up", "--detach")
    assert (up.returncode, up.stdout) == (3, "")
    assert (
        "b-0: FATAL after 1 restart: exited with code 4 before it was ready (lower mem_fraction)" in up.stderr
    )
    assert f"  log: {shop.state.log('b-0')}" in up.stderr
    assert "  | CUDA out of memory" in up.stderr
    assert "not all is ready, what is ready serves on; see" in up.stderr
    assert "`pdctl down topology.yaml`" in up.stderr
    assert {n: i["state"] for n, i in shop.ps().items()} == {"a-0": "ready", "b-0": "fatal"}
    shop.write()
    assert shop.pdctl("up", "--detach").returncode == 0
    shop.down()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_up_stops_all_on_a_signal(shop: Shop, number: signal.Signals) -> None:
    up = shop.start("up")
    assert first_line(up) == f"http://127.0.0.1:{shop.first}\n"
    assert shop.marked() == 2
    up.send_signal(number)
    code, _, err = finish(up)
    assert (code, shop.marked()) == (0, 0)
    assert "a-0              DRAINING" in err
    assert err.endswith("all stopped\n")


def test_a_second_ctrl_c_kills(shop: Shop) -> None:
    shop.write(a={"drain_timeout": "1h", "flags": {"ignore-term": True}})
    up = shop.start("up")
    first_line(up)
    up.send_signal(signal.SIGINT)
    eventually(lambda: shop.ps()["a-0"]["state"] == "stopping")
    up.send_signal(signal.SIGINT)
    assert finish(up)[0] == 0
    assert shop.marked() == 0


def test_ctrl_c_while_it_starts(shop: Shop) -> None:
    shop.write(a={"flags": {"ready-after": 3600}})
    up = shop.start("up")
    eventually(lambda: shop.ps().get("a-0", {}).get("state") == "starting")
    up.send_signal(signal.SIGINT)
    assert finish(up)[0] == 130
    assert shop.marked() == 0


def test_ctrl_c_in_a_terminal_reaches_pdctl_and_not_the_engines(shop: Shop) -> None:
    shop.write(a={"flags": {"linger": 0.5}})
    leader, follower = pty.openpty()
    up = shop.start(
        "up",
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(follower)
    shown = b""
    while b"http://127.0.0.1" not in shown:
        shown += os.read(leader, 4096)
    os.write(leader, b"\x03")
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:
        pass  # how a terminal says that its last user has left
    os.close(leader)
    assert up.wait(timeout=GUARD_S) == 0
    text = shown.decode()
    assert "INSTANCE" in text, "the live table"
    assert "all stopped" in text
    assert shop.marked() == 0
    assert "KeyboardInterrupt" not in shop.state.log("a-0").read_text()


def test_a_terminal_for_progress_leaves_the_url_to_the_pipe(shop: Shop) -> None:
    leader, follower = pty.openpty()
    up = shop.start("up", "--detach", stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:
        pass  # how a terminal says that its last user has left
    os.close(leader)
    assert finish(up)[:2] == (0, f"http://127.0.0.1:{shop.first}\nhttp://127.0.0.1:{shop.first + 1}\n")
    assert b"INSTANCE" in shown
    assert b"http://" not in shown
    shop.down()


def test_foreground_up_in_which_nothing_can_serve_stops_all(shop: Shop) -> None:
    shop.write(a={"max_restarts": 0, "flags": {"exit-after": 0}})
    code, out, err = finish(shop.start("up"))
    assert (code, out, shop.marked()) == (3, "", 0)
    assert "a-0: FATAL: exited with code 1 before it was ready" in err
    assert "nothing can be served; stopping all" in err


def test_foreground_up_goes_on_with_what_serves(shop: Shop) -> None:
    """Case 41: one bad instance does not keep the others from serving."""
    shop.write(a={}, b={"max_restarts": 0, "flags": {"exit-after": 0}})
    up = shop.start("up")
    eventually(lambda: {i["state"] for i in shop.ps().values()} == {"ready", "fatal"})
    assert up.poll() is None
    shop.down()
    code, _, err = finish(up)
    assert code == 3
    assert "b-0: FATAL" in err


def test_killed_with_9_the_engines_live_on_and_are_adopted(shop: Shop) -> None:
    """Case 43."""
    up = shop.start("up")
    first_line(up)
    before = shop.ps()
    up.kill()
    finish(up)
    alone = shop.pdctl("ps")
    assert "no controller runs: what lives serves on, nothing is restarted" in alone.stderr
    assert alone.stdout.count("READY") == 2
    assert shop.pdctl("up", "--detach").returncode == 0
    assert {n: i["pid"] for n, i in shop.ps().items()} == {n: i["pid"] for n, i in before.items()}
    shop.down()


def test_changing_the_topology_changes_only_what_differs(shop: Shop) -> None:
    assert shop.pdctl("up", "--detach").returncode == 0
    before = shop.ps()
    up = shop.pdctl("up", "--set", "pools.b.flags.say=changed")
    assert up.returncode == 0, up.stderr
    assert "looks after this deployment; it takes over the plan" in up.stderr
    after = shop.ps()
    assert after["a-0"]["pid"] == before["a-0"]["pid"]
    assert after["b-0"]["pid"] != before["b-0"]["pid"]
    assert shop.pdctl("logs", "topology.yaml", "b-0", "-n", "1").stdout == "changed\n"
    shop.down()


def test_giving_up_the_wait(shop: Shop) -> None:
    shop.write(a={"flags": {"ready-after": 3600}})
    up = shop.pdctl("up", "--detach", "--timeout", "500ms")
    assert up.returncode == 3
    assert "a-0: STARTING: GET /ready on port" in up.stderr
    assert "not ready; it goes on without us" in up.stderr
    assert shop.ps()["a-0"]["state"] == "starting"
    assert shop.pdctl("down", "--force").returncode == 0
    assert shop.marked() == 0


def test_giving_up_the_wait_in_the_foreground(shop: Shop) -> None:
    shop.write(a={"flags": {"ready-after": 3600}})
    code, _, err = finish(shop.start("up", "--timeout", "500ms"))
    assert (code, shop.marked()) == (3, 0)
    assert "not ready within 0.5 s; stopping all" in err


def test_a_broken_topology_does_not_keep_its_engines_from_being_stopped(shop: Shop) -> None:
    assert shop.pdctl("up", "--detach").returncode == 0
    path = shop.folder / "topology.yaml"
    path.write_text(path.read_text().replace('"unified"', '"unifed"', 1))
    assert shop.pdctl("up", "--detach").returncode == 2
    down = shop.pdctl("down")
    assert down.returncode == 0
    assert (
        f"warning: topology.yaml has 1 problems (see `pdctl check`); going by what runs in {shop.state.root}"
        in (down.stderr)
    )
    assert shop.marked() == 0


def test_a_topology_that_names_nothing_is_refused(shop: Shop) -> None:
    (shop.folder / "topology.yaml").write_text("{}")
    done = shop.pdctl("down")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_secrets_are_never_printed(shop: Shop) -> None:
    shop.write(a={"env": {"KEY": "${env:SECRET}"}, "flags": {"say": "args: api_key=sk-very-secret"}})
    up = shop.pdctl("up", "--detach")
    seen = [up, shop.pdctl("logs"), shop.pdctl("ps"), shop.pdctl("down")]
    assert all(done.returncode == 0 for done in seen)
    assert "sk-very-secret" not in "".join(done.stdout + done.stderr for done in seen)
    assert seen[1].stdout.endswith("a-0 | ***\n")
    assert (shop.state.plan.stat().st_mode & 0o777, shop.state.db.stat().st_mode & 0o777) == (0o600, 0o600)
    assert "sk-very-secret" not in shop.state.log("controller").read_text()


def test_a_taken_port_is_refused_and_its_holder_named(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", shop.first + 1)):
        for words in (("up",), ("up", "--detach")):
            done = shop.pdctl(*words)
            assert done.returncode == 3
            assert (
                f"b-0: port {shop.first + 1} (http) on 127.0.0.1 is held by pid {os.getpid()} ("
                in done.stderr
            )
            assert done.stderr.endswith(" [cannot-start]\n")
            assert "Traceback" not in done.stderr
    shop.down()


def test_logs_follow_until_ctrl_c(shop: Shop) -> None:
    assert shop.pdctl("up", "--detach").returncode == 0
    logs = shop.start("logs", "-f", "-n", "1")
    assert {first_line(logs), first_line(logs)} == {"a-0 | loading weights\n", "b-0 | loading weights\n"}
    with shop.state.log("b-0").open("a") as file:
        file.write("a line of today\n")
    assert first_line(logs) == "b-0 | a line of today\n"
    logs.send_signal(signal.SIGINT)
    assert finish(logs)[0] == 0
    shop.down()


def test_who_reads_us_may_leave(shop: Shop) -> None:
    read, write = os.pipe()
    os.close(read)
    up = shop.start("up", stdout=write, stderr=write)
    os.close(write)
    eventually(lambda: {i["state"] for i in shop.ps().values()} == {"ready"})
    shop.down()
    assert up.wait(timeout=GUARD_S) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("logs",), "was it ever up?"),
        (("restart",), "no controller runs for this topology; `pdctl up` starts one"),
    ],
)
def test_before_the_first_up(shop: Shop, words: tuple[str, ...], said: str) -> None:
    done = shop.pdctl(*words)
    assert done.returncode == 3
    assert said in done.stderr
    assert shop.pdctl("ps").stderr == f"nothing runs in {shop.state.root}\n"
    assert not shop.state.root.exists(), "looking leaves no trace"


@pytest.mark.parametrize("place", ["taken", "taken/below"])
@pytest.mark.parametrize("words", [("up",), ("up", "-d"), ("ps",), ("down",), ("logs",), ("restart",)])
def test_a_file_where_the_state_directory_should_be(shop: Shop, words: tuple[str, ...], place: str) -> None:
    (shop.folder / "taken").write_text("")
    done = shop.pdctl(*words, "--set", f"state_dir=./{place}")
    assert done.returncode == 3
    assert str(shop.folder / place) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_detached_up_of_which_nothing_serves_does_not_claim_to_go_on(shop: Shop) -> None:
    shop.write(a={"max_restarts": 0, "flags": {"exit-after": 0}})
    up = shop.pdctl("up", "--detach")
    assert up.returncode == 3
    assert "not all is ready, nothing can serve; see `pdctl ps topology.yaml`" in up.stderr
    assert "goes on" not in up.stderr
    shop.down()


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_an_instance_without_its_topology(shop: Shop, command: str) -> None:
    done = shop.pdctl(command, "a-0")
    assert done.returncode == 2
    said = f"a-0: no such file (the topology comes first: `pdctl {command} topology.yaml a-0`)\n"
    assert done.stderr == said


def test_a_duration_that_is_none(shop: Shop) -> None:
    done = shop.pdctl("up", "--timeout", "10")
    assert done.returncode == 2
    assert "is not a duration" in done.stderr
