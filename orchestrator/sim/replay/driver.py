"""The replay itself: the real scheduler on simulated engines, event by event in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Any, Protocol

from orchestrator.core.contracts import Assign, Bind, Decision, Poll, Reject, Scheduler, Slice, Spent
from orchestrator.core.types import End, LegEvent, LegKind, Route, Snapshot
from orchestrator.sim.jobs import Mode
from orchestrator.sim.replay.engine import LeanEngine
from orchestrator.sim.replay.fleet import RETRACT_TOKENS, Fleet
from orchestrator.sim.replay.job import LeanJob
from orchestrator.sim.replay.life import Life, Run
from orchestrator.sim.replay.loads import Reader
from orchestrator.sim.replay.parts import Parts
from orchestrator.sim.replay.requests import Requests as Requests
from orchestrator.sim.replay.steps import Noise

Progress = Callable[[int, float], None]
"""Told now and then how many requests have arrived, and what time it is."""

_TOLD_EVERY = 64


class Judges(Protocol):
    """Whoever decides early that a run has shown enough."""

    def begun(self, life: Life) -> bool:
        """A request had its first token; whether the run may end."""
        ...

    def ended(self, life: Life) -> bool:
        """A request has ended, however; whether the run may end."""
        ...


class Replay:
    """One run. `rate` divides the trace's times. `rng` makes the noise of the engines' steps.

    `judge` is told how each request does, and ends the run when it says so.
    """

    def __init__(
        self,
        requests: Requests,
        fleet: Fleet,
        scheduler: Scheduler,
        *,
        rate: float = 1.0,
        rng: Random | None = None,
        judge: Judges | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.requests = requests
        self.fleet = fleet
        self.scheduler = scheduler
        self.lives: list[Life] = []
        self.now_s = 0.0
        self.events = 0
        self.stopped = self.interrupted = False
        self._rate = rate
        self._judge = judge
        self._progress = progress
        self._latency_s = fleet.latency_s
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._seq = 0
        self._left = 0
        self._due_s = inf
        self._by_id: dict[str, Life] = {}
        heeds = getattr(scheduler, "heeds", None)
        self._told = {
            what: heeds is None or what in heeds for what in ("sent", "first_token", "done", "failed")
        }
        noise = Noise(fleet.noise, rng)
        self.engines = {
            unit.name: LeanEngine(
                unit.config,
                self,
                self._at,
                noise=noise,
                noise_at=i * 997,
                slowdown=unit.slowdown,
                held_back_tokens=RETRACT_TOKENS if unit.pushes else 0,
            )
            for i, unit in enumerate(fleet.units)
        }
        self._endpoints = {unit.name: unit.endpoint for unit in fleet.units}
        self._pushes = {unit.name: unit.pushes for unit in fleet.units}
        self._parts = Parts(self.engines, self._at, self._latency_s, self._tell_of)
        self._reader = Reader(self.engines, self._pushes)

    def run(self) -> Run:
        """Replay until the last request has ended; what became of each."""
        entries = self.requests.trace.entries
        self._left = len(entries)
        self._observe(0.0)
        for drift in self.fleet.drifts:
            self._at(drift.at_s, self._drift, drift)
        self._at(self.fleet.poll_s, self._poll_all, None)
        if entries:
            self._at(entries[0].at_s / self._rate, self._arrive, 0)
        try:
            self._loop()
        except KeyboardInterrupt:
            # What there is by then is still worth a report.
            self.stopped = self.interrupted = True
        # What was still on its way when it was stopped is neither kept nor missed.
        lives = [life for life in self.lives if life.ended_s is not None] if self.stopped else self.lives
        return Run(
            lives=lives,
            offered=len(entries) if not self.stopped else len(lives),
            seconds=self.now_s,
            events=self.events,
            stopped=self.stopped,
            interrupted=self.interrupted,
            rate=len(entries) / (entries[-1].at_s - entries[0].at_s) * self._rate
            if len(entries) > 1 and entries[-1].at_s > entries[0].at_s
            else inf,
            gaps={name: engine.batch.gaps for name, engine in self.engines.items()},
            busy_s={name: engine.batch.busy_s for name, engine in self.engines.items()},
            counters={name: engine.counters for name, engine in self.engines.items()},
            queue_s=self._reader.queue_s,
            polls=self._reader.polls,
        )

    def _loop(self) -> None:
        heap, pop = self._heap, heapq.heappop
        events = 0
        while self._left and not self.stopped:
            at_s, _, call, what = pop(heap)
            self.now_s = at_s
            events += 1
            call(at_s, what)
        self.events = events

    def _at(self, at_s: float, call: Callable[[float, Any], None], what: Any) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (at_s, self._seq, call, what))

    # -- the router's side

    def _arrive(self, now_s: float, index: int) -> None:
        entries = self.requests.trace.entries
        if index + 1 < len(entries):
            self._at(entries[index + 1].at_s / self._rate, self._arrive, index + 1)
        entry = entries[index]
        view = self.requests.view(index, now_s)
        life = Life(view, self.requests.engine_hashes[index], entry.output_tokens)
        self.lives.append(life)
        self._by_id[view.id] = life
        if self._progress is not None and index % _TOLD_EVERY == 0:
            self._progress(index, now_s)
        self._carry_out(self.scheduler.submit(view, now_s), now_s)

    def _carry_out(self, decisions: Sequence[Decision], now_s: float) -> None:
        for decision in decisions:
            if isinstance(decision, Assign):
                life = self._by_id[decision.request_id]
                life.assigned(decision, now_s)
                self._send(life, decision.route, now_s)
            elif isinstance(decision, Reject):
                self._refused(self._by_id[decision.request_id], decision, now_s)
            elif isinstance(decision, Bind):
                life = self._by_id[decision.request_id]
                life.route, life.provisional = decision.route, False
                self._send_decode(life, now_s)
            elif isinstance(decision, Spent):
                self._spent(self._by_id[decision.request_id], decision.reason, now_s)
            elif isinstance(decision, Slice):
                self._parts.send(self._by_id[decision.request_id], decision, now_s)
            elif isinstance(decision, Poll):
                self._at(now_s + self._latency_s, self._read, decision.endpoint)
        due_s = self.scheduler.due_s()
        if due_s is not None and due_s < self._due_s:
            self._due_s = max(due_s, now_s)
            self._at(self._due_s, self._tick, None)

    def _tick(self, now_s: float, _: Any) -> None:
        if now_s != self._due_s:
            return
        self._due_s = inf
        due_s = self.scheduler.due_s()
        if due_s is not None and due_s <= now_s:
            self._carry_out(self.scheduler.tick(now_s), now_s)
        else:
            self._carry_out((), now_s)

    def _send(self, life: Life, route: Route, now_s: float) -> None:
        later_s = now_s + self._latency_s
        if route.prefill is None:
            self._tell(life, LegKind.UNIFIED, route.decode, "sent", now_s)
            self._at(later_s, self._to_unified, life)
            return
        self._tell(life, LegKind.PREFILL, route.prefill, "sent", now_s)
        if self._pushes[route.prefill]:
            self._tell(life, LegKind.DECODE, route.decode, "sent", now_s)
            self._at(later_s, self._to_pair, life)
        else:
            self._at(later_s, self._to_prefill, life)

    def _send_decode(self, life: Life, now_s: float) -> None:
        assert life.route is not None
        self._tell(life, LegKind.DECODE, life.route.decode, "sent", now_s)
        self._at(now_s + self._latency_s, self._to_decode, life)

    def _tell(self, life: Life, leg: LegKind, endpoint: str, what: str, at_s: float) -> None:
        if self._told[what]:
            self._tell_of(LegEvent(life.view.id, leg, endpoint, what, at_s))

    def _tell_of(self, event: LegEvent) -> None:
        self._carry_out(self.scheduler.progress(event, event.at_s), event.at_s)

    def _answered(self, now_s: float, life: Life) -> None:
        """The prefill side has answered."""
        route = life.route
        assert route is not None
        assert route.prefill is not None
        life.stages["prefill"] = now_s - life.sent_s
        bound = not life.provisional
        self._tell(life, LegKind.PREFILL, route.prefill, "done", now_s)
        if bound and not self._pushes[route.prefill]:
            self._send_decode(life, now_s)

    def _first(self, now_s: float, life: Life) -> None:
        if life.first_s is None:
            life.first_s = now_s
            life.stages["first_token"] = now_s - (life.fed_s or life.sent_s)
            if self._judge is not None and self._judge.begun(life):
                self.stopped = True
        route = life.route
        assert route is not None
        leg = LegKind.UNIFIED if route.prefill is None else LegKind.DECODE
        self._tell(life, leg, route.decode, "first_token", now_s)

    def _over(self, now_s: float, life: Life) -> None:
        life.last_s = now_s
        self._end(life, End.COMPLETED, 200, "", now_s)

    def _refused(self, life: Life, reject: Reject, now_s: float) -> None:
        life.refused, life.retry_after_s = reject.reason, reject.retry_after_s
        self._end(life, End.REFUSED, reject.http_status, reject.reason, now_s)

    def _failed(self, life: Life, now_s: float) -> None:
        """An engine could never hold it, and says so."""
        life.refused = "too-long"
        self._end(life, End.FAILED, 400, life.refused, now_s)

    def _end(self, life: Life, end: End, status: int, reason: str, now_s: float) -> None:
        del self._by_id[life.view.id]
        self._left -= 1
        life.ended_s = now_s
        self._carry_out(self.scheduler.finish(life.outcome(end, status, reason, now_s), now_s), now_s)
        if self._judge is not None and self._judge.ended(life):
            self.stopped = True

    def _spent(self, life: Life, reason: str, now_s: float) -> None:
        """The hand-off is dropped, and the request tried anew."""
        if life.prefill_job is not None and life.route is not None and life.route.prefill is not None:
            self._at(now_s + self._latency_s, self._drop_kv, (life.route.prefill, life.prefill_job))
        self._carry_out(self.scheduler.finish(life.outcome(End.FAILED, 504, reason, now_s), now_s), now_s)
        life.again()
        self._carry_out(self.scheduler.submit(life.view, now_s), now_s)

    # -- loads

    def _observe(self, now_s: float) -> None:
        snapshot = Snapshot(at_s=now_s, endpoints=tuple(self._endpoints.values()), unix_s=now_s)
        self._carry_out(self.scheduler.observe(snapshot, now_s), now_s)

    def _poll_all(self, now_s: float, _: Any) -> None:
        changed = False
        for name, endpoint in self._endpoints.items():
            view = self._reader.view(endpoint, now_s, now_s)
            if view is not endpoint:
                self._endpoints[name] = view
                changed = True
        self._reader.polled()
        if changed:
            self._at(now_s + self._latency_s, self._seen, None)
        self._at(now_s + self.fleet.poll_s, self._poll_all, None)

    def _seen(self, now_s: float, _: Any) -> None:
        self._observe(now_s)

    def _read(self, now_s: float, name: str) -> None:
        endpoint = self._reader.view(self._endpoints[name], now_s, now_s)
        self._at(now_s + self._latency_s, self._read_back, endpoint)

    def _read_back(self, now_s: float, endpoint: Any) -> None:
        self._endpoints[endpoint.id] = endpoint
        self._observe(now_s)

    def _drift(self, now_s: float, drift: Any) -> None:
        for unit in self.fleet.units:
            if not drift.names or unit.name in drift.names:
                self.engines[unit.name].slow_down(unit.slowdown * drift.factor, now_s)

    # -- at the engines

    def _to_unified(self, now_s: float, life: Life) -> None:
        assert life.route is not None
        self._submit(life, life.route.decode, Mode.LOCAL, now_s)

    def _to_prefill(self, now_s: float, life: Life) -> None:
        assert life.route is not None
        assert life.route.prefill is not None
        job = self._submit(life, life.route.prefill, Mode.PREFILL, now_s, lease=True)
        life.prefill_job = job

    def _to_pair(self, now_s: float, life: Life) -> None:
        """Both legs at once: prefill waits for decode, which may have memory at once."""
        route = life.route
        assert route is not None
        assert route.prefill is not None
        job = self._submit(life, route.prefill, Mode.PREFILL, now_s, gated=True)
        life.prefill_job = job
        if job is not None:
            self._submit(life, route.decode, Mode.DECODE, now_s)

    def _to_decode(self, now_s: float, life: Life) -> None:
        assert life.route is not None
        self._submit(life, life.route.decode, Mode.DECODE, now_s)

    def _submit(
        self, life: Life, where: str, mode: Mode, now_s: float, *, gated: bool = False, lease: bool = False
    ) -> LeanJob | None:
        engine = self.engines[where]
        output = 1 if mode is Mode.PREFILL else life.output_tokens
        hashes = life.hashes if engine.caches else ()
        job = LeanJob(life, life.view.prompt_tokens, output, hashes, mode, gated=gated, lease=lease)
        longest = self._endpoints[where].max_model_len
        if not engine.fits(job) or (longest is not None and job.prompt + life.output_tokens > longest):
            self._failed(life, now_s + self._latency_s)
            return None
        engine.submit(job, now_s)
        return job

    def _drop_kv(self, now_s: float, held: tuple[str, LeanJob]) -> None:
        name, job = held
        self.engines[name].release(job, now_s)

    # -- what the engines tell

    def prefilled(self, job: LeanJob, at_s: float) -> None:
        """A prompt is computed; who keeps it for a puller answers now."""
        life = job.owner
        life.prefilled_s = at_s
        life.cached_tokens = job.cached
        if job.lease:
            life.fed_s = at_s + self._latency_s
            self._at(at_s + self._latency_s, self._answered, life)

    def first_token(self, job: LeanJob, at_s: float) -> None:
        """The client has it a network's latency later."""
        if job.part:
            return
        if job.mode is Mode.LOCAL and job.owner.first_s is None:
            job.owner.cached_tokens = job.cached
        self._at(at_s + self._latency_s, self._first, job.owner)

    def finished(self, job: LeanJob, at_s: float) -> None:
        """So is the end."""
        if job.part:
            self._parts.finished(job, at_s)
            return
        job.owner.worst_gap_s = job.worst_s
        self._at(at_s + self._latency_s, self._over, job.owner)

    def reserved(self, job: LeanJob, at_s: float) -> None:
        """Decode has memory: prefill may begin, or the KV be pulled."""
        life = job.owner
        life.decode_job = job
        if self._pushes[life.route.prefill]:
            self.engines[life.route.prefill].ungate(life.prefill_job, at_s)
        else:
            self.engines[life.route.decode].fetch(job, at_s)

    def sent(self, job: LeanJob, at_s: float) -> None:
        """KV has been pushed: decode goes on, prefill answers."""
        life = job.owner
        self.engines[life.route.decode].kv_ready(life.decode_job, at_s, first_token=True)
        life.fed_s = at_s + self._latency_s
        self._at(at_s + self._latency_s, self._answered, life)

    def arrived(self, job: LeanJob, at_s: float) -> None:
        """KV has been pulled: its holder may forget it."""
        life = job.owner
        self.engines[life.route.prefill].release(life.prefill_job, at_s)
        self.engines[life.route.decode].kv_ready(job, at_s, first_token=False)
