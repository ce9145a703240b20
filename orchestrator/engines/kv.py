"""What an adapter may know beside its contract: where its engine tells of its KV, and how it tokenizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from orchestrator.core.address import join_host_port
from orchestrator.core.kvevents import KvEvent
from orchestrator.core.types import PathKind
from orchestrator.engines.base import Handoff, HandoffRequest, HttpCall


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where one engine publishes what happens to its KV cache: ZeroMQ addresses, and what it told of itself.

    `replay` is where what was missed may be had again, None: nowhere. `block_tokens` is the size of a block.
    """

    events: str
    replay: str | None
    topic: str = ""
    block_tokens: int | None = None


@runtime_checkable
class TellsCache(Protocol):
    """An adapter whose engine publishes KV events."""

    def kv_source(self, host: str, facts: Mapping[str, Any]) -> KvSource | str:
        """Where an engine at `host` publishes them, by its facts; or why there is nothing to be had."""
        ...

    def kv_events(self, batch: bytes) -> Sequence[KvEvent]:
        """What one published batch says. Raises ValueError for one that cannot be read."""
        ...


@runtime_checkable
class Tokenizes(Protocol):
    """An adapter whose engine tokenizes prompts just as it would to answer them."""

    def tokenize(self, kind: PathKind, fields: Mapping[str, Any]) -> HttpCall | None:
        """The call that tells the tokens of a request's prompt; None where it would not be the same."""
        ...

    def tokens(self, body: bytes) -> list[int]:
        """The token ids in the answer. Raises ValueError if there are none."""
        ...


@runtime_checkable
class Parts(Protocol):
    """An adapter whose engine can compute a part of a prompt and keep it in its prefix cache.

    Its facts say `slices` of the endpoints where that is so.
    """

    def part(self, request: HandoffRequest, model: str, ids: Sequence[int], number: int) -> Handoff:
        """The machine that has `ids`, the first tokens of a prompt, computed where the request says.

        None of its legs is relayed. `number` tells the parts of a request apart.
        """
        ...


def written(facts: Mapping[str, Any]) -> KvSource | None:
    """The source that a topology itself names for an external engine."""
    told = facts.get("kv_events_url")
    if not isinstance(told, str):
        return None
    replay, size = facts.get("kv_replay_url"), facts.get("block_size")
    return KvSource(
        told,
        replay if isinstance(replay, str) else None,
        block_tokens=size if isinstance(size, int) else None,
    )


def reachable(host: str, port: int) -> str:
    """A TCP address as ZeroMQ writes it."""
    return f"tcp://{join_host_port(host, port)}"


def port_of(bound: object) -> int | None:
    """The port in the address that an engine says it has bound (`tcp://*:5557`)."""
    text = bound.rpartition(":")[2] if isinstance(bound, str) else ""
    return int(text) if text.isdigit() and 0 < int(text) < 65536 else None
