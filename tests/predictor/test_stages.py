"""The predictor's contract (modules stages, instance, handoff, pool and books)."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from math import exp, inf, isfinite
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.contracts import Accountable
from orchestrator.core.prediction import Accuracy, Curve, Decoded, Exposed, Predictor, Served
from orchestrator.core.types import Endpoint, Prediction, Role, Snapshot
from orchestrator.predictor import StagePredictor

PRIOR = {
    "prefill": {"token_s": 200e-6, "token2_s": 2e-9, "floor_s": 0.02},
    "exposed": {"fixed_s": 0.02, "token_s": 2e-6, "cap_tokens": 8192},
    "step": {"base_s": 0.012, "request_s": 60e-6, "token_s": 50e-9},
}
TRUE = Curve(260e-6, 2.6e-9, 0.0, 0.026)


def endpoint(name: str, role: Role = Role.PREFILL, pool: str | None = None, **facts: Any) -> Endpoint:
    known = {"prior": PRIOR} | facts
    return Endpoint(name, pool or str(role), role, "any", "m", f"http://{name}", True, "1", facts=known)


P0, P1, P2 = endpoint("p0"), endpoint("p1"), endpoint("p2")
D0, D1 = endpoint("d0", Role.DECODE), endpoint("d1", Role.DECODE)
U0 = endpoint("u0", Role.UNIFIED)


def new(*endpoints: Endpoint) -> StagePredictor:
    predictor = StagePredictor()
    predictor.observe(Snapshot(0.0, endpoints or (P0, P1, D0, D1, U0)), 0.0)
    return predictor


def serve(
    predictor: StagePredictor, count: int, seed: int = 1, *, where: Endpoint = P0, to: Endpoint = D0,
    speed: float = 1.0, handoff: Exposed = Exposed(0.03, 4e-6, 8192), timed: bool = True,
    tokens: int | None = None, **how: Any,
) -> None:  # fmt: skip
    """Tell of `count` requests of mixed sizes, noise of 10 % in both parts."""
    rng = Random(seed)
    for i in range(count):
        n = tokens or int(exp(rng.uniform(3, 10)))
        prefill_s = speed * TRUE.seconds(n) * exp(rng.gauss(0, 0.1))
        handed_s = 0.0 if where is to else handoff.seconds(n) * exp(rng.gauss(0, 0.1))
        told = prefill_s if timed and handed_s else None
        predictor.served(
            Served(str(i), None, where.id, to.id, n, 0, prefill_s + handed_s, told, **how), float(i)
        )


def test_it_is_the_predictor_registered_as_stages() -> None:
    point = next(p for p in entry_points(group="pdctl.predictors") if p.name == "stages")
    made: Predictor = point.load()()
    assert isinstance(made, StagePredictor)
    assert isinstance(made, Accountable)


def test_before_any_outcome_it_is_the_launch_profile() -> None:
    predictor = new()
    assert predictor.prefill(P0).seconds(5000) == pytest.approx(Curve(200e-6, 2e-9).seconds(5000), rel=0.01)
    assert predictor.prefill(P0).seconds(5) == 0.02
    assert predictor.exposed(P0, D0) == Exposed(0.02, 2e-6, 8192)
    assert predictor.step(D0).seconds(10, 100_000) == pytest.approx(0.012 + 600e-6 + 0.005)
    assert predictor.tail_s("p0", 1.0, 0.99) > 0.5


def test_it_learns_curve_and_hand_off_apart() -> None:
    predictor = new()
    serve(predictor, 400)
    for tokens in (20, 300, 3000, 20_000):
        assert predictor.prefill(P0).seconds(tokens) == pytest.approx(TRUE.seconds(tokens), rel=0.12)
    for tokens in (100, 20_000):
        expected_s = Exposed(0.03, 4e-6, 8192).seconds(tokens)
        assert predictor.exposed(P0, D0).seconds(tokens) == pytest.approx(expected_s, rel=0.15)


def test_the_total_is_right_where_only_that_is_told() -> None:
    predictor = new()
    serve(predictor, 400, timed=False)
    for tokens in (300, 3000, 20_000):
        total_s = predictor.prefill(P0).seconds(tokens) + predictor.exposed(P0, D0).seconds(tokens)
        expected_s = TRUE.seconds(tokens) + Exposed(0.03, 4e-6, 8192).seconds(tokens)
        assert total_s == pytest.approx(expected_s, rel=0.1)


def test_one_alone_hands_nothing_off() -> None:
    predictor = new()
    serve(predictor, 200, where=U0, to=U0)
    assert predictor.exposed(U0, U0).seconds(10_000) == 0.0
    assert predictor.prefill(U0).seconds(3000) == pytest.approx(TRUE.seconds(3000), rel=0.1)


def test_mixed_speeds_are_known_after_three_outcomes() -> None:
    predictor = new()
    for where, speed in ((P0, 0.7), (P1, 1.5)):
        serve(predictor, 3, where=where, speed=speed, tokens=2000)
        assert predictor.prefill(where).seconds(8000) == pytest.approx(speed * TRUE.seconds(8000), rel=0.2)


def test_what_short_prompts_take_says_little_of_long_ones() -> None:
    """A round trip and a tokenizer are in every time that is seen: an endpoint that happens to get the short
    prompts must not look slow for it, or it would get no others."""
    predictor = new()
    long_s = predictor.prefill(P0).seconds(40_000)
    for i in range(100):
        predictor.served(Served(str(i), None, "p0", "d0", 30, 0, 0.09, 0.06), float(i))
        assert predictor.prefill(P0).seconds(40_000) == pytest.approx(long_s, rel=0.15)
        if i == 10:
            assert predictor.prefill(P0).seconds(30) == pytest.approx(0.06, rel=0.2)


def test_a_pair_that_differs_is_told_from_its_pools() -> None:
    predictor = new()
    serve(predictor, 100)
    serve(predictor, 100, to=D1, handoff=Exposed(0.06, 8e-6, 8192))
    near, far = (predictor.exposed(P0, d).seconds(4000) for d in (D0, D1))
    assert far > 1.3 * near
    # One never used is taken to be as its pools are.
    assert near * 0.7 < predictor.exposed(P1, D0).seconds(4000) < far * 1.3


def test_a_new_endpoint_starts_from_its_pool() -> None:
    predictor = new()
    serve(predictor, 200)
    serve(predictor, 200, where=P1, seed=2)
    predictor.observe(Snapshot(1.0, (P0, P1, P2, D0, D1, U0)), 1.0)
    assert predictor.prefill(P2).seconds(3000) == pytest.approx(TRUE.seconds(3000), rel=0.1)
    assert predictor.tail_s("p2", 1.0, 0.99) < new().tail_s("p0", 1.0, 0.99)


def test_a_new_process_starts_from_its_pool_and_the_old_one_keeps_nothing() -> None:
    predictor = new()
    serve(predictor, 200)
    serve(predictor, 200, where=P1, speed=2.0)
    reborn = replace(P1, incarnation="2")
    predictor.observe(Snapshot(1.0, (P0, reborn, D0, D1, U0)), 1.0)
    # Between the two that were seen, no longer what it was.
    ratio = predictor.prefill(reborn).seconds(3000) / TRUE.seconds(3000)
    assert 1.2 < ratio < 1.7
    serve(predictor, 3, where=P1, speed=1.0, tokens=3000)
    assert predictor.prefill(reborn).seconds(3000) == pytest.approx(TRUE.seconds(3000), rel=0.2)


def test_a_first_incarnation_told_late_is_no_new_process() -> None:
    nameless = replace(P0, incarnation="")
    predictor = new(nameless, D0)
    serve(predictor, 100)
    known = predictor.prefill(nameless)
    predictor.observe(Snapshot(1.0, (replace(P0, incarnation="7"), D0)), 1.0)
    assert predictor.prefill(P0) == known


def test_who_has_gone_is_forgotten() -> None:
    predictor = new()
    serve(predictor, 50)
    predictor.observe(Snapshot(1.0, (P1, D0)), 1.0)
    assert {a.endpoint for a in predictor.report()} == {"p1", "d0", None}
    version = predictor.version
    serve(predictor, 5)
    assert predictor.version == version
    assert predictor.tail_s("p0", 1.0, 0.99) > 0.0


def test_prompts_that_share_an_engine_teach_little() -> None:
    predictor = new()
    serve(predictor, 100)
    before_s = predictor.prefill(P0).seconds(2000)
    serve(predictor, 5, speed=3.0, tokens=2000, alone=False)
    assert predictor.prefill(P0).seconds(2000) < 1.3 * before_s


def test_media_teach_what_encoding_takes_and_nothing_of_prompts() -> None:
    predictor = new()
    serve(predictor, 50, tokens=3000)
    before, version = predictor.prefill(P0), predictor.version
    takes_s = before.seconds(3000) + predictor.exposed(P0, D0).seconds(3000)
    assert predictor.encode_s("m", 0) == predictor.encode_s("stranger", 0) == 0.0
    for i in range(20):
        predictor.served(Served(str(i), None, "p0", "d0", 3000, 0, takes_s + 0.9, None, media=3), 0.0)
    assert predictor.encode_s("m", 2) == pytest.approx(0.6, rel=0.1)
    assert (predictor.prefill(P0), predictor.version) == (before, version)
    (account,) = [a for a in predictor.report() if a.endpoint is None]
    assert [s.stage for s in account.stages] == ["encode"]


def test_of_media_the_whole_prediction_is_judged() -> None:
    predictor = new()
    given = replace(given_at(0.0), encode_s=0.5)
    predictor.served(Served("r", None, "p0", "d0", 3000, 0, 9.0, None, media=1, dispatched=given), 0.0)
    (account,) = [a for a in predictor.report() if a.endpoint == "p0"]
    (stage,) = account.stages
    assert (stage.stage, stage.predicted_s) == ("first_token", given.takes_s)
    assert given.takes_s == pytest.approx(given.prefill_s + given.handoff_s + 0.5)


def test_what_was_predicted_to_be_waited_for_is_not_computing() -> None:
    predictor = new()
    for i in range(100):
        total_s = 2.0 + TRUE.seconds(2000)
        predictor.served(Served(str(i), None, "u0", "u0", 2000, 0, total_s, wait_s=2.0), 0.0)
    assert predictor.prefill(U0).seconds(2000) == pytest.approx(TRUE.seconds(2000), rel=0.25)


def test_cached_tokens_cost_nothing() -> None:
    predictor = new()
    for i in range(200):
        served = Served(str(i), None, "u0", "u0", 8000, 6000, TRUE.seconds(8000, 6000))
        predictor.served(served, 0.0)
    assert predictor.prefill(U0).seconds(8000, 6000) == pytest.approx(TRUE.seconds(8000, 6000), rel=0.05)


def test_versions_count_changes_that_matter() -> None:
    predictor = new()
    curve = predictor.prefill(P0)
    version = predictor.version
    exact = [curve.seconds(2000), predictor.exposed(P0, D0).seconds(2000)]
    version = predictor.version
    predictor.served(Served("a", None, "p0", "d0", 2000, 0, sum(exact), exact[0]), 0.0)
    assert predictor.version == version
    assert predictor.prefill(P0) is curve
    predictor.served(Served("a", None, "p0", "d0", 2000, 0, 2 * sum(exact), 2 * exact[0]), 0.0)
    assert predictor.version > version
    assert predictor.prefill(P0) is not curve


def test_steps_are_learned_from_answers() -> None:
    predictor, rng = new(), Random(3)
    for _ in range(400):
        batch, held = rng.randint(1, 60), rng.randint(1000, 300_000)
        step_s = (0.015 + 100e-6 * batch + 40e-9 * held) * exp(rng.gauss(0, 0.05))
        predictor.decoded(Decoded("chat", "d0", 200, 200 * step_s, batch, held, True), 0.0)
    for batch, held in ((1, 1000), (30, 100_000), (60, 300_000)):
        expected_s = 0.015 + 100e-6 * batch + 40e-9 * held
        assert predictor.step(D0).seconds(batch, held) == pytest.approx(expected_s, rel=0.08)


def test_lengths_are_learned_by_class_and_never_above_the_limit() -> None:
    predictor = new()
    for _ in range(300):
        predictor.decoded(Decoded("chat", "d0", 99, 2.0, 4, 9000, True), 0.0)
        predictor.decoded(Decoded("batch", "d0", 1999, 40.0, 4, 9000, True), 0.0)
    assert predictor.output_tokens("chat", 4096) == pytest.approx(100, rel=0.1)
    assert predictor.output_tokens("batch", 4096) == pytest.approx(2000, rel=0.1)
    assert predictor.output_tokens("batch", 50) == 50
    assert 100 <= predictor.output_tokens("unheard-of", 4096, 0.5) <= 2000
    assert StagePredictor().output_tokens(None, 1) == 1


def test_promises_are_made_by_the_launch_profile() -> None:
    predictor = new()
    serve(predictor, 300, speed=3.0)
    assert predictor.reference_s("m", 5000) == Curve(200e-6, 2e-9, 0.0, 0.02).seconds(5000)
    fast = endpoint("p9", prior={"prefill": {"token_s": 50e-6}})
    predictor.observe(Snapshot(1.0, (P0, D0, fast)), 1.0)
    assert predictor.reference_s("m", 5000) == pytest.approx(0.25)


def test_without_a_profile_promises_are_made_by_the_fastest_endpoint() -> None:
    slow, fast = (replace(u, facts={}) for u in (U0, endpoint("u1", Role.UNIFIED)))
    predictor = new(slow, fast)
    serve(predictor, 100, where=slow, to=slow, speed=2.0)
    serve(predictor, 100, where=fast, to=fast)
    assert predictor.reference_s("m", 3000) == pytest.approx(TRUE.seconds(3000), rel=0.15)
    assert predictor.reference_s("unheard-of", 3000) > 0.0


def given_at(wait_s: float, quantile: float = 0.99, tail_s: float = 1.0) -> Prediction:
    return Prediction(0.0, 0.0, wait_s, 0.5, 0.1, tail_s, quantile, 0.01)


def test_the_books_hold_what_came_against_what_was_said() -> None:
    predictor = new()
    for i in range(100):
        predictor.served(
            Served(
                str(i), None, "p0", "d0", 2000, 0, 0.6, 0.5, waited_s=0.2 if i % 2 else 0.6,
                admitted=given_at(0.3), dispatched=given_at(0.0),
            ),
            0.0,
        )  # fmt: skip
    reports = {(a.model, a.endpoint): a for a in predictor.report()}
    p0, model = reports["m", "p0"], reports["m", None]
    stages = {s.stage: s for s in p0.stages}
    assert stages["prefill"].outcomes == stages["handoff"].outcomes == 100
    assert stages["first_token"].actual_s == pytest.approx(60.0)
    assert stages["first_token"].bias == pytest.approx(1.0, abs=0.01)
    assert stages["first_token"].error < 0.05
    (dispatch, gap), (admission,) = p0.coverage, model.coverage
    assert (gap.horizon, gap.outcomes) == ("gap", 0)
    assert (dispatch.horizon, dispatch.outcomes, dispatch.given) == ("dispatch", 100, 100)
    assert (admission.horizon, admission.given, admission.kept) == ("admission", 100, 50)
    assert [s.stage for s in model.stages] == ["queue"]
    assert Accuracy("m", "p1", (), p0.coverage[:0]) != p0


def test_a_prediction_with_waiting_in_it_has_a_tail_of_its_own() -> None:
    predictor = new()
    for i in range(300):
        waited_s = 0.1 if i % 3 else 1.5
        predictor.served(
            Served(
                str(i), None, "p0", "d0", 2000, 0, 0.6, 0.5, waited_s=waited_s,
                admitted=given_at(0.5), dispatched=given_at(0.0),
            ),
            0.0,
        )  # fmt: skip
    assert predictor.tail_s("p0", 1.1, 0.99, queued_s=0.5) > 3 * predictor.tail_s("p0", 1.1, 0.99)


figures = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 100), st.just(0.0))
counts = st.integers(-10, 10**9)


@st.composite
def garbage(draw: st.DrawFn) -> Served | Decoded:
    if draw(st.booleans()):
        where = draw(st.sampled_from(["d0", "u0", "nobody"]))
        return Decoded(None, where, draw(counts), draw(figures), draw(figures), draw(figures), False)
    said = [draw(st.none() | st.builds(given_at, figures, st.just(0.9), figures)) for _ in range(2)]
    return Served(
        "r", None, draw(st.sampled_from(["p0", "u0", "nobody"])), draw(st.sampled_from(["d0", "u0", "p0"])),
        draw(counts), draw(counts), draw(figures), draw(st.none() | figures), draw(figures), draw(figures),
        draw(st.booleans()), *said, draw(st.integers(-1, 9)),
    )  # fmt: skip


@settings(max_examples=200)
@given(st.lists(garbage(), max_size=30))
def test_garbage_never_makes_a_curve_negative_or_nan(told: list[Served | Decoded]) -> None:
    predictor = new()
    for what in told:
        if isinstance(what, Served):
            predictor.served(what, 0.0)
        else:
            predictor.decoded(what, 0.0)
    for prompt in (1, 100, 100_000):
        for where in (P0, U0):
            assert 0.0 < predictor.prefill(where).seconds(prompt) < inf
            assert predictor.prefill(where).seconds(prompt + 1) >= predictor.prefill(where).seconds(prompt)
        assert 0.0 < predictor.exposed(P0, D0).seconds(prompt) < inf
        assert 0.0 < predictor.step(D0).seconds(prompt, 1000) < inf
    for quantile in (0.5, 0.9, 0.99):
        assert isfinite(predictor.tail_s("p0", 1.0, quantile))
        assert isfinite(predictor.tail_s("p0", 1.0, quantile, queued_s=0.5))
    assert 1 <= predictor.output_tokens(None, 100) <= 100
    assert 0.0 < predictor.encode_s("m", 3) < inf
    for accuracy in predictor.report():
        assert all(isfinite(stage.bias) and isfinite(stage.error) for stage in accuracy.stages)


def test_a_burst_of_garbage_is_forgotten() -> None:
    predictor = new()
    serve(predictor, 200)
    rng = Random(5)
    for i in range(10):
        wild_s = rng.choice([1e-5, 500.0])
        predictor.served(Served(str(i), None, "p0", "d0", 2000, 0, 1.1 * wild_s, wild_s), 0.0)
    serve(predictor, 60, seed=6)
    assert predictor.prefill(P0).seconds(3000) == pytest.approx(TRUE.seconds(3000), rel=0.15)


def test_the_tail_of_a_gap_covers_what_it_says_also_after_a_drift():
    predictor, rng = new(), Random(3)
    late = 0
    for i in range(3000):
        batch, held = rng.randint(1, 40), rng.randint(1000, 200_000)
        drift = 1.3 if i >= 1500 else 1.0
        step_s = drift * (0.015 + 80e-6 * batch + 60e-9 * held) * exp(rng.gauss(0, 0.1))
        told_s = predictor.step(D0).seconds(batch, held)
        late += step_s <= told_s + predictor.itl_tail_s("d0", told_s, 0.99)
        predictor.decoded(Decoded("chat", "d0", 200, 200 * step_s, batch, held, True), 0.0)
    (_, gap) = next(a for a in predictor.report() if a.endpoint == "d0").coverage
    within = gap.within[0.99]
    assert gap.outcomes == 3000
    assert within == late, "what it counts is what it told"
    assert 0.985 <= within / 3000 <= 0.997
    assert predictor.itl_tail_s("d0", 0.02, 0.99) > predictor.itl_tail_s("d0", 0.02, 0.9) > 0
    assert predictor.itl_tail_s("stranger", 0.02, 0.99) > 0
