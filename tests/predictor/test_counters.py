"""What engines' own counters teach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.prediction import Served, Step
from orchestrator.core.types import COUNTERS, Endpoint, Load, Role, Snapshot
from orchestrator.predictor import StagePredictor

PRIOR = {
    "prefill": {"token_s": 200e-6},
    "exposed": {"fixed_s": 0.02, "token_s": 2e-6},
    "step": {"base_s": 0.01, "request_s": 100e-6, "token_s": 50e-9},
}
P = Endpoint("p0", "p", Role.PREFILL, "any", "m", "http://p0", True, "1", facts={"prior": PRIOR})
D = replace(P, id="d0", pool="d", role=Role.DECODE)


class Watched:
    """A predictor that is shown one engine's counters as they grow."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.predictor = StagePredictor()
        self.endpoint = endpoint
        self.at_s = 0.0
        self.counters: dict[str, float] = {}

    def show(self, kv_used_tokens: int = 0, running: int = 0, **more: float) -> None:
        self.at_s += 1.0
        for name, amount in more.items():
            self.counters[name] = self.counters.get(name, 0.0) + amount
        load = Load(self.at_s, running, kv_used_tokens=kv_used_tokens, counters=dict(self.counters))
        others = [e for e in (P, D) if e.id != self.endpoint.id]
        now = (replace(self.endpoint, load=load), *others)
        self.predictor.observe(Snapshot(self.at_s, now), self.at_s)


def moments(step: Step, batches: list[int], held: int) -> dict[str, float]:
    took = [step.seconds(batch, held) for batch in batches]
    return {
        "decode_steps": len(batches),
        "decode_batch": sum(batches),
        "decode_s": sum(took),
        "decode_batch2": sum(b * b for b in batches),
        "decode_batch_s": sum(b * t for b, t in zip(batches, took, strict=True)),
    }


def test_decode_moments_teach_the_step() -> None:
    true, watched = Step(0.004, 400e-6), Watched(D)
    for i in range(200):
        watched.show(1000, **moments(true, [1 + i % 16] * 10 + [1 + i % 5] * 10, 1000))
    for batch in (1, 8, 16):
        assert watched.predictor.step(D).seconds(batch, 1000) == pytest.approx(
            true.seconds(batch, 1000), rel=0.05
        )


def test_a_mean_gap_teaches_where_steps_are_not_told() -> None:
    true, watched = Step(0.004, 400e-6), Watched(D)
    for i in range(300):
        batch = 1 + (i // 2) % 12
        watched.show(
            1000, batch, decode_batch=20 * batch, decode_batch_s=20 * batch * true.seconds(batch, 1000)
        )
    assert watched.predictor.step(D).seconds(8, 1000) == pytest.approx(true.seconds(8, 1000), rel=0.2)


def test_prefill_time_is_told_from_the_transfer() -> None:
    """Only the sum is seen of each request; the engine's own counter says how much of it was computing."""
    token_s, handed_s = 300e-6, 0.06
    watched = Watched(P)
    watched.show(prefill_tokens=0, prefill_busy_s=0)
    watched.predictor.exposed(P, D)
    for i in range(400):
        tokens = 500 + 100 * (i % 20)
        served = Served(str(i), None, "p0", "d0", tokens, 0, token_s * tokens + handed_s)
        watched.predictor.served(served, 0.0)
        watched.show(prefill_tokens=tokens, prefill_busy_s=token_s * tokens)
    assert watched.predictor.prefill(P).seconds(1500) == pytest.approx(token_s * 1500, rel=0.05)
    assert watched.predictor.exposed(P, D).seconds(1500) == pytest.approx(handed_s, rel=0.15)


def test_other_clients_prompts_are_not_taken_for_ours() -> None:
    watched = Watched(P)
    watched.show(prefill_tokens=0, prefill_busy_s=0)
    watched.predictor.exposed(P, D)
    before = watched.predictor.prefill(P)
    whole_s = before.seconds(1000) + watched.predictor.exposed(P, D).seconds(1000)
    for i in range(100):
        watched.predictor.served(Served(str(i), None, "p0", "d0", 1000, 0, whole_s), 0.0)
        watched.show(prefill_tokens=5000, prefill_busy_s=50.0)
    assert watched.predictor.prefill(P).seconds(1000) == pytest.approx(before.seconds(1000), rel=0.02)


def test_a_counter_that_runs_backwards_teaches_nothing() -> None:
    watched = Watched(D)
    watched.show(**moments(Step(0.01, 100e-6), [4] * 50, 0))
    before = watched.predictor.step(D)
    watched.counters = {name: value / 100 for name, value in watched.counters.items()}
    watched.show()
    assert watched.predictor.step(D) == before


def test_the_same_reading_counts_once() -> None:
    watched = Watched(D)
    watched.show(**moments(Step(0.01, 100e-6), [4] * 50, 0))
    watched.show(**moments(Step(0.1, 100e-6), [4] * 50, 0))
    step, version = watched.predictor.step(D), watched.predictor.version
    watched.at_s -= 1.0
    watched.show()
    assert (watched.predictor.step(D), watched.predictor.version) == (step, version)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(sorted(COUNTERS)), st.floats(0, 1e12) | st.just(float("nan"))),
        max_size=20,
    )
)
def test_garbage_leaves_steps_positive(readings: list[dict[str, float]]) -> None:
    watched = Watched(D)
    for reading in readings:
        watched.show(10**6, 3, **reading)
    step = watched.predictor.step(D)
    assert 0.0 < step.seconds(1, 1) < step.seconds(100, 10**6) < 1e9
