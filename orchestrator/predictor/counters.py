"""Learning from the engines' own counters: what no single request's times tell."""

from __future__ import annotations

from math import inf, log

from orchestrator.core.types import Load
from orchestrator.predictor.instance import Instance, Tally

STEPS = 16
"""Decode steps (or, where steps are not told, gaps) between two readings that tell of a step's time."""

PROMPTS = 32
"""Prompts after which what the engine says of its prefill time is held against them."""

MATCH = 0.05
"""How far the engine's count of tokens may be from ours for both to mean the same prompts."""

TRUST = 16.0
"""In the engine's own time of so many prompts together: their noise averages out, a mismatch may be left."""


STEADY_TRUST = 0.3
"""In a mean gap between readings that found the same batch: what came between them is not told."""


def learn(instance: Instance, load: Load) -> bool:
    """Take a new reading; whether anything predicted changed by it."""
    before, instance.load = instance.load, load
    if not load.counters or (before is not None and before.at_s == load.at_s):
        return False
    if before is None or _restarted(before, load):
        instance.tally, instance.tally_from = Tally(), load.counters
        return False
    return _prefill(instance, load) | _decode(instance, before, load)


def _restarted(before: Load, load: Load) -> bool:
    return any(load.counters.get(name, 0.0) < value for name, value in before.counters.items())


def _prefill(instance: Instance, load: Load) -> bool:
    """Hold the engine's prefill time against that of the prompts whose end nobody saw.

    Only together with their transfer were those timed: this is what tells the two apart.
    """
    tally, start = instance.tally, instance.tally_from
    if tally.prompts < PROMPTS:
        return False
    tokens = load.counters.get("prefill_tokens", 0.0) - start.get("prefill_tokens", 0.0)
    busy_s = load.counters.get("prefill_busy_s", 0.0) - start.get("prefill_busy_s", 0.0)
    instance.tally, instance.tally_from = Tally(), load.counters
    if not 0.0 < busy_s < inf or abs(tokens - tally.tokens) > MATCH * tally.tokens:
        return False
    fixed, token, token2, floor = instance.prefill.coefs
    terms = (tally.prompts * fixed, token * tally.tokens, token2 * tally.tokens2)
    whole_s = sum(terms, 0.0)
    if whole_s <= tally.prompts * floor:
        return False
    instance.prefill.learn((*(term / whole_s for term in terms), 0.0), log(busy_s / whole_s), TRUST)
    return instance.moved(max(1, tally.tokens // tally.prompts), 0)


def _decode(instance: Instance, before: Load, load: Load) -> bool:
    """The mean step between two readings, and the mean weighted by batch: both on the line to be learned."""
    grown = {name: value - before.counters.get(name, 0.0) for name, value in load.counters.items()}
    batch, batch_s = grown.get("decode_batch", 0.0), grown.get("decode_batch_s", 0.0)
    steps, lasted_s = grown.get("decode_steps", 0.0), grown.get("decode_s", 0.0)
    held = ((before.kv_used_tokens or 0) + (load.kv_used_tokens or 0)) / 2
    told = 0.0 < batch_s < inf
    if steps >= STEPS and batch >= steps and 0.0 < lasted_s < inf:
        mean = batch / steps
        news = instance.stepped(mean, held, lasted_s / steps, 1.0)
        weighted = grown.get("decode_batch2", 0.0) / batch
        if told and weighted > 1.05 * mean:
            news |= instance.stepped(weighted, held * weighted / mean, batch_s / batch, 0.5)
        return news
    steady = before.running == load.running > 0
    if "decode_steps" in load.counters or not told or not steady or not batch >= STEPS:
        return False
    return instance.stepped(load.running, held, batch_s / batch, STEADY_TRUST)
