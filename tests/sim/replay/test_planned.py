"""A plan's instances are simulated as their flags and their launch profile's prior say."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.errors import TopologyError
from orchestrator.sim.replay.fleet import Fleet, Unit
from orchestrator.sim.replay.planned import fleet_of
from orchestrator.sim.timing import QWEN3_32B_TP2
from orchestrator.topology.planner import plan_file

HEAD = "name: t\nmodel: {path: Qwen/Qwen3-32B}\nrouter: {listen: 127.0.0.1:8010}\npools:\n"


def planned(tmp_path: Path, pools: str) -> Fleet:
    path = tmp_path / "t.yaml"
    path.write_text(HEAD + pools)
    return fleet_of(plan_file(path, (), environ={}, ask=None), 512, latency_s=0.001)


def unit(fleet: Fleet, name: str) -> Unit:
    return next(u for u in fleet.units if u.name == name)


def test_simulated_instances_have_the_sizes_of_their_flags(tmp_path: Path) -> None:
    fleet = planned(
        tmp_path,
        "  prefill: {role: prefill, engine: sim, instances: 2, options: {chunk: 2048}}\n"
        "  decode: {role: decode, engine: sim, options: {kv-tokens: 100000, max-running: 8}}\n",
    )
    assert [u.name for u in fleet.units] == ["prefill-0", "prefill-1", "decode-0"]
    assert fleet.latency_s == 0.001
    prefill, decode = unit(fleet, "prefill-1"), unit(fleet, "decode-0")
    assert (prefill.config.kv_tokens, prefill.config.chunk_tokens, prefill.config.block_tokens) == (
        700_000,
        2048,
        512,
    )
    assert (decode.config.kv_tokens, decode.config.max_running) == (100_000, 8)
    assert decode.config.cache_tokens == 0
    assert prefill.pushes
    assert prefill.endpoint.facts["prefill_answers"] == "transferred"
    assert decode.endpoint.facts["kv_total_tokens"] == 100_000
    assert decode.endpoint.role is Role.DECODE
    assert fleet.models == ("Qwen/Qwen3-32B",)


def test_slices_are_for_engines_that_compute_parts_of_prompts(tmp_path: Path) -> None:
    pools = "  {0}: {{role: {0}, engine: sim, options: {{dialect: {1}}}}}\n"
    able = {}
    for dialect in ("vllm", "sglang"):
        text = "".join(pools.format(role, dialect) for role in ("prefill", "decode", "unified"))
        for one in planned(tmp_path, text).units:
            able[dialect, one.name] = one.endpoint.facts["slices"]
            assert one.endpoint.block_size == 512, "a slice ends where a block that the trace knows does"
    assert able["vllm", "prefill-0"]
    assert able["vllm", "unified-0"]
    assert able["sglang", "unified-0"]
    assert not able["sglang", "prefill-0"]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("speed", [1, 4])
def test_their_prior_is_what_they_do(tmp_path: Path, dialect: str, speed: int) -> None:
    """The launch profile's figures give back the simulator's own, at the pool's speed."""
    fleet = planned(
        tmp_path,
        f"  prefill: {{role: prefill, engine: sim, options: &o {{dialect: {dialect}, speed: {speed}}}}}\n"
        "  decode: {role: decode, engine: sim, options: *o}\n",
    )
    for one in fleet.units:
        timing, link = one.config.timing, one.config.link
        assert timing.prefill_s(1000, 9000) == pytest.approx(QWEN3_32B_TP2.prefill_s(1000, 9000) / speed)
        assert timing.decode_s(20, 90_000) == pytest.approx(
            QWEN3_32B_TP2.decode_s(20, 90_000) / speed, rel=1e-5
        )
        assert timing.step_floor_s == pytest.approx(0.020 / speed)
        assert link.fixed_s == pytest.approx(0.011 / speed)
        assert timing.wire_s(10_000, link) == pytest.approx(10_000 * 131_072 / 20e9 / speed, rel=1e-3)
        assert link.overlaps == (dialect == "sglang")
        assert one.pushes == (dialect == "sglang")
    assert bool(unit(fleet, "prefill-0").endpoint.facts.get("late_decode")) == (dialect == "vllm")


def test_real_engines_without_a_prior_are_taken_for_the_published_one(tmp_path: Path) -> None:
    fleet = planned(
        tmp_path,
        "  all:\n    role: unified\n    engine: vllm\n    external: [{url: 'http://127.0.0.1:9001'}]\n",
    )
    (one,) = fleet.units
    assert one.config.timing == QWEN3_32B_TP2
    assert (one.config.mixed, one.config.kv_tokens, one.endpoint.max_model_len) == (True, 350_000, None)
    assert one.endpoint.facts["prior"]["prefill"]["token_s"] == QWEN3_32B_TP2.prefill_token_s


def test_encoders_alone_are_nothing_to_replay_on(tmp_path: Path) -> None:
    fleet = planned(tmp_path, "  all: {role: unified, engine: sim}\n")
    path = tmp_path / "t.yaml"
    plan = plan_file(path, (), environ={}, ask=None)
    from dataclasses import replace

    assert len(fleet.units) == 1
    with pytest.raises(TopologyError, match="no instance that a replay could send requests to"):
        fleet_of(replace(plan, instances=()), 512)
