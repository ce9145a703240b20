"""The token ids of prompts, as the engines' own tokenizer has them, and the names of the blocks they fill."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Protocol

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.kvindex import KvIndex
from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.base import HttpCall
from orchestrator.engines.kv import Tokenizes
from orchestrator.engines.kvevents import pack
from orchestrator.engines.splice import JsonBody
from orchestrator.router import tokentails
from orchestrator.router.ask import TooLong, ask
from orchestrator.router.state import State
from orchestrator.router.view import Prompt
from orchestrator.wire.client import Pool, WireError

log = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
"""Of tokens that are remembered: 16 M."""

MAX_CALLS = 64
"""Prompts that engines are asked about at once; beyond, requests go without."""

SLICED_PATIENCE = 10.0
"""A prompt that may go in slices waits so many times as long for its tokens as others."""

HOWS = ("ids", "known", "asked", "joined", "late", "failed", "unknown")

Told = Callable[[RequestView], None]
"""Hears once of the request as it is to be placed."""

Chains = Mapping[int, Sequence[int]]


class Registry(Protocol):
    """Of the registry, what is read here."""

    def states(self) -> Iterable[State]:
        """Every endpoint's state."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change."""
        ...


def _never(view: RequestView) -> bool:
    return False


class Tokens:
    """Finds the tokens of requests whose placement they can decide, asking engines with their `key`.

    `models` are those that the index knows something of. Counts by how it went: `counts` has `ids` (the
    client sent them), `known` (remembered), `asked` (an engine told them in time), `late` (it did not),
    `failed`, and `unknown` (no engine can tell them: images, adapters, several prompts). Those `joined` are
    among the known and asked: of a conversation whose beginning is remembered only the tail was asked for.

    A joined prompt that turns out to have another length than the engine counts shows that a model's template
    cannot be joined: all its prompts are asked for whole from then on.
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
        self.counts = dict.fromkeys(HOWS, 0)
        self._registry = registry
        self._index = index
        self._pool = pool
        self._models = models
        self._loop = asyncio.get_running_loop()
        self._calls: dict[bytes, asyncio.Task[bytes | None]] = {}
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._turn = 0
        self._able: dict[str, list[tuple[State, Tokenizes]]] = {}
        """By model, who can be asked, until an endpoint changes."""
        registry.on_change(self._able.clear)
        self._joined: set[bytes] = set()
        """Marks of prompts that were joined and not counted by an engine yet."""
        self._open: dict[str, bytes] = {}
        self._whole: set[str] = set()
        """Models whose conversations are asked for whole."""
        self.sliced: Callable[[RequestView], bool] = _never
        """Whether a request may be computed in slices, which takes its tokens."""
        self._parts: dict[str, bytes] = {}
        """Tokens of the requests that may, while they last."""

    def close(self) -> None:
        """Stop asking."""
        for task in self._calls.values():
            task.cancel()

    def wanted(self, view: RequestView) -> bool:
        """Whether the tokens of a request may decide anything: some endpoint tells what it holds, and the
        prompt may fill a block; or it may go in slices."""
        sizes = self._index.sizes
        if self.sliced(view):
            return True
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
            self._open[view.id] = mark
            told(self._with(view, known))
            return
        task = self._calls.get(mark)
        if task is None and len(self._calls) < MAX_CALLS:
            task = self._calls[mark] = self._loop.create_task(self._fetch(state, view, body.fields, call))
            task.add_done_callback(lambda _: self._calls.pop(mark, None))
        if task is None:
            self.counts["late"] += 1
            told(view)
        else:
            self._open[view.id] = mark
            self._wait(view, task, told)

    def counted(self, request_id: str, model: str, ours: int, theirs: int | None) -> None:
        """A request is over: an engine has counted `theirs` tokens of its prompt, where we had `ours`."""
        self._parts.pop(request_id, None)
        mark = self._open.pop(request_id, None)
        if mark not in self._joined or theirs is None:
            return
        assert mark is not None
        self._joined.discard(mark)
        if ours != theirs and model not in self._whole:
            self._whole.add(model)
            # What was joined from this one is as wrong.
            for each in list(self._kept):
                self._forget(each)
            fields = {"model": model, "ours": ours, "its": theirs}
            log.warning("prompts of a model cannot be joined; they are asked for whole", extra=fields)

    def of(self, request_id: str) -> bytes | None:
        """The tokens of a request that may go in slices, packed."""
        return self._parts.get(request_id)

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
        # Where seconds of prefill are at stake, some milliseconds more are well spent.
        patience = SLICED_PATIENCE if self.sliced(view) else 1.0
        timer = self._loop.call_later(patience * self.within_s, late)

    def _with(self, view: RequestView, tokens: bytes | None) -> RequestView:
        """The request with the names of its blocks, for every size that some endpoint has."""
        if tokens is None:
            return view
        seed = self._index.seed
        chains: Chains = {size: token_chain(seed, tokens, size) for size in self._index.sizes}
        parts = self.sliced(view)
        if parts:
            self._parts[view.id] = tokens
        return replace(view, chains=chains, prompt_tokens=len(tokens) // 4, parts=parts)

    def _asked(self, view: RequestView, body: JsonBody, prompt: Prompt) -> tuple[State, HttpCall] | None:
        """Who may be asked for the tokens, each in its turn, and how; None: nobody, or it would be no use."""
        if prompt.number != 1 or _has_media(view.path, body):
            return None
        able = self._able.get(view.model)
        if able is None:
            ready = [s for s in self._registry.states() if s.ready and s.plan.model == view.model]
            able = [(state, state.engine) for state in ready if isinstance(state.engine, Tokenizes)]
            self._able[view.model] = able
        if not able:
            return None
        self._turn += 1
        state, engine = able[self._turn % len(able)]
        call = engine.tokenize(view.path, body.fields)
        return None if call is None else (state, call)

    async def _fetch(
        self, state: State, view: RequestView, fields: Mapping[str, Any], call: HttpCall
    ) -> bytes | None:
        """The tokens of a prompt: of a conversation by its tail, if what was before it is remembered."""
        mark = sha256(call.body).digest()
        try:
            if view.path is PathKind.CHAT and view.model not in self._whole:
                joined = await self._join(state, fields)
                if joined is not None:
                    self.counts["joined"] += 1
                    self._keep(mark, joined)
                    self._joined.add(mark)
                    return joined
            return await self._tokens(state, call)
        except (TimeoutError, WireError, TooLong, ValueError) as error:
            log.info("no tokens of a prompt", extra={"endpoint": state.plan.name, "why": str(error)})
            return None

    async def _join(self, state: State, fields: Mapping[str, Any]) -> bytes | None:
        """The tokens of a conversation whose beginning is remembered; None if it is not, or does not fit."""
        engine = state.engine
        assert isinstance(engine, Tokenizes)

        def call_for(other: Mapping[str, Any]) -> HttpCall:
            call = engine.tokenize(PathKind.CHAT, other)
            if call is None:
                raise ValueError("a part of the prompt cannot be asked for")
            return call

        for cut in tokentails.cuts(fields):
            head = self._kept.get(sha256(call_for(tokentails.beginning(fields, cut)).body).digest())
            if head is None:
                continue
            short = await self._tokens(state, call_for(tokentails.stand_in(fields)))
            tailed = await self._tokens(state, call_for(tokentails.tail(fields, cut)))
            return tokentails.join(head, short, tailed)
        return None

    async def _tokens(self, state: State, call: HttpCall) -> bytes:
        """What one call tells, or has told. Raises ValueError and what `ask` raises."""
        engine = state.engine
        assert isinstance(engine, Tokenizes)
        mark = sha256(call.body).digest()
        known = self._kept.get(mark)
        if known is not None:
            return known
        reply = await ask(self._pool, state.plan.url, call, self.key)
        if reply.status != 200:
            raise ValueError(f"HTTP {reply.status}")
        tokens = pack(engine.tokens(reply.body))
        if tokens is None:
            raise ValueError("what it tells are no token ids")
        self._keep(mark, tokens)
        return tokens

    def _keep(self, mark: bytes, tokens: bytes) -> None:
        self._forget(mark)
        self._kept[mark] = tokens
        self._kept_bytes += len(tokens)
        while self._kept_bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def _forget(self, mark: bytes) -> None:
        gone = self._kept.pop(mark, None)
        if gone is not None:
            self._joined.discard(mark)
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
