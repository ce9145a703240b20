"""Where instances and their processes lie, which ports they get, and how the ranks of one meet."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import TopologyError
from orchestrator.topology.plan import FollowerPlan, InstancePlan, Plan

FOUR = """\
name: four-hosts
model: {path: org/model}
nodes:
  - {name: a0, address: 10.0.0.1, rack: a, gpus: 8, nics: {0: mlx5_0, 4: mlx5_4}}
  - {name: a1, address: 10.0.0.2, rack: a, gpus: 8, nics: {0: ib0, 4: ib4}, env: {NCCL_SOCKET_IFNAME: eth1}}
  - {name: b0, address: 10.0.0.3, rack: b, gpus: 8}
  - {name: b1, address: 10.0.0.4, rack: b, gpus: 8}
pools:
  prefill: {role: prefill, engine: ENGINE, tp: 8}
  decode: {role: decode, engine: ENGINE, tp: 8}
router: {auth: none}
"""
SGLANG, VLLM = FOUR.replace("ENGINE", "sglang"), FOUR.replace("ENGINE", "vllm")
WIDE = ("pools.prefill.tp=16", "pools.decode.tp=16")


def flag(process: InstancePlan | FollowerPlan, name: str) -> str | None:
    words = [word.text for word in process.argv]
    return words[words.index(name) + 1] if name in words else None


def env(process: InstancePlan | FollowerPlan, name: str) -> str | None:
    word = process.env.get(name)
    return word.text if word else None


def nodes_of(plan: Plan) -> dict[str, str]:
    return {p.name: p.node for i in plan.instances for p in i.processes}


def test_partners_lie_in_one_rack_and_the_instances_of_a_pool_in_different_ones(site) -> None:
    plan = site.plan(SGLANG, "pools.prefill.instances=2", "pools.decode.instances=2")
    assert nodes_of(plan) == {"prefill-0": "a0", "prefill-1": "b0", "decode-0": "a1", "decode-1": "b1"}
    assert plan.instance("decode-1").labels == {"node": "b1", "rack": "b"}


def test_packing_and_nodes_are_the_users_to_choose(site) -> None:
    text = site.plan(SGLANG, "pools.prefill={role: prefill, engine: sglang, tp: 4, instances: 2}")
    assert nodes_of(text)["prefill-1"] == "b0"
    packed = site.plan(
        SGLANG,
        "pools.prefill={role: prefill, engine: sglang, tp: 4, instances: 2, nodes: [b1, b0], "
        "placement: pack}",
    )
    assert nodes_of(packed) == {"prefill-0": "b1", "prefill-1": "b1", "decode-0": "a0"}


@pytest.mark.parametrize("text", [SGLANG, VLLM])
def test_an_instance_takes_as_many_nodes_as_its_gpus_need(site, text: str) -> None:
    plan = site.plan(text, *WIDE)
    assert nodes_of(plan) == {"prefill-0": "a0", "prefill-0.1": "a1", "decode-0": "b0", "decode-0.1": "b1"}
    assert [i.name for i in plan.instances] == ["prefill-0", "decode-0"]


def test_sglang_ranks_are_told_of_each_other_and_share_one_bootstrap_port(site) -> None:
    head = site.plan(SGLANG, *WIDE).instance("prefill-0")
    (follower,) = head.followers
    dist = f"10.0.0.1:{head.ports['dist']}"
    for rank, process in enumerate(head.processes):
        assert flag(process, "--dist-init-addr") == dist
        assert (flag(process, "--nnodes"), flag(process, "--node-rank")) == ("2", str(rank))
        assert flag(process, "--tp-size") == "16"
    assert follower.url == f"http://10.0.0.2:{follower.ports['http']}"
    assert [call.path for call in follower.probes.ready] == ["/health"]
    assert set(follower.ports) == {"http", "kv-events"}


def test_case_2_each_rank_has_the_environment_and_devices_of_its_own_node(site) -> None:
    head = site.plan(SGLANG, *WIDE).instance("prefill-0")
    (follower,) = head.followers
    assert [env(p, "SGLANG_HOST_IP") for p in head.processes] == ["10.0.0.1", "10.0.0.2"]
    assert [flag(p, "--host") for p in head.processes] == ["10.0.0.1", "10.0.0.2"]
    assert [flag(p, "--disaggregation-ib-device") for p in head.processes] == ["mlx5_0,mlx5_4", "ib0,ib4"]
    assert [env(p, "NCCL_SOCKET_IFNAME") for p in head.processes] == [None, "eth1"]
    assert env(follower, "CUDA_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7"
    both = site.plan(VLLM, *WIDE).instance("prefill-0").processes
    assert [env(p, "VLLM_HOST_IP") for p in both] == ["10.0.0.1", "10.0.0.2"]


def test_case_3_processes_of_one_node_share_no_port(site) -> None:
    for text in (SGLANG, VLLM):
        plan = site.plan(text, "pools.prefill.instances=4", "pools.prefill.tp=2", "pools.decode.tp=16")
        taken = Counter(
            (p.node, port) for i in plan.instances for p in i.processes for port in p.ports.values()
        )
        assert max(taken.values()) == 1


def test_case_4_one_bootstrap_port_for_all_nodes_of_a_prefill_instance(site) -> None:
    head = site.plan(SGLANG, *WIDE, "nodes.1.ports=21000-21999").instance("prefill-0")
    port = str(head.facts["bootstrap_port"])
    assert [flag(p, "--disaggregation-bootstrap-port") for p in head.processes] == [port, port]
    assert head.facts["bootstrap_host"] == "10.0.0.1"
    assert head.followers[0].ports["http"] in range(21000, 22000)


def test_vllm_ranks_but_the_first_are_headless(site) -> None:
    head = site.plan(VLLM, *WIDE).instance("prefill-0")
    (follower,) = head.followers
    for rank, process in enumerate(head.processes):
        assert flag(process, "--master-addr") == "10.0.0.1"
        assert flag(process, "--master-port") == str(head.ports["master"])
        assert (flag(process, "--nnodes"), flag(process, "--node-rank")) == ("2", str(rank))
        assert ("--headless" in {w.text for w in process.argv}) == bool(rank)
    assert flag(follower, "--port") is None
    assert (follower.url, follower.probes.ready) == ("", ())


def test_vllm_data_parallel_ranks_are_divided_among_the_nodes(site) -> None:
    plan = site.plan(VLLM, "pools.decode={role: decode, engine: vllm, tp: 2, dp: 8, nodes: [b0, b1]}")
    head = plan.instance("decode-0")
    (follower,) = head.followers
    for process in head.processes:
        assert flag(process, "--data-parallel-size") == "8"
        assert flag(process, "--data-parallel-size-local") == "4"
        assert flag(process, "--data-parallel-address") == "10.0.0.3"
        assert flag(process, "--data-parallel-rpc-port") == str(head.ports["dp-rpc"])
        assert flag(process, "--nnodes") is None
    assert flag(head, "--data-parallel-start-rank") is None
    assert flag(follower, "--data-parallel-start-rank") == "4"
    assert env(follower, "VLLM_NIXL_SIDE_CHANNEL_HOST") == "10.0.0.4"


def test_processes_of_an_instance_are_replaced_together(site) -> None:
    """A change on one node of it changes the digest of every process, and of no other instance's."""
    before, after = site.plan(SGLANG, *WIDE), site.plan(SGLANG, *WIDE, "nodes.1.env={NCCL_DEBUG: INFO}")
    changed = {
        p.name: p.digest != q.digest
        for i, j in zip(before.instances, after.instances, strict=True)
        for p, q in zip(i.processes, j.processes, strict=True)
    }
    assert changed == {"prefill-0": True, "prefill-0.1": True, "decode-0": False, "decode-0.1": False}
    assert len({p.digest for i in before.instances for p in i.processes}) == 4


def test_pins_on_several_nodes(site) -> None:
    pool = "{role: prefill, engine: sglang, tp: 8, pin: [{nodes: [b1, a0], gpus: [4, 5, 6, 7]}]}"
    plan = site.plan(SGLANG, f"pools.prefill={pool}")
    processes = plan.instance("prefill-0").processes
    assert [(p.node, p.devices) for p in processes] == [("b1", (4, 5, 6, 7)), ("a0", (4, 5, 6, 7))]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "pools.decode.tp=64",
            "decode-0: needs 64 GPUs on one node; a0 has 8 of 8 free, a1 has 8 of 8 free, b0 has 8 of 8 "
            "free, b1 has 8 of 8 free [placement] (72 GPUs wanted, 32 there)",
        ),
        ("pools.decode={role: decode, engine: sglang, tp: 8, nnodes: 8}", "spans 8 nodes, and may use 4"),
        (
            "pools.decode={role: decode, engine: sglang, tp: 8, instances: 5}",
            "decode-4: needs 8 GPUs on one node; a0 has 0 of 8 free",
        ),
        ("pools.decode={role: decode, engine: sglang, tp: 8, nnodes: 3}", "cannot be spread evenly over 3"),
        (
            "pools.decode={role: decode, engine: sglang, tp: 4, pp: 3, nnodes: 2}",
            "6 ranks on each of 2 nodes would cut tensor-parallel groups of 4 unevenly [spans]",
        ),
        ("pools.decode={role: decode, engine: sglang, tp: 2, nodes: [c]}", "there is no node 'c'"),
        (
            "pools.decode.pin=[{nodes: [a0, nowhere]}]",
            "pools.decode.pin.0.nodes.1: there is no node 'nowhere'",
        ),
        (
            "pools.decode.pin=[{node: a0, nodes: [a0, a1]}]",
            "give `node`, or `nodes` of an instance on several",
        ),
        ("pools.decode.pin=[{nodes: [a0, a0]}]", "names a node twice"),
        (
            "pools.decode.pin=[{nodes: [a0, a1], gpus: [0]}]",
            "takes 8 GPUs on 2 nodes, here are 1 on each [pins]",
        ),
        ("pools.decode={role: decode, engine: sglang, dp: 16}", "the engine keeps DP ranks on one node"),
        ("nodes.1.ports=20000-20003", "no port left on node a1: its instances need"),
    ],
)
def test_a_refusal_names_what_lacks(site, override: str, expected: str) -> None:
    told = site.told(SGLANG, override)
    assert any(expected in line for line in told), told


def test_case_3_a_port_of_a_further_process_that_is_taken_is_named(site) -> None:
    text = SGLANG.replace("router: {auth: none}", "router: {auth: none, listen: '0.0.0.0:20000', node: a1}")
    told = site.told(text, *WIDE)
    assert any("prefill-0.1: its http port 20000 is also that of router.listen [ports]" in t for t in told), (
        told
    )


POOL = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8, 16]),
        "pp": st.sampled_from([1, 2]),
        "instances": st.integers(0, 4),
        "placement": st.sampled_from(["spread", "pack"]),
    },
    optional={
        "nodes": st.lists(st.sampled_from("abc"), min_size=1, unique=True),
        "nnodes": st.integers(1, 3),
    },
)
NODE = st.fixed_dictionaries(
    {"gpus": st.sampled_from([0, 4, 8, 16]), "rack": st.sampled_from(["r", "s"])},
    optional={"ports": st.sampled_from(["20000-20030", "21000-21999"])},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    st.sampled_from(["sglang", "vllm"]),
    st.lists(NODE, min_size=3, max_size=3),
    st.lists(POOL, min_size=2, max_size=4),
)
def test_nothing_is_double_booked_in_any_topology(
    site, engine: str, nodes: list[dict[str, Any]], pools: list[dict[str, Any]]
) -> None:
    """Neither a GPU nor the NIC beside it nor a port, of all that is not refused."""
    for index, node in enumerate(nodes):
        node |= {"name": "abc"[index], "address": f"10.0.0.{index + 1}"}
        node["nics"] = {gpu: f"mlx5_{gpu}" for gpu in range(node["gpus"])}
    roles = ["prefill", "decode", "unified", "decode"]
    topology = {
        "name": "any",
        "model": {"path": "m"},
        "nodes": nodes,
        "pools": {f"p{n}": {"role": roles[n], "engine": engine, **pool} for n, pool in enumerate(pools)},
        "router": {"auth": "none", "listen": "10.0.0.1:8000"},
    }
    try:
        plan = site.plan(json.dumps(topology))
    except TopologyError:
        return
    processes = [p for i in plan.instances for p in i.processes]
    gpus = Counter((p.node, gpu) for p in processes for gpu in p.devices)
    ports = Counter((p.node, port) for p in processes for port in p.ports.values())
    assert all(count == 1 for count in (gpus + ports).values())
    nics: Counter[tuple[str, str]] = Counter()
    for p in processes:
        given_nics = flag(p, "--disaggregation-ib-device") or env(p, "UCX_NET_DEVICES") or ""
        nics.update((p.node, nic) for nic in filter(None, given_nics.split(",")))
    assert all(count == 1 for count in nics.values())
    for instance in plan.instances:
        assert len({p.node for p in instance.processes}) == len(instance.processes)
