"""Deployments of simulated engines, brought up by the real `pdctl` as a user runs it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from portshare import free_ports

from orchestrator.cli.main import run
from orchestrator.launch import report
from orchestrator.launch.paths import StateDir, controller_pid
from orchestrator.launch.process import Identity, Mark, Table, send
from orchestrator.launch.status import InstanceStatus
from orchestrator.router.forward import LATE_LEG_S

PDCTL = Path(sys.executable).with_name("pdctl")
MODEL = "demo"
GUARD_S = 60.0
"""How long a test waits for what must happen; reached only when it does not."""

SPEED = 20
"""Of the simulated engines where time is not what is tested."""

GIVE_UP = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60"}
"""For a simulated vLLM whose peers fail: nothing else frees KV that nobody fetches. Its own seconds."""

_http = httpx.Client(timeout=GUARD_S, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
"""For everything beside what is tested; made once, since making one costs more than many requests."""


def eventually(
    holds: Callable[[], object], why: Callable[[], object] = lambda: "", within_s: float = GUARD_S
) -> None:
    """Wait until `holds()` is true; fail with `why()` when that never comes."""
    give_up_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_s, why()
        time.sleep(0.02)


def sim(role: str, dialect: str = "sglang", instances: int = 1, **more: Any) -> dict[str, Any]:
    """A pool of simulated engines; what is not a field of a pool is an option of the engine."""
    fields = {"transfer", "flags", "env", "max_restarts", "drain_timeout", "ready_timeout", "profile"}
    pool = {name: more.pop(name) for name in fields & more.keys()}
    options = {"dialect": dialect, "speed": SPEED, "lease-s": 300, **more}
    if dialect != "vllm":
        del options["lease-s"]
    return {"role": role, "engine": "sim", "instances": instances, "options": options, **pool}


class Deployment:
    """A folder with a topology, `pdctl` run on it, and clients of what it serves.

    A context manager that stops everything at the end and fails if something outlives that.
    """

    def __init__(self, folder: Path, pools: Mapping[str, Any], *, ports: int = 60, **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "topology.yaml"
        self.state = StateDir(folder / "state")
        first = free_ports(ports)
        self.url = f"http://127.0.0.1:{first}"
        self.admin_url = f"http://127.0.0.1:{first + 1}"
        self.admin_key: str | None = None
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")}
        self.env |= {"COLUMNS": "120", "XDG_STATE_HOME": str(folder / "home")}
        self.topology: dict[str, Any] = {
            "name": folder.name.replace("_", "-"),
            "model": {"path": "Qwen/Qwen3-32B", "served_name": MODEL},
            "state_dir": "./state",
            "nodes": [{"name": "local", "ports": f"{first + 2}-{first + ports - 1}"}],
            "pools": dict(pools),
            "router": {"listen": self.url.removeprefix("http://"), **more.pop("router", {})},
            **more,
        }
        self.client = httpx.Client(base_url=self.url, timeout=GUARD_S, trust_env=False)
        self.write()

    def write(self) -> None:
        """Write the topology to its file."""
        self.file.write_text(json.dumps(self.topology, indent=1))

    # -- commands

    def pdctl(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command on the topology to its end."""
        return subprocess.run(
            [PDCTL, command, self.file, *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GUARD_S,
            check=False,
        )

    def here(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command on the topology in this process, where it is not the process that is tested."""
        out, err = io.StringIO(), io.StringIO()
        arguments = [command, str(self.file), *words]
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            run(arguments)
        return subprocess.CompletedProcess(
            arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue()
        )

    def start(self, command: str, *words: str, **how: Any) -> subprocess.Popen[str]:
        """Start a command that stays."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [PDCTL, command, self.file, *words], cwd=self.folder, env=self.env, text=True, **{**pipes, **how}
        )

    def up(self, *words: str) -> Self:
        """`up --detach`, which must work."""
        done = self.pdctl("up", "--detach", *words)
        assert done.returncode == 0, done.stderr
        return self

    @contextmanager
    def route(self) -> Iterator[subprocess.Popen[str]]:
        """`pdctl route` for as long as the context is open; it must end well when it is told to."""
        router = self.start("route", stdout=subprocess.DEVNULL)
        assert router.stderr is not None
        try:
            lines = iter(router.stderr.readline, "")
            told = next((line for line in lines if line.startswith("routing at ")), "nothing")
            assert told == f"routing at {self.url}\n"
            # Read on, lest the router wait for a full pipe.
            threading.Thread(target=router.stderr.read, daemon=True).start()
            yield router
            router.terminate()
            assert router.wait(GUARD_S) == 0
        finally:
            router.kill()
            router.wait()

    def ps(self) -> dict[str, dict[str, Any]]:
        """The instances by name, as `ps --json` has them."""
        done = self.pdctl("ps", "--json")
        assert done.returncode == 0, done.stderr
        return {one["name"]: one for one in json.loads(done.stdout)}

    def status(self) -> dict[str, InstanceStatus]:
        """What `ps` shows, without the cost of a command."""
        return {one.name: one for one in asyncio.run(report.status(self.state)).instances}

    def pids(self) -> dict[str, int | None]:
        """The process of each instance."""
        return {name: one.pid for name, one in self.status().items()}

    def log(self, name: str) -> str:
        """What an instance has written."""
        path = self.state.log(name)
        return path.read_text(errors="replace") if path.exists() else ""

    # -- the router's and the engines' own accounts

    def endpoints(self) -> dict[str, dict[str, Any]]:
        """The router's view of each instance."""
        shown = self._admin("/endpoints").json()["endpoints"]
        return {one["name"]: one for one in shown}

    def endpoint_pairs(self) -> dict[str, Any]:
        """What the router knows of its pairs."""
        return dict(self._admin("/endpoints").json()["pairs"])

    def metrics(self) -> dict[str, float]:
        """The router's metrics by their whole name, labels included."""
        rows = (line.rpartition(" ") for line in self._admin("/metrics").text.splitlines())
        return {name: float(value) for name, _, value in rows if name and not name.startswith("#")}

    def metric(self, pattern: str) -> float:
        """The sum of all series whose name matches."""
        return sum(v for name, v in self.metrics().items() if re.match(pattern, name))

    def _admin(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.admin_key}"} if self.admin_key else {}
        answer = _http.get(self.admin_url + path, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    def engines(self) -> dict[str, str]:
        """URL of each engine."""
        if not self.state.plan.exists():
            return {name: one["url"] for name, one in self.endpoints().items()}
        plan = json.loads(self.state.plan.read_text())
        return {one["name"]: one["url"] for one in plan["instances"]}

    def engine_state(self, name: str) -> dict[str, Any]:
        """`/sim/state` of an engine."""
        return dict(_http.get(f"{self.engines()[name]}/sim/state").json())

    def replaced(self, name: str, pid: int) -> None:
        """Wait until another process than `pid` answers in an engine's place, and the router knows it."""
        eventually(lambda: self._pid(name) not in (None, pid), lambda: self.log("controller"))
        self.serves()

    def _pid(self, name: str) -> int | None:
        try:
            return int(self.engine_state(name)["pid"])
        except httpx.TransportError:
            return None

    @contextmanager
    def fault(self, name: str, kind: str, **fields: Any) -> Iterator[None]:
        """Put one fault in force at an engine; end it, if the engine still lives, on leaving."""
        url = f"{self.engines()[name]}/sim/faults"
        added = _http.post(url, json=[{"kind": kind, **fields}])
        assert added.status_code == 200, added.text
        try:
            yield
        finally:
            with suppress(httpx.TransportError):  # it died of the fault
                _http.delete(url)

    def at_work(self, name: str, count: int = 1) -> None:
        """Wait until an engine has that many calls."""
        eventually(lambda: self.engine_state(name)["calls"] == count, lambda: self.engine_state(name))

    def serves(self, *names: str) -> None:
        """Wait until the router gives work to these instances, or to every one of the plan."""
        wanted = names or tuple(self.engines())
        eventually(lambda: self._all_ready(wanted), lambda: json.dumps(self.endpoints(), indent=1))

    def _all_ready(self, names: tuple[str, ...]) -> bool:
        found = self.endpoints()
        return found.keys() >= set(names) and all(found[name]["ready"] for name in names)

    def at_rest(self, *, well: bool = False) -> None:
        """Wait until neither an engine nor the router has anything left to do; fail if that never comes.

        `well`: nothing has failed, so that nothing may have to be given up for it.
        """
        eventually(lambda: not self.unrest(), self.unrest, 0.8 * LATE_LEG_S if well else GUARD_S)

    def unrest(self) -> dict[str, Any]:
        """What still runs or is still held, by whom."""
        found: dict[str, Any] = {}
        for name in self.engines():
            state = self.engine_state(name)
            load = {k: v for k, v in state["load"].items() if k not in ("cached_tokens", "total_tokens")}
            left = {k: v for k, v in (load | {k: state[k] for k in ("calls", "generations")}).items() if v}
            if left or state.get("rooms"):
                found[name] = left | {"rooms": state.get("rooms")}
        gauges = "pdctl_inflight_requests|pdctl_endpoint_inflight_"
        found |= {n: v for n, v in self.metrics().items() if re.match(gauges, n) and v}
        return found

    # -- the end

    def marked(self) -> dict[Identity, Mark]:
        """Every process that carries this deployment's marker."""
        return Table.take().marked(self.state.id)

    def close(self) -> None:
        """`down`, then whatever it left is killed, which is a failure."""
        self.client.close()
        told = self.here("down", "--force").stderr if self.state.root.exists() else ""
        left, controller = self.marked(), controller_pid(self.state)
        for identity in left:
            send(identity, signal.SIGKILL)
        if controller:
            os.kill(controller, signal.SIGKILL)
        assert not left, f"left: {left}, by {told}"
        assert controller is None, "the controller lives on"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FLEETS: dict[str, tuple[str, dict[str, Any]]] = {
    "sglang": ("sglang", {}),
    "nixl": ("vllm", {"transfer": "nixl"}),
    "mooncake": ("vllm", {"transfer": "mooncake"}),
}
"""Every hand-off there is: the engine's dialect, and the pool's settings."""


@dataclass
class Fleet:
    """Two prefill and two decode instances behind the router, and a unified engine of the same dialect."""

    name: str
    dialect: str
    deployment: Deployment
    unified: httpx.Client

    @property
    def client(self) -> httpx.Client:
        """Of the router."""
        return self.deployment.client
