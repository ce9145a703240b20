"""Lint: the parts of a topology against each other, by rule; the adapters' own findings at their lines."""

from __future__ import annotations

import pytest

FAKE = "engine: './fake_engine.py:Fake'"


def test_case_7_a_flag_that_contradicts_the_role_is_refused_by_the_adapter(site, pair: str) -> None:
    told = site.told(pair.replace("role: decode,", "role: decode,\n    flags: {mode: prefill},"))
    assert told == ["t.yaml:6: pools.decode.flags.mode: contradicts the role [role-flags]"]


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_lonely_half_is_refused(site, role: str, other: str) -> None:
    told = site.told(f"name: x\nmodel: {{path: m}}\npools:\n  only: {{role: {role}, {FAKE}}}\n")
    assert told == [
        f"t.yaml:4: pools.only: {role} instances, but none for {other} to hand off with [roles] "
        f"(add a pool with `role: {other}`, or make this one `role: unified`)"
    ]


ENCODE = """\
name: x
model: {path: m, vocab_size: 9}
pools:
  e: {role: encode, engine: sim, instances: 2}
  p: {role: prefill, engine: sim}
  d: {role: decode, engine: sim}
"""


def test_encoders_need_someone_of_their_engine_to_encode_for(site) -> None:
    (site.folder / "sim.yaml").write_text("description: Sim.\ngpus: false\n")
    text = ENCODE.replace("engine: sim", "engine: sim, profile: ./sim.yaml")
    assert len(site.plan(text).instances) == 4
    others = [f"pools.{pool}.options.dialect=vllm" for pool in "pd"]
    alone = ["pools.p.instances=0", "pools.d.instances=0"]
    for told in (site.told(text, *others), site.told(text, *alone)):
        assert told == [
            "t.yaml:4: pools.e: encoders, but no prefill or unified instance of sglang to encode for [roles] "
            "(add a pool with `role: prefill` or `role: unified` of that engine)"
        ]
    assert site.plan(text, "pools.e.instances=0").instances


def test_empty_pools_count_for_nothing(site, pair: str) -> None:
    assert "none for decode to hand off with" in site.told(pair, "pools.decode.instances=0")[0]
    assert (
        "no pool has an instance"
        in site.told(pair, "pools.decode.instances=0", "pools.prefill.instances=0")[0]
    )


def test_one_protocol_in_all_pairs(site, pair: str) -> None:
    told = site.told(
        pair.replace(f"decode, {FAKE}", "decode, engine: sim").replace(
            "decode, engine: ./fake_engine.py:Fake", "decode, engine: sim, profile: ./sim.yaml"
        )
    )
    assert any("there is no launch profile" in t or "no such file" in t for t in told)
    (site.folder / "sim.yaml").write_text("description: Sim.\ngpus: false\n")
    told = site.told(
        pair.replace("decode, engine: ./fake_engine.py:Fake", "decode, engine: sim, profile: ./sim.yaml")
    )
    assert "pools.decode.engine: speaks sglang, pool prefill speaks fake" in told[0]
    assert "[one-protocol]" in told[0]
    told = site.told(pair, "pools.decode.transfer=a", "pools.prefill.transfer=b")
    assert "pools.decode.transfer: transfers KV by a, pool prefill by b [one-protocol]" in told[0]


def test_launched_engines_need_a_model_to_load(site, pair: str) -> None:
    told = site.told(pair.replace("path: ./model", "served_name: x"))
    assert "model.path: is required: pdctl launches engines here" in told[0]


NODES = "nodes: [{{name: a, address: {a}}}, {{name: b, address: {b}}}]\n"


def test_case_1_nodes_that_cannot_reach_each_other(site, pair: str) -> None:
    told = site.told(pair + NODES.format(a="127.0.0.1", b="10.0.0.2"))
    assert told == ["t.yaml:6: nodes.0.address: 127.0.0.1 cannot be reached from the other nodes [addresses]"]
    told = site.told(pair + NODES.format(a="10.0.0.1", b="0.0.0.0"))
    assert "nodes.1.address: 0.0.0.0 is every interface" in told[0]


def test_two_nodes_at_one_address_share_its_ports(site, pair: str) -> None:
    told = site.told(pair + NODES.format(a="127.0.0.1", b="127.0.0.1"))
    assert told == [
        "t.yaml:6: nodes.1.ports: overlaps the ports of node a, which has the same address [port-ranges]"
    ]
    apart = NODES.format(a="127.0.0.1", b="'127.0.0.1', ports: 40000-40999").replace("''", "'")
    assert len(site.plan(pair + apart).instances) == 3


@pytest.mark.parametrize("admin", ["10.0.0.1:9", "0.0.0.0:9", "'[::]:9'"])
@pytest.mark.parametrize("clients", ["credentials: {client_keys: [abc]}", "auth: none"])
def test_the_admin_listener_needs_a_key_of_its_own_beyond_loopback(
    site, pair: str, admin: str, clients: str
) -> None:
    text = pair + f"router: {{admin: {admin}, {clients}}}\n"
    told = site.told(text)
    shown = admin.strip("'")
    assert told == [
        f"t.yaml:6: router.admin: {shown} can be reached from other machines, and no admin key is demanded "
        "[admin-key] (write router.credentials.admin_key: ${env:NAME}, or listen on 127.0.0.1)"
    ]
    site.environ = {"K": "a-long-admin-key"}
    plan = site.plan(text, "router.credentials.admin_key='${env:K}'")
    assert plan.router.credentials.admin_key == "a-long-admin-key"
    assert site.plan(text, "router.admin=127.0.0.1:9").router.admin_port == 9
    assert site.plan(text, "router.kind=none", "router.credentials={}", "router.auth=none").router is None


OTHERS = """\
name: x
model: {served_name: m}
pools:
  p: {role: prefill, engine: sglang, external: [{url: 'http://10.0.0.1:1', bootstrap_port: 2}]}
  d: {role: decode, engine: sglang, external: [{url: 'http://10.0.0.2:1'}]}
"""


def test_an_engine_that_unknown_tokens_end_wants_the_vocabulary_known(site) -> None:
    warnings = [w.replace(f"{site.folder}/", "") for w in site.plan(OTHERS).warnings]
    assert warnings == [
        "t.yaml:2: model: the size of the vocabulary is unknown: a client that sends a token id beyond it "
        "ends an engine of pool p [vocabulary] (write `vocab_size: N`, as the model's config.json has it)"
    ]
    plan = site.plan(OTHERS, "model.vocab_size=2048")
    assert plan.warnings == ()
    assert {i.facts["vocab_size"] for i in plan.instances} == {2048}
    assert site.plan(OTHERS.replace("engine: sglang", "engine: vllm")).warnings == ()


@pytest.mark.parametrize(
    ("ports", "met"), [("40000-40500", True), ("32000-33000", True), ("31000-32767", False)]
)
def test_ports_that_the_kernel_gives_out_are_warned_of(site, pair: str, ports: str, met: bool) -> None:
    warnings = site.plan(pair, f"nodes=[{{name: a, ports: {ports}}}]").warnings
    assert ["[ephemeral-ports]" in w and ports in w for w in warnings] == [True] * met


def test_slo_classes_that_are_named_exist(site, pair: str) -> None:
    told = site.told(
        pair
        + "slo_classes: {fast: {ttft: 1s}}\n"
        + "scheduling: {default_class: fats}\n"
        + "tenants: {t: {slo_class: slow}}\n"
    )
    assert told == [
        "t.yaml:7: scheduling.default_class: there is no SLO class 'fats' [classes] (did you mean 'fast'?)",
        "t.yaml:8: tenants.t.slo_class: there is no SLO class 'slow' [classes] "
        "(known: realtime, interactive, batch, fast)",
    ]


def test_findings_of_placement_and_lint_come_together(site, pair: str) -> None:
    told = site.told(
        pair + "scheduling: {default_class: x}\n", "pools.decode.gpus=1", "pools.prefill.instances=0"
    )
    assert {t.rpartition("[")[2].partition("]")[0] for t in told} == {"classes", "placement", "roles"}
