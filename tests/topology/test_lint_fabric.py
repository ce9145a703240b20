"""Plans held against what their nodes have, by rule; each estimate says what it is made of.

Covers lint_fabric, fabric_rules, carriage, costs and nearby.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import hosttree
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.fabric import Fabric, Gpu, Interface, Nic
from orchestrator.errors import TopologyError
from orchestrator.fabric.host import read
from orchestrator.topology.fabric import Report, dump

PAIR = """\
name: pair
model: {path: org/model, vocab_size: 1000}
nodes:
  - {name: h1, address: 10.0.0.1, fabric: h1.json}
  - {name: h2, address: 10.0.0.2, fabric: h2.json}
pools:
  prefill: {role: prefill, engine: sglang, nodes: [h1], tp: TP}
  decode: {role: decode, engine: sglang, nodes: [h2], tp: TP}
router: {auth: none}
silence: {router-reach: {reason: planned elsewhere}}
"""


class Hosts:
    """A site whose hosts h1 and h2 are of a kind each, as tests/data/fabric has them."""

    def __init__(self, site) -> None:
        self.site = site

    def are(self, first: str, second: str) -> tuple[Fabric, Fabric]:
        return self.save("h1", self.kind(first)), self.save("h2", self.kind(second))

    def kind(self, kind: str) -> Fabric:
        return read(hosttree.unfold(kind, self.site.folder / kind))

    def save(self, name: str, fabric: Fabric) -> Fabric:
        (self.site.folder / f"{name}.json").write_text(dump(Report(fabric)))
        return fabric

    def told(self, text: str, *overrides: str) -> list[str]:
        """Every finding: the errors if it is refused, else the warnings."""
        try:
            found = self.plan(text, *overrides).warnings
        except TopologyError as error:
            found = tuple(map(str, error.problems))
        return [line.replace(f"{self.site.folder}/", "") for line in found]

    def plan(self, text: str, *overrides: str):
        self.site.profile("sglang/default", "description: None.\n")
        self.site.profile("vllm/default", "description: None.\n")
        return self.site.plan(text.replace("TP", "8"), *overrides)


@pytest.fixture
def hosts(site) -> Hosts:
    return Hosts(site)


def only(found: list[str], rule: str) -> str:
    mine = [line for line in found if f"[{rule}]" in line]
    assert len(mine) == 1, found
    return mine[0]


def flag(plan, instance: str, name: str) -> str | None:
    words = [word.text for word in plan.instance(instance).argv]
    return words[words.index(name) + 1] if name in words else None


def test_hosts_as_they_should_be_give_no_finding(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    assert hosts.told(PAIR) == []
    hosts.are("dgx-h100", "dgx-h100")
    assert hosts.told(PAIR) == []
    assert hosts.told(PAIR.replace("sglang", "vllm"), "pools.prefill.drain_timeout=60s") == []


def test_without_a_fabric_nothing_is_said_or_changed(hosts: Hosts) -> None:
    text = PAIR.replace("fabric: h1.json", "gpus: 8").replace("fabric: h2.json", "gpus: 8")
    assert hosts.told(text) == []
    plan = hosts.plan(text)
    assert flag(plan, "prefill-0", "--disaggregation-ib-device") is None
    assert flag(plan, "prefill-0", "--disaggregation-transfer-backend") == "mooncake"
    assert "CUDA_DEVICE_ORDER" not in plan.instance("prefill-0").env


def test_case_8_the_map_follows_from_the_host_for_each_backend(hosts: Hosts) -> None:
    hosts.are("dgx-h100", "hgx-h200")
    plan = hosts.plan(PAIR)
    assert json.loads(flag(plan, "prefill-0", "--disaggregation-ib-device") or "") == {
        str(gpu): f"mlx5_{nic}" for gpu, nic in enumerate((0, 3, 4, 5, 6, 9, 10, 11))
    }
    assert json.loads(flag(plan, "decode-0", "--disaggregation-ib-device") or "")["7"] == "mlx5_7"
    vllm = hosts.plan(PAIR.replace("sglang", "vllm"))
    env = vllm.instance("prefill-0").env
    assert env["VLLM_GPU_NIC_PCIE_MAPPING"].text.startswith("0000:1b:00.0=0000:18:00.0,0000:43:00.0=")
    assert "UCX_NET_DEVICES" not in env


def test_case_8_a_map_by_hand_is_rendered_by_gpu_too(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    plan = hosts.plan(PAIR, "pools.prefill.tp=2", "nodes.0.nics={0: mlx5_1, 1: mlx5_0}")
    assert flag(plan, "prefill-0", "--disaggregation-ib-device") == '{"0":"mlx5_1","1":"mlx5_0"}'


def test_case_9_a_nic_on_another_numa_node_with_its_cost_and_the_nearer_one(hosts: Hosts) -> None:
    hosts.are("pcie-two-numa", "pcie-two-numa")
    found = hosts.told(PAIR.replace("TP", "4"), "nodes.0.nics={0: mlx5_0, 1: mlx5_0, 2: mlx5_0, 3: mlx5_0}")
    line = only(found, "cross-numa")
    assert "GPU 2, 3 of h1, on NUMA node 1, use mlx5_0 on another one, at about half its bandwidth" in line
    # 11 ms + 4096 * 128 KiB at 20 GB/s, and at 24/48.9 of it.
    assert "a prompt of 4096 tokens waits about 66 ms for its KV, not 38 ms" in line
    assert "(estimated for a model like Qwen3-32B at tp 2)" in line
    assert "(nearer is {2: mlx5_1, 3: mlx5_1})" in line
    assert line.startswith("--set nodes.0.nics: ")


def test_case_9_a_nic_shared_by_all_is_near_if_one_of_them_is(hosts: Hosts) -> None:
    hosts.are("pcie-two-numa", "pcie-two-numa")
    text = PAIR.replace("TP", "4")
    assert not [f for f in hosts.told(text, "nodes.0.nics=[mlx5_0, mlx5_1]") if "cross-numa" in f]


def test_case_9_one_nic_of_eight(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    line = only(hosts.told(PAIR, "nodes.1.nics=[mlx5_0]"), "idle-nics")
    assert "of 8 NICs near the GPUs of h2, mlx5_0 alone is used" in line
    assert "mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7 not" in line
    assert "waits about 226 ms for its KV, not 38 ms" in line
    assert "0: mlx5_0, 1: mlx5_1" in line


def test_case_9_a_name_that_the_node_lacks_is_refused_with_those_it_has(hosts: Hosts) -> None:
    hosts.are("pcie-two-numa", "pcie-two-numa")
    line = only(hosts.told(PAIR.replace("TP", "4"), "nodes.1.nics=[mlx5_0, mlx5_7]"), "nic-missing")
    assert "nodes.1.nics: there is no RDMA device mlx5_7" in line
    assert "(the node has mlx5_0, mlx5_1)" in line


def test_case_9_a_name_for_all_hosts_that_one_of_them_lacks(hosts: Hosts) -> None:
    hosts.are("dgx-h100", "pcie-two-numa")
    text = PAIR.replace("tp: TP", "tp: 4")
    found = hosts.told(text, "pools.decode.flags.disaggregation-ib-device=mlx5_11")
    assert "node h2 has no RDMA device mlx5_11, which decode-0 would use" in only(found, "nic-missing")


def test_a_link_that_is_down_by_hand_and_by_itself(hosts: Hosts) -> None:
    hosts.are("nic-down", "hgx-h200")
    line = only(hosts.told(PAIR), "nic-down")
    assert "the link of mlx5_2, nearest to GPU 2 of h1, is DOWN: mlx5_0 carries it too, at 50%" in line
    assert "waits about 65 ms for its KV, not 38 ms" in line
    by_hand = hosts.told(PAIR, "nodes.0.nics=[mlx5_0, mlx5_2]")
    assert "the link of mlx5_2 is DOWN [nic-missing] (up are mlx5_0, mlx5_1, mlx5_3" in only(
        by_hand, "nic-missing"
    )


def test_nics_of_two_kinds_have_no_path_between_them(hosts: Hosts) -> None:
    hosts.are("dgx-h100", "pcie-two-numa")
    line = only(hosts.told(PAIR.replace("tp: TP", "tp: 4")), "link-layers")
    assert "of h1 is InfiniBand, mlx5_0, mlx5_1 of h2 Ethernet: KV has no path between them" in line


def test_a_slower_peer(hosts: Hosts) -> None:
    _, fast = hosts.are("hgx-h200", "hgx-h200")
    slow = replace(fast, nics=tuple(replace(nic, rate_gbps=100.0) for nic in fast.nics))
    hosts.save("h2", slow)
    line = only(hosts.told(PAIR), "slower-peer")
    assert "NICs of h2 have 100 Gbit/s, their peers 400" in line
    assert "waits about 118 ms for its KV, not 38 ms" in line


def test_memory_that_may_not_be_locked(hosts: Hosts) -> None:
    first, _ = hosts.are("hgx-h200", "hgx-h200")
    hosts.save("h1", replace(first, memlock_bytes=8 << 20))
    assert "h1 lets 8388608 bytes of memory be locked" in only(hosts.told(PAIR), "memlock")
    hosts.save("h1", replace(first, memlock_bytes=-1))
    assert hosts.told(PAIR) == []


def test_gpus_that_the_node_does_not_have(hosts: Hosts) -> None:
    hosts.are("pcie-two-numa", "pcie-two-numa")
    line = only(hosts.told(PAIR.replace("tp: TP", "tp: 4"), "nodes.0.gpus=8"), "gpu-missing")
    assert "there is no GPU 4, 5, 6, 7: the node has 4 GPUs, numbered from 0" in line


def test_case_12_without_rdma_tcp_is_chosen_and_its_cost_told(hosts: Hosts) -> None:
    hosts.are("ethernet-vm", "ethernet-vm")
    text = PAIR.replace("tp: TP", "tp: 2")
    plan = hosts.plan(text)
    for name in ("prefill-0", "decode-0"):
        assert flag(plan, name, "--disaggregation-transfer-backend") == "mooncake_tcp"
        assert flag(plan, name, "--disaggregation-ib-device") is None
    costs = [w for w in plan.warnings if "[tcp-cost]" in w]
    assert len(costs) == 2
    assert "KV goes over TCP, as node h1, h2 has no RDMA device that is up" in costs[0]
    # 15 ms + 4096 * 128 KiB at 1.65 GB/s; 349 ms were measured.
    assert "a prompt of 4096 tokens waits about 340 ms for its KV, 32% on top of its TTFT" in costs[0]
    assert "and 38 ms over RDMA" in costs[0]


def test_case_12_one_host_without_rdma_takes_both_sides_along(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "ethernet-vm")
    plan = hosts.plan(PAIR.replace("tp: TP", "tp: 2"))
    assert flag(plan, "prefill-0", "--disaggregation-transfer-backend") == "mooncake_tcp"
    assert flag(plan, "decode-0", "--disaggregation-transfer-backend") == "mooncake_tcp"


def test_case_12_rdma_that_is_hard_wired_is_refused_with_what_tcp_costs(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "ethernet-vm")
    text = PAIR.replace("tp: TP", "tp: 2, transfer: mooncake, prompt_tokens: 16384")
    lines = [line for line in hosts.told(text) if "[no-rdma]" in line]
    assert len(lines) == 2
    assert "mooncake needs RDMA, and node h2 has none up" in lines[0]
    assert "(write transfer: mooncake_tcp in both pools; over TCP a prompt of 16384 tokens waits" in lines[0]
    assert "about 666 ms for its KV, 14% on top of its TTFT" in lines[0]


def test_case_12_nixl_takes_the_interface_that_its_address_is_on(hosts: Hosts) -> None:
    first, second = hosts.are("ethernet-vm", "ethernet-vm")
    for name, fabric, address in (("h1", first, "10.0.0.1"), ("h2", second, "10.0.0.2")):
        hosts.save(name, replace(fabric, interfaces=(Interface("ens3", addresses=(address,)),)))
    plan = hosts.plan(PAIR.replace("sglang", "vllm").replace("tp: TP", "tp: 2"))
    assert plan.instance("decode-0").env["UCX_NET_DEVICES"].text == "ens3"
    assert sum("[tcp-cost]" in w for w in plan.warnings) == 2


def test_case_12_nixl_names_no_nic_that_its_peer_has_no_way_to(hosts: Hosts) -> None:
    first, _ = hosts.are("hgx-h200", "ethernet-vm")
    hosts.save("h1", replace(first, interfaces=(Interface("bond0", addresses=("10.0.0.1",)),)))
    plan = hosts.plan(PAIR.replace("sglang", "vllm").replace("tp: TP", "tp: 2"))
    env = plan.instance("prefill-0").env
    assert env["UCX_NET_DEVICES"].text == "bond0"
    assert "VLLM_GPU_NIC_PCIE_MAPPING" not in env
    # Its file says nothing of addresses, so the choice is UCX's.
    assert "UCX_NET_DEVICES" not in plan.instance("decode-0").env
    assert "KV goes over TCP, as node h2 has no RDMA device that is up" in " ".join(plan.warnings)


def test_a_nic_is_not_idle_because_its_gpu_is(hosts: Hosts) -> None:
    """Two GPUs share the two NICs of a switch, and one of them is not used."""
    first, _ = hosts.are("hgx-h200", "hgx-h200")
    switch = first.gpus[0].path[:3]
    nics = tuple(replace(nic, path=(*switch, nic.pci)) for nic in first.nics[:4])
    gpus = tuple(replace(gpu, path=(*switch, gpu.pci)) for gpu in first.gpus[:4])
    hosts.save("h1", replace(first, gpus=gpus, nics=nics))
    assert hosts.told(PAIR.replace("tp: TP", "tp: 2")) == []


def test_tcp_that_is_written_although_there_is_rdma(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    found = hosts.told(PAIR.replace("tp: TP", "tp: 8, transfer: mooncake_tcp"))
    assert sum("KV goes over TCP, and every node has RDMA" in line for line in found) == 2
    assert not any("idle-nics" in line for line in found)


def test_the_models_own_kv_is_reckoned_with_where_it_is_known(hosts: Hosts) -> None:
    hosts.are("ethernet-vm", "ethernet-vm")
    config = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16"}
    (hosts.site.folder / "mla").mkdir()
    (hosts.site.folder / "mla/config.json").write_text(json.dumps(config))
    found = hosts.told(PAIR.replace("tp: TP", "tp: 2"), "model.path=./mla")
    # 15 ms + 4096 * 61 * 576 * 2 B at 1.65 GB/s.
    assert "waits about 189 ms for its KV and 25 ms over RDMA (estimated for 68.625 KiB" in found[-1]


def test_simulated_engines_need_no_hardware(hosts: Hosts) -> None:
    hosts.are("ethernet-vm", "ethernet-vm")
    hosts.site.profile("sim/default", "description: None.\ngpus: false\n")
    assert hosts.told(PAIR.replace("sglang", "sim").replace("tp: TP", "tp: 1")) == []


def test_every_process_of_an_instance_on_two_nodes_is_looked_at(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    text = PAIR.replace("nodes: [h1], tp: TP", "nodes: [h1, h2], tp: 8, nnodes: 2").replace("tp: TP", "tp: 4")
    found = hosts.told(text, "nodes.0.gpus=4", "nodes.1.nics=[mlx5_7]")
    # Four GPUs of decode, and four of the second process of prefill.
    assert "of 8 NICs near the GPUs of h2, mlx5_7 alone is used" in only(found, "idle-nics")


def test_a_launch_profile_for_other_cards(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    hosts.site.profile("sglang/mine", "description: Mine.\ncard: H100\n")
    line = only(hosts.told(PAIR, "pools.decode.profile=mine"), "profile-card")
    assert "launch profile sglang/mine is for H100, node h2 has NVIDIA H200" in line
    hosts.site.profile("sglang/mine", "description: Mine.\ncard: h200\n")
    assert hosts.told(PAIR, "pools.decode.profile=mine") == []


def test_a_card_is_a_word_of_the_name(hosts: Hosts) -> None:
    hosts.are("pcie-two-numa", "pcie-two-numa")
    hosts.site.profile("sglang/mine", "description: Mine.\ncard: L40\n")
    found = hosts.told(PAIR.replace("tp: TP", "tp: 4"), "pools.decode.profile=mine")
    assert "is for L40, node h2 has NVIDIA L40S" in only(found, "profile-card")


def test_a_map_by_hand_with_gaps(hosts: Hosts) -> None:
    text = PAIR.replace("fabric: h1.json", "gpus: 4, nics: {0: a, 1: b}").replace(
        "fabric: h2.json", "gpus: 4"
    )
    text = text.replace("tp: TP", "tp: 4")
    line = only(hosts.told(text), "nic-gaps")
    assert line.startswith("t.yaml:4: nodes.0.nics: no NIC for GPU 2, 3: instances there use one list")
    assert flag(hosts.plan(text), "prefill-0", "--disaggregation-ib-device") == "a,b"
    assert not any("nic-gaps" in told for told in hosts.told(text.replace("tp: 4", "tp: 2")))


def test_amd_accelerators_are_mapped_by_list_as_vllm_maps_ranks_on_cuda_alone(hosts: Hosts) -> None:
    hosts.are("mi300x", "mi300x")
    plan = hosts.plan(PAIR.replace("sglang", "vllm"))
    env = plan.instance("prefill-0").env
    assert env["UCX_NET_DEVICES"].text == ",".join(f"mlx5_{i}:1" for i in range(8))
    assert not {"VLLM_GPU_NIC_PCIE_MAPPING", "CUDA_DEVICE_ORDER"} & set(env)
    by_gpu = json.loads(flag(hosts.plan(PAIR), "decode-0", "--disaggregation-ib-device") or "")
    assert by_gpu == {str(i): f"mlx5_{i}" for i in range(8)}


def test_two_pools_at_odds_are_one_finding_however_many_hosts_they_have(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "pcie-two-numa")
    text = PAIR.replace("tp: TP", "tp: 4").replace(
        "pools:", "  - {name: h3, address: 10.0.0.3, fabric: h2.json}\npools:"
    )
    found = hosts.told(text, "pools.decode.nodes=[h2, h3]", "pools.decode.instances=2")
    assert "of h2 Ethernet: KV has no path between them; so it is with 1 more pairs" in only(
        found, "link-layers"
    )


def test_a_link_layer_that_is_not_told_is_no_fault(hosts: Hosts) -> None:
    first, _ = hosts.are("hgx-h200", "hgx-h200")
    hosts.save("h1", replace(first, nics=tuple(replace(nic, link_layer="") for nic in first.nics)))
    assert hosts.told(PAIR) == []


def test_a_host_without_gpus_changes_nothing_for_pools_that_need_some(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "hgx-h200")
    bare = replace(hosts.kind("ethernet-vm"), gpus=())
    hosts.save("h3", bare)
    front = PAIR.replace("pools:", "  - {name: h3, address: 10.0.0.3, fabric: h3.json}\npools:")
    front = front.replace("nodes: [h1], ", "").replace("nodes: [h2], ", "")
    assert hosts.told(front) == []


def test_a_nic_on_another_numa_node_where_no_link_is_up(hosts: Hosts) -> None:
    first, _ = hosts.are("pcie-two-numa", "pcie-two-numa")
    hosts.save("h1", replace(first, nics=tuple(replace(nic, state="") for nic in first.nics)))
    found = hosts.told(PAIR.replace("tp: TP", "tp: 4, transfer: mooncake"), "nodes.0.nics=[mlx5_0]")
    assert "no-rdma" in " ".join(found)


def test_case_12_pinned_instances_may_use_only_the_nodes_of_their_pins(hosts: Hosts) -> None:
    hosts.are("hgx-h200", "ethernet-vm")
    pinned = "pools.decode.pin=[{nodes: [h1, h2]}]"
    text = PAIR.replace("nodes: [h2], tp: TP", "tp: 4, nnodes: 2").replace("tp: TP", "tp: 4")
    assert any("tcp-cost" in line for line in hosts.told(text, pinned, "nodes.1.gpus=2"))
    alone = PAIR.replace("nodes: [h2], tp: TP", "tp: 4").replace("tp: TP", "tp: 4")
    assert not any("tcp-cost" in line for line in hosts.told(alone, "pools.decode.pin=[{node: h1}]"))


def any_host(name: str) -> st.SearchStrategy[Fabric]:
    """Hosts of all kinds: GPUs and NICs anywhere, NUMA nodes and rates told or not, links up or down."""
    place = st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 1]))
    link = st.sampled_from(["ACTIVE", "DOWN", ""])
    ports = st.tuples(
        place, link, st.sampled_from([None, 25.0, 400.0]), st.sampled_from(["", "Ethernet", "InfiniBand"])
    )

    def path(switch: int, slot: int) -> tuple[str, ...]:
        return (f"pci{switch}", f"root{switch}", f"up{switch}", f"down{switch}.{slot}", f"{switch}.{slot}")

    def make(gpus: list[tuple[int, int | None]], nics: list[tuple], vendor: str, limit: int | None) -> Fabric:
        return Fabric(
            name,
            gpus=tuple(
                Gpu(i, f"0000:0{i}:00.0", vendor, "NVIDIA H100", None, numa, path(switch, i))
                for i, (switch, numa) in enumerate(gpus)
            ),
            nics=tuple(
                Nic(f"mlx5_{i}", f"0000:1{i}:00.0", numa, path(switch, 10 + i), state, rate, layer)
                for i, ((switch, numa), state, rate, layer) in enumerate(nics)
            ),
            memlock_bytes=limit,
        )

    return st.builds(
        make,
        st.lists(place, min_size=2, max_size=4),
        st.lists(ports, max_size=5),
        st.sampled_from(["nvidia", "amd"]),
        st.sampled_from([None, -1, 65536]),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=any_host("h1"),
    second=any_host("h2"),
    engine=st.sampled_from(["sglang", "vllm"]),
    transfer=st.sampled_from(["", ", transfer: nixl", ", transfer: mooncake", ", transfer: mooncake_tcp"]),
    by_hand=st.sampled_from(
        [(), ("nodes.0.nics=[mlx5_0]",), ("nodes.0.nics={0: mlx5_0, 1: [mlx5_1, mlx5_2]}",)]
    ),
)
def test_whatever_the_hosts_are_a_plan_names_nics_that_are_there_and_up(
    hosts: Hosts, first: Fabric, second: Fabric, engine: str, transfer: str, by_hand: tuple[str, ...]
) -> None:
    fabrics = {"h1": hosts.save("h1", first), "h2": hosts.save("h2", second)}
    text = PAIR.replace("sglang", engine).replace("tp: TP", f"tp: 2{transfer}")
    try:
        plan, refused = hosts.plan(text, *by_hand), set()
    except TopologyError as error:
        plan, refused = None, {problem.rule for problem in error.problems}
    assert refused <= {"no-rdma", "nic-missing", "link-layers"}
    for instance in plan.instances if plan is not None else ():
        known = fabrics[instance.node]
        words = " ".join([w.text for w in instance.argv] + [w.text for w in instance.env.values()])
        named = set(re.findall(r"mlx5_[0-9]", words))
        assert named <= {nic.name for nic in known.nics if nic.active or (by_hand and nic.state == "")}
        written = flag(plan, instance.name, "--disaggregation-ib-device")
        if written is not None and written.startswith("{"):
            assert set(json.loads(written)) == {"0", "1"}
        if "mooncake_tcp" in transfer:
            assert not named
