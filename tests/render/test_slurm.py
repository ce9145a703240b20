"""The Slurm job: what it asks for, and its script as bash reads it; tests/real runs it on a real Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import TopologyError
from orchestrator.render import files
from orchestrator.render.slurm import render

Made = Callable[..., files.Deployment]


def test_the_job_asks_for_the_nodes_of_the_topology_and_their_gpus(made: Made, tmp_path: Path) -> None:
    files.write(render(made()), tmp_path / "out")
    job = (tmp_path / "out" / "job.sbatch").read_text()
    subprocess.run(["bash", "-n", tmp_path / "out" / "job.sbatch"], check=True)
    asked = {line.split()[1] for line in job.splitlines() if line.startswith("#SBATCH")}
    assert {"--nodes=2", "--exclusive", "--gpus-per-node=8", "--job-name=two-hosts"} <= asked
    assert 'export PDCTL_ADDRESS_B=$(address "${hosts[1]}")' in job
    assert "step decode-0 1  # node b" in job
    assert "step decode-0.1 0  # node a" in job
    assert job.index("term router") < job.index("term prefill-0 decode-0")


def test_nodes_that_share_an_address_are_refused(made: Made) -> None:
    with pytest.raises(TopologyError, match=r"several nodes at 10\.0\.0\.1"):
        render(made(*["".join(_shared())]))


def _shared() -> list[str]:
    return [
        "name: shared\nmodel: {path: m}\nnodes:\n",
        "  - {name: a, address: 10.0.0.1, gpus: [0], ports: 20000-20999}\n",
        "  - {name: b, address: 10.0.0.1, gpus: [1], ports: 21000-21999}\n",
        "pools: {u: {role: unified, engine: sglang}}\nrouter: {auth: none}\n",
    ]
