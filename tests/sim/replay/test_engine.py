"""The lean engine gives the same times as `EngineModel`, in every mode and under memory pressure.

Covers `batch` and `job` too.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sim.jobs import Job, Mode, ModelConfig, What
from orchestrator.sim.model import EngineModel
from orchestrator.sim.replay.engine import LeanEngine
from orchestrator.sim.replay.job import LeanJob
from orchestrator.sim.timing import Link, Timing

PULL = Link("pull", 20e9, 0.011, overlaps=False)


@dataclass(frozen=True)
class Asked:
    """One job of a scenario."""

    at_s: float
    prompt: int
    output: int
    mode: Mode = Mode.LOCAL
    prefix: int = 0
    """Which family of prompts it belongs to: those of one share their blocks."""


@dataclass
class Times:
    """When what happened to each job, and all gaps between tokens."""

    first: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    prefilled: dict[int, float] = field(default_factory=dict)
    handed: dict[int, float] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    worst: dict[int, float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)


class Lean:
    """The lean engine with nothing around it; a sink that keeps times."""

    def __init__(self, config: ModelConfig, *, told: bool, **options: Any) -> None:
        self.times = Times()
        self.told = told
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._seq = 0
        self.engine = LeanEngine(config, self, self.at, **options)

    def at(self, at_s: float, call: Callable[[float, Any], None], what: Any) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (at_s, self._seq, call, what))

    def run(self, asked: list[Asked], config: ModelConfig) -> Times:
        for i, one in enumerate(asked):
            hashes = tuple(one.prefix << 32 | b for b in range(one.prompt // config.block_tokens))
            job = LeanJob(i, one.prompt, one.output, hashes, one.mode)
            self.at(one.at_s, self._submit, job)
        while self._heap:
            at_s, _, call, what = heapq.heappop(self._heap)
            call(at_s, what)
        return self.times

    def _submit(self, at_s: float, job: Any) -> None:
        self.engine.submit(job, at_s)

    def prefilled(self, job: LeanJob, at_s: float) -> None:
        self.times.prefilled[job.owner] = at_s
        self.times.cached[job.owner] = job.cached

    def first_token(self, job: LeanJob, at_s: float) -> None:
        assert job.owner not in self.times.first
        self.times.first[job.owner] = at_s

    def finished(self, job: LeanJob, at_s: float) -> None:
        self.times.finished[job.owner] = at_s
        self.times.worst[job.owner] = job.worst_s
        self.times.cached[job.owner] = job.cached

    def reserved(self, job: LeanJob, at_s: float) -> None:
        self.engine.fetch(job, at_s)

    def sent(self, job: LeanJob, at_s: float) -> None:
        self.times.handed[job.owner] = at_s

    def arrived(self, job: LeanJob, at_s: float) -> None:
        self.times.handed[job.owner] = at_s
        self.engine.kv_ready(job, at_s, first_token=self.told)


def model_times(asked: list[Asked], config: ModelConfig, *, told: bool) -> tuple[Times, EngineModel]:
    """The same scenario, step by step."""
    model = EngineModel(config)
    times = Times()
    last: dict[int, float] = {}
    todo = sorted(enumerate(asked), key=lambda pair: pair[1].at_s)
    while True:
        next_s = model.next_event_s()
        if todo and (next_s is None or todo[0][1].at_s < next_s):
            i, one = todo.pop(0)
            now_s = one.at_s
            handle(model, model.advance(now_s), times, last, told)
            hashes = tuple(one.prefix << 32 | b for b in range(one.prompt // config.block_tokens))
            model.submit(Job(str(i), one.prompt, one.output, hashes, one.mode), now_s)
        elif next_s is None:
            return times, model
        else:
            handle(model, model.advance(next_s), times, last, told)


def handle(model: EngineModel, events: Any, times: Times, last: dict[int, float], told: bool) -> None:
    for event in events:
        i = int(event.job.id)
        if event.what is What.TOKEN and event.job.mode is not Mode.PREFILL:
            if i in last:
                gap_s = event.at_s - last[i]
                times.gaps.append(gap_s)
                times.worst[i] = max(times.worst.get(i, 0.0), gap_s)
            times.first.setdefault(i, event.at_s)
            last[i] = event.at_s
        elif event.what is What.PREFILLED and event.job.mode is Mode.PREFILL:
            times.prefilled[i] = event.at_s
            times.cached[i] = event.job.cached_tokens
        elif event.what is What.FINISHED:
            times.finished[i] = event.at_s
            times.cached[i] = event.job.cached_tokens
        elif event.what is What.RESERVED:
            model.fetch(event.job.id, event.job.prompt_tokens - event.job.cached_tokens, event.at_s)
        elif event.what is What.ARRIVED:
            times.handed[i] = event.at_s
            model.kv_ready(event.job.id, event.at_s, first_token=told)
        elif event.what is What.SENT:
            times.handed[i] = event.at_s


def close(one: dict[int, float], other: dict[int, float]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert math.isclose(value, other[key], rel_tol=1e-9, abs_tol=1e-9), (key, value, other[key])


def compare(asked: list[Asked], config: ModelConfig, *, told: bool = True, **options: Any) -> None:
    lean = Lean(config, told=told, spare_tokens=config.block_tokens, **options)
    ours = lean.run(asked, config)
    theirs, model = model_times(asked, config, told=told)
    for name in ("first", "finished", "prefilled", "handed", "cached"):
        close(getattr(ours, name), getattr(theirs, name))
    close(ours.worst, {**dict.fromkeys(ours.worst, 0.0), **theirs.worst})
    gaps = lean.engine.batch.gaps
    assert gaps.count == len(theirs.gaps)
    for share in (0.01, 0.5, 0.99):
        if theirs.gaps:
            exact = sorted(theirs.gaps)[math.ceil(share * len(theirs.gaps)) - 1]
            assert gaps.quantile(share) == pytest.approx(exact, rel=0.025)
    a, b = lean.engine.counters, model.counters
    assert a.prefill_tokens == b.prefill_tokens
    assert a.generated_tokens == b.generated_tokens
    assert a.decode_steps == b.decode_steps
    assert a.decode_batch2 == b.decode_batch2
    assert a.decode_batch_us == pytest.approx(b.decode_batch_us)
    assert a.prefill_busy_us == pytest.approx(b.prefill_busy_us)
    assert a.preemptions == b.preemptions
    assert lean.engine.memory.used == 0


FAST = Timing(prefill_token_s=1e-4, step_floor_s=0.01, chunk_tokens=512)

jobs = st.builds(
    Asked,
    at_s=st.floats(0.0, 3.0),
    prompt=st.integers(1, 2000),
    output=st.integers(1, 120),
    mode=st.sampled_from([Mode.LOCAL, Mode.LOCAL, Mode.PREFILL, Mode.DECODE]),
    prefix=st.integers(0, 4),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=25), st.booleans(), st.booleans(), st.booleans())
def test_the_same_times_as_step_by_step(asked: list[Asked], mixed: bool, told: bool, pull: bool) -> None:
    """Every mode at once on one engine, with shared prefixes, while memory is ample."""
    config = ModelConfig(timing=FAST, kv_tokens=640_000, block_tokens=64, mixed=mixed, link=PULL)
    if not pull:
        config = ModelConfig(timing=FAST, kv_tokens=640_000, block_tokens=64, mixed=mixed)
    compare(asked, config, told=told)


@settings(max_examples=200, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=25), st.booleans(), st.booleans(), st.integers(2200, 6000))
def test_the_same_times_when_memory_runs_out(
    asked: list[Asked], mixed: bool, told: bool, kv_tokens: int
) -> None:
    """Preemption, waiting for room, reservations in order: with blocks of one token both count alike."""
    config = ModelConfig(
        timing=FAST, kv_tokens=kv_tokens, block_tokens=1, mixed=mixed, cache_tokens=0, reserve_tokens=64
    )
    compare(asked, config, told=told)


@settings(max_examples=60, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=25), st.integers(1, 4))
def test_the_same_times_when_places_run_out(asked: list[Asked], places: int) -> None:
    config = ModelConfig(timing=FAST, kv_tokens=640_000, block_tokens=64, max_running=places)
    compare(asked, config)
