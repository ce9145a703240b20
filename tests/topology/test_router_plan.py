"""The router in the plan: pdctl's own with its settings, the existing ones over the same engines, or none."""

from __future__ import annotations

import pytest

from orchestrator.topology.plan import Limits, Timeouts

SIM = """\
name: r
model: {path: m}
pools:
  p: {role: prefill, engine: sim, instances: 2, profile: ./sim.yaml, options: {dialect: DIALECT}}
  d: {role: decode, engine: sim, profile: ./sim.yaml, options: {dialect: DIALECT}}
"""


@pytest.fixture
def sglang(site) -> str:
    (site.folder / "sim.yaml").write_text("description: Sim.\ngpus: false\n")
    return SIM.replace("DIALECT", "sglang")


@pytest.fixture
def vllm(sglang: str) -> str:
    return sglang.replace("sglang", "vllm")


def words(plan) -> str:
    return " ".join(word.text for word in plan.router.argv)


def test_pdctls_own(site, pair: str) -> None:
    plan = site.plan(pair)
    router = plan.router
    assert words(plan) == f"/usr/bin/python3 -P -m orchestrator.router --state {plan.state_dir} --take-over"
    assert (router.url, router.admin_url) == ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    assert (router.limits, router.timeouts) == (Limits(), Timeouts()), "the defaults are written once"
    assert [call.path for call in (*router.probes.ready, router.probes.live)] == ["/ready", "/health"]
    assert set(router.scheduling) == {"mode", "order", "prefill", "decode", "unified"}


def test_its_settings(site, pair: str) -> None:
    plan = site.plan(
        pair
        + "router:\n"
        + "  listen: '[::]:9000'\n"
        + "  credentials: {client_keys: [abc], engine_key: def, admin_key: ghi}\n"
        + "  limits: {max_body: 1MiB, header_timeout: 1s}\n"
        + "  timeouts: {first_token: 7s}\n"
        + "  pass_headers: [X-Session]\n"
        + "  drain_timeout: 0s\n"
        + "  env: {A: 1, B: null}\n"
        + "slo_classes: {fast: {ttft: 300ms, priority: batch}}\n"
        + "scheduling:\n  default_class: fast\n  profile: mine\n"
        + "  profiles: {mine: {decode: {picker: round-robin}}}\n"
        + "tenants: {t: {keys: [xyz, abc], slo_class: fast}}\n"
    )
    router = plan.router
    assert (router.host, router.url) == ("::", "http://[::1]:9000")
    assert router.credentials.client_keys == ("abc", "xyz"), "tenants' keys are client keys"
    assert (router.credentials.engine_key, router.credentials.admin_key) == ("def", "ghi")
    assert (router.limits.max_body_bytes, router.limits.header_timeout_s) == (1 << 20, 1)
    assert router.timeouts.first_token_s == 7
    assert router.pass_headers == ("x-session",)
    assert router.drain_s == 0
    assert {name: word.text for name, word in router.env.items()} == {"A": "1"}
    assert router.slo_classes["fast"]["ttft"]["seconds"] == 0.3
    assert router.tenants["t"]["keys"] == ["xyz", "abc"]
    assert router.default_class == "fast"
    assert router.scheduling["decode"] == {"picker": "round-robin"}
    assert "prefill" in router.scheduling, "completed from the default profile"


def test_none(site, pair: str) -> None:
    assert site.plan(pair, "router.kind=none").router is None


def test_sglang_router_over_pairs(site, sglang: str) -> None:
    plan = site.plan(
        sglang + "router: {kind: sglang-router, flags: {policy: random, log_level: warn}}\n",
        "router.runtime.python=./v/bin/python",
    )
    assert words(plan) == (
        f"{site.folder}/v/bin/python -m sglang_router.launch_router --host 127.0.0.1 --port 8000 "
        "--prometheus-host 127.0.0.1 --prometheus-port 8001 --pd-disaggregation "
        "--prefill http://127.0.0.1:20000 20001 --prefill http://127.0.0.1:20010 20011 "
        "--decode http://127.0.0.1:20200 --policy random --log-level warn"
    )
    assert [call.path for call in plan.router.probes.ready] == ["/readiness"]


def test_vllm_router_over_pairs(site, vllm: str) -> None:
    plan = site.plan(vllm + "router: {kind: vllm-router}\n")
    assert words(plan) == (
        "/usr/bin/python3 -P -m vllm_router.launch_router --host 127.0.0.1 --port 8000 "
        "--prometheus-host 127.0.0.1 --prometheus-port 8001 --vllm-pd-disaggregation "
        "--prefill http://127.0.0.1:20000 --prefill http://127.0.0.1:20010 --decode http://127.0.0.1:20200"
    )
    plan = site.plan(
        vllm + "router: {kind: vllm-router}\n",
        "pools.p.transfer=MooncakeConnector",
        "pools.d.transfer=MooncakeConnector",
    )
    assert "--vllm-pd-disaggregation --kv-connector mooncake --prefill" in words(plan)


def test_existing_routers_route_over_simulated_engines_of_the_default_dialect(site, sglang: str) -> None:
    text = sglang.replace(", options: {dialect: sglang}", "")
    assert "dialect" not in text
    assert words(site.plan(text + "router: {kind: sglang-router}\n")) == words(
        site.plan(sglang + "router: {kind: sglang-router}\n")
    )


def test_a_change_of_engines_restarts_an_existing_router(site, sglang: str) -> None:
    text = sglang + "router: {kind: sglang-router}\n"
    assert site.plan(text).router.digest != site.plan(text, "pools.d.instances=2").router.digest


def test_its_one_key_is_masked(site, sglang: str) -> None:
    site.environ = {"K": "very-secret-key"}
    plan = site.plan(sglang + "router: {kind: sglang-router, credentials: {client_keys: ['${env:K}']}}\n")
    assert [w.text for w in plan.router.argv if w.secret] == ["very-secret-key"]


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        (
            "{kind: vllm-router}",
            "router.kind: vllm-router: it routes to vllm alone, not to sglang [router-kind]",
        ),
        ("{kind: sglang-router, credentials: {admin_key: a}}", "sglang-router has no separate admin key"),
        ("{kind: sglang-router, credentials: {client_keys: [a, b]}}", "knows one client key, here are 2"),
        ("{kind: sglang-router, credentials: {engine_key: b}}", "engine_key must be the same"),
        ("{kind: vllm-router, credentials: {engine_key: b}}", "neither demands client keys nor presents one"),
        (
            "{kind: sglang-router, limits: {max_body: 1MiB}}",
            "router.limits: is pdctl's own; sglang-router takes",
        ),
    ],
)
def test_what_an_existing_router_cannot_do_is_refused(site, sglang: str, router: str, expected: str) -> None:
    told = site.told(sglang + f"router: {router}\n")
    assert any(expected in line for line in told), told


def test_tenants_and_mixed_roles_are_refused(site, sglang: str) -> None:
    kind = "router: {kind: sglang-router}\n"
    assert "it knows no tenants" in site.told(sglang + kind + "tenants: {t: {keys: [a]}}\n")[0]
    unified = "  u: {role: unified, engine: sim, profile: ./sim.yaml}\n"
    assert "it takes prefill and decode, or unified engines" in site.told(sglang + unified + kind)[0]
    alone = "name: r\nmodel: {path: m}\npools:\n" + unified
    assert words(site.plan(alone + kind)).endswith("--worker-urls http://127.0.0.1:20000")


def test_external_prefill_without_its_bootstrap_port(site, sglang: str) -> None:
    told = site.told(
        "name: r\nmodel: {served_name: m}\nrouter: {kind: sglang-router}\npools:\n"
        "  p: {role: prefill, engine: sim, external: [{url: 'http://a:1'}]}\n"
        "  d: {role: decode, engine: sim, external: [{url: 'http://b:1'}]}\n"
    )
    assert told
