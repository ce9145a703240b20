"""The token ids of prompts, as the engines' own tokenizer has them, and the names of the blocks they fill."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Protocol

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.kvindex import KvIndex
from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.base import HttpCall
from orchestrator.engines.kv import Tokenizes
from orchestrator.engines.kvevents import pack
from orchestrator.engines.splice import JsonBody
from orchestrator.router.ask import TooLong, ask
from orchestrator.router.state import State
from orchestrator.router.view import Prompt
from orchestrator.wire.client import Pool, WireError

log = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
"""Of tokens that are remembered: 16 M."""

MAX_CALLS = 64
"""Prompts that engines are asked about at once; beyond, requests go without."""

Told = Callable[[RequestView], None]
"""Hears once of the request as it is to be placed."""

Chains = Mapping[int, Sequence[int]]


class Registry(Protocol):
    """Of the registry, what is read here."""

    def states(self) -> Iterable[State]:
        """Every endpoint's state."""
        ...


class Tokens:
    """Finds the tokens of requests whose placement they can decide, asking engines with their `key`.

    `models` are those that the index knows something of. Counts by how it went: `counts` has `ids` (the
    client sent them), `known` (remembered), `asked` (an engine told them in time), `late` (it did not),
    `failed`, and `unknown` (no engine can tell them: images, adapters, several prompts).
    """

    def __init__(
        self,
        registry: Registry,
        index: KvIndex,
        pool: Pool,
        models: Callable[[], frozenset[str]],
    ) -> None:
        self.within_s = 0.0
        self.key: str | None = None
        self.counts = dict.fromkeys(("ids", "known", "asked", "late", "failed", "unknown"), 0)
        self._registry = registry
        self._index = index
        self._pool = pool
        self._models = models
        self._loop = asyncio.get_running_loop()
        self._calls: dict[bytes, asyncio.Task[bytes | None]] = {}
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._turn = 0

    def close(self) -> None:
        """Stop asking."""
        for task in self._calls.values():
            task.cancel()

    def wanted(self, view: RequestView) -> bool:
        """Whether the tokens of a request may decide anything: some endpoint tells what it holds, and the
        prompt may fill a block."""
        sizes = self._index.sizes
        return bool(sizes) and 2 * view.prompt_tokens >= sizes[0] and view.model in self._models()

    def find(self, view: RequestView, body: JsonBody, prompt: Prompt, told: Told) -> None:
        """Tell `told` the request with its tokens, at once or within `within_s`; without, where they are not
        to be had."""
        if prompt.exact and prompt.number == 1:
            self.counts["ids"] += 1
            told(self._with(view, pack(_ids(view.path, body))))
            return
        asked = self._asked(view, body, prompt)
        if asked is None:
            self.counts["unknown"] += 1
            told(view)
            return
        state, call = asked
        # What is asked is all that the tokens depend on.
        mark = sha256(call.body).digest()
        known = self._kept.get(mark)
        if known is not None:
            self._kept.move_to_end(mark)
            self.counts["known"] += 1
            told(self._with(view, known))
            return
        task = self._calls.get(mark)
        if task is None and len(self._calls) < MAX_CALLS:
            task = self._calls[mark] = self._loop.create_task(self._ask(state, call, mark))
            task.add_done_callback(lambda _: self._calls.pop(mark, None))
        if task is None:
            self.counts["late"] += 1
            told(view)
        else:
            self._wait(view, task, told)

    def _wait(self, view: RequestView, task: asyncio.Task[bytes | None], told: Told) -> None:
        timer: asyncio.TimerHandle | None = None

        def late() -> None:
            task.remove_done_callback(done)
            self.counts["late"] += 1
            told(view)

        def done(task: asyncio.Task[bytes | None]) -> None:
            if timer is not None:
                timer.cancel()
            tokens = None if task.cancelled() else task.result()
            self.counts["failed" if tokens is None else "asked"] += 1
            told(self._with(view, tokens))

        task.add_done_callback(done)
        timer = self._loop.call_later(self.within_s, late)

    def _with(self, view: RequestView, tokens: bytes | None) -> RequestView:
        """The request with the names of its blocks, for every size that some endpoint has."""
        if tokens is None:
            return view
        seed = self._index.seed
        chains: Chains = {size: token_chain(seed, tokens, size) for size in self._index.sizes}
        return replace(view, chains=chains, prompt_tokens=len(tokens) // 4)

    def _asked(self, view: RequestView, body: JsonBody, prompt: Prompt) -> tuple[State, HttpCall] | None:
        """Who may be asked for the tokens, each in its turn, and how; None: nobody, or it would be no use."""
        if prompt.number != 1 or _has_media(view.path, body):
            return None
        ready = [s for s in self._registry.states() if s.ready and s.plan.model == view.model]
        able = [(state, state.engine) for state in ready if isinstance(state.engine, Tokenizes)]
        if not able:
            return None
        self._turn += 1
        state, engine = able[self._turn % len(able)]
        call = engine.tokenize(view.path, body.fields)
        return None if call is None else (state, call)

    async def _ask(self, state: State, call: HttpCall, mark: bytes) -> bytes | None:
        engine = state.engine
        assert isinstance(engine, Tokenizes)
        try:
            reply = await ask(self._pool, state.plan.url, call, self.key)
            if reply.status != 200:
                raise ValueError(f"HTTP {reply.status}")
            tokens = pack(engine.tokens(reply.body))
        except (TimeoutError, WireError, TooLong, ValueError) as error:
            log.info("no tokens of a prompt", extra={"endpoint": state.plan.name, "why": str(error)})
            return None
        if tokens is not None:
            self._keep(mark, tokens)
        return tokens

    def _keep(self, mark: bytes, tokens: bytes) -> None:
        self._kept[mark] = tokens
        self._kept_bytes += len(tokens)
        while self._kept_bytes > KEPT_BYTES:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= len(gone)


def _ids(path: PathKind, body: JsonBody) -> Sequence[int]:
    """The token ids of a single prompt that the client sent as such."""
    ids = body.fields.get("input_ids" if path is PathKind.GENERATE else "prompt")
    return ids[0] if isinstance(ids, list) and ids and isinstance(ids[0], list) else ids or ()


def _has_media(path: PathKind, body: JsonBody) -> bool:
    """Whether a message has a part that is no text."""
    messages = body.fields.get("messages") if path is PathKind.CHAT else None
    return any(
        not isinstance(part, dict) or not isinstance(part.get("text"), str)
        for message in messages or ()
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for part in message["content"]
    )
