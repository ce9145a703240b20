"""One request's life, read top to bottom: who asks, what for, where it goes, its legs, and the one exit."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random
from typing import Protocol

from orchestrator.core.contracts import Assign, Bind, Decision, Reject, Slice, Spent
from orchestrator.core.pairs import Pairs
from orchestrator.core.retry import RetryBudget, Tries, Verdict
from orchestrator.core.tenants import Tenants
from orchestrator.core.types import End, Outcome, PathKind, RequestView
from orchestrator.errors import LegFailed, NoCapacity, Overloaded, RequestError
from orchestrator.router import handover, intake, replies
from orchestrator.router.answer import Answer
from orchestrator.router.continuing import Lasting
from orchestrator.router.desk import Desk, given_up, refusal
from orchestrator.router.forward import Unit
from orchestrator.router.intake import Ask
from orchestrator.router.offers import Offers, Registry
from orchestrator.router.parts import Pieces
from orchestrator.router.record import BLAMELESS, FULL, Record, Recorder
from orchestrator.router.road import Road
from orchestrator.router.rooms import Rooms
from orchestrator.router.settings import Settings
from orchestrator.router.tokens import Tokens
from orchestrator.wire.exchange import Exchange

log = logging.getLogger(__name__)

NO_ROOMS = range(0)


class Counts(intake.Counts, Protocol):
    """What lives are counted in; `RouterMetrics` is one."""

    def request_done(
        self, outcome: Outcome, path: str, model: str, slo_class: str = "", choices: int = 1
    ) -> None:
        """A request ended."""
        ...

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a request ended."""
        ...

    def retried(self, kind: str, result: str) -> None:
        """A request failed that could be tried again: whether it is, or why not."""
        ...


class Dispatch:
    """What all lives share, and the `lives` under way. `settings` and `road` are replaced by a reload."""

    def __init__(
        self,
        *,
        settings: Settings,
        road: Road,
        registry: Registry,
        desk: Desk,
        counts: Counts,
        rng: Random,
        recorder: Recorder | None = None,
        budget: RetryBudget | None = None,
        tokens: Tokens | None = None,
        tenants: Tenants | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        self.settings = settings
        self.road = road
        self.rooms = Rooms(rng)
        self.registry = registry
        self.intake = intake.Intake(registry, Offers(registry, road.clock), counts)
        self.desk = desk
        self.counts = counts
        self.recorder = recorder
        self.tokens = tokens
        self.budget = RetryBudget() if budget is None else budget
        self.pairs = Pairs() if pairs is None else pairs
        self.tenants = Tenants(settings.tenants) if tenants is None else tenants
        self.lives: set[Life] = set()
        self.by_key: dict[bytes, int] = {}  # requests under way of each client key, where that is bounded
        self._rng = rng

    def new_id(self) -> str:
        """An id for a request: 32 hex digits."""
        return f"{self._rng.getrandbits(128):032x}"

    def uncount(self, key: bytes) -> None:
        """A request of the key has ended."""
        left = self.by_key.pop(key) - 1
        if left:
            self.by_key[key] = left

    def begin(self, exchange: Exchange, kind: PathKind) -> None:
        """Answer one request for engines, whatever happens, now or from callbacks."""
        Life(self, exchange, kind).begin()


class Life(Record):
    """One request and all that becomes of it.

    There is no task: each step is called by what has happened, none raises, and the life ends once, in
    `_close`. Between two steps it waits in the desk for a decision, or in a unit for its legs.
    """

    __slots__ = (
        "_ask", "_home", "_key", "_lasting", "_pieces", "_rooms", "_tries", "_unit", "_view", "exchange",
    )  # fmt: skip

    def __init__(self, home: Dispatch, exchange: Exchange, kind: PathKind) -> None:
        super().__init__(home.new_id(), kind, home.road.clock.now_s())
        self._home = home
        self._key = b""
        self.exchange = exchange
        self._ask: Ask
        self._view: RequestView
        self._unit: Unit | None = None
        self._pieces: Pieces | None = None
        self._rooms = NO_ROOMS
        self._tries: Tries | None = None
        self._lasting: Lasting | None = None

    def begin(self) -> None:
        """Read the request and ask for its route."""
        home, exchange = self._home, self.exchange
        others = len(home.lives)
        home.lives.add(self)
        exchange.on_close = self._left
        self.client_id = replies.client_id(exchange)
        self.explains = home.settings.explains(exchange)
        try:
            self.tenant, key = home.settings.clients.who(exchange)
            limits = home.settings.limits
            if others >= limits.max_inflight:
                message = f"{others} requests are under way, the most there may be"
                raise Overloaded(message, reason="too-many-requests", retry_after_s=1.0)
            if limits.max_inflight_per_key is not None and key:
                self._count(key, limits.max_inflight_per_key)
            self._ask = ask = home.intake.read(exchange, self, home.settings)
        except RequestError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  a bug costs one request and no other
            self._crash()
        else:
            home.budget.earn(others)
            self._place(ask)

    def _count(self, key: bytes, most: int) -> None:
        """Count it as one of its key's. Raises Overloaded."""
        by_key = self._home.by_key
        now = by_key.get(key, 0)
        if now >= most:
            message = f"{now} requests of this key are under way, the most it may have"
            raise Overloaded(message, reason="key-inflight", retry_after_s=1.0)
        by_key[key], self._key = now + 1, key

    def _place(self, ask: Ask) -> None:
        """Ask for its route; before, for its tokens, where the index by KV events may decide by them."""
        tokens = self._home.tokens
        if tokens is None or not tokens.wanted(ask.view):
            self._submit(ask.view)
            return
        self._view = self.view = ask.view
        try:
            tokens.find(ask.view, ask.body, ask.prompt, self._told_tokens)
        except Exception:  # noqa: BLE001  a bug costs one request and no other
            self._crash()

    def _told_tokens(self, view: RequestView) -> None:
        if self in self._home.lives:
            self._submit(view)

    def _submit(self, view: RequestView) -> None:
        self._view = self.view = view
        self.attempts += 1
        self.submitted = True
        home = self._home
        try:
            if not home.tenants.idle:
                refused = home.tenants.submit(self.id, self.tenant, home.road.clock.now_s())
                if refused is not None:
                    self._decided(refused)
                    return
            home.desk.submit(view, self._decided)
        except Exception:  # noqa: BLE001  a bug costs one request and no other
            self._crash()

    def _decided(self, decision: Decision) -> None:
        """The scheduler's word: start the legs along the route, or refuse."""
        home = self._home
        try:
            queued_s = self.mark("queue", home.road.clock.now_s())
            if isinstance(decision, Slice):
                self._pieces = pieces = self._pieces or Pieces(
                    home, self.exchange, self, self._ask, self._blame
                )
                pieces.send(decision)
                return
            if isinstance(decision, Reject):
                self.reject = decision
                raise refusal(decision)
            assert isinstance(decision, Assign)
            self.assign, self.route = decision, decision.route
            if home.pairs.lazy and self.route.prefill is not None:
                home.pairs.used((self.route.prefill, self.route.decode))
            home.tenants.assigned(self.id, home.road.clock.now_s())
            home.counts.stage("queue", queued_s)
            items = handover.plan(
                home.registry, self._take_rooms, self.exchange.path, self, self._ask, decision.route
            )
            answer: Answer
            if self._lasting is not None:
                answer = self._lasting
            else:
                continues = home.settings.continues(self._ask.view.slo_class)
                answer = handover.answer(self.exchange, self, self._ask, len(items), continues)
                self._lasting = answer if isinstance(answer, Lasting) else None
            self.timeouts = home.settings.class_timeouts.get(self._ask.view.slo_class or "")
            late = decision.provisional
            if late:
                home.desk.expect(self.id, self._rebound)
            self._unit = Unit(
                home.road, self, answer, items, self._complete, self._broke, late, self._another
            )
            self._unit.start()
        except RequestError as error:
            self._fail(error)
        except Exception:  # noqa: BLE001  a bug costs one request and no other
            self._crash()

    def _rebound(self, decision: Decision) -> None:
        """Prefill is done, and the scheduler names who decodes; or gives the hand-off up."""
        unit = self._unit
        if unit is None:
            return
        try:
            if isinstance(decision, Spent):
                unit.unbound(given_up(decision))
                return
            assert isinstance(decision, Bind)
            decode = self._home.registry.get(decision.route.decode)
            self.bind, self.route = decision, decision.route
            if decode is None:
                raise NoCapacity(f"{decision.route.decode} has just been removed", reason="endpoint-removed")
            unit.bound(decode)
        except RequestError as error:
            self._broke(error)
        except Exception:  # noqa: BLE001  a bug costs one request and no other
            self._crash()

    def _another(self, endpoint: str) -> None:
        """The decode side could not be reached: have another named for what prefill has computed."""
        home, view = self._home, self._view
        home.counts.retried("rebind", Verdict.AGAIN)
        self._view = view = replace(view, avoid=(*view.avoid, endpoint))
        try:
            home.desk.rebind(view, self._rebound)
        except Exception:  # noqa: BLE001  a bug costs one request and no other
            self._crash()

    def _take_rooms(self, count: int) -> range:
        self._rooms = self._home.rooms.take(count)
        return self._rooms

    def _complete(self) -> None:
        """Every leg is over, and the client has everything."""
        assert self._unit is not None
        try:
            route, pairs = self.route, self._home.pairs
            if pairs.failing and route is not None and route.prefill is not None:
                pairs.well((route.prefill, route.decode))
            usage = self._unit.usage()
            self.usage = usage if self._lasting is None else self._lasting.total(usage)
        except Exception:  # noqa: BLE001  as above; the client has everything
            self._crash()
        else:
            self._close()

    def _broke(self, error: RequestError) -> None:
        """The legs have failed and are aborted: once more elsewhere if the client has nothing of it yet."""
        home, unit = self._home, self._unit
        assert unit is not None
        self._blame(error, unit.failed_at)
        begun, lasting, rest = self.exchange.started, self._lasting, None
        if begun:
            # The client has a part of it: all that can be done is to go on with the rest.
            if lasting is not None and not self.exchange.ended:
                rest = lasting.rest(unit.usage().prompt)
            if rest is None:
                self._fail(error)
                return
        tries = self._tries = self._tries or Tries()
        verdict = tries.failed(error, home.budget)
        if verdict is not Verdict.FINAL:
            home.counts.retried("continuation" if begun else "retry", verdict)
        if verdict is not Verdict.AGAIN:
            self._fail(error)
            return
        self.failed(error, begun)
        now_s = home.road.clock.now_s()
        home.desk.finish(self.outcome(now_s))
        self._release()
        self.again(now_s)
        view = self._view
        if lasting is not None and rest is not None:
            lasting.resume()
            asked, sent = self._ask.view, lasting.tokens
            left = max(1, asked.max_tokens - sent)
            view = replace(view, prompt_tokens=asked.prompt_tokens + sent, max_tokens=left, parts=False)
            self._ask = self._ask._replace(body=rest)
        self._submit(replace(view, avoid=(*view.avoid, *unit.failed_at)))

    def _blame(self, error: RequestError, endpoints: tuple[str, ...]) -> None:
        """Note against whom an engine's failure speaks: its endpoint, and the pair if there is one."""
        home, route = self._home, self.route
        if (error.http_status < 500 and error.reason != FULL) or error.reason in BLAMELESS:
            return
        for endpoint in endpoints:
            home.road.signs_of(endpoint).failing = True
            home.registry.failed(endpoint)
        if route is not None and route.prefill is not None and isinstance(error, LegFailed):
            home.pairs.failed((route.prefill, route.decode), home.road.clock.now_s())

    # -- how it ends

    def _left(self) -> None:
        """The client has left."""
        self._home.desk.withdraw(self.id)
        self.cancelled(self.exchange.started)
        self._close()

    def stop(self) -> None:
        """The router stops and cannot wait; what the client has whole is not broken by that."""
        self._home.desk.withdraw(self.id)
        if self.exchange.ended:
            self._close()
        else:
            self._fail(NoCapacity("the router is stopping", reason="draining"))

    def _crash(self) -> None:
        """What was just raised is a bug, ours or a plug-in's."""
        log.exception("a request failed on a bug", extra={"request_id": self.id})
        self._fail(RequestError("internal error", reason="internal"))

    def _fail(self, error: RequestError) -> None:
        """Tell the client: an HTTP error while that is possible, else an event and no final mark."""
        exchange = self.exchange
        self.failed(error, exchange.started)
        if not exchange.started:
            exchange.respond(
                error.http_status,
                replies.error_body(error),
                replies.error_headers(error),
                replies.named(self),
            )
        elif not exchange.ended:
            exchange.write(replies.error_event(error))
            exchange.end()
        self._close()

    def _release(self) -> None:
        """Abort the legs that still run, and give the rooms back."""
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.stop()
        if self._pieces is not None:
            self._pieces.stop()
        self._home.rooms.free(self._rooms)
        self._rooms = NO_ROOMS

    def _close(self) -> None:
        """The one exit: whatever became of the request, everyone who keeps books is told here."""
        home = self._home
        if self not in home.lives:
            return
        home.lives.remove(self)
        if self._key:
            home.uncount(self._key)
        self.exchange.on_close = None
        self._release()
        now_s = home.road.clock.now_s()
        outcome = self.outcome(now_s)
        if home.tokens is not None and self.view is not None:
            home.tokens.counted(self.id, self.model, self.view.prompt_tokens, outcome.prompt_tokens)
        if self.submitted:
            home.desk.finish(outcome)
            home.tenants.finished(self.id, now_s)
        name, choices = (None, 1) if self.view is None else (self.view.slo_class, self.view.n)
        home.counts.request_done(outcome, self.kind, self.model, name or "", choices)
        if home.recorder is not None:
            slo = None if name is None else home.settings.classes.classes.get(name)
            home.recorder.ended(self, outcome, slo)
        level = logging.WARNING if outcome.end in (End.FAILED, End.BROKEN) else logging.DEBUG
        if log.isEnabledFor(level):
            log.log(level, "request %s", outcome.end, extra=self.fields(outcome))
