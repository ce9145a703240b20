"""Asks pairs of endpoints a question whose answer is known, and keeps apart those that answer it wrongly."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from orchestrator.clock import Clock
from orchestrator.core.address import join_host_port, split_http_url
from orchestrator.core.pairs import Found, Pair, Pairs, Standing
from orchestrator.core.types import Endpoint, PathKind
from orchestrator.engines.base import Engine, HandoffFailed, HandoffRequest, HttpCall, Leg
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import LegFailed, RequestError
from orchestrator.router.ask import Reply, TooLong, ask
from orchestrator.router.endpoints import Registry
from orchestrator.router.rightanswers import AnswerFile
from orchestrator.router.rooms import Rooms
from orchestrator.wire.client import Pool, WireError

log = logging.getLogger(__name__)

PATH = "/v1/completions"

QUESTION = "1 2 3 4 5 6 7 8 9"
"""Any model goes on with it, by far more likely than with anything else; and it is shorter than a block of
KV, so that no decode side has it cached and it is handed over each time."""

TOKENS = 4
"""Tokens of the answer that are compared: later ones differ more easily by what else is in the batch."""

TIMEOUT_S = 20.0
"""A try that takes longer tells nothing: the engine is busy."""

AT_ONCE = 4
"""Tries under way at a time."""

PERIOD_S = 0.5

WRONG_TEXT = "after-expiry"
"""The alarm of `core.types.Load` that tells of text that may be wrong."""


class Counts(Protocol):
    """What tries are counted in; `RouterMetrics` is one."""

    def canary(self, prefill: str, decode: str, result: str) -> None:
        """A pair was tried."""
        ...


class Home(Protocol):
    """What tries share with requests; `RouterApp` is one."""

    @property
    def pairs(self) -> Pairs:
        """What is thought of each pair, requests included."""
        ...

    @property
    def rooms(self) -> Rooms:
        """The rooms of all that is under way."""
        ...

    def new_id(self) -> str:
        """An id that no other request has."""
        ...


class Canaries:
    """Keeps the pairs of a registry tried, and tells it who is to be kept apart.

    One task looks what is due; tries are no requests of anybody's, and are in no account of work.
    """

    def __init__(
        self,
        registry: Registry,
        home: Home,
        pool: Pool,
        counts: Counts,
        clock: Clock,
        key: Callable[[], str | None],
        answers: AnswerFile | None = None,
    ) -> None:
        self._registry = registry
        self._answers = answers or AnswerFile(None)
        self.pairs = home.pairs
        self._home = home
        self._pool = pool
        self._counts = counts
        self._clock = clock
        self._key = key
        self._told: dict[Pair, Standing] = {}
        self._advised: Mapping[str, int] = {}
        self._tries: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None
        registry.on_alarm(self.alarm)

    def start(self, wanted: bool = True, waits: bool = False) -> None:
        """Begin to look, if that is wanted. `waits`: requests wait where no pair may be used."""
        if wanted:
            self.pairs.waits = waits
            self.pairs.right |= self._answers.load()
            self._registry.on_join(self.look)
            self._task = asyncio.create_task(self._watch(), name="canaries")

    @property
    def settled(self) -> bool:
        """Whether all pairs have been tried that can be."""
        return self._task is None or not self.pairs.untried

    def alarm(self, endpoint: str, alarm: str) -> None:
        """Something has happened to an endpoint's KV that must not."""
        garbage = alarm == WRONG_TEXT
        self.pairs.suspect(endpoint, f"KV {alarm}", self._clock.now_s(), garbage=garbage)
        self._enforce(self._clock.now_s())

    def counts(self) -> dict[tuple[str, ...], float]:
        """Pairs by standing."""
        counts = Counter(str(known.standing) for known in self.pairs.pairs.values())
        return {(str(one),): float(counts[one]) for one in Standing}

    def shown(self) -> dict[str, Any]:
        """For people: pairs by standing, those that are not good, and who should be started anew."""
        pairs = self.pairs.pairs
        listed = [
            {"prefill": p, "decode": d, "standing": str(known.standing), "why": known.why}
            for (p, d), known in pairs.items()
            if known.standing in (Standing.SUSPECT, Standing.BAD)
        ]
        counts = {one[0]: int(n) for one, n in self.counts().items()}
        return {"counts": counts, "doubtful": listed, "restart": sorted(self.pairs.restarts())}

    async def close(self) -> None:
        """Stop."""
        tasks = [*self._tries, *self._ending, *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                # An adapter may be a user's own file: its bug must not end the watch over all pairs.
                log.exception("looking at pairs failed")
            await asyncio.sleep(PERIOD_S)

    def look(self) -> None:
        """Start the tries that are due, and keep apart who must be."""
        now_s = self._clock.now_s()
        self.pairs.observe(self._registry.snapshot(now_s).endpoints, now_s)
        while len(self._tries) < AT_ONCE and (pair := self.pairs.next(now_s)) is not None:
            task = asyncio.create_task(self._try(pair, self.pairs.pairs[pair].lives))
            self._tries.add(task)
            task.add_done_callback(self._tries.discard)
        self._enforce(now_s)

    def _enforce(self, now_s: float) -> None:
        self._registry.keep_apart(self.pairs.apart(now_s))
        for pair, known in self.pairs.pairs.items():
            before = self._told.get(pair, Standing.UNTRIED)
            if known.standing is not before:
                self._told[pair] = known.standing
                if Standing.BAD in (before, known.standing):
                    fields = {"prefill": pair[0], "decode": pair[1], "why": known.why}
                    log.warning("pair is %s", known.standing, extra=fields)
        advised = self.pairs.restarts()
        for name in advised.keys() - self._advised.keys():
            log.warning("restart advised", extra={"endpoint": name, "bad_pairs": advised[name]})
        self._advised = advised

    async def _try(self, pair: Pair, lives: tuple[str, str]) -> None:
        found: str | Found
        rooms = self._home.rooms.take(1)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._answer(pair, rooms.start)
        except (TimeoutError, WireError, TooLong):
            found = Found.NOTHING
        except LegFailed as error:
            log.info("canary failed", extra={"prefill": pair[0], "decode": pair[1], "why": error.message})
            found = Found.FAILED
        except RequestError:
            found = Found.NOTHING
        except Exception:
            log.exception("a canary failed on a bug", extra={"prefill": pair[0], "decode": pair[1]})
            found = Found.NOTHING
        finally:
            self._home.rooms.free(rooms)
        now_s = self._clock.now_s()
        self.pairs.tried(pair, lives, found, now_s)
        self._answers.save(self.pairs.right)
        known = self.pairs.pairs.get(pair)
        result = str(found) if isinstance(found, Found) else "nothing" if known is None else known.standing
        self._counts.canary(*pair, str(result))
        self._enforce(now_s)
        if known is not None and known.standing is Standing.GOOD:
            for name in filter(None, pair):
                self._registry.well(name)

    async def _answer(self, pair: Pair, room: int) -> str | Found:
        prefill, decode = (self._registry.get(name) if name else None for name in pair)
        if decode is None or (pair[0] and prefill is None):
            return Found.NOTHING
        engine = self._registry.engine(decode.id)
        if not engine.serves(PathKind.COMPLETION, decode.role, prefill is not None):
            return Found.NOTHING
        body = {"model": decode.model, "prompt": QUESTION, "max_tokens": TOKENS, "temperature": 0}
        request = HandoffRequest(
            request_id=self._home.new_id(),
            path=PATH,
            kind=PathKind.COMPLETION,
            body=JsonBody(orjson.dumps(body)),
            stream=False,
            room=room,
            decode=decode,
            prefill=prefill,
        )
        return await self._run(engine, request)

    async def _run(self, engine: Engine, request: HandoffRequest) -> str:
        """Run the legs to the answer. Raises RequestError, and what `ask` raises."""
        machine = engine.handoff(request)
        calls: dict[asyncio.Task[Reply], Leg] = {}
        due = machine.start()
        try:
            while True:
                for leg in due:
                    calls[asyncio.create_task(self._call(leg))] = leg
                due = ()
                done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    leg, reply = calls.pop(task), task.result()
                    if leg.relay:
                        return _text(engine, reply)
                    step = machine.on_response(leg.kind, reply.status, reply.body)
                    if isinstance(step, HandoffFailed):
                        raise step.error
                    if isinstance(step, tuple):
                        due = (*due, *step)
        finally:
            for task, leg in calls.items():
                if leg.owed:
                    # Decode would wait for it long after both were closed.
                    self._keep(task)
                    continue
                task.cancel()
                hang_up = engine.abort(leg)
                if hang_up is not None:
                    self._keep(asyncio.create_task(self._hang_up(leg, hang_up)))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Let it end by itself; what comes of it is of no use."""
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()

    async def _hang_up(self, leg: Leg, call: HttpCall) -> None:
        try:
            await ask(self._pool, self._url(leg.endpoint), call, self._key())
        except (TimeoutError, WireError, TooLong, RequestError) as error:
            log.debug("abort call failed", extra={"endpoint": leg.endpoint, "why": str(error)})

    async def _call(self, leg: Leg) -> Reply:
        headers = tuple(header for header in leg.headers if header[0] != "content-type")
        call = HttpCall("POST", leg.path, b"".join(leg.body), timeout_s=TIMEOUT_S, headers=headers)
        return await ask(self._pool, self._url(leg.endpoint), call, self._key())

    def _url(self, endpoint_id: str) -> str:
        endpoint: Endpoint | None = self._registry.get(endpoint_id)
        if endpoint is None:
            raise LegFailed(f"{endpoint_id} has just been removed", reason="endpoint-removed")
        return f"http://{join_host_port(*split_http_url(endpoint.url))}"


def _text(engine: Engine, reply: Reply) -> str:
    """The answer's text. Raises RequestError where there is none."""
    if reply.status != 200:
        raise engine.map_error(reply.status, reply.body)
    try:
        return str(orjson.loads(reply.body)["choices"][0]["text"])
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise LegFailed("the answer has no text", reason="bad-answer") from error
