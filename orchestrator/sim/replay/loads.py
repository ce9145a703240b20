"""What a simulated engine reports of its load, in the words of the dialect it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter

from orchestrator.core.types import Endpoint, Load
from orchestrator.sim.jobs import Counters
from orchestrator.sim.replay.engine import LeanEngine

_GIVEN = [f.name for f in fields(Endpoint) if f.init]
_given_values = attrgetter(*_GIVEN)
_LOAD = _GIVEN.index("load")


class Reader:
    """Reads the engines, and keeps how many requests it saw waiting at each.

    `rich`: whether an engine tells what SGLang does of its prompts and steps, and vLLM does not.
    """

    def __init__(self, engines: Mapping[str, LeanEngine], rich: Mapping[str, bool]) -> None:
        self._engines = engines
        self._rich = rich
        self.queue_s = dict.fromkeys(engines, 0)
        self.polls = 0
        self._idle: set[str] = set()
        """Engines that had nothing to do when last read: their load is what it was until they have."""

    def view(self, endpoint: Endpoint, now_s: float, at_s: float) -> Endpoint:
        """The endpoint with its load as it is now, which the router has from `at_s` on."""
        engine = self._engines[endpoint.id]
        if engine.idle and endpoint.id in self._idle:
            return endpoint
        queued = engine.queued(now_s)
        c, rich = engine.counters, self._rich[endpoint.id]
        waiting = queued.waiting + queued.gated + queued.prealloc
        self.queue_s[endpoint.id] += queued.waiting + queued.prealloc
        load = Load(
            at_s=at_s,
            running=queued.running + queued.prefilling,
            waiting=waiting + queued.reserved,
            kv_used_tokens=queued.used_tokens,
            kv_total_tokens=engine.memory.tokens,
            progress=float(c.prefill_tokens + c.generated_tokens),
            prefilling=queued.waiting + queued.gated + queued.prefilling if rich else None,
            counters=_counters(c, rich),
        )
        if engine.idle:
            self._idle.add(endpoint.id)
        else:
            self._idle.discard(endpoint.id)
        values = list(_given_values(endpoint))
        values[_LOAD] = load
        return Endpoint(*values)

    def polled(self) -> None:
        """All have been read once more."""
        self.polls += 1


def _counters(c: Counters, rich: bool) -> dict[str, float]:
    """What adapters make of the engines' own: SGLang tells busy time and moments of its steps."""
    told = {
        "prefill_tokens": float(c.prefill_tokens),
        "cached_tokens": float(c.cached_tokens),
        "prompt_tokens": float(c.prompt_tokens),
    }
    if rich:
        told |= {
            "prefill_busy_s": c.prefill_busy_us / 1e6,
            "decode_steps": float(c.decode_steps),
            "decode_batch": float(c.decode_batch),
            "decode_s": c.decode_us / 1e6,
            "decode_batch2": float(c.decode_batch2),
            "decode_batch_s": c.decode_batch_us / 1e6,
        }
    return told
