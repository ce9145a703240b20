"""The lean engine of replay: `EngineModel` in effect, but decode steps are taken in runs, not one by one."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

from orchestrator.sim.jobs import Counters, Mode, ModelConfig
from orchestrator.sim.replay.batch import Batch
from orchestrator.sim.replay.cache import TokenMemory
from orchestrator.sim.replay.job import LeanJob, Queued, Schedule, Sink
from orchestrator.sim.replay.steps import Noise


class LeanEngine:
    """One engine in virtual time that wakes itself by `schedule`; no clock, no randomness of its own.

    The same rules as `sim.model.EngineModel`, KV counted in tokens instead of blocks. `config.block_tokens`
    is what one hash stands for. `spare_tokens` stay free for each running job when a prompt is admitted, and
    `held_back_tokens` when KV from elsewhere is. Calls must not go back in time.
    """

    def __init__(
        self,
        config: ModelConfig,
        sink: Sink,
        schedule: Schedule,
        *,
        noise: Noise | None = None,
        noise_at: int = 0,
        slowdown: float = 1.0,
        spare_tokens: int = 64,
        held_back_tokens: int = 0,
    ) -> None:
        self.config = config
        self.memory = TokenMemory(config.kv_tokens, config.block_tokens, config.cache_tokens)
        self.counters = Counters()
        self.batch = Batch(config.timing, noise or Noise(), noise_at, self.counters)
        self.batch.slowdown = slowdown
        self.next_s = inf
        """When the step, or run of steps, that is on ends."""
        self.caches = config.cache_tokens != 0
        self._sink = sink
        self._schedule = schedule
        self._spare = spare_tokens
        self._held_back = held_back_tokens
        self._chunk = config.chunk_tokens or config.timing.chunk_tokens
        self._wire_s = config.timing.wire_s(1, config.link)
        self._link_free_s = 0.0
        self._gated: dict[LeanJob, None] = {}
        self._preempted: deque[LeanJob] = deque()
        self._waiting: deque[LeanJob] = deque()
        self._prealloc: deque[LeanJob] = deque()
        self._prefilling: list[LeanJob] = []
        self._reserved = 0
        self._held: dict[LeanJob, None] = {}
        self._pieces: list[tuple[LeanJob, int]] | None = None
        self._chunk_s = 0.0

    # -- what others do to it

    def fits(self, job: LeanJob) -> bool:
        """Whether it could ever be computed here."""
        return job.prompt + job.output <= self.memory.tokens

    def submit(self, job: LeanJob, now_s: float) -> None:
        """Take a job in."""
        self.advance(now_s)
        if job.gated:
            self._gated[job] = None
        elif job.mode is Mode.DECODE:
            self._prealloc.append(job)
            self._reserve(now_s)
        else:
            self._waiting.append(job)
            self._interrupt(now_s)

    def ungate(self, job: LeanJob, now_s: float) -> None:
        """The peer is known: a gated job may go on."""
        self.advance(now_s)
        job.gated = False
        if job in self._gated:
            del self._gated[job]
            self._waiting.append(job)
            self._interrupt(now_s)

    def fetch(self, job: LeanJob, now_s: float) -> None:
        """Pull the KV of a reserved job that is not here yet; `arrived` follows after the link's time."""
        tokens = job.prompt - job.cached
        self._put(tokens, now_s)
        self._schedule(self._sent_s(now_s, tokens), self._arrived, job)

    def kv_ready(self, job: LeanJob, now_s: float, *, first_token: bool) -> None:
        """A reserved job's KV is here; with `first_token` the peer's token came with it."""
        self.advance(now_s)
        self._cut(now_s)
        self._reserved -= 1
        self.counters.received_tokens += job.prompt - job.cached
        self.counters.prompt_tokens += job.prompt
        job.computed = job.prompt
        self.memory.publish(job.held, job.hashes, 0, job.prompt)
        if first_token:
            job.token_s = now_s
            job.produced = 1
            job.context += 1
            self.counters.generated_tokens += 1
            self._sink.first_token(job, now_s)
        if job.produced < job.output:
            self.batch.join(job)
        else:
            self._drop(job, now_s)
        self._interrupt(now_s)

    def release(self, job: LeanJob, now_s: float) -> None:
        """Held KV was taken, or is not wanted any more."""
        self.advance(now_s)
        if job in self._held:
            del self._held[job]
            self.memory.give_back(job.held)
            if self._waiting or self._preempted or self._prealloc:
                self._interrupt(now_s)

    def slow_down(self, factor: float, now_s: float) -> None:
        """Every step from the next on takes `factor` times what it should."""
        self.advance(now_s)
        self.batch.slowdown = factor
        self._cut(now_s)

    @property
    def idle(self) -> bool:
        """Whether no job is here, so that nothing changes by itself."""
        return self.next_s == inf and not (
            self.batch.jobs
            or self._waiting
            or self._prealloc
            or self._reserved
            or self._held
            or self._gated
            or self._prefilling
            or self._preempted
        )

    def queued(self, now_s: float) -> Queued:
        """The queues and the memory as they are; counters are brought up to now."""
        self.advance(now_s)
        self._settle(now_s)
        return Queued(
            gated=len(self._gated),
            waiting=len(self._waiting) + len(self._preempted),
            prealloc=len(self._prealloc),
            prefilling=len(self._prefilling),
            reserved=self._reserved,
            running=len(self.batch),
            held=len(self._held),
            used_tokens=self.memory.used,
            cached_tokens=self.memory.cached,
        )

    def advance(self, now_s: float, _: Any = None) -> None:
        """Finish every step that is over by `now_s`."""
        while self.next_s <= now_s:
            at_s = self.next_s
            self.next_s = inf
            if self._pieces is not None:
                self._end_chunk(at_s)
            else:
                self.memory.grow(self.batch.growth(self.batch.planned))
                self.batch.count(self.batch.planned)
                self._gone(self.batch.end_run(at_s), at_s)
            self._start(at_s)

    # -- steps

    def _start(self, now_s: float) -> None:
        if self._prealloc:
            self._reserve(now_s)
        if self._waiting or self._prefilling or self._preempted:
            pieces = self._plan_prefill(now_s)
            if pieces:
                self._start_chunk(pieces, now_s)
                return
        if self.batch.jobs:
            evicted = self._make_room()
            batch, memory = self.batch, self.memory
            if not batch.jobs:
                return
            end_s = batch.begin_run(now_s, memory.available, self._sink.first_token)
            if evicted and batch.cut(now_s):  # who had to go may be let in again after one step
                end_s = batch.run_end_s()
            memory.grow(batch.growth(1))
            self._wake(end_s)

    def _interrupt(self, now_s: float) -> None:
        """Something new may change the batch: at the end of the step that is on, at once if none is."""
        if self.next_s == inf:
            self._start(now_s)
            return
        if self._prealloc:
            self._reserve(now_s)
        self._cut(now_s)

    def _cut(self, now_s: float) -> None:
        if self._pieces is None and self.next_s < inf and self.batch.cut(now_s):
            self._wake(self.batch.run_end_s())

    def _settle(self, now_s: float) -> None:
        """Account for the steps of the run that are over, and the memory of the one that is on."""
        if self._pieces is None and self.next_s < inf:
            done = self.batch.done_by(now_s)
            self.batch.count(done)
            self.memory.grow(self.batch.growth(done + 1))

    def _plan_prefill(self, now_s: float) -> list[tuple[LeanJob, int]]:
        """Fill one chunk: jobs begun first, then preempted ones, then arrivals, while memory lasts."""
        budget = self._chunk
        pieces: list[tuple[LeanJob, int]] = []
        for job in self._prefilling:
            if budget == 0:
                return pieces
            n = min(budget, job.context - job.computed)
            pieces.append((job, n))
            budget -= n
        for queue in (self._preempted, self._waiting):
            while queue and budget and self._occupied() < self.config.max_running:
                job = queue[0]
                spare = self._spare * len(self.batch)
                hit = self.memory.take(job.held, job.hashes, job.prompt, job.context, spare)
                if hit is None:
                    return pieces
                queue.popleft()
                self._admit(job, hit, now_s)
                n = min(budget, job.context - hit)
                pieces.append((job, n))
                budget -= n
        return pieces

    def _occupied(self) -> int:
        return len(self.batch) + len(self._prefilling) + self._reserved

    def _admit(self, job: LeanJob, hit: int, now_s: float) -> None:
        job.computed = hit
        job.taken = job.context
        if not job.started:
            job.started = True
            job.cached = hit
            self.counters.cached_tokens += hit
            self.counters.prompt_tokens += job.prompt
        self._prefilling.append(job)
        if hit and job.mode is Mode.PREFILL:
            self._push(job, now_s)

    def _start_chunk(self, pieces: list[tuple[LeanJob, int]], now_s: float) -> None:
        timing, batch = self.config.timing, self.batch
        self._pieces = pieces
        lasts_s = sum(timing.prefill_s(job.computed, job.computed + n) for job, n in pieces)
        lasts_s = max(timing.step_fixed_s + lasts_s, timing.step_floor_s)
        if batch.jobs and self.config.mixed:
            self._make_room()
        shared = bool(batch.jobs) and self.config.mixed
        if shared:
            lasts_s += batch.decode_s()
        self._chunk_s = lasts_s * batch.factor()
        if shared:
            self.memory.grow(batch.begin_one(now_s + self._chunk_s, self._sink.first_token))
        self._wake(now_s + self._chunk_s)

    def _end_chunk(self, now_s: float) -> None:
        pieces, self._pieces = self._pieces or [], None
        self.batch.busy_s += self._chunk_s
        self.counters.prefill_busy_us += self._chunk_s * 1e6
        self.counters.prefill_tokens += sum(n for _, n in pieces)
        gone = self.batch.end_one(now_s) if self.batch.planned else []
        for job, n in pieces:
            self.memory.publish(job.held, job.hashes, job.computed, job.computed + n)
            job.computed += n
            if job.mode is Mode.PREFILL:
                self._push(job, now_s)
            if job.computed == job.context:
                self._prefilling.remove(job)
                self._computed(job, now_s)
        self._gone(gone, now_s)

    def _computed(self, job: LeanJob, now_s: float) -> None:
        self.counters.generated_tokens += 1
        job.produced += 1
        if job.mode is Mode.PREFILL:
            self._held[job] = None
            self._sink.prefilled(job, now_s)
            if not job.lease:
                self._put(job.prompt - job.sent, now_s)
                self._schedule(self._sent_s(now_s, job.prompt), self._sent, job)
            return
        job.context += 1
        if job.token_s is None:
            self._sink.first_token(job, now_s)
        else:
            self.batch.own_gap(job, now_s)
        job.token_s = now_s
        if job.produced >= job.output:
            self._drop(job, now_s)
        else:
            self.batch.join(job)

    def _gone(self, jobs: list[LeanJob], now_s: float) -> None:
        """They have decoded all there is."""
        for job in jobs:
            self._drop(job, now_s)

    def _drop(self, job: LeanJob, now_s: float) -> None:
        self.memory.grow(-job.grown)
        self.memory.give_back(job.held)
        self._sink.finished(job, now_s)

    # -- memory and link

    def _make_room(self) -> bool:
        """A slot for every decoding job's next token, at the cost of the newest ones if need be."""
        before = self.counters.preemptions
        while self.memory.available < self.batch.next_tokens():
            job = self.batch.evict()
            self.memory.grow(-job.grown)
            self.memory.give_back(job.held)
            job.computed = 0
            job.mode = Mode.LOCAL
            self._preempted.append(job)
            self.counters.preemptions += 1
        return self.counters.preemptions > before

    def _reserve(self, now_s: float) -> None:
        """Admit DECODE jobs in order while memory (with headroom) and places last."""
        self._settle(now_s)
        while self._prealloc and self._occupied() < self.config.max_running:
            job = self._prealloc[0]
            spare = min(self.config.reserve_tokens, job.output)
            spare += self._held_back * (len(self.batch) + self._reserved)
            hit = self.memory.take(job.held, job.hashes, job.prompt, job.prompt, spare)
            if hit is None:
                break
            self._prealloc.popleft()
            job.started = True
            job.taken = job.prompt
            job.cached = hit
            self.counters.cached_tokens += hit
            self._reserved += 1
            self._sink.reserved(job, now_s)
        if self._pieces is None and self.next_s < inf and self.batch.fit(self.memory.available):
            self._wake(self.batch.run_end_s())

    def _push(self, job: LeanJob, now_s: float) -> None:
        """Each chunk's KV leaves as soon as it is computed, if the link allows it."""
        if not job.lease and self.config.link.overlaps:
            self._put(job.computed - job.sent, now_s)
            job.sent = job.computed

    def _put(self, tokens: int, now_s: float) -> None:
        if tokens > 0:
            self._link_free_s = max(self._link_free_s, now_s) + tokens * self._wire_s

    def _sent_s(self, now_s: float, tokens: int) -> float:
        at_s = max(self._link_free_s, now_s) + self.config.link.fixed_s
        self.counters.transfers += 1
        self.counters.transfer_tokens += tokens
        self.counters.last_transfer_s = at_s - now_s
        return at_s

    def _sent(self, at_s: float, job: LeanJob) -> None:
        self.release(job, at_s)
        self._sink.sent(job, at_s)

    def _arrived(self, at_s: float, job: LeanJob) -> None:
        self._sink.arrived(job, at_s)

    def _wake(self, at_s: float) -> None:
        self.next_s = at_s
        self._schedule(at_s, self.advance, None)
