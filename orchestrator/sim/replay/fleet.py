"""The engines of a replay: how many of which kind, how fast they really are, and how they hand KV over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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
    """One simulated instance, and how the router would see it.

    `slowdown` is what no prediction is told: every step takes that many times as long as `config` says.
    `pushes`: its KV goes to a decode side that has reserved memory, instead of being kept for one to pull.
    """

    endpoint: Endpoint
    config: ModelConfig
    slowdown: float = 1.0
    pushes: bool = True

    @property
    def name(self) -> str:
        """The endpoint's id."""
        return self.endpoint.id


@dataclass(frozen=True, slots=True)
class Drift:
    """From `at_s` on, the engines named (all, if none are) take `factor` times as long."""

    at_s: float
    factor: float
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fleet:
    """All instances. `latency_s` is one way between router and engines, `poll_s` how often loads are read,
    `noise` the sigma of the log-normal factor on every step."""

    units: tuple[Unit, ...]
    latency_s: float = 0.005
    poll_s: float = 1.0
    noise: float = 0.0
    drifts: tuple[Drift, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models served, in order of their first instance."""
        return tuple(dict.fromkeys(unit.endpoint.model for unit in self.units))


def prior(config: ModelConfig, *, pulls: bool = False) -> dict[str, Any]:
    """What the launch profile would say of such an engine before anything is learned.

    Where decode `pulls` KV, all of the transfer is exposed, and decode makes the first token itself.
    """
    timing = config.timing
    chunk = config.chunk_tokens or timing.chunk_tokens
    return {
        "prefill": {
            "token_s": timing.prefill_token_s,
            "token2_s": timing.prefill_token2_s,
            "fixed_s": timing.step_fixed_s,
            "floor_s": timing.step_floor_s,
        },
        "step": {
            "base_s": timing.decode_base_s,
            "request_s": timing.decode_request_s,
            "token_s": timing.decode_s(0, 1) - timing.decode_s(0, 0),
        },
        "exposed": {
            "fixed_s": config.link.fixed_s + (timing.decode_base_s if pulls else 0.0),
            "token_s": timing.wire_s(1, config.link),
            "cap_tokens": None if pulls or not config.link.overlaps else chunk,
        },
        "unit_tokens": 512,
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
    kv_tokens: Mapping[Role, int] = MappingProxyType({}),
    lease_s: float = 30.0,
    slowdowns: Sequence[float] = (),
    speeds: Sequence[float] = (),
    **fleet: Any,
) -> Fleet:
    """Qwen3-32B on two cards each: 700k tokens of KV (all of it prefix cache) for a prefill instance, 350k
    for the others, unless `kv_tokens` says otherwise. `slowdowns` are the prefill (without any, the unified)
    instances' own, in turn, and `speeds` how fast their hardware is, as their profiles tell: a pool for each.
    Other arguments are `Fleet`'s."""
    sizes = {Role.PREFILL: 700_000, Role.DECODE: 350_000, Role.UNIFIED: 350_000, **kv_tokens}
    slow_role = Role.PREFILL if prefill else Role.UNIFIED
    protocol: dict[str, Any] = {"prefill_answers": "transferred"}
    if dialect == "vllm":
        protocol = {"late_decode": True, "lease_s": lease_s, "slices": True}
    units = []
    for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.UNIFIED, unified)):
        for i in range(count):
            slow = slowdowns[i % len(slowdowns)] if slowdowns and role is slow_role else 1.0
            speed = speeds[i % len(speeds)] if speeds and role is slow_role else 1.0
            config = ModelConfig(
                timing=timing.faster(speed),
                link=link,
                kv_tokens=sizes[role],
                cache_tokens=0 if role is Role.DECODE and dialect == "sglang" else None,
                block_tokens=block_tokens,
                mixed=dialect == "vllm",
            )
            endpoint = Endpoint(
                id=f"{role.value}-{i}",
                pool=role.value if speed == 1.0 else f"{role.value}-{speed:g}x",
                role=role,
                engine=dialect,
                model="sim",
                url="",
                ready=True,
                incarnation="life-1",
                block_size=block_tokens,
                facts={
                    "kv_total_tokens": config.kv_tokens,
                    "prior": prior(config, pulls=dialect == "vllm"),
                    **(protocol if role is Role.PREFILL else {}),
                },
            )
            units.append(Unit(endpoint, config, slow, pushes=dialect != "vllm"))
    return Fleet(tuple(units), **fleet)
