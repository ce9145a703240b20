"""Promises, tenants, pools and time-outs against each other."""

from __future__ import annotations

import pytest

from orchestrator.topology.planner import NOT_SAID

POOLS = """\
name: x
model: {path: m, vocab_size: 9}
pools:
  p: {role: prefill, engine: sim, profile: ./sim.yaml, options: {dialect: vllm}}
  d: {role: decode, engine: sim, profile: ./sim.yaml, options: {dialect: vllm}}
  u: {role: unified, engine: sim, profile: ./sim.yaml, options: {dialect: vllm}}
"""


@pytest.fixture
def pools(site) -> str:
    (site.folder / "sim.yaml").write_text("description: Sim.\ngpus: false\n")
    return POOLS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "scheduling: {service_tiers: {flex: bacth}}\n",
            "scheduling.service_tiers.flex: there is no SLO class 'bacth' [classes] (did you mean 'batch'?)",
        ),
        ("scheduling: {priorities: [{at_least: 1, use: x}]}\n", "scheduling.priorities.0.use: there is no"),
        (
            "tenants: {t: {classes: [batch, realtme]}}\n",
            "tenants.t.classes.1: there is no SLO class 'r",
        ),
        (
            "slo_classes: {a: {long_prompts: {over_tokens: 9, use: b}}}\n",
            "slo_classes.a.long_prompts.use: there is no SLO class 'b'",
        ),
        (
            "slo_classes: {a: {long_prompts: {over_tokens: 9, use: a}}}\n",
            "slo_classes.a.long_prompts.use: has `long_prompts` of its own, which are not looked at again",
        ),
        (
            "slo_classes: {a: {pools: [p, dd]}}\n",
            "slo_classes.a.pools.1: there is no pool 'dd' [class-pools] (did you mean 'd'?)",
        ),
        ("slo_classes: {a: {pools: [p]}}\n", "slo_classes.a.pools: these compute prompts, but none of them"),
        ("slo_classes: {a: {pools: [d]}}\n", "slo_classes.a.pools: these decode, but none of them computes"),
        (
            "slo_classes: {a: {ttft: 3s, e2e: 3s}}\n",
            "slo_classes.a.e2e: leaves no time after the first token: `ttft` is as long [promises]",
        ),
        (
            "slo_classes: {batch: {ttft: {p99: 20m, per_cold_prefill: 1}}}\n",
            "slo_classes.batch.e2e: leaves no time",
        ),
        (
            "slo_classes: {a: {reserve: 0.6}, b: {reserve: 0.4}}\n",
            "slo_classes.b.reserve: 0.6 (a) + 0.4 (b) must be less than 1 together [promises]",
        ),
        (
            "slo_classes: {a: {max_wait: 11m}}\n",
            "slo_classes.a.max_wait: is never reached: router.timeouts.queue is 600 s [promises]",
        ),
        (
            "slo_classes: {a: {timeouts: {prefill: 6m, total: 2m}}}\n",
            "slo_classes.a.timeouts.prefill: is over router.timeouts.prefill, which is 300 s [promises]",
        ),
    ],
)
def test_what_does_not_fit_together_is_told_at_its_line(site, pools: str, text: str, expected: str) -> None:
    (told,) = site.told(pools + text)
    assert told.startswith(f"t.yaml:7: {expected}"), told


@pytest.mark.parametrize("pools_of_class", ["[p, d]", "[u]", "[u, p]", "[p, d, u]"])
def test_pools_that_can_serve(site, pools: str, pools_of_class: str) -> None:
    assert site.plan(pools + f"slo_classes: {{a: {{pools: {pools_of_class}}}}}\n").router is not None


def test_pools_that_can_serve_only_while_they_have_instances(site, pools: str) -> None:
    text = pools + "slo_classes: {a: {pools: [p, d]}, b: {pools: [u]}}\n"
    told = site.told(text, "pools.u.instances=0")
    assert told == [
        "t.yaml:7: slo_classes.b.pools: no instance of these serves requests; "
        "name prefill and decode pools, or a unified one [class-pools]"
    ]


def test_decode_alone_serves_where_it_may_prefill(site, pools: str) -> None:
    text = pools + "slo_classes: {a: {pools: [d]}}\n"
    plan = site.plan(text, "pools.d.may_prefill=true")
    assert plan.instance("d-0").facts["may_prefill"] is True
    assert "may_prefill" not in plan.instance("p-0").facts


def test_who_may_prefill_is_up_to_the_engine(site, pools: str, pair: str) -> None:
    sglang = pools.replace("vllm", "sglang")
    assert site.told(sglang, "pools.d.may_prefill=true") == [
        "--set pools.d.may_prefill: engine sim cannot compute prompts in a decode pool: "
        "its decode server takes only what a prefill server hands over"
    ]
    (told,) = site.told(pair, "pools.decode.may_prefill=true")
    assert told.endswith(f"engine ./fake_engine.py:Fake cannot compute prompts in a decode pool: {NOT_SAID}")
    (told,) = site.told(pair, "pools.prefill.may_prefill=true")
    assert "may_prefill: is for decode pools; this one's role is prefill" in told


def test_a_class_may_hand_its_long_prompts_to_another(site, pools: str) -> None:
    text = "slo_classes: {interactive: {long_prompts: {over_tokens: 9, use: long}}, long: {reserve: 0.99}}\n"
    assert site.plan(pools + text).warnings == ()
