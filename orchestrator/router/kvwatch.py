"""Who among the endpoints tells of its KV cache: reads each, and keeps the index by what they tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import zmq

from orchestrator.core.address import split_http_url
from orchestrator.core.kvevents import BEGUN, LOST, Reset, Step
from orchestrator.core.kvindex import WRONG, KvIndex
from orchestrator.core.types import Role
from orchestrator.engines.kv import KvSource, TellsCache
from orchestrator.engines.linting import LEAST_BLOCK_TOKENS
from orchestrator.router.kvfeed import Context, KvFeed
from orchestrator.router.state import State

log = logging.getLogger(__name__)


class Registry(Protocol):
    """Of the registry, what is read here."""

    def states(self) -> Iterable[State]:
        """Every endpoint's state."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change."""
        ...


@dataclass(slots=True, eq=False)
class Reader:
    """One endpoint whose events are wanted: the life of it that is read, and why if none is.

    `resets` counts by reason how often all that was told became void.
    """

    facts: Mapping[str, Any]
    life: str
    model: str
    source: KvSource | None = None
    feed: KvFeed | None = None
    why: str = ""
    resets: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    gaps: int = 0
    """Both of feeds that are closed."""


class KvWatch:
    """Reads the KV events of every endpoint that the plan wants them of, from its join on.

    An endpoint that leaves is read on, as its cache may well be there still; one that joins as another
    process is read anew. Made within a running loop.
    """

    def __init__(self, registry: Registry, index: KvIndex) -> None:
        self.readers: dict[str, Reader] = {}
        self.models: frozenset[str] = frozenset()
        """Of which some endpoint is read."""
        self._registry = registry
        self._index = index
        self._context: Context | None = None
        index.on_drop = self._dropped
        registry.on_change(self._sync)

    def close(self) -> None:
        """Stop reading."""
        for name in list(self.readers):
            self._forget(name)
        if self._context is not None:
            self._context.destroy(linger=0)

    def show(self, name: str) -> dict[str, Any] | None:
        """What `endpoints` tells of one; None where no events are wanted."""
        reader = self.readers.get(name)
        if reader is None:
            return None
        if reader.feed is None or reader.source is None:
            return {"state": "off", "why": reader.why}
        told: dict[str, Any] = {
            "state": "unconnected", "source": reader.source.events, "batches": self.batches(name),
            "gaps": self.gaps(name), "resets": dict(reader.resets),
        }  # fmt: skip
        holder = self._index.holders.get(name)
        if holder is not None:
            error = holder.error
            told |= {
                "blocks": len(holder.blocks), "strays": holder.blocks.strays, "drops": holder.drops,
                "error": None if error is None else round(error, 4),
            }  # fmt: skip
            if reader.feed.connected or holder.state != "unproven":
                told["state"] = holder.state
        return told

    def batches(self, name: str) -> int:
        """Batches applied of one endpoint."""
        reader = self.readers[name]
        return reader.batches + (reader.feed.feed.batches if reader.feed is not None else 0)

    def gaps(self, name: str) -> int:
        """Gaps found in them."""
        reader = self.readers[name]
        return reader.gaps + (reader.feed.feed.gaps if reader.feed is not None else 0)

    # -- who is read

    def _sync(self) -> None:
        wanted = set()
        for state in self._registry.states():
            if not _wants(state):
                continue
            name = state.plan.name
            wanted.add(name)
            reader = self.readers.get(name)
            # Called with every load that is read: nothing costly before this.
            if state.joined and (reader is None or reader.facts is not state.learned):
                self._join(name, state, reader)
        for name in self.readers.keys() - wanted:
            self._forget(name)
            del self.readers[name]
        self.models = frozenset([r.model for r in self.readers.values() if r.feed is not None])

    def _join(self, name: str, state: State, old: Reader | None) -> None:
        facts = {**state.plan.facts, **state.learned}
        host, _ = split_http_url(state.plan.url)
        engine = state.engine
        found: KvSource | str = "its adapter does not know how to"
        if isinstance(engine, TellsCache):
            found = engine.kv_source(host, facts)
        source, why = (found, "") if isinstance(found, KvSource) else (None, found)
        if old is not None and old.life == state.incarnation and old.source == source:
            old.facts = state.learned
            return
        self._forget(name)
        reader = self.readers[name] = Reader(state.learned, state.incarnation, state.plan.model)
        if old is not None:
            reader.resets, reader.batches, reader.gaps = old.resets, old.batches, old.gaps
        size = facts.get("block_size") if source is None else source.block_tokens
        if source is not None and not isinstance(size, int):
            source, why = None, "the size of its blocks is not known"
        elif source is not None and isinstance(size, int) and size < LEAST_BLOCK_TOKENS:
            source, why = None, f"its blocks are of {size} tokens; at least {LEAST_BLOCK_TOKENS} are needed"
        if source is None or not isinstance(size, int) or not isinstance(engine, TellsCache):
            reader.why = why
            log.warning("its KV events are not read", extra={"endpoint": name, "why": why})
            return
        if self._context is None:
            self._context = zmq.Context(io_threads=1)
        capacity = facts.get("kv_total_tokens")
        self._index.open(name, size, capacity if isinstance(capacity, int) else None)
        reader.source = source
        reader.feed = KvFeed(self._context, source, partial(self._apply, name, engine))

    def _forget(self, name: str) -> None:
        reader = self.readers.get(name)
        if reader is not None and reader.feed is not None:
            reader.batches, reader.gaps = self.batches(name), self.gaps(name)
            reader.feed.close()
            reader.feed = None
        self._index.close(name)

    # -- what they tell

    def _apply(self, name: str, engine: TellsCache, step: Step) -> None:
        index = self._index
        if isinstance(step, Reset):
            resets = self.readers[name].resets
            resets[step.why] = resets.get(step.why, 0) + 1
            index.reset(name, whole=step.why == BEGUN)
            level = logging.WARNING if step.why == LOST else logging.INFO
            log.log(level, "KV events %s", step.why, extra={"endpoint": name})
            return
        try:
            index.apply(name, engine.kv_events(step))
        except ValueError as error:
            log.warning("KV events cannot be read", extra={"endpoint": name, "why": str(error)})
            index.reset(name, whole=False)

    def _dropped(self, name: str) -> None:
        """The index was wrong about it: have everything told anew."""
        reader, holder = self.readers.get(name), self._index.holders.get(name)
        state = "" if holder is None else holder.state
        log.warning("the index of its KV cache is dropped", extra={"endpoint": name, "why": state})
        if reader is not None and reader.feed is not None and state == WRONG:
            reader.feed.again()


def _wants(state: State) -> bool:
    return bool(state.plan.facts.get("kv_events")) and state.plan.role is not Role.ENCODE
