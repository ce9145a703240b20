"""encode: what each medium takes, by the median, so that one odd request says nothing."""

from random import Random

import pytest

from orchestrator.predictor.encode import EACH_S, KEPT, LEAST_S, Encoding


def test_before_any_it_is_what_is_usual() -> None:
    assert Encoding().seconds(3) == pytest.approx(3 * EACH_S)


def test_it_learns_what_each_takes_and_is_not_fooled_by_a_few() -> None:
    encoding, rng = Encoding(), Random(1)
    for i in range(60):
        media = rng.randint(1, 8)
        took_s = 0.25 * media * rng.lognormvariate(0.0, 0.1)
        encoding.learn(media, 30.0 if i % 5 == 0 else took_s)
    assert encoding.seconds(4) == pytest.approx(1.0, rel=0.15)
    report = encoding.stage.report("encode")
    assert report.outcomes == 60


def test_less_than_nothing_is_next_to_nothing() -> None:
    encoding = Encoding()
    for _ in range(3):
        encoding.learn(2, -0.5)
    assert 0.0 < encoding.seconds(2) <= LEAST_S


def test_what_is_long_ago_is_forgotten() -> None:
    encoding = Encoding()
    for each_s in (0.1, 0.4):
        for _ in range(KEPT):
            encoding.learn(1, each_s)
    assert encoding.seconds(1) == 0.4
