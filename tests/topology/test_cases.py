"""What breaks when real deployments are launched, by case, planned with the real engines' adapters."""

from __future__ import annotations

import json

import pytest

HOSTS = """\
name: two-hosts
model: {path: org/model}
nodes:
  - {name: a, address: 10.0.0.1, gpus: 8, nics: [mlx5_0, mlx5_1]}
  - {name: b, address: 10.0.0.2, gpus: 8, nics: [mlx5_2]}
pools:
  prefill: {role: prefill, engine: ENGINE, nodes: [a], tp: 2, instances: 2}
  decode: {role: decode, engine: ENGINE, nodes: [b], tp: 2}
router: {auth: none}
"""

SGLANG, VLLM = HOSTS.replace("ENGINE", "sglang"), HOSTS.replace("ENGINE", "vllm")


def flag(plan, instance: str, name: str) -> str | None:
    words = [word.text for word in plan.instance(instance).argv]
    return words[words.index(name) + 1] if name in words else None


def env(plan, instance: str, name: str) -> str | None:
    word = plan.instance(instance).env.get(name)
    return word.text if word else None


def test_case_1_side_channel_host_is_each_instances_routable_address(site) -> None:
    plan = site.plan(VLLM)
    assert env(plan, "prefill-0", "VLLM_NIXL_SIDE_CHANNEL_HOST") == "10.0.0.1"
    assert env(plan, "decode-0", "VLLM_NIXL_SIDE_CHANNEL_HOST") == "10.0.0.2"
    told = site.told(VLLM.replace("10.0.0.1", "127.0.0.1"))
    assert any("nodes.0.address: 127.0.0.1 cannot be reached from the other nodes" in line for line in told)


def test_case_1_a_side_channel_on_loopback_by_hand_is_refused(site) -> None:
    told = site.told(VLLM, "pools.prefill.env={VLLM_NIXL_SIDE_CHANNEL_HOST: 127.0.0.1}")
    assert any("[unroutable-address]" in line for line in told), told


def test_case_2_addresses_are_rendered_per_node(site) -> None:
    plan = site.plan(SGLANG)
    assert [env(plan, i.name, "SGLANG_HOST_IP") for i in plan.instances] == [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
    ]


def test_case_3_instances_of_one_host_share_no_port(site) -> None:
    for text in (SGLANG, VLLM):
        plan = site.plan(text, "pools.prefill.instances=4")
        on_a = [port for i in plan.instances if i.node == "a" for port in i.ports.values()]
        assert len(set(on_a)) == len(on_a) > 8


def test_case_4_one_bootstrap_port_per_instance(site) -> None:
    plan = site.plan(SGLANG)
    assert flag(plan, "prefill-0", "--disaggregation-bootstrap-port") == str(
        plan.instance("prefill-0").facts["bootstrap_port"]
    )


@pytest.mark.parametrize(
    ("text", "override", "rule"),
    [
        (SGLANG, "pools.decode.flags.page-size=64", "page-size"),
        (SGLANG, "pools.decode.flags.kv-cache-dtype=fp8_e5m2", "kv-dtype"),
        (VLLM, "pools.decode.flags.kv-cache-dtype=fp8", "kv-dtype"),
    ],
)
def test_case_5_pairs_that_disagree_are_refused(site, text: str, override: str, rule: str) -> None:
    told = site.told(text, override)
    assert any(f"[{rule}]" in line for line in told), told


@pytest.mark.parametrize(
    ("text", "override"),
    [
        (SGLANG, "pools.decode.flags.disaggregation-mode=prefill"),
        (SGLANG, "pools.decode.flags.disaggregation_mode=null"),
        (VLLM, "pools.decode.flags.kv-transfer-config={kv_role: kv_producer}"),
        (VLLM, """pools.decode.flags.kv-transfer-config='{"kv_role": "kv_producer"}'"""),
    ],
)
def test_case_7_overrides_that_contradict_the_role_are_refused(site, text: str, override: str) -> None:
    told = site.told(text, override)
    assert any("pools.decode" in line and "[" in line for line in told), told


def test_case_7_the_role_implies_the_flags(site) -> None:
    assert flag(site.plan(SGLANG), "decode-0", "--disaggregation-mode") == "decode"
    config = json.loads(flag(site.plan(VLLM), "prefill-0", "--kv-transfer-config") or "")
    assert config["kv_role"] == "kv_producer"


def test_case_8_nics_are_rendered_for_each_backend(site) -> None:
    mooncake = site.plan(SGLANG)
    assert flag(mooncake, "prefill-0", "--disaggregation-ib-device") == "mlx5_0,mlx5_1"
    assert env(mooncake, "prefill-0", "UCX_NET_DEVICES") is None
    nixl = site.plan(SGLANG, "pools.prefill.transfer=nixl", "pools.decode.transfer=nixl")
    assert flag(nixl, "prefill-0", "--disaggregation-ib-device") is None
    assert env(nixl, "decode-0", "UCX_NET_DEVICES") == "mlx5_2:1"
    assert env(site.plan(VLLM), "decode-0", "UCX_NET_DEVICES") == "mlx5_2:1"


def test_case_10_ipv6_addresses(site) -> None:
    plan = site.plan(SGLANG.replace("10.0.0.1,", "'2001:db8::1',").replace("10.0.0.2,", "'2001:db8::2',"))
    assert plan.instance("decode-0").url.startswith("http://[2001:db8::2]:")
    assert flag(plan, "prefill-0", "--host") == "2001:db8::1"


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        (SGLANG, "pools.decode.flags.page-sizee=64", "page-size"),
        (VLLM, "pools.decode.flags.max-num-seq=64", "max-num-seqs"),
        (VLLM, "pools.decode.env={VLLM_NIXL_ABORT_REQUEST_TIMEOUT: '5'}", "lease"),
    ],
)
def test_case_11_what_this_version_does_not_know_is_refused(
    site, text: str, override: str, expected: str
) -> None:
    told = site.told(text, override)
    assert any(expected in line for line in told), told


def test_case_29_launched_engines_demand_the_key_the_router_presents(site) -> None:
    site.environ = {"KEY": "engine-key-1"}
    for text in (SGLANG, VLLM):
        plan = site.plan(text, "router.credentials.engine_key=${env:KEY}")
        shown = [w for i in plan.instances for w in (*i.argv, *i.env.values()) if "engine-key-1" in w.text]
        assert len(shown) == len(plan.instances)
        assert all(word.secret for word in shown)
        assert plan.router.credentials.engine_key == "engine-key-1"
