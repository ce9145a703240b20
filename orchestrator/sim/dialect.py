"""What a dialect is to the server, and what both dialects do alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from orchestrator.sim.calls import Call
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host, answer
from orchestrator.sim.replies import Failure, Reply
from orchestrator.wire.exchange import Exchange

Route = Callable[[Exchange], None]
Routes = dict[tuple[str, str], Route]

NOT_FOUND = b'{"detail":"Not Found"}'


class Dialect(Protocol):
    """One engine's HTTP API over a simulated engine."""

    routes: Routes
    generating: frozenset[str]
    """The paths whose calls generate: what fault scripts strike."""

    async def start(self) -> None:
        """Open what the real engine opens before its model is loaded."""
        ...

    def close(self) -> None:
        """Close it again."""
        ...

    def open_to_all(self, path: str) -> bool:
        """Whether a path needs no API key."""
        ...

    def error_body(self, failure: Failure) -> bytes:
        """The body of an error outside of any call's own form."""
        ...

    def terminate(self) -> None:
        """SIGTERM has come: drain and exit as the real engine does."""
        ...

    def ports(self) -> dict[str, int]:
        """The other ports it listens on, by purpose."""
        ...

    def state(self) -> dict[str, Any]:
        """What `/sim/state` shows beside the engine's own figures."""
        ...


def read_json(exchange: Exchange) -> dict[str, Any]:
    """The body as an object. Raises ValueError with a plain message."""
    try:
        body = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def limits(host: Host, call: Call) -> list[int]:
    """How many tokens each prompt may get: what it asks for, or what the context leaves."""
    longest = host.options.max_model_len
    return [
        longest - len(prompt) if params.max_tokens is None else params.max_tokens
        for prompt, params in zip(call.prompts, call.params, strict=True)
    ]


def make_generations(
    host: Host, reply: Reply, names: list[str], *, most: int | None = None
) -> list[Generation]:
    """A generation for every sample of every prompt, in the order of the choices' indices.

    `names` are the engine's ids, one per choice; `most` bounds the output (a prefill engine makes one token).
    """
    call, now_s = reply.call, host.clock.now_s()
    generations: list[Generation] = []
    for number, limit in enumerate(limits(host, call)):
        for _ in range(call.n):
            index = len(generations)
            generations.append(
                Generation(
                    names[index],
                    reply,
                    index,
                    call.prompts[number],
                    call.params[number],
                    limit=limit if most is None else min(limit, most),
                    block_tokens=host.options.page_size,
                    now_s=now_s,
                )
            )
    reply.generations = generations
    return generations


def model_card(host: Host, owner: str, **extra: Any) -> dict[str, Any]:
    """The served model as `/v1/models` lists it."""
    name = host.options.served_model_name
    return {
        "id": name, "object": "model", "created": host.created(), "owned_by": owner,
        "root": extra.pop("root", name), "parent": None, "max_model_len": host.options.max_model_len, **extra,
        **host.options.tells.get("models", {}),
    }  # fmt: skip


def empty(exchange: Exchange) -> None:
    """200 and nothing else."""
    answer(exchange, 200, b"", ())
