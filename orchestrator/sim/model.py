"""The engine as a pure event-driven model: chunked prefill, batching, paged KV, transfer and leases."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.sim.channel import Channel
from orchestrator.sim.jobs import Counters, Event, Job, Load, Mode, ModelConfig, State, What
from orchestrator.sim.memory import KvMemory
from orchestrator.sim.queues import Queues


@dataclass(slots=True)
class _Step:
    start_s: float
    end_s: float
    pieces: list[tuple[Job, int]]
    decode: list[Job]


class EngineModel:
    """One engine in virtual time; no clock, no I/O, no randomness.

    Call `advance(now_s)` before any other method of the same instant. `next_event_s()` says when
    `advance` has something to do. Everything submitted ends in exactly one of FINISHED, SENT, EXPIRED
    (events), `release` or `cancel` (calls). Raises ValueError when time runs backwards.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.memory = KvMemory(
            config.kv_tokens, config.cache_tokens, config.block_tokens, record=config.record_blocks
        )
        self.counters = Counters()
        self.slowdown = 1.0
        """Factor on every step's duration (a fault, or slower hardware)."""
        self._chunk = config.chunk_tokens or config.timing.chunk_tokens
        self._now_s = 0.0
        self._seq = 0
        self._q = Queues()
        self._step: _Step | None = None
        self._timers: list[tuple[float, int, What, Job]] = []
        self.channel = Channel(config.timing, config.link, self.counters)
        self._pending: list[Event] = []

    def submit(self, job: Job, now_s: float) -> None:
        """Take a job in. Raises ValueError for an id in use or a job that could never fit."""
        self._at(now_s)
        if job.id in self._q.jobs:
            raise ValueError(f"job {job.id} is here already")
        if min(job.prompt_tokens, job.output_tokens) < 1:
            raise ValueError(f"job {job.id} needs at least one prompt and one output token")
        if job.prompt_tokens + job.output_tokens > self.memory.tokens:
            raise ValueError(f"job {job.id} needs more than the {self.memory.tokens} tokens of KV there are")
        job.submitted_s = now_s
        self._q.jobs[job.id] = job
        if job.gated and not job.optimistic:
            job.state = State.GATED
            self._q.gated[job.id] = job
        elif job.mode is Mode.DECODE:
            self._q.prealloc[job.id] = job
        else:
            self._q.waiting[job.id] = job
        self._start(now_s)

    def ungate(self, job_id: str, now_s: float) -> None:
        """The peer is known: a gated job may go on. Unknown ids are ignored."""
        self._at(now_s)
        job = self._q.jobs.get(job_id)
        if job is None or not job.gated:
            return
        job.gated = False
        if self._q.gated.pop(job_id, None):
            job.state = State.WAITING
            self._q.waiting[job_id] = job
        elif job.state is State.HELD:
            self._send_off(job, now_s)
        self._start(now_s)

    def fetch(self, job_id: str, tokens: int, now_s: float) -> None:
        """Begin to pull `tokens` of KV for a reserved DECODE job; ARRIVED follows after the link's time."""
        self._at(now_s)
        job = self._q.reserved.get(job_id)
        if job is not None:
            self.channel.put(tokens, now_s)
            self._timer(self.channel.done_s(tokens, now_s), What.ARRIVED, job)

    def kv_ready(self, job_id: str, now_s: float, *, first_token: bool) -> None:
        """A reserved DECODE job's KV is here; with `first_token` the peer's token came with it."""
        self._at(now_s)
        job = self._q.reserved.pop(job_id, None)
        if job is None:
            return
        self.counters.received_tokens += job.prompt_tokens - job.cached_tokens
        self.counters.prompt_tokens += job.prompt_tokens
        job.computed = job.prompt_tokens
        job.prefilled_s = now_s
        self.memory.publish(job, 0, job.prompt_tokens)
        job.state = State.RUNNING
        self._q.running[job_id] = job
        if first_token:
            self._produce(job, now_s, self._pending)
        self._start(now_s)

    def recompute(self, job_id: str, now_s: float) -> None:
        """Give up on another engine's KV: a DECODE job that has not started is prefilled here instead."""
        self._at(now_s)
        job = self._q.reserved.pop(job_id, None) or self._q.prealloc.pop(job_id, None)
        if job is not None:
            self.memory.give_back(job)
            job.blocks = []
            job.admitted_s = None
            job.mode = Mode.LOCAL
            job.state = State.WAITING
            self._q.waiting[job_id] = job
            self._start(now_s)

    def resize(self, job_id: str, output_tokens: int) -> None:
        """The output turned out to have another length; one step at least is still made."""
        job = self._q.jobs.get(job_id)
        if job is not None:
            job.output_tokens = max(output_tokens, job.produced + 1)

    def renew(self, job_id: str, until_s: float) -> bool:
        """Extend the lease of held KV; False if there is none any more."""
        job = self._q.held.get(job_id)
        if job is not None:
            job.lease_until_s = max(job.lease_until_s, until_s)
        return job is not None and job.lease_s is not None

    def release(self, job_id: str, now_s: float) -> bool:
        """Held KV was taken, or is not wanted; False if it is not held any more."""
        self._at(now_s)
        job = self._q.held.get(job_id)
        if job is None:
            return False
        self._end(job, now_s)
        self._start(now_s)
        return True

    def cancel(self, job_id: str, now_s: float) -> bool:
        """Drop a job wherever it is, at once; False if it is not here."""
        self._at(now_s)
        job = self._q.jobs.get(job_id)
        if job is None:
            return False
        self._end(job, now_s)
        self._start(now_s)
        return True

    def next_event_s(self) -> float | None:
        """When `advance` has something to report; None while nothing will happen by itself."""
        if self._pending:
            return self._now_s
        times = []
        if self._step is not None:
            times.append(self._step.end_s)
        if self._timers:
            times.append(self._timers[0][0])
        return min(times) if times else None

    def advance(self, now_s: float) -> list[Event]:
        """Everything that happened up to `now_s`, in order; several steps if so many have passed."""
        self._at(now_s)
        events, self._pending = self._pending, []
        while True:
            step_s = self._step.end_s if self._step is not None else math.inf
            timer_s = self._timers[0][0] if self._timers else math.inf
            at_s = min(step_s, timer_s)
            if at_s > now_s:
                return events
            if step_s <= timer_s:
                self._finish_step(events)
            else:
                self._fire(events)
            self._start(at_s)
            events += self._pending
            self._pending = []

    def load(self) -> Load:
        """The queues and the memory as they are."""
        return self._q.load(self.memory)

    def jobs(self) -> Iterable[Job]:
        """Every job that has not ended."""
        return self._q.jobs.values()

    def _start(self, now_s: float) -> None:
        self._reserve(now_s)
        if self._step is not None:
            return
        pieces = self._plan_prefill(now_s)
        decode: list[Job] = []
        resident = 0
        if self._q.running and (self.config.mixed or not pieces):
            decode, resident = self._plan_decode()
        if not pieces and not decode:
            return
        timing = self.config.timing
        compute_s = sum(timing.prefill_s(job.computed, job.computed + n) for job, n in pieces)
        lasts_s = max(timing.step_fixed_s + compute_s, timing.step_floor_s) if pieces else 0.0
        if decode:
            lasts_s += timing.decode_s(len(decode), resident)
        self._step = _Step(now_s, now_s + lasts_s * self.slowdown, pieces, decode)

    def _plan_prefill(self, now_s: float) -> list[tuple[Job, int]]:
        """Fill one chunk: jobs begun first, then preempted ones, then arrivals, while memory lasts."""
        budget = self._chunk
        pieces: list[tuple[Job, int]] = []
        for job in self._q.prefilling.values():
            if budget == 0:
                return pieces
            n = min(budget, job.context - job.computed)
            pieces.append((job, n))
            budget -= n
        for queue in (self._q.preempted, self._q.waiting):
            while queue and budget and self._q.occupied() < self.config.max_running:
                job = next(iter(queue.values()))
                if not self._admit(job, now_s):
                    return pieces
                del queue[job.id]
                n = min(budget, job.context - job.computed)
                pieces.append((job, n))
                budget -= n
        return pieces

    def _admit(self, job: Job, now_s: float) -> bool:
        """Give a job blocks for all it has to compute, less what the prefix cache holds."""
        # A block for each running job's next tokens stays free, or whoever comes in is thrown out again.
        hit = self.memory.take(job, job.context, len(self._q.running))
        if hit is None:
            return False
        job.computed = job.hit_tokens = hit
        if job.admitted_s is None:
            self._admitted(job, hit, now_s)
            self.counters.prompt_tokens += job.prompt_tokens
        job.state = State.PREFILLING
        self._q.prefilling[job.id] = job
        self._push_computed(job, now_s)
        return True

    def _admitted(self, job: Job, hit: int, now_s: float) -> None:
        job.admitted_s = now_s
        job.cached_tokens = job.hit_tokens = hit
        self.counters.cached_tokens += hit

    def _plan_decode(self) -> tuple[list[Job], int]:
        """The running batch, each with a slot for its next token, and the KV tokens they hold."""
        resident = 0
        block = self.config.block_tokens
        batch = []
        for job in list(self._q.running.values()):
            context = job.prompt_tokens + job.produced
            if context > len(job.blocks) * block and job.state is State.RUNNING and not self._grow(job):
                continue
            if job.state is State.RUNNING:
                resident += context
                batch.append(job)
        if any(job.state is not State.RUNNING for job in batch):
            batch = [job for job in batch if job.state is State.RUNNING]
            resident = sum(job.context for job in batch)
        return batch, resident

    def _grow(self, job: Job) -> bool:
        """One more block, at the cost of the newest running jobs if need be; False if `job` itself went."""
        while not self.memory.grow(job):
            victim = next(reversed(self._q.running.values()))
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _preempt(self, job: Job) -> None:
        del self._q.running[job.id]
        self.memory.give_back(job)
        job.blocks = []
        job.computed = 0
        job.mode = Mode.LOCAL
        job.state = State.WAITING
        self._q.preempted[job.id] = job
        self.counters.preemptions += 1

    def _finish_step(self, events: list[Event]) -> None:
        step, self._step = self._step, None
        assert step is not None
        now_s, c = step.end_s, self.counters
        lasts_us = (step.end_s - step.start_s) * 1e6
        if step.pieces:
            c.prefill_busy_us += lasts_us
            c.prefill_tokens += sum(n for _, n in step.pieces)
        else:
            n = len(step.decode)
            c.decode_steps += 1
            c.decode_batch += n
            c.decode_us += lasts_us
            c.decode_batch2 += n * n
            c.decode_batch_us += n * lasts_us
        for job, n in step.pieces:
            if job.state is State.PREFILLING:
                self._computed(job, n, now_s, events)
        for job in step.decode:
            if job.state is State.RUNNING:
                self._produce(job, now_s, events)

    def _computed(self, job: Job, n: int, now_s: float, events: list[Event]) -> None:
        self.memory.publish(job, job.computed, job.computed + n)
        job.computed += n
        self._push_computed(job, now_s)
        if job.computed < job.context:
            return
        del self._q.prefilling[job.id]
        job.prefilled_s = now_s
        hit = job.hit_tokens // self.config.block_tokens
        events.append(Event(now_s, What.PREFILLED, job, job.blocks, hit))
        if job.mode is Mode.LOCAL:
            job.state = State.RUNNING
            self._q.running[job.id] = job
            self._produce(job, now_s, events)
            return
        job.state = State.HELD
        self._q.held[job.id] = job
        job.produced = 1
        self.counters.generated_tokens += 1
        events.append(Event(now_s, What.TOKEN, job))
        if job.lease_s is not None:
            job.lease_until_s = now_s + job.lease_s
            self._timer(job.lease_until_s, What.EXPIRED, job)
        elif not job.gated:
            self._send_off(job, now_s)

    def _produce(self, job: Job, now_s: float, events: list[Event]) -> None:
        job.produced += 1
        self.counters.generated_tokens += 1
        events.append(Event(now_s, What.TOKEN, job))
        if job.produced >= job.output_tokens:
            # The last token's own KV is never computed.
            self.memory.publish(job, job.prompt_tokens, job.context - 1)
            self._end(job, now_s)
            events.append(Event(now_s, What.FINISHED, job, job.blocks))

    def _reserve(self, now_s: float) -> None:
        """Admit DECODE jobs in order while memory (with headroom) and places last."""
        blocks = self.memory.blocks_for
        while self._q.prealloc and self._q.occupied() < self.config.max_running:
            job = next(iter(self._q.prealloc.values()))
            headroom = min(self.config.reserve_tokens, job.output_tokens)
            spare = blocks(job.prompt_tokens + headroom) - blocks(job.prompt_tokens)
            hit = self.memory.take(job, job.prompt_tokens, spare)
            if hit is None:
                return
            del self._q.prealloc[job.id]
            self._admitted(job, hit, now_s)
            job.state = State.RESERVED
            self._q.reserved[job.id] = job
            self._pending.append(Event(now_s, What.RESERVED, job))

    def _push_computed(self, job: Job, now_s: float) -> None:
        """Each chunk's KV leaves as soon as it is computed, if peer and link allow it."""
        if job.mode is Mode.PREFILL and not job.gated and job.lease_s is None and self.channel.overlaps:
            self.channel.put(job.computed - job.sent_tokens, now_s)
            job.sent_tokens = job.computed

    def _send_off(self, job: Job, now_s: float) -> None:
        """What has not left yet leaves now; SENT when all of it is over."""
        self.channel.put(job.prompt_tokens - job.sent_tokens, now_s)
        job.sent_tokens = job.prompt_tokens
        self._timer(self.channel.done_s(job.prompt_tokens, now_s), What.SENT, job)

    def _timer(self, at_s: float, what: What, job: Job) -> None:
        self._seq += 1
        heapq.heappush(self._timers, (at_s, self._seq, what, job))

    def _fire(self, events: list[Event]) -> None:
        at_s, _, what, job = heapq.heappop(self._timers)
        if job.state is State.ENDED:
            return
        if what is What.EXPIRED:
            if job.lease_until_s > at_s:
                self._timer(job.lease_until_s, What.EXPIRED, job)
                return
            self.counters.expired += 1
        if what is not What.ARRIVED:
            self._end(job, at_s)
        events.append(Event(at_s, what, job))

    def _end(self, job: Job, now_s: float) -> None:
        self._q.drop(job)
        self.memory.give_back(job)
        job.state = State.ENDED
        job.ended_s = now_s

    def _at(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time runs backwards: {now_s} after {self._now_s}")
        self._now_s = now_s
