"""A rendered Slurm job on a real Slurm of one machine: a controller and two virtual nodes at two addresses.

Needs root, and Debian's slurm-wlm and munge, which it installs where they are missing; engines are simulated.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

PDCTL = Path(sys.executable).with_name("pdctl")
GUARD_S = 120.0
PACKAGES = ("slurm-wlm", "munge")
CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/ctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/ctld.log
SlurmdLogFile={root}/slurmd-%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=8 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.2 Port={n2} CPUs=8 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
TOPOLOGY = """\
name: slurm-test
model: {{path: Qwen/Qwen3-32B, served_name: demo}}
nodes:
  - {{name: a, address: 127.0.0.11, ports: {a}-{a_last}}}
  - {{name: b, address: 127.0.0.12, ports: {b}-{b_last}}}
pools:
  prefill: {{role: prefill, engine: sim, nodes: [a], options: {{speed: 20}}}}
  decode: {{role: decode, engine: sim, nodes: [b], options: {{speed: 20}}}}
router: {{listen: "127.0.0.1:{router}", credentials: {{client_keys: ["${{env:CLIENT_KEY}}"]}}}}
"""
FIRST = 27_300
"""The first of the ports used here, below the ephemeral range and away from the other tests'."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `sbatch` reaches a Slurm that lives as long as the tests here."""
    if shutil.which("slurmctld") is None:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        subprocess.run(install, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=True)
    root = tmp_path_factory.mktemp("slurm")
    (root / "state").mkdir()
    conf = root / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    conf.write_text(CONF.format(host=host, root=root, port=FIRST, n1=FIRST + 1, n2=FIRST + 2))
    env = {**os.environ, "SLURM_CONF": str(conf), "CLIENT_KEY": "a-client-key"}
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge")
    munge = ["runuser", "-u", "munge", "--", "munged", "--foreground", "--force"]
    commands = [munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
    running = []
    try:
        for index, command in enumerate(commands):
            log = (root / f"daemon-{index}.log").open("w")
            running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            time.sleep(1)
        wait(lambda: "idle" in run(env, "sinfo", "--noheader", "--format=%t"), "no node is idle")
        yield env
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def run(env: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout


def wait(holds: object, why: str) -> None:
    give_up_s = time.monotonic() + GUARD_S
    assert callable(holds)
    while not holds():
        assert time.monotonic() < give_up_s, why
        time.sleep(0.2)


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_a_rendered_job_serves_on_the_hosts_it_is_given_and_drains(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    file, out = tmp_path / "t.yaml", tmp_path / "out"
    a, b, router = FIRST + 10, FIRST + 60, FIRST + 100
    file.write_text(TOPOLOGY.format(a=a, a_last=a + 40, b=b, b_last=b + 39, router=router))
    subprocess.run([PDCTL, "render", file, "--to", "slurm", "--out", out], env=slurm, check=True)
    subprocess.run(["sbatch", "--test-only", out / "job.sbatch"], env=slurm, check=True)
    told = subprocess.run(
        ["sbatch", "--parsable", out / "job.sbatch"],
        env=slurm, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    job, url = told.stdout.strip(), f"http://127.0.0.1:{router}"
    logs = out / "logs" / job
    try:
        wait(lambda: ready(url), "the router is not ready")
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        key = {"authorization": "Bearer a-client-key"}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=key, trust_env=False)
        assert answer.status_code == 200, answer.text
        # The addresses of the allocation, not those of the topology.
        assert "127.0.0.1:" in (logs / "prefill-0.log").read_text()
        assert "127.0.0.2:" in (logs / "decode-0.log").read_text()
    finally:
        run(slurm, "scancel", "--batch", "--signal=TERM", job)
        wait(lambda: not run(slurm, "squeue", "--noheader").strip(), "the job does not end")
    assert "all_finished=true" in (logs / "router.log").read_text()
    said = (tmp_path / f"slurm-test-{job}.log").read_text()
    assert [line for line in said.splitlines() if line.endswith(": stopped")] == [
        "router: stopped", "prefill-0: stopped", "decode-0: stopped",
    ]  # fmt: skip
