"""`launcher: ray` on a Ray cluster of two nodes on this machine; engines are simulated.

Both nodes have one address, so each has a resource of its topology node's name, by which it is told apart.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

PDCTL = Path(sys.executable).with_name("pdctl")
GUARD_S = 60.0
FIRST = 27_500
"""The first of the ports used here, below the ephemeral range and away from the other tests'."""
HEAD = f"127.0.0.1:{FIRST}"
TOPOLOGY = """\
name: ray-test
model: {{path: Qwen/Qwen3-32B, served_name: demo}}
nodes:
  - {{name: alpha, address: 127.0.0.11, gpus: 4, env: {{WHERE: alpha}}, ports: {a}-{a_last}}}
  - {{name: beta, address: 127.0.0.12, gpus: 4, env: {{WHERE: beta}}, ports: {b}-{b_last}}}
pools:
  prefill: {{role: prefill, engine: sim, nodes: [alpha], gpus: 4, options: {{speed: 20}}}}
  decode: {{role: decode, engine: sim, nodes: [beta], gpus: 4, options: {{speed: 20}}}}
router: {{listen: "127.0.0.1:{router}"}}
launcher: ray
ray: {{address: "{head}"}}
state_dir: {state}
"""


@pytest.fixture(scope="module")
def environ(installed: dict[str, Path]) -> dict[str, str]:
    """An environment in which this Python finds Ray."""
    (packages,) = installed["ray"].glob("lib/python*/site-packages")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **quiet, "PYTHONPATH": str(packages)}


@pytest.fixture(scope="module")
def cluster(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A head and two nodes of eight logical GPUs each, as long as the tests here."""
    temp = f"/tmp/pdctl-ray-{os.getpid()}"
    nodes: list[subprocess.Popen[bytes]] = []
    log = (tmp_path_factory.mktemp("ray") / "nodes.log").open("wb")

    def start(*words: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        nodes.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True))

    try:
        start(
            "--head", f"--port={FIRST}", "--num-cpus=1", "--num-gpus=0", "--include-dashboard=false",
            f"--temp-dir={temp}",
        )  # fmt: skip
        wait(lambda: answers(FIRST), "no head")
        wait(lambda: living(environ) == 1, "the head does not get ready")
        # One after the other: two that start at once on one machine get in each other's way.
        for count, name in enumerate(("alpha", "beta"), start=2):
            resources = json.dumps({name: 1})
            start(f"--address={HEAD}", "--num-cpus=2", "--num-gpus=8", f"--resources={resources}")
            wait(lambda count=count: living(environ) == count, f"{name} does not join")
        yield
    finally:
        trees = [p for n in nodes if psutil.pid_exists(n.pid) for p in tree(n.pid)]
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        psutil.wait_procs(trees, timeout=30)
        for process in trees:
            if process.is_running():
                process.kill()
        for node in nodes:
            node.wait()
        log.close()


@dataclass(frozen=True)
class Deployment:
    """A topology file, and pdctl for it."""

    file: Path
    environ: dict[str, str]

    def pdctl(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [PDCTL, words[0], self.file, *words[1:]], env=self.environ, capture_output=True, text=True,
            check=False, timeout=GUARD_S,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr + self.controller()
        return done.stdout + done.stderr

    @property
    def state(self) -> Path:
        return self.file.parent / "state"

    def controller(self) -> str:
        log = self.state / "logs" / "controller.log"
        return log.read_text() if log.exists() else ""

    def rows(self) -> dict[str, dict[str, object]]:
        done = subprocess.run(
            [PDCTL, "ps", self.file, "--json"], env=self.environ, capture_output=True, text=True, check=True
        )
        return {row["name"]: row for row in json.loads(done.stdout)}

    def engines(self) -> dict[str, int]:
        rows = self.rows().items()
        return {n: int(str(r["pid"])) for n, r in rows if n != "router" and r["pid"] is not None}


@pytest.fixture
def deployment(cluster: None, environ: dict[str, str], tmp_path: Path) -> Iterator[Deployment]:
    file = tmp_path / "t.yaml"
    a, b, router = FIRST + 10, FIRST + 60, FIRST + 100
    numbers = {"a": a, "a_last": a + 40, "b": b, "b_last": b + 39, "router": router}
    file.write_text(TOPOLOGY.format(**numbers, head=HEAD, state=tmp_path / "state"))
    made = Deployment(file, environ)
    yield made
    made.pdctl("down", "--force")
    assert not marked(tmp_path), "down left orphans"


def marked(folder: Path) -> list[psutil.Process]:
    """What runs the engines of a deployment in `folder`: by what stands in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if "PDCTL_INSTANCE" in environment and process.cwd().startswith(str(folder)):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def tree(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def living(environ: dict[str, str]) -> int:
    """How many nodes the cluster has."""
    code = f"import ray; ray.init({HEAD!r}, log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout.split()
    return int(told[-1]) if told else 0


def answers(port: int) -> bool:
    return any(c.laddr.port == port and c.status == "LISTEN" for c in psutil.net_connections("tcp"))


def wait(holds: Callable[[], object], why: str) -> None:
    give_up_s = time.monotonic() + GUARD_S
    while not holds():
        assert time.monotonic() < give_up_s, why
        time.sleep(0.1)


def ask() -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = f"http://127.0.0.1:{FIRST + 100}/v1/chat/completions"
    return httpx.post(url, json=body, trust_env=False, timeout=30).status_code


def agents() -> list[psutil.Process]:
    """The actors in which the agents live."""
    return [p for p in psutil.process_iter() if "ray::Agent" in " ".join(safe(p))]


def safe(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_engines_outlive_driver_and_agents_and_are_adopted(deployment: Deployment) -> None:
    deployment.pdctl("up", "--detach")
    assert ask() == 200
    before = deployment.engines()
    assert set(before) == {"prefill-0", "decode-0"}
    # Each on its own node, in the environment of that one.
    for name, pid in before.items():
        environment = psutil.Process(pid).environ()
        # Ray's own, of an agent without GPUs, would hide them all.
        assert "CUDA_VISIBLE_DEVICES" not in environment
        node = "alpha" if name == "prefill-0" else "beta"
        assert environment["WHERE"] == node
        assert psutil.Process(pid).cwd() == str(deployment.state / "nodes" / node)

    (controller,) = {int(line) for line in (deployment.state / "controller.lock").read_text().split()}
    os.kill(controller, signal.SIGKILL)
    wait(lambda: not psutil.pid_exists(controller), "the controller does not end")
    for agent in agents():
        agent.kill()
    assert ask() == 200
    assert deployment.engines() == before, "ps without a controller"

    deployment.pdctl("up", "--detach")
    assert deployment.engines() == before, deployment.controller()
    assert ask() == 200

    # Supervised again: the end of one that was adopted is seen, and it is started anew.
    os.kill(before["decode-0"], signal.SIGKILL)
    wait(lambda: deployment.engines().get("decode-0") not in (None, before["decode-0"]), "no new decode-0")
    wait(lambda: deployment.rows()["decode-0"]["state"] == "ready", "decode-0 is not ready")
    os.kill(deployment.engines()["decode-0"], signal.SIGTERM)
    wait(lambda: deployment.rows()["decode-0"]["restarts"] == 2, "not restarted again")
    wait(lambda: deployment.rows()["decode-0"]["state"] == "ready", "decode-0 is not ready")
    assert deployment.engines()["prefill-0"] == before["prefill-0"]
    log = (deployment.state / "logs" / "decode-0.log").read_text()
    assert "decode-0 incarnation 3" in log
    assert "exited with code" in deployment.controller() or "killed by" in deployment.controller()

    deployment.pdctl("down")
    assert not marked(deployment.file.parent)
    wait(lambda: not agents(), "down left agents")
    assert not (deployment.state / "ray.json").exists()


def test_what_the_cluster_cannot_give_is_refused_before_anything_starts(deployment: Deployment) -> None:
    good = deployment.file.read_text()
    for old, new, told in (
        ("127.0.0.12, gpus: 4", "127.0.0.12, gpus: [4, 5, 6, 7]", "Ray gives 0, 1, 2, 3"),
        ("beta", "gamma", "node gamma (127.0.0.12) is not in the Ray cluster"),
        (HEAD, "127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
        ("127.0.0.11, gpus: 4", "127.0.0.11, gpus: 16", "has not as many free (8 in all)"),
    ):
        text = good.replace(old, new)
        if "16" in new:
            text = text.replace("gpus: 4, options", "gpus: 16, options", 1)
        deployment.file.write_text(text)
        said = deployment.pdctl("up", "--detach", code=3)
        assert told in said, said
        assert not marked(deployment.file.parent)
    deployment.file.write_text(good)
