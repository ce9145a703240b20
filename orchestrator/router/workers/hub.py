"""The scheduler's end: takes the relays' messages to the desk, and tells them decisions and endpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import orjson

from orchestrator.clock import Clock
from orchestrator.core.contracts import Assign, Bind, Decision, Reject
from orchestrator.core.frozen import record
from orchestrator.core.inflight import Ledger
from orchestrator.core.types import End, LegKind, Outcome, RequestView, Route
from orchestrator.engines.base import Leg
from orchestrator.errors import NoCapacity, PdctlError
from orchestrator.metrics import RouterMetrics
from orchestrator.router.app import RouterApp
from orchestrator.router.endpoints import Registry
from orchestrator.router.workers import messages, tally, views
from orchestrator.router.workers.link import Link
from orchestrator.router.workers.messages import Kind, Submitted

log = logging.getLogger(__name__)

LOADS_S = 0.25
"""How old what relays know of an endpoint's load may be; it decides nothing there."""

FRESH_S = 0.5
"""How long a scrape waits for a relay's counters; those of one that is silent come with the next."""

LOST = "worker-lost"
"""The reason of what a relay had when it died."""


@record(slots=True, eq=False)
class Request:
    """One request of a relay's, as far as the scheduler's side needs it."""

    view: RequestView
    wants: bool
    route: Route | None = None


class Member:
    """One relay that is connected: its requests, and what it has said of itself."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.requests: dict[str, Request] = {}
        self.pid = 0
        self.serving = asyncio.Event()
        self.asked: asyncio.Future[None] | None = None
        self.link = Link(self._heard, self._lost)
        self.on_lost: Callable[[], None] = lambda: None

    def told(self, decision: Decision) -> None:
        """A decision on one of its requests."""
        request = self.requests.get(decision.request_id)
        if request is None:
            return
        if isinstance(decision, Assign | Bind):
            request.route = decision.route
        if isinstance(decision, Assign):
            self._hub.assigned(decision, self)
        self.link.send(messages.decision(decision))

    def _heard(self, kind: int, body: bytes) -> None:
        self._hub.heard(self, kind, body)

    def _lost(self) -> None:
        if self.asked is not None and not self.asked.done():
            self.asked.set_result(None)
        self._hub.left(self)
        self.on_lost()


class Hub:
    """What all relays share. `app` is the router's own, whose desk, tenants and pairs decide for them too.

    `welcome` makes the PLAN frame that each is greeted with, `most` says how many requests there may be.
    """

    def __init__(
        self,
        app: RouterApp,
        registry: Registry,
        ledger: Ledger,
        metrics: RouterMetrics,
        clock: Clock,
        welcome: Callable[[], bytes],
        most: Callable[[], int],
    ) -> None:
        self.members: set[Member] = set()
        self.requests: dict[str, Request] = {}
        self._app, self._registry, self._ledger = app, registry, ledger
        self._metrics, self._clock = metrics, clock
        self._welcome, self._most = welcome, most
        self._loop = asyncio.get_running_loop()
        self._sent: dict[str, Any] = {}
        self._loads: asyncio.TimerHandle | None = None
        self._heard_s: dict[str, float] = {}
        self._failing: set[str] = set()
        self._heeds: dict[int, Callable[[Member, bytes], None]] = {
            Kind.SUBMIT: self._submit,
            Kind.REBIND: self._rebind,
            Kind.CANCEL: self._cancel,
            Kind.PROGRESS: self._progress,
            Kind.FINISH: self._finish,
            Kind.OVER: self._over,
            Kind.RESUME: self._resume,
            Kind.NOTE: self._note,
            Kind.COUNTS: self._counts,
            Kind.HELLO: self._hello,
            Kind.SERVING: lambda member, _: member.serving.set(),
        }
        self._wants = app.desk.wants
        app.desk.wants = self._explains
        registry.on_change(self._endpoints_changed)
        registry.on_hung(self._hung)

    def close(self) -> None:
        """Stop the timer and end every connection."""
        if self._loads is not None:
            self._loads.cancel()
        for member in tuple(self.members):
            member.link.close()

    def joins(self) -> Member:
        """A new member: to be connected by its `link`, and greeted when it is."""
        member = Member(self)
        self.members.add(member)
        member.link.send(self._welcome())
        member.link.send(views.views_frame(map(self._view, self._registry.states()), self._app.pairs.lazy))
        return member

    def all(self, frame: bytes) -> None:
        """Send to every relay."""
        for member in self.members:
            member.link.send(frame)

    def renew(self) -> None:
        """The plan is another one: every relay takes it, and the endpoints as they are."""
        self.all(self._welcome())
        self.all(views.views_frame(map(self._view, self._registry.states()), self._app.pairs.lazy))

    async def fresh(self) -> None:
        """Have every relay's counters as they are now."""
        asked = []
        for member in self.members:
            if member.asked is None or member.asked.done():
                member.asked = self._loop.create_future()
                member.link.send(messages.frame(Kind.ASK_COUNTS))
            asked.append(member.asked)
        if asked:
            await asyncio.wait(asked, timeout=FRESH_S)

    def heard(self, member: Member, kind: int, body: bytes) -> None:
        """A relay's message. Raises BadFrame for one that is none."""
        does = self._heeds.get(kind)
        if does is None:
            raise messages.BadFrame(f"a relay sent a message of kind {kind}")
        try:
            does(member, body)
        except messages.BadFrame:
            raise
        except Exception:  # a bug, ours or a plug-in's, costs one request and no other
            log.exception("a worker's message failed on a bug", extra={"kind": Kind(kind).name})
            if kind == Kind.SUBMIT:
                told = Reject(messages.request_id_of(body), "internal", "internal error", 503)
                member.link.send(messages.decision(told))

    def left(self, member: Member) -> None:
        """A relay is gone, and with it the streams it had: all that they held is free."""
        self.members.discard(member)
        lost, member.requests = member.requests, {}
        if lost:
            log.warning("a worker is gone, with its requests", extra={"pid": member.pid, "lost": len(lost)})
        for name, request in lost.items():
            self.requests.pop(name, None)
            self._app.desk.withdraw(name)
            outcome = Outcome(name, End.BROKEN, 0, LOST, route=request.route)
            self._app.desk.finish(outcome)
            self._app.tenants.finished(name, self._clock.now_s())
            self._metrics.request_done(outcome, request.view.path, request.view.model)
            self._abort(name, request.route)

    def assigned(self, decision: Assign, member: Member) -> None:
        """One of a relay's requests has its route."""
        self._app.tenants.assigned(decision.request_id, self._clock.now_s())
        if decision.provisional:
            self._app.desk.expect(decision.request_id, member.told)

    # -- messages

    def _hello(self, member: Member, body: bytes) -> None:
        version, member.pid = orjson.loads(body)
        if version != messages.VERSION:
            log.warning("a worker speaks another version; it serves no more", extra={"pid": member.pid})
            member.link.send(messages.frame(Kind.RETIRE))

    def _submit(self, member: Member, body: bytes) -> None:
        asked = messages.submitted(body)
        name = asked.view.id
        if len(self.requests) >= self._most() and name not in self.requests:
            message = f"{len(self.requests)} requests are under way, the most there may be"
            told = Reject(name, "too-many-requests", message, 429, 1.0)
            member.link.send(messages.decision(told))
            return
        self._hold(member, asked)
        tenants = self._app.tenants
        if not tenants.idle:
            refused = tenants.submit(name, asked.view.tenant, self._clock.now_s())
            if refused is not None:
                member.told(refused)
                return
        self._app.desk.submit(asked.view, member.told)

    def _resume(self, member: Member, body: bytes) -> None:
        asked = messages.submitted(body)
        view, route, now_s = asked.view, asked.route, self._clock.now_s()
        if route is None or view.id in self._ledger:
            return
        self._hold(member, asked)
        self._ledger.start(view, route, now_s)
        if asked.computed:
            self._ledger.prefill_done(view.id)
        if asked.begun:
            self._ledger.handed_over(view.id)
        if self._app.tenants.submit(view.id, view.tenant, now_s) is None:
            self._app.tenants.assigned(view.id, now_s)

    def _hold(self, member: Member, asked: Submitted) -> None:
        request = Request(asked.view, asked.wants, asked.route)
        self.requests[asked.view.id] = member.requests[asked.view.id] = request

    def _rebind(self, member: Member, body: bytes) -> None:
        self._app.desk.rebind(messages.submitted(body).view, member.told)

    def _cancel(self, member: Member, body: bytes) -> None:
        self._app.desk.withdraw(messages.request_id_of(body))

    def _progress(self, member: Member, body: bytes) -> None:
        event = messages.progressed(body)
        self._heard_s[event.endpoint] = event.at_s
        if event.endpoint in self._failing and event.what in ("first_token", "done"):
            # The relay that met the failure need not be the one whose request finds it well again.
            self._failing.discard(event.endpoint)
            self._registry.well(event.endpoint)
        self._app.desk.progress(event)

    def _finish(self, member: Member, body: bytes) -> None:
        self._app.desk.finish(messages.finished(body))

    def _over(self, member: Member, body: bytes) -> None:
        name = messages.request_id_of(body)
        self.requests.pop(name, None)
        member.requests.pop(name, None)
        self._app.tenants.finished(name, self._clock.now_s())

    def _counts(self, member: Member, body: bytes) -> None:
        if body:
            tally.add(self._metrics, body)
        if member.asked is not None and not member.asked.done():
            member.asked.set_result(None)

    def _note(self, member: Member, body: bytes) -> None:
        what, first, *rest = orjson.loads(body)
        now_s, pairs, registry = self._clock.now_s(), self._app.pairs, self._registry
        if what == "trouble":
            refused, why = rest
            registry.leg_failed(first, ConnectionRefusedError(why) if refused else ConnectionError(why))
        elif what == "failed":
            self._failing.add(first)
            registry.failed(first)
        elif what == "well":
            self._failing.discard(first)
            registry.well(first)
        elif what == "hangs":
            self._failing.add(first)
            registry.hangs(first, rest[0])
        elif what == "pair-failed":
            pairs.failed((first, rest[0]), now_s)
        elif what == "pair-well":
            pairs.well((first, rest[0]))
        elif what == "pair-used":
            pairs.used((first, rest[0]))

    # -- endpoints

    def _view(self, state: Any) -> tuple[Any, ...]:
        name = state.plan.name
        return views.view(state, max(self._registry.moved_s(name), self._heard_s.get(name, -1.0)))

    def _endpoints_changed(self) -> None:
        """Tell at once what requests go by, for decisions may follow; loads now and then."""
        changed = []
        for state in self._registry.states():
            view = self._view(state)
            if self._sent.get(state.plan.name) != views.steady(view):
                self._sent[state.plan.name] = views.steady(view)
                changed.append(view)
        if changed:
            self.all(views.views_frame(changed, self._app.pairs.lazy))
        if self._loads is None:
            self._loads = self._loop.call_later(LOADS_S, self._tell_loads)

    def _tell_loads(self) -> None:
        self._loads = None
        if self.members:
            self.all(views.views_frame(map(self._view, self._registry.states()), self._app.pairs.lazy))

    def _hung(self, endpoint: str, why: str) -> None:
        self.all(messages.json_frame(Kind.HUNG, (endpoint, why)))

    # -- other

    def _explains(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        if request is not None:
            return request.wants
        return self._wants is not None and self._wants(request_id)

    def _abort(self, name: str, route: Route | None) -> None:
        """End a lost request at its engines; those that go by connections have seen its end already."""
        if route is None:
            return
        legs = [(LegKind.UNIFIED if route.prefill is None else LegKind.DECODE, route.decode)]
        legs += [] if route.prefill is None else [(LegKind.PREFILL, route.prefill)]
        for kind, endpoint in legs:
            try:
                place = self._app.shared.place(endpoint)
                call = place.engine.abort(Leg(kind, endpoint, "", (), f"{name}-", relay=False))
            except (NoCapacity, PdctlError):
                continue
            if call is not None:
                self._app.shared.hang_up(place, call)
