"""A valid deployment broken in one place at a time: each break is found by the rule that is about it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.topology.rulebook import rulebook

HOSTS = """\
name: two-hosts
model: {path: ./gqa}
nodes:
  - {name: a, address: 10.0.0.1, gpus: 8, nics: [mlx5_0, mlx5_1]}
  - {name: b, address: 10.0.0.2, gpus: 8, nics: [mlx5_2]}
pools:
  prefill: {role: prefill, engine: ENGINE, nodes: [a], tp: 2, instances: 2, drain_timeout: 60s}
  decode: {role: decode, engine: ENGINE, nodes: [b], tp: 2}
router: {auth: none}
"""
BASES = {
    "sglang": HOSTS.replace("ENGINE", "sglang"),
    "vllm": HOSTS.replace("ENGINE", "vllm"),
}
MODELS = {
    "gqa": {"num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size": 4096},
    "mla": {"num_hidden_layers": 4, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
}
ALWAYS = {"router-reach"}
"""What is said of the whole topology as it is."""

BESIDE = {"addresses": {"unroutable-address"}, "port-ranges": {"shared-host"}}
"""What says the same of an engine, or of another part of it."""

P, D = "pools.prefill", "pools.decode"
MLA = "model.path=./mla"
STAGING = "env={SGLANG_DISAGG_STAGING_BUFFER: 1}"
TCP = (f"{P}.transfer=mooncake_tcp", f"{D}.transfer=mooncake_tcp")
NIXL = (f"{P}.transfer=nixl", f"{D}.transfer=nixl")


@dataclass(frozen=True)
class Break:
    """One change (`--set`s) to a base, and the rule that must speak of it."""

    base: str
    rule: str
    sets: tuple[str, ...]
    warns: bool = False

    def __str__(self) -> str:
        return f"{self.base}-{self.rule}-{'+'.join(self.sets)}"


def sglang(rule: str, *sets: str, warns: bool = False) -> Break:
    return Break("sglang", rule, sets, warns)


def vllm(rule: str, *sets: str, warns: bool = False) -> Break:
    return Break("vllm", rule, sets, warns)


def config(pool: str, text: str) -> str:
    return f"{pool}.flags.kv-transfer-config={text}"


BREAKS = (
    # The topology itself.
    sglang("roles", f"{D}.instances=0"),
    sglang("one-protocol", f"{D}.engine=vllm"),
    sglang("addresses", "nodes.1.address=127.0.0.1"),
    sglang("addresses", "nodes.0.address=0.0.0.0"),
    sglang("port-ranges", "nodes.1.address=10.0.0.1"),
    sglang("ports", "nodes.0.ports=20000-20003"),
    sglang("ports", "router.listen=10.0.0.1:20000"),
    sglang("ephemeral-ports", "nodes.0.ports=40000-41000", warns=True),
    sglang("placement", f"{P}.tp=8", f"{D}.tp=8"),
    sglang("pins", f"{D}.nodes=null", f"{D}.pin=[{{node: b, gpus: [0, 1, 2]}}]"),
    sglang("admin-key", "router.admin=10.0.0.1:9000"),
    sglang("tls-files", "router.tls={certificate: ./none.pem, key: ./none.key}"),
    sglang("classes", "scheduling.default_class=nowhere"),
    sglang("class-pools", "slo_classes={fast: {pools: [prefill]}}"),
    sglang("promises", "slo_classes={fast: {ttft: 2s, e2e: 1s}}"),
    sglang("silence", "silence={page-sizes: {reason: x}}"),
    sglang("unused-silence", "silence={unequal-tp: {reason: x}}", warns=True),
    # Names, values and versions.
    sglang("unknown-flag", f"{D}.flags.page-sizee=64"),
    vllm("unknown-flag", f"{D}.flags.max-num-seq=64"),
    sglang("unknown-env", f"{D}.env={{SGLANG_DISAGGREGATION_WAITNG_TIMEOUT: 400}}"),
    vllm("unknown-env", f"{D}.env={{VLLM_NIXL_SIDE_CHANEL_HOST: 10.0.0.2}}"),
    sglang("unknown-env", f"{P}.env={{MC_TCP_MAX_QUEUD_TRANSFERS_PER_PEER: 1}}", warns=True),
    sglang("replaced", f"{D}.flags.disaggregation-decode-tp=2"),
    sglang("replaced", f"{D}.env={{SGLANG_DISAGG_STAGING_BUFFER_SIZE_MB: 64}}"),
    vllm("replaced", f"{D}.env={{VLLM_NIXL_ABORT_REQUEST_TIMEOUT: '5'}}"),
    sglang("deprecated", f"{P}.flags.disable-cuda-graph=true", warns=True),
    sglang("flag-value", f"{P}.flags.schedule-policy=best"),
    vllm("flag-value", f"{P}.flags.max-num-seqs=lots"),
    sglang("unknown-version", *(f"{pool}.runtime={{version: 0.5.99}}" for pool in (P, D)), warns=True),
    # Roles and what is the plan's.
    sglang("role-contradiction", f"{D}.flags.disaggregation-mode=prefill"),
    sglang("role-contradiction", f"{D}.flags.disaggregation-mode=null"),
    vllm("role-contradiction", config(D, "{kv_role: kv_producer}")),
    vllm("role-contradiction", config(D, "null")),
    sglang("planned-flag", f"{P}.flags.port=30000"),
    sglang("planned-flag", f"{P}.flags.tp-size=4"),
    vllm("planned-flag", f"{P}.env={{VLLM_NIXL_SIDE_CHANNEL_PORT: 5600}}"),
    # Prefill against decode.
    sglang("page-size", f"{D}.flags.page-size=64"),
    vllm("page-size", f"{P}.flags.block-size=64"),
    sglang("kv-dtype", f"{D}.flags.kv-cache-dtype=fp8_e5m2"),
    vllm("kv-dtype", f"{D}.flags.kv-cache-dtype=fp8"),
    vllm("model-dtype", f"{D}.flags.dtype=float16"),
    sglang("transfer-mismatch", f"{D}.transfer=nixl"),
    vllm("transfer-mismatch", f"{D}.transfer=mooncake"),
    vllm("transfer-mismatch", config(P, "{kv_connector_extra_config: {bidirectional_kv_xfer: true}}")),
    vllm("engine-version", f"{P}.runtime={{version: 0.32.0}}", f"{D}.runtime={{version: 0.32.0.post1}}"),
    sglang("prompt-rendering", f"{D}.flags.chat-template=chatml"),
    vllm("prompt-rendering", f"{D}.flags.tokenizer=org/other"),
    sglang("context-length", f"{D}.flags.context-length=4096", warns=True),
    vllm("hash-seed", f"{D}.flags.prefix-caching-hash-algo=xxhash"),
    sglang("hash-seed", f"{D}.env={{PYTHONHASHSEED: 1}}"),
    vllm("kv-layout", f"{D}.env={{VLLM_KV_CACHE_LAYOUT: HND}}"),
    vllm("compatibility-hash", f"{D}.flags.attention-backend=FLASHINFER"),
    sglang("allocation-policy", f"{D}.flags.disaggregation-decode-allocation-policy=early",
           f"{P}.flags.disaggregation-decode-allocation-policy=prefill_complete"),
    sglang("kv-checksum", f"{D}.flags.disaggregation-enable-kv-checksum=true"),
    sglang("pipeline-size", f"{D}.pp=2"),
    # Sizes, buffers and caches.
    sglang("unequal-tp", f"{D}.tp=4", warns=True),
    sglang("illegal-tp", f"{D}.tp=3", f"{P}.tp=2"),
    vllm("illegal-tp", f"{P}.tp=8", f"{P}.instances=1", f"{D}.tp=4"),
    sglang("illegal-tp", f"{D}.tp=4", f"{P}.flags.kv-cache-dtype=mxfp8", f"{D}.flags.kv-cache-dtype=mxfp8"),
    sglang("staging-buffer", MLA, f"{P}.{STAGING}", f"{D}.{STAGING}", f"{D}.tp=4"),
    sglang("staging-buffer", f"{P}.{STAGING}", f"{D}.tp=4"),
    sglang("staging-buffer", f"{P}.{STAGING}", f"{D}.{STAGING}", warns=True),
    sglang("staging-buffer", f"{P}.{STAGING}", f"{D}.{STAGING}", f"{D}.tp=4",
           f"{P}.flags.chunked-prefill-size=-1"),
    sglang("tcp-lane-queue", *TCP, f"{D}.tp=4", f"{P}.env={{MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER: 65536}}"),
    sglang("role-switch", f"{P}.pp=2", f"{P}.instances=1", f"{P}.flags.enable-pd-role-switch=true"),
    sglang("decode-radix-cache", f"{D}.flags.disaggregation-decode-enable-radix-cache=true",
           f"{D}.flags.enable-hisparse=true"),
    sglang("prefill-dp", f"{P}.dp=2", f"{P}.instances=1"),
    sglang("kv-events", f"{P}.kv_events=true", warns=True),
    vllm("kv-events", f"{P}.kv_events=true", *(f"{one}.flags.block-size=4" for one in (P, D)), warns=True),
    sglang("fake-transfer", f"{P}.transfer=fake", f"{D}.transfer=fake"),
    # Addresses and time.
    vllm("unroutable-address", f"{P}.env={{VLLM_NIXL_SIDE_CHANNEL_HOST: 0.0.0.0}}"),
    sglang("timeout-order", f"{D}.env={{SGLANG_DISAGGREGATION_WAITING_TIMEOUT: 60}}", warns=True),
    vllm("short-lease", config(P, "{kv_connector_extra_config: {kv_lease_duration: 3}}")),
    vllm("short-lease", "router.timeouts.connect=20s"),
    vllm("drain-below-lease", f"{P}.drain_timeout=10s", warns=True),
    vllm("handshake-unchecked", config(P, "{kv_connector_extra_config: {enforce_handshake_compat: false}}"),
         warns=True),
    vllm("fails-on-lost-kv", config(D, "{kv_load_failure_policy: fail}"), warns=True),
    sglang("bad-duration", f"{D}.env={{SGLANG_DISAGGREGATION_WAITING_TIMEOUT: 1.5}}"),
    sglang("ineffective-flag", f"{P}.flags.max-queued-requests=8", warns=True),
)  # fmt: skip


@pytest.fixture
def whole(site):
    """A site with the models' descriptions."""
    for name, told in MODELS.items():
        folder: Path = site.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**told, "vocab_size": 1000}))
    return site


def spoken(lines) -> set[str]:
    """The rules that findings end with."""
    return {found for line in lines for found in re.findall(r"\[([a-z][a-z-]+)\](?: \(|$)", line)}


@pytest.mark.parametrize("base", BASES)
def test_the_whole_is_fine(whole, base: str) -> None:
    plan = whole.plan(BASES[base])
    assert spoken(plan.warnings) <= ALWAYS
    assert whole.plan(BASES[base], MLA, f"{D}.tp=4").instances  # nothing is cut with MLA


@pytest.mark.parametrize("case", BREAKS, ids=str)
def test_each_break_is_found_by_its_rule(whole, case: Break) -> None:
    if case.warns:
        found = spoken(whole.plan(BASES[case.base], *case.sets).warnings) - ALWAYS
    else:
        found = spoken(whole.told(BASES[case.base], *case.sets))
    assert found - BESIDE.get(case.rule, set()) == {case.rule}
    assert case.rule in rulebook()


def test_there_are_sixty_and_more_of_all_kinds() -> None:
    assert len(BREAKS) >= 60
    assert len({case.rule for case in BREAKS}) >= 45
