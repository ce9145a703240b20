"""The fleet of a plan: each instance simulated as its launch profile and its options say it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.core.types import Endpoint, Role
from orchestrator.errors import Problem, TopologyError
from orchestrator.sim.jobs import ModelConfig
from orchestrator.sim.options import SimOptions, parse
from orchestrator.sim.replay.fleet import Fleet, Unit, prior
from orchestrator.sim.timing import QWEN3_32B_TP2, Link, Timing
from orchestrator.topology.plan import InstancePlan, Plan

SIMULATOR = "orchestrator.sim"
"""The module whose flags follow on the command line of a simulated instance."""


def fleet_of(plan: Plan, block_tokens: int, **fleet: Any) -> Fleet:
    """The instances of `plan` that compute prompts or decode; `fleet` are other arguments of `Fleet`.

    A simulated instance has the sizes of its own flags. One of a real engine has those of the simulator, as
    only the engine itself knows how much KV fits. Both have the speed of their launch profile's prior, or of
    Qwen3-32B on two cards where there is none. Raises TopologyError for a plan with nothing to simulate.
    """
    units = [_unit(instance, block_tokens) for instance in plan.instances if instance.role is not Role.ENCODE]
    if not units:
        raise TopologyError([Problem("has no instance that a replay could send requests to", file=plan.file)])
    return Fleet(tuple(units), **fleet)


def _unit(instance: InstancePlan, block_tokens: int) -> Unit:
    dialect = _dialect(instance)
    options = _options(instance, dialect)
    config = ModelConfig(
        timing=QWEN3_32B_TP2,
        link=options.link,
        kv_tokens=options.kv_tokens,
        cache_tokens=options.prefix_tokens,
        block_tokens=block_tokens,
        max_running=options.max_running,
        chunk_tokens=options.chunk,
        mixed=options.mixed,
    )
    told = instance.facts.get("prior")
    if isinstance(told, Mapping):
        config = as_told(config, told, pulls=dialect == "vllm")
    else:
        config = _faster(config, options.speed)
    facts = {
        "prior": prior(config, pulls=dialect == "vllm"),
        **instance.facts,
        "kv_total_tokens": config.kv_tokens,
        # What an engine tells when it is asked: it computes parts of prompts, and finds them again.
        "slices": (dialect == "vllm" or instance.role is Role.UNIFIED) and config.cache_tokens != 0,
    }
    endpoint = Endpoint(
        id=instance.name,
        pool=instance.pool,
        role=instance.role,
        engine=instance.engine,
        model=instance.model,
        url=instance.url,
        ready=True,
        incarnation="life-1",
        max_model_len=options.max_model_len if instance.argv and instance.engine == "sim" else None,
        # Nothing finer than the trace's blocks is known of any cache.
        block_size=max(options.page_size, block_tokens),
        labels=instance.labels,
        facts=facts,
    )
    return Unit(endpoint, config, pushes=dialect != "vllm")


def _dialect(instance: InstancePlan) -> str:
    """Whose hand-off it takes part in; an engine of a stranger's is taken to push, as most do."""
    named = instance.options.get("dialect") if instance.engine == "sim" else instance.engine
    return "vllm" if named == "vllm" else "sglang"


def _options(instance: InstancePlan, dialect: str) -> SimOptions:
    """The simulator's options: of its own command line, or its defaults for the role."""
    words = [word.text for word in instance.argv]
    if instance.engine == "sim" and SIMULATOR in words:
        return parse(words[words.index(SIMULATOR) + 1 :], {})
    return parse(["--dialect", dialect, "--role", instance.role.value], {})


def as_told(config: ModelConfig, told: Mapping[str, Any], *, pulls: bool) -> ModelConfig:
    """`config` as fast as a prior (see `topology.prior.as_fact`) says; what it leaves out stays."""
    timing, link = config.timing, config.link
    prefill, step, exposed = told["prefill"], told.get("step"), told.get("exposed")
    timing = replace(
        timing,
        prefill_token_s=prefill["token_s"],
        prefill_token2_s=prefill["token2_s"],
        step_floor_s=prefill["floor_s"],
        step_fixed_s=prefill["fixed_s"],
    )
    if step is not None:
        timing = replace(timing, decode_base_s=step["base_s"], decode_request_s=step["request_s"])
        timing = _reading(timing, step["token_s"])
    if exposed is not None:
        first_step_s = timing.decode_base_s if pulls else 0.0
        link = Link(
            "prior",
            bytes_per_s=_per_s(timing.kv_token_bytes / timing.ranks, exposed["token_s"]),
            fixed_s=max(0.0, exposed["fixed_s"] - first_step_s),
            overlaps=exposed["cap_tokens"] is not None,
        )
    return replace(config, timing=timing, link=link)


def _reading(timing: Timing, token_s: float) -> Timing:
    """A decode step that takes `token_s` for each token of KV."""
    seconds_at_1 = timing.kv_token_bytes / (timing.ranks * timing.hbm_efficiency)
    return replace(timing, hbm_bytes_per_s=_per_s(seconds_at_1, token_s))


def _per_s(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0.0 else float("inf")


def _faster(config: ModelConfig, speed: float) -> ModelConfig:
    """Everything `speed` times as fast."""
    link, timing = config.link, config.timing.faster(speed)
    faster = replace(link, bytes_per_s=link.bytes_per_s * speed, fixed_s=link.fixed_s / speed)
    return replace(config, timing=timing, link=faster)
