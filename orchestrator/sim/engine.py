"""The model in real time: it wakes when something happens, and tells each generation's owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.sim import text
from orchestrator.sim.faults import Faults
from orchestrator.sim.generation import Generation
from orchestrator.sim.jobs import Event, Job, Mode, ModelConfig, What
from orchestrator.sim.kvpublish import KvTeller
from orchestrator.sim.model import EngineModel
from orchestrator.sim.options import SimOptions
from orchestrator.sim.stats import EngineStats
from orchestrator.sim.timing import Link
from orchestrator.sim.vclock import VirtualClock

Die = Callable[[str], None]
"""Ends the process at once, as a crash does; takes what the log should say. Fakes may return."""


class Transfer(Protocol):
    """How an engine passes KV on, or gets it: told what the model reports of jobs not served locally."""

    def reserved(self, gen: Generation) -> None:
        """Memory for KV to come is there."""
        ...

    def arrived(self, gen: Generation) -> None:
        """KV that was being fetched is here."""
        ...

    def prefilled(self, gen: Generation) -> None:
        """The prompt is computed."""
        ...

    def sent(self, gen: Generation) -> None:
        """The KV has left."""
        ...

    def cancelled(self, gen: Generation) -> None:
        """The generation was dropped before its end."""
        ...


def model_config(options: SimOptions, link: Link) -> ModelConfig:
    """The model's settings from the command line's."""
    return ModelConfig(
        link=link,
        kv_tokens=options.kv_tokens,
        cache_tokens=options.prefix_tokens,
        block_tokens=options.page_size,
        max_running=options.max_running,
        chunk_tokens=options.chunk,
        mixed=options.mixed,
        record_blocks=options.kv_events_port is not None,
    )


class Engine:
    """One engine: jobs go in with `admit`, tokens come out through `Generation.owner`.

    `contents` is what each KV block really holds (the state at its end), whatever its hash claims: a
    block filled with another prompt's KV spoils every generation that reads it, as it does in truth.
    """

    def __init__(
        self,
        options: SimOptions,
        link: Link,
        clock: VirtualClock,
        faults: Faults,
        stats: EngineStats,
        die: Die,
    ) -> None:
        self.options = options
        self.clock = clock
        self.faults = faults
        self.stats = stats
        self.die = die
        self.transfer: Transfer | None = None
        self.teller: KvTeller | None = None
        """Publishes what the cache holds, where it is asked to."""
        self.model = EngineModel(model_config(options, link))
        self.contents = [0] * self.model.memory.pool.blocks
        self.generations: dict[str, Generation] = {}
        self.pinned: set[str] = set()
        """Generations whose memory a peer may still write to: cancelled, they keep it until that is over."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._now_s = 0.0
        self._busy = False

    def admit(
        self,
        gen: Generation,
        mode: Mode = Mode.LOCAL,
        *,
        gated: bool = False,
        optimistic: bool = False,
        lease_s: float | None = None,
        private: bool = False,
    ) -> None:
        """Start a generation. Raises ValueError for one that could never fit."""
        now_s = self.catch_up()
        gen.job = job = Job(
            gen.id,
            len(gen.prompt),
            len(gen.tokens),
            text.block_hashes(gen.states, self.options.seed),
            mode,
            gated,
            optimistic,
            lease_s,
            private,
        )
        self.generations[gen.id] = gen
        if self.teller is not None:
            self.teller.know(gen, gen.job.hashes)
        try:
            self.model.submit(job, now_s)
        except ValueError:
            del self.generations[gen.id]
            raise
        self.arm()

    def cancel(self, gen: Generation, reason: str = "abort") -> None:
        """Drop a generation, wherever it is; its owner is not told. One that is `pinned` is dropped later."""
        if gen.id in self.pinned:
            gen.done = reason
            return
        if self.generations.pop(gen.id, None) is None:
            return
        self.model.cancel(gen.id, self.catch_up())
        gen.done = reason
        self.stats.finish(reason)
        if self.transfer is not None:
            self.transfer.cancelled(gen)
        self.arm()

    def ungate(self, gen: Generation) -> None:
        """The peer of a gated generation is known."""
        self.model.ungate(gen.id, self.catch_up())
        self.arm()

    def fetch(self, gen: Generation, tokens: int) -> None:
        """Let the pull of `tokens` of KV take its time."""
        self.model.fetch(gen.id, tokens, self.catch_up())
        self.arm()

    def take_over(self, gen: Generation, state: int, *, first_token: bool) -> None:
        """KV that came whole is `state`, right or wrong: what is generated here follows from it."""
        job = gen.job
        assert job is not None
        gen.spoiled = state != gen.final
        first = job.hit_tokens // self.options.page_size
        self.write(gen, job.blocks, first, state if gen.spoiled else None)
        self.replan(gen, state)
        self.receive(gen, first_token=first_token)

    def receive(self, gen: Generation, *, first_token: bool) -> None:
        """KV is here, with or without the first token."""
        self.model.kv_ready(gen.id, self.catch_up(), first_token=first_token)
        self.arm()

    def recompute(self, gen: Generation) -> None:
        """No KV will come: prefill here."""
        self.model.recompute(gen.id, self.catch_up())
        self.arm()

    def release(self, gen: Generation) -> bool:
        """Held KV is not wanted any more; False if it was not held."""
        held = self.model.release(gen.id, self.catch_up())
        if held:
            self.generations.pop(gen.id, None)
        self.arm()
        return held

    def settle(self, gen: Generation, blocks: Sequence[int], hit: int) -> None:
        """A prompt is computed in `blocks`, of which the first `hit` were found in the cache: let the output
        follow from what they really hold, and write the others."""
        spoiled = self.spoiled(gen, blocks[:hit])
        if spoiled is not None:
            gen.spoiled = True
            self.replan(gen, text.corrupt(gen.final, spoiled))
        self.write(gen, blocks, hit, spoiled)

    def write(self, gen: Generation, blocks: Sequence[int], first: int, spoiled: int | None) -> None:
        """Let `blocks` from the `first` on hold the prompt, or what spoils it; the last one only in part."""
        self._write_full(gen, blocks, first, spoiled)
        whole, rest = divmod(len(gen.prompt), self.options.page_size)
        if rest and whole < len(blocks):
            self.contents[blocks[whole]] = gen.final if spoiled is None else text.corrupt(gen.final, spoiled)

    def _write_full(self, gen: Generation, blocks: Sequence[int], first: int, spoiled: int | None) -> None:
        for block, own in zip(blocks[first:], gen.states[first:], strict=False):
            self.contents[block] = own if spoiled is None else text.corrupt(own, spoiled)

    def replan(self, gen: Generation, state: int) -> None:
        """The prompt's KV is `state`: unless it is as it should be, another output follows."""
        if state != gen.final:
            self.model.resize(gen.id, gen.plan(state))

    def spoiled(self, gen: Generation, blocks: Sequence[int]) -> int | None:
        """What the first wrong one of the prompt's first `blocks` holds; None if they are all right."""
        for block, own in zip(blocks, gen.states, strict=False):
            if self.contents[block] != own:
                return self.contents[block]
        return None

    def catch_up(self) -> float:
        """Let the model live up to now, and deal with what happened; the virtual time it is now."""
        if self._busy:
            return self._now_s
        self.model.slowdown = self.faults.factor()
        self.model.channel.slowdown = self.faults.factor("slow-link")
        self._now_s = now_s = max(self._now_s, self.clock.now_s())
        events = self.model.advance(now_s)
        if events:
            self._busy = True
            try:
                self._handle(events)
            finally:
                self._busy = False
        if self.teller is not None:
            self.teller.tell()
        return now_s

    def arm(self) -> None:
        """Wake up when the model has something to report next."""
        if self._busy:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_s = self.model.next_event_s()
        if at_s is not None and not self.clock.held:
            delay_s = self.clock.real_s(max(0.0, at_s - self.clock.now_s()))
            self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.catch_up()
        self.arm()

    def _handle(self, events: list[Event]) -> None:
        fresh: dict[Generation, None] = {}
        transfer = self.transfer
        for _, what, job, blocks, hit in events:
            gen = self.generations.get(job.id)
            if gen is None:
                continue
            if what is What.TOKEN:
                if not gen.hold:
                    fresh[gen] = None
            elif what is What.FINISHED:
                self._finished(gen, blocks)
            elif what is What.PREFILLED:
                self.settle(gen, blocks, hit)
                if transfer is not None and job.mode is Mode.PREFILL:
                    transfer.prefilled(gen)
            elif what is What.EXPIRED:
                del self.generations[job.id]
            else:
                if what is What.SENT and gen.done is None:
                    fresh[gen] = None
                self._handed(what, gen)
        for gen in fresh:
            self.tell(gen)

    def _handed(self, what: What, gen: Generation) -> None:
        """A step of a hand-off is done."""
        if self.transfer is None:
            raise RuntimeError(f"{what} of {gen.id} without anything to pass KV on")
        if what is What.RESERVED:
            self.transfer.reserved(gen)
        elif what is What.ARRIVED:
            self.transfer.arrived(gen)
        else:
            self._leave(gen)
            self.transfer.sent(gen)

    def _finished(self, gen: Generation, blocks: Sequence[int]) -> None:
        self._leave(gen)
        # The output's blocks can be found from now on.
        self._write_full(gen, blocks, len(gen.prompt) // self.options.page_size, 0 if gen.spoiled else None)

    def _leave(self, gen: Generation) -> None:
        del self.generations[gen.id]
        gen.done = gen.reason
        for twin in gen.twins:
            twin.job, twin.done = gen.job, gen.reason

    def tell(self, gen: Generation) -> None:
        """Give the owner what is new, and count it."""
        stats, now_s, real_s = self.stats, self._now_s, self.clock.real_s
        fresh = gen.produced - gen.sent
        if fresh > 0:
            if gen.first_s is None:
                gen.first_s = now_s
                stats.ttft_s.observe(real_s(now_s - gen.created_s))
                stats.prompt_tokens += len(gen.prompt)
                fresh_gaps = fresh - 1
            else:
                fresh_gaps = fresh
            if fresh_gaps:
                stats.itl_s.observe(real_s(now_s - gen.last_s) / fresh, fresh_gaps)
            gen.last_s = now_s
            stats.output_tokens += fresh
            self._maybe_die(fresh)
        if gen.done is not None:
            stats.finish(gen.done)
            stats.e2e_s.observe(real_s(now_s - gen.created_s))
        for one in (gen, *gen.twins):
            one.owner.flush(one)

    def _maybe_die(self, fresh: int) -> None:
        rule = self.faults.first("die")
        if rule is not None and rule.after_tokens > 0:
            rule.after_tokens -= fresh
            if rule.after_tokens <= 0:
                self.die(f"injected fault: {rule.message}")
