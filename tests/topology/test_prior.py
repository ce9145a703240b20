"""What launch profiles say of speed, as predictors read it in an endpoint's facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.sim.timing import QWEN3_32B_TP2, RDMA, TCP
from orchestrator.topology.planner import shipped_roots
from orchestrator.topology.prior import Prior, as_fact
from orchestrator.topology.profiles import Finder

PRIOR = """\
description: Fast ones.
gpus: false
prior:
  prefill: {token: 248.7us, token2: 2.898ns, fixed: 1ms, floor: 20ms}
  exposed:
    pigeon: {fixed: 11ms, token: 6.5us, overlaps: true}
    snail: {fixed: 15ms}
    default: {token: 1us}
  step: {base: 12ms, request: 60us, token: 55.9ns}
  chunk_tokens: 8192
  efficient_chunk_tokens: 1024
"""

FACT = {
    "prefill": {"token_s": 248.7e-6, "token2_s": 2.898e-9, "fixed_s": 0.001, "floor_s": 0.02},
    "exposed": {"fixed_s": 0.0, "token_s": 1e-6, "cap_tokens": None},
    "step": {"base_s": 0.012, "request_s": 60e-6, "token_s": 55.9e-9},
    "unit_tokens": 1024,
}


def test_it_arrives_in_the_facts_as_plain_seconds(site, pair: str) -> None:
    site.profile("fake/default", PRIOR)
    plan = site.plan(pair)
    assert plan.instance("prefill-0").facts["prior"] == FACT
    assert plan.instance("decode-0").facts["prior"] == FACT


@pytest.mark.parametrize(
    ("transfer", "exposed"),
    [
        ("pigeon", {"fixed_s": 0.011, "token_s": 6.5e-6, "cap_tokens": 8192}),
        ("snail", {"fixed_s": 0.015, "token_s": 0.0, "cap_tokens": None}),
        ("owl", FACT["exposed"]),
    ],
)
def test_the_hand_off_is_that_of_the_transfer(site, pair: str, transfer: str, exposed: object) -> None:
    site.profile("fake/default", PRIOR)
    plan = site.plan(pair, f"pools.prefill.transfer={transfer}", f"pools.decode.transfer={transfer}")
    assert plan.instance("prefill-1").facts["prior"]["exposed"] == exposed


def test_what_is_not_known_is_left_out(site, pair: str) -> None:
    site.profile("fake/default", "description: x.\ngpus: false\nprior: {prefill: {token: 1ms}}\n")
    assert site.plan(pair).instance("decode-0").facts["prior"] == {
        "prefill": {"token_s": 0.001, "token2_s": 0.0, "fixed_s": 0.0, "floor_s": 0.0},
        "unit_tokens": 512,
    }


def test_it_holds_only_for_what_it_was_measured_with(site, pair: str) -> None:
    site.profile("fake/default", PRIOR.replace("prior:\n", "prior:\n  measured: {model: Org/MODEL, tp: 2}\n"))
    assert "prior" not in site.plan(pair).instance("decode-0").facts, "another size"
    plan = site.plan(pair, "pools.decode.tp=2")
    assert "prior" in plan.instance("decode-0").facts, "./model is the model by its last part"
    assert "prior" not in plan.instance("prefill-0").facts
    assert "prior" not in site.plan(pair, "pools.decode.tp=2", "model.path=other").instance("decode-0").facts


def test_a_prior_replaces_that_of_the_profile_it_extends(site, pair: str) -> None:
    site.profile("fake/base", PRIOR)
    site.profile("fake/heir", "description: Heir.\nextends: fake/base\n")
    site.profile("fake/default", "description: Own.\nextends: fake/base\nprior: {prefill: {token: 1ms}}\n")
    plan = site.plan(pair, "pools.decode.profile=heir")
    assert plan.instance("decode-0").facts["prior"] == FACT
    assert set(plan.instance("prefill-0").facts["prior"]) == {"prefill", "unit_tokens"}


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        ("{step: {base: 1ms}}", "fake/default.yaml:3: prior.prefill: is required"),
        ("{prefill: {tokens: 1ms}}", "prior.prefill.tokens: unknown field (did you mean 'token'?)"),
        ("{prefill: {token: 0s}}", "prior.prefill.token: must be more than zero"),
        ("{prefill: {token: 0.1}}", "prior.prefill.token: 0.1 is not a duration"),
        ("{prefill: {token: 1ms}, exposed: {x: {bytes: 1}}}", "prior.exposed.x.bytes: unknown field"),
        (
            "{prefill: {token: 1ms}, exposed: {x: {overlaps: true}}}",
            "prior.exposed.x.overlaps: needs `chunk_tokens`: only the last chunk is waited for",
        ),
        (
            "{prefill: {token: 1ms}, chunk_tokens: 256}",
            "prior.chunk_tokens: is less than efficient_chunk_tokens, 512",
        ),
        ("{prefill: {token: 1ms}, measured: {tp: 2}}", "prior.measured.model: is required"),
    ],
)
def test_a_misfit_is_told_at_its_place(site, pair: str, prior: str, expected: str) -> None:
    site.profile("fake/default", f"description: x.\ngpus: false\nprior: {prior}\n")
    told = site.told(pair)
    assert any(expected in line for line in told), told


def shipped(name: str, engine: str) -> Prior:
    found, problems = Finder(shipped_roots(), Path("/")).find(name, engine, Role.PREFILL)
    assert not problems
    assert found.prior is not None
    return found.prior


def test_the_simulators_is_what_it_computes_with() -> None:
    prior, timing = shipped("default", "sim"), QWEN3_32B_TP2
    fact = as_fact(prior, ["mooncake"])
    assert fact["prefill"] == {
        "token_s": timing.prefill_token_s,
        "token2_s": timing.prefill_token2_s,
        "fixed_s": 0.0,
        "floor_s": timing.step_floor_s,
    }
    step = fact["step"]
    for batch, tokens in ((1, 1000), (64, 200_000)):
        seconds = step["base_s"] + step["request_s"] * batch + step["token_s"] * tokens
        assert seconds == pytest.approx(timing.decode_s(batch, tokens), rel=1e-4)
    for transfer, link in (("mooncake", RDMA), ("mooncake_tcp", TCP)):
        exposed = as_fact(prior, [transfer])["exposed"]
        assert exposed["cap_tokens"] == timing.chunk_tokens
        assert exposed["fixed_s"] == link.fixed_s
        assert exposed["token_s"] * 1000 == pytest.approx(timing.wire_s(1000, link), rel=1e-4)
    pulled = as_fact(prior, ["nixl"])["exposed"]
    assert pulled["cap_tokens"] is None
    assert pulled["fixed_s"] == pytest.approx(RDMA.fixed_s + timing.decode_base_s)


SIM = """\
name: x
model: {path: m}
pools:
  a: {role: unified, engine: sim, profile: ./sim.yaml, options: {speed: 0.5}}
  b: {role: unified, engine: sim, profile: ./sim.yaml, flags: {speed: 4}}
  c: {role: unified, engine: sim, profile: ./sim.yaml}
"""


def test_a_simulated_engine_is_as_fast_as_its_pool_says(site) -> None:
    (site.folder / "sim.yaml").write_text(PRIOR)
    plan = site.plan(SIM)
    floors = [plan.instance(f"{pool}-0").facts["prior"]["prefill"]["floor_s"] for pool in "abc"]
    assert floors == [0.04, 0.005, 0.02]
    facts = site.plan(SIM, "pools.a.options.speed=2").instance("a-0").facts["prior"]
    assert facts["unit_tokens"] == 1024, "tokens do not become faster"
    assert facts["exposed"] == {"fixed_s": 0.0, "token_s": 5e-7, "cap_tokens": None}


def test_a_speed_that_is_none_is_the_lints_to_tell(site) -> None:
    (site.folder / "sim.yaml").write_text(PRIOR)
    told = site.told(SIM, "pools.a.options.speed=fast", "pools.b.flags.speed=0")
    assert len(told) == 2
    assert all("speed" in line for line in told)


def test_encoders_have_none_and_ranks_are_facts(site) -> None:
    (site.folder / "sim.yaml").write_text(PRIOR)
    text = SIM + "  e: {role: encode, engine: sim, profile: ./sim.yaml}\n"
    plan = site.plan(text, "pools.a.dp=2", "pools.b.pp=3")
    assert "prior" not in plan.instance("e-0").facts
    assert (plan.instance("a-0").facts["dp_size"], plan.instance("b-0").facts["pp_size"]) == (2, 3)
    assert {"dp_size", "pp_size"}.isdisjoint(plan.instance("c-0").facts)
