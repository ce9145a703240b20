"""The online fit: speed first, shape later, never negative, not to be wrecked."""

from __future__ import annotations

from math import exp, isfinite, log
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.predictor.fit import CLIP, Fit

TRUE = (0.02, 250e-6, 3e-9)
PRIOR = (0.01, 160e-6, 2e-9)


def new() -> Fit:
    return Fit(PRIOR, speed_sd=0.3, shape_sds=(0.5, 0.25, 0.25))


def terms(coefs: tuple[float, ...] | list[float], tokens: int) -> list[float]:
    return [coefs[0], coefs[1] * tokens, coefs[2] * tokens * tokens]


def teach(fit: Fit, tokens: int, actual_s: float, trust: float = 1.0) -> tuple[float, float]:
    parts = terms(fit.coefs, tokens)
    whole_s = sum(parts)
    return fit.learn([part / whole_s for part in parts], log(actual_s / whole_s), trust)


def off(fit: Fit, tokens: int, speed: float = 1.0) -> float:
    return sum(terms(fit.coefs, tokens)) / (speed * sum(terms(TRUE, tokens)))


def test_the_speed_is_known_after_three_outcomes() -> None:
    fit = new()
    for _ in range(3):
        teach(fit, 2000, sum(terms(PRIOR, 2000)) * 1.5)
    # Every size is slower by it, those never seen too.
    for tokens in (100, 2000, 30_000):
        now, before = sum(terms(fit.coefs, tokens)), sum(terms(PRIOR, tokens))
        assert 1.4 < now / before < 1.55


def test_the_shape_follows() -> None:
    fit, rng = new(), Random(1)
    for _ in range(600):
        tokens = int(exp(rng.uniform(4, 10)))
        teach(fit, tokens, sum(terms(TRUE, tokens)) * exp(rng.gauss(0, 0.1)))
    for tokens in (100, 1000, 5000, 20_000):
        assert 0.93 < off(fit, tokens) < 1.07


def test_what_no_outcome_tells_keeps_its_share() -> None:
    fit, rng = new(), Random(2)
    for _ in range(300):
        teach(fit, 500, sum(terms(TRUE, 500)) * exp(rng.gauss(0, 0.1)))
    assert 0.5 < off(fit, 30_000) < 1.5


def test_a_shift_is_followed_within_a_few_outcomes() -> None:
    fit, rng = new(), Random(3)
    for _ in range(200):
        teach(fit, 2000, sum(terms(TRUE, 2000)) * exp(rng.gauss(0, 0.1)))
    for _ in range(8):
        teach(fit, 2000, 1.3 * sum(terms(TRUE, 2000)) * exp(rng.gauss(0, 0.1)))
    assert 0.9 < off(fit, 2000, speed=1.3) < 1.1


def test_one_wild_outcome_moves_little_and_a_burst_is_forgotten() -> None:
    fit, rng = new(), Random(4)
    for _ in range(100):
        teach(fit, 2000, sum(terms(TRUE, 2000)) * exp(rng.gauss(0, 0.1)))
    teach(fit, 2000, 1e4)
    assert off(fit, 2000) < 1.1
    for _ in range(10):
        teach(fit, 2000, rng.choice([1e-6, 1e5]))
    for _ in range(30):
        teach(fit, 2000, sum(terms(TRUE, 2000)) * exp(rng.gauss(0, 0.1)))
    assert 0.85 < off(fit, 2000) < 1.15


def test_little_trust_moves_little() -> None:
    trusted, doubted = new(), new()
    teach(trusted, 2000, 1.5 * sum(terms(PRIOR, 2000)))
    teach(doubted, 2000, 1.5 * sum(terms(PRIOR, 2000)), trust=0.04)
    assert doubted.coefs[1] - PRIOR[1] < 0.5 * (trusted.coefs[1] - PRIOR[1])
    assert (trusted.seen, doubted.seen) == (1, 0)


def test_it_says_how_sure_it_is() -> None:
    fit = new()
    before, after = teach(fit, 2000, sum(terms(PRIOR, 2000)))
    assert after < 0.3 * before
    assert before > 0.3**2


@given(
    st.lists(
        st.tuples(
            st.integers(1, 200_000),
            st.one_of(st.floats(1e-9, 1e9), st.just(float("inf"))),
            st.floats(0.01, 1.0),
        ),
        max_size=60,
    )
)
def test_garbage_leaves_every_coefficient_positive(outcomes: list[tuple[int, float, float]]) -> None:
    fit = new()
    for tokens, actual_s, trust in outcomes:
        before = list(fit.coefs)
        teach(fit, tokens, actual_s, trust)
        assert all(isfinite(c) and c > 0.0 for c in fit.coefs)
        assert isfinite(fit.noise)
        assert fit.noise > 0.0
        # Bounded influence: however far off, an outcome moves no coefficient by more than this.
        moved = max(abs(log(now / was)) for now, was in zip(fit.coefs, before, strict=True))
        assert moved <= CLIP * 1.0
