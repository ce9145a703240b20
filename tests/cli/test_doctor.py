"""`pdctl doctor`, as a user meets it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import hosttree
from typer.testing import CliRunner

from orchestrator.cli.commands import app
from orchestrator.fabric.host import read
from orchestrator.topology.fabric import Report, dump


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *map(str, arguments)], env={"COLUMNS": "160"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_table(tmp_path: Path) -> None:
    code, text = run("--root", hosttree.unfold("dgx-h100", tmp_path))
    assert code == 0
    assert "host dgx-h100: 8 GPUs, 12 RDMA devices, 224 CPUs, 2015 GiB of memory, 2 NUMA nodes" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["7", "NVIDIA", "H100", "80GB", "HBM3", "-", "0000:df:00.0", "1", "mlx5_11", "PXB"] in rows
    assert ["mlx5_10", "ACTIVE", "400", "InfiniBand", "0000:ce:00.0", "1", "ib10"] in rows
    assert "interface eno3: up, 10 Gbit/s" in text


def test_a_link_that_is_down_is_shown(tmp_path: Path) -> None:
    _, text = run("--root", hosttree.unfold("nic-down", tmp_path))
    assert ["mlx5_2", "DOWN", "10"] in [line.split()[:3] for line in text.splitlines()]


def test_its_json_stands_in_for_the_hardware(tmp_path: Path) -> None:
    code, text = run("--json", "--root", hosttree.unfold("hgx-h200", tmp_path / "root"))
    assert code == 0
    (tmp_path / "a.json").write_text(text)
    topology = tmp_path / "t.yaml"
    topology.write_text(
        "name: t\nmodel: {path: org/m}\nnodes: [{name: a, address: 10.0.0.1, fabric: a.json}]\n"
        "pools: {all: {role: unified, engine: vllm, profile: default, tp: 8}}\n"
    )
    code, text = run(topology, "--json")
    assert code == 0, text
    data = json.loads(text)
    assert (data["format"], data["name"], len(data["node"]["gpus"])) == (1, "a", 8)


def test_a_plan_that_would_be_refused_is_told_and_exits_with_2(tmp_path: Path) -> None:
    topology = tmp_path / "t.yaml"
    topology.write_text("name: t\nmodel: {path: org/m}\npools: {all: {role: unified, engine: vllm, tp: 8}}\n")
    code, text = run(topology, "--root", hosttree.unfold("pcie-two-numa", tmp_path / "root"))
    assert code == 2
    assert "error: " in text
    assert "needs 8 GPUs" in text


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    assert run("--node", "a")[0] == 2
    assert run("--root", tmp_path / "none")[0] == 2


def test_this_host() -> None:
    code, text = run()
    assert code == 0
    assert "locked memory: " in text


def test_up_tells_where_the_host_is_not_as_its_file_says(tmp_path: Path) -> None:
    saved = dump(Report(read(hosttree.unfold("dgx-h100", tmp_path / "root"))))
    (tmp_path / "a.json").write_text(saved)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        topology = {
            "name": "t",
            "model": {"path": "m"},
            "state_dir": "./state",
            "nodes": [{"name": "a", "fabric": "a.json", "ports": f"{port}-{port + 9}"}],
            "pools": {"all": {"role": "unified", "engine": "sim"}},
            "router": {"kind": "none"},
        }
        (tmp_path / "t.yaml").write_text(json.dumps(topology))
        done = CliRunner().invoke(app, ["up", str(tmp_path / "t.yaml")])
    assert "warning: a.json is out of date: RDMA device mlx5_0 is gone" in done.output
    # Nothing is started: its first port is taken.
    assert done.exit_code != 0
