"""A node looked at against its topology: which one, live or saved, and what is told of it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import hosttree
import pytest

from orchestrator.core.fabric import Fabric
from orchestrator.errors import LaunchError, TopologyError
from orchestrator.fabric.host import read
from orchestrator.topology.doctor import examine, examine_host, out_of_date
from orchestrator.topology.fabric import Report, dump

TWO = """\
name: two
model: {path: ./model}
nodes:
  - {name: a, address: 127.0.0.1, ports: FIRST-LAST}
  - {name: b, address: 10.255.255.1, fabric: b.json}
  - {name: c, address: 10.255.255.2}
pools:
  prefill: {role: prefill, engine: sglang, profile: cpu, nodes: [a]}
  decode: {role: decode, engine: sglang, profile: cpu, nodes: [a], runtime: {python: ./venv/bin/python}}
"""
HERE = Fabric(host="this-one")


def look(path: Path) -> Fabric:
    return HERE if path == Path("/") else read(path)


def ask(words, names):
    if words[0].endswith("/venv/bin/python"):
        raise LaunchError("no such interpreter")
    return {"sglang": "0.5.23"} if "sglang" in names else {}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "t.yaml").write_text(TWO.replace("FIRST-LAST", "20000-29999"))
    saved = read(hosttree.unfold("hgx-h200", tmp_path / "root"))
    (tmp_path / "b.json").write_text(dump(Report(saved)))
    return tmp_path / "t.yaml"


def examined(path: Path, name: str | None = None, **more) -> Report:
    return examine(path, name, environ={"HOME": "/home/me"}, ask=ask, look=look, **more)


def test_the_node_that_this_host_is(two: Path) -> None:
    report = examined(two)
    assert (report.name, report.node.host) == ("a", "this-one")
    own, other = report.node.installed
    assert own.versions == {"sglang": "0.5.23"}
    assert other.environment == f"{two.parent}/venv/bin/python"
    assert other.error == "no such interpreter"


def test_environments_of_pools_that_may_not_run_here_are_not_asked(two: Path) -> None:
    pinned = two.read_text().replace(
        "profile: cpu, nodes: [a], runtime", "profile: cpu, pin: [{node: b}], runtime"
    )
    two.write_text(pinned)
    assert len(examined(two).node.installed) == 1
    two.write_text(pinned.replace("{node: b}", "{node: a}"))
    assert len(examined(two).node.installed) == 2


def test_a_node_elsewhere_is_as_its_file_says(two: Path) -> None:
    report = examined(two, "b")
    assert (report.node.host, report.node.installed, report.ports_taken) == ("hgx-h200", (), ())
    assert report.nics_of_gpus[7].nics == ("mlx5_7",)


def test_a_node_elsewhere_without_a_file_is_refused_with_the_way_to_one(two: Path) -> None:
    with pytest.raises(TopologyError, match=r"pdctl doctor --json > c.json"):
        examined(two, "c")


def test_a_node_that_is_not_there(two: Path) -> None:
    with pytest.raises(TopologyError, match="no node 'd'"):
        examined(two, "d")


def test_several_nodes_here_and_none(two: Path) -> None:
    both = two.read_text().replace("10.255.255.1", "127.0.0.1")
    two.write_text(both)
    with pytest.raises(TopologyError, match=r"several nodes are .*choose one by --node: a, b, c"):
        examined(two)
    two.write_text(both.replace("127.0.0.1", "10.255.255.9"))
    with pytest.raises(TopologyError, match="no node is"):
        examined(two)


def test_a_copy_of_a_host_stands_in_for_it(two: Path, tmp_path: Path) -> None:
    report = examined(two, "c", root=hosttree.unfold("dgx-h100", tmp_path / "dgx"))
    assert (report.node.host, report.node.installed) == ("dgx-h100", ())


def test_who_holds_the_ports_of_the_node(two: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        two.write_text(TWO.replace("FIRST-LAST", f"{port}-{port}"))
        report = examined(two)
    assert [use.port for use in report.ports_taken] == [port]
    assert "pid" in report.ports_taken[0].holder


def test_the_models_config(two: Path) -> None:
    config = {"num_hidden_layers": 64, "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "bfloat16"}
    (two.parent / "model").mkdir()
    (two.parent / "model" / "config.json").write_text(json.dumps(config))
    model = examined(two).model
    assert model is not None
    # Qwen3-32B: 256 KiB a token.
    assert model["kv_bytes_per_token"] == 262144
    assert model["num_key_value_heads"] == 8


def test_what_the_plan_says_of_the_node(two: Path) -> None:
    assert any("[addresses]" in f and f.startswith("error: ") for f in examined(two).findings)
    two.write_text(two.read_text().replace("10.255.255", "127.0.1"))
    findings = examined(two, "a").findings
    assert findings
    assert all(f.startswith("warning: ") for f in findings), findings


def test_a_topology_that_is_not_sound_is_refused(two: Path) -> None:
    two.write_text("name: 1\n")
    with pytest.raises(TopologyError):
        examined(two)


def test_without_a_topology(tmp_path: Path) -> None:
    report = examine_host(hosttree.unfold("nic-down", tmp_path), ask=ask, look=look)
    assert (report.name, report.node.host, report.findings) == (None, "hgx-h200-down", ())
    assert report.nics_of_gpus[2].distance == "NODE"
    assert examine_host(ask=ask, look=look).node.installed[0].versions == {"sglang": "0.5.23"}


def test_a_file_that_is_out_of_date_is_told(two: Path, tmp_path: Path) -> None:
    report = examined(two, "b", root=hosttree.unfold("nic-down", tmp_path / "down"))
    assert "warning: b.json is out of date: RDMA device mlx5_2 is DOWN, was ACTIVE" in report.findings
    assert not any("out of date" in finding for finding in examined(two, "b").findings)


def test_keys_need_not_be_set(two: Path) -> None:
    keys = "router: {credentials: {client_keys: ['${env:NO_KEY}']}}"
    two.write_text(f"{two.read_text().replace('10.255.255', '127.0.1')}{keys}\n")
    assert not any("NO_KEY" in finding for finding in examined(two, "a").findings)


def test_what_is_out_of_date_on_this_host_alone(two: Path) -> None:
    def told(*overrides: str) -> list[str]:
        return out_of_date(two, overrides, environ={"HOME": "/home/me"}, look=look)

    assert told() == []
    assert "b.json is out of date: GPU 0 is gone" in told("nodes.1.address=127.0.0.1")
    assert told("nodes.1.address=127.0.0.1", "pools.decode.rol=x") == []


def test_a_topology_that_writes_no_nodes(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: t\nmodel: {path: m}\npools: {a: {role: unified, engine: sim}}\n")
    with_gpus = read(hosttree.unfold("nic-down", tmp_path / "root"))
    report = examine(tmp_path / "t.yaml", environ={"HOME": "/me"}, ask=None, look=lambda _: with_gpus)
    assert (report.name, len(report.node.gpus), report.findings) == ("local", 8, ())


def test_nics_by_hand_are_shown_as_they_are_used(two: Path, tmp_path: Path) -> None:
    root = hosttree.unfold("pcie-two-numa", tmp_path / "pcie")
    by_hand = "gpus: 3, nics: {0: mlx5_0, 2: [mlx5_0, mlx5_1], 3: mlx5_1}"
    two.write_text(two.read_text().replace("address: 10.255.255.2", f"address: 10.255.255.2, {by_hand}"))
    told = [(one.gpu, one.nics, one.distance) for one in examined(two, "c", root=root).nics_of_gpus]
    assert told == [(0, ("mlx5_0",), "NODE"), (2, ("mlx5_0", "mlx5_1"), "SYS")]


def test_how_python_was_built_is_noted_where_the_router_runs(two: Path) -> None:
    assert examined(two, built=lambda: "slow").node.notes == ("slow",)
    assert examined(two, built=lambda: None).node.notes == ()
    elsewhere = two.read_text() + "router: {node: b}\n"
    two.write_text(elsewhere)
    assert examined(two, "a", built=lambda: "slow").node.notes == ()
    two.write_text(elsewhere.replace("node: b", "kind: none"))
    assert examined(two, "a", built=lambda: "slow").node.notes == ()


def test_how_python_was_built_is_noted_of_this_host_and_not_of_a_copy(tmp_path: Path) -> None:
    assert examine_host(ask=None, look=look, built=lambda: "slow").node.notes == ("slow",)
    copy = hosttree.unfold("hgx-h200", tmp_path)
    assert examine_host(copy, ask=None, look=look, built=lambda: "slow").node.notes == ()
