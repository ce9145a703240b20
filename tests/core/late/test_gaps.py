"""gaps: the median step that keeps a promise in the tail, asked for once and never absurdly short."""

import pytest

from orchestrator.core.late.gaps import MOST, Gaps
from orchestrator.policy.testing import FakePredictor


class Predictor(FakePredictor):
    def __init__(self, factor):
        self.factor = factor
        self.asked = 0

    def itl_tail_s(self, endpoint, predicted_s, quantile):
        self.asked += 1
        return predicted_s * (self.factor - 1.0)


@pytest.mark.parametrize(
    ("factor", "median_s"), [(1.0, 0.04), (1.25, 0.032), (MOST, 0.04 / MOST), (9.0, 0.04 / MOST), (0.8, 0.04)]
)
def test_the_tail_of_the_median_is_the_bound(factor, median_s):
    assert Gaps(Predictor(factor)).median_s("d0", (0.04, 0.99)) == pytest.approx(median_s)


def test_it_is_asked_anew_when_the_predictor_may_have_learned():
    predictor = Predictor(1.25)
    gaps = Gaps(predictor)
    for endpoint in ("d0", "d0", "d1"):
        gaps.median_s(endpoint, (0.04, 0.99))
    assert predictor.asked == 2
    predictor.factor = 1.0
    assert gaps.median_s("d0", (0.04, 0.99)) < 0.04
    gaps.forget()
    assert gaps.median_s("d0", (0.04, 0.99)) == 0.04
