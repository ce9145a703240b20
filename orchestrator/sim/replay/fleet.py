"""The engines of a replay: how many of which kind, how fast they really are, and how they hand KV over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.types import Endpoint, Role
from orchestrator.sim.jobs import ModelConfig
from orchestrator.sim.timing import LINKS, QWEN3_32B_TP2, Link, Timing

DIALECTS = ("sglang", "vllm")
"""Whose hand-off a fleet uses. SGLang: both legs start at once, decode reserves memory, prefill waits for
that, then pushes. vLLM: prefill first, which keeps the KV under a lease, then decode pulls it."""

RETRACT_TOKENS = 512
"""SGLang keeps this many tokens free for each request that decodes before it admits another one
(`--num-reserved-decode-tokens`)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulated instance. `slowdown` is what no prediction is told: every step takes that many times as
    long as `config` says."""

    name: str
    role: Role
    config: ModelConfig
    pool: str = ""
    model: str = "sim"
    slowdown: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    """From `at_s` on, the engines named (all, if none are) take `factor` times as long."""

    at_s: float
    factor: float
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fleet:
    """All instances. `latency_s` is one way between router and engines, `poll_s` how often loads are read,
    `noise` the sigma of the log-normal factor on every step, `lease_s` how long vLLM keeps KV."""

    units: tuple[Unit, ...]
    dialect: str = "sglang"
    latency_s: float = 0.005
    poll_s: float = 1.0
    noise: float = 0.0
    lease_s: float = 30.0
    drifts: tuple[Drift, ...] = ()

    @property
    def pushes(self) -> bool:
        """Whether KV is pushed to a reserved decode side."""
        return self.dialect == "sglang"

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The router's view of them before any load is known."""
        return tuple(
            Endpoint(
                id=unit.name,
                pool=unit.pool or unit.role.value,
                role=unit.role,
                engine=self.dialect,
                model=unit.model,
                url=f"http://{unit.name}.invalid",
                ready=True,
                incarnation="life-1",
                block_size=unit.config.block_tokens,
                labels=unit.labels,
                facts={
                    "kv_total_tokens": unit.config.kv_tokens,
                    "prior": prior(unit.config),
                    **self._protocol(),
                    **unit.facts,
                },
            )
            for unit in self.units
        )

    def _protocol(self) -> dict[str, Any]:
        """What the adapter of the dialect says of its hand-off."""
        if self.pushes:
            return {"prefill_answers": "transferred"}
        return {"late_decode": True, "lease_s": self.lease_s}


def prior(config: ModelConfig) -> dict[str, Any]:
    """What the launch profile would say of such an engine before anything is learned."""
    timing = config.timing
    return {
        "prefill": {
            "token_s": timing.prefill_token_s,
            "token2_s": timing.prefill_token2_s,
            "floor_s": timing.step_floor_s,
        },
        "step": {
            "base_s": timing.decode_base_s,
            "request_s": timing.decode_request_s,
            "token_s": timing.decode_s(0, 1) - timing.decode_s(0, 0),
        },
        "exposed": {
            "fixed_s": config.link.fixed_s,
            "token_s": timing.wire_s(1, config.link),
            "cap_tokens": (config.chunk_tokens or timing.chunk_tokens) if config.link.overlaps else None,
        },
    }


def published(
    prefill: int = 8,
    decode: int = 2,
    unified: int = 0,
    *,
    dialect: str = "sglang",
    link: Link = LINKS["rdma"],
    timing: Timing = QWEN3_32B_TP2,
    block_tokens: int = 512,
    slowdowns: Sequence[float] = (),
    **fleet: Any,
) -> Fleet:
    """Qwen3-32B on two cards each: 700k tokens of KV (all of it prefix cache) for a prefill instance, 350k for
    the others. `slowdowns` are the prefill instances' own. Other arguments are `Fleet`'s."""
    sizes = {Role.PREFILL: 700_000, Role.DECODE: 350_000, Role.UNIFIED: 350_000}
    units = []
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.UNIFIED, unified)):
        for i in range(count):
            config = ModelConfig(
                timing=timing,
                link=link,
                kv_tokens=sizes[role],
                cache_tokens=0 if role is Role.DECODE and dialect == "sglang" else None,
                block_tokens=block_tokens,
                mixed=dialect == "vllm",
            )
            slow = slowdowns[i % len(slowdowns)] if slowdowns and role is Role.PREFILL else 1.0
            units.append(Unit(f"{role.value}-{i}", role, config, slowdown=slow))
    return Fleet(tuple(units), dialect=dialect, **fleet)
