"""Files that say what a node has: written, read back, refused; and what nodes get from them."""

from __future__ import annotations

import json
from pathlib import Path

import hosttree
import pytest

from orchestrator.core.fabric import Fabric
from orchestrator.core.nicmap import nic_map
from orchestrator.fabric.host import read
from orchestrator.topology.fabric import Report, as_told, dump, load

NODE = """\
name: one
model: {path: ./model}
nodes:
  - {name: a, address: 10.0.0.1, fabric: a.json}
pools:
  both: {role: unified, engine: ./fake_engine.py:Fake, profile: gpu, tp: 2}
"""


def save(folder: Path, host: str, name: str = "a") -> Fabric:
    """The file that doctor would write on a host of tests/data/fabric."""
    fabric = read(hosttree.unfold(host, folder / f"root-{host}"))
    (folder / f"{name}.json").write_text(dump(Report(fabric, nics_of_gpus=as_told(nic_map(fabric)))))
    return fabric


@pytest.fixture
def gpus(site):
    site.profile("fake/gpu", "description: With GPUs.\n")
    return site


@pytest.mark.parametrize("host", ["dgx-h100", "hgx-h200", "pcie-two-numa", "ethernet-vm", "nic-down"])
def test_what_is_written_is_read_back(tmp_path: Path, host: str) -> None:
    fabric = save(tmp_path, host)
    assert load(tmp_path / "a.json") == (fabric, [])


def test_gpus_and_nics_follow_from_it(gpus) -> None:
    save(gpus.folder, "dgx-h100")
    plan = gpus.plan(NODE, "pools.both.instances=4")
    env = {i.name: i.env for i in plan.instances}
    assert [env[f"both-{i}"]["GPUS"].text for i in range(4)] == ["0,1", "2,3", "4,5", "6,7"]
    assert [env[f"both-{i}"]["NICS"].text for i in range(4)] == [
        "mlx5_0,mlx5_3",
        "mlx5_4,mlx5_5",
        "mlx5_6,mlx5_9",
        "mlx5_10,mlx5_11",
    ]


def test_what_the_topology_says_goes_over_it(gpus) -> None:
    save(gpus.folder, "dgx-h100")
    plan = gpus.plan(NODE, "nodes.0.gpus=[6, 7]", "nodes.0.nics=[mlx5_10]")
    env = plan.instance("both-0").env
    assert (env["GPUS"].text, env["NICS"].text) == ("6,7", "mlx5_10")


def test_more_nics_per_gpu(gpus) -> None:
    save(gpus.folder, "pcie-two-numa")
    plan = gpus.plan(NODE, "nodes.0.nics_per_gpu=2", "pools.both.tp=1")
    assert plan.instance("both-0").env["NICS"].text == "mlx5_0,mlx5_1"


def test_nics_per_gpu_needs_to_know_the_node(gpus) -> None:
    told = gpus.told(NODE.replace(", fabric: a.json", ", gpus: 2, nics_per_gpu: 2"))
    assert len(told) == 1
    assert "t.yaml:4: nodes.0.nics_per_gpu: needs `fabric`: without it nothing says which NICs" in told[0]
    save(gpus.folder, "dgx-h100")
    told = gpus.told(NODE.replace("a.json", "a.json, nics: [mlx5_0], nics_per_gpu: 2"))
    assert "has no effect beside `nics`" in told[0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, "t.yaml:4: nodes.0.fabric: a.json no such file"),
        ("not json: [", "a.json:1: is not valid YAML"),
        ("{}", "a.json: format: is not of format 1, but of none (write it anew with `pdctl doctor --json`"),
        ('{"format": 2, "node": {}}', "a.json:1: format: is not of format 1, but 2"),
        ('{"format": 1}', "a.json: node: is required"),
        (lambda d: d["node"].pop("host"), "node.host: is required"),
        (
            lambda d: d["node"]["nics"][3].update(stat="UP"),
            "node.nics.3.stat: unknown field (did you mean 'state'?)",
        ),
        (lambda d: d["node"]["gpus"][1].update(index="two"), "node.gpus.1.index: should be a whole number"),
        (lambda d: d.update(nodes=[]), "nodes: unknown field (did you mean 'node'?)"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(gpus, change, expected: str) -> None:
    file = gpus.folder / "a.json"
    if callable(change):
        save(gpus.folder, "dgx-h100")
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data, indent=1))
    elif change is not None:
        file.write_text(change)
    told = gpus.told(NODE)
    assert any(expected in line for line in told), told


def test_findings_about_it_come_with_all_others(gpus) -> None:
    told = gpus.told(NODE, "pools.both.profile=none")
    assert ["pools.both.profile" in told[0], "nodes.0.fabric" in told[1]] == [True, True], told
