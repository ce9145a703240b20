"""The predictor that learns nothing (told), and the one that errs by a known amount (wrongcurve)."""

from __future__ import annotations

import math
from statistics import fmean, median

import pytest

from orchestrator.core.types import Snapshot
from orchestrator.sim.replay.fleet import published
from orchestrator.sim.replay.told import Erring, Told
from orchestrator.sim.timing import QWEN3_32B_TP2

FLEET = published(2, 1)
PREFILL, _, DECODE = (unit.endpoint for unit in FLEET.units)


def test_it_says_what_the_engine_does() -> None:
    told = Told()
    told.observe(Snapshot(0.0, (PREFILL, DECODE)), 0.0)
    assert told.prefill(PREFILL).seconds(16_384) == pytest.approx(QWEN3_32B_TP2.prefill_s(0, 16_384))
    assert told.prefill(PREFILL).seconds(9000, 8000) == pytest.approx(QWEN3_32B_TP2.prefill_s(8000, 9000))
    assert told.prefill(PREFILL).seconds(5) == 0.020
    assert told.step(DECODE).seconds(16, 32_768) == pytest.approx(QWEN3_32B_TP2.decode_s(16, 32_768))
    assert told.exposed(PREFILL, DECODE).seconds(100_000) == pytest.approx(0.011 + 8192 * 131_072 / 20e9)
    assert told.exposed(DECODE, DECODE).seconds(100_000) == 0.0
    assert told.reference_s("sim", 8192) == pytest.approx(QWEN3_32B_TP2.prefill_s(0, 8192))
    assert told.reference_s("unknown", 8192) == 0.0
    assert told.tail_s("prefill-0", 3.0, 0.99) == 0.0
    assert (told.output_tokens(None, 100), told.output_tokens(None, 4096)) == (100, 512)


def test_errors_are_log_normal_of_the_request_and_of_nothing_else() -> None:
    right = Told()
    erring = Erring(right, 0.2, seed=1)
    wrong = erring.prefill(PREFILL)
    logs = [math.log(wrong.seconds(n) / right.prefill(PREFILL).seconds(n)) for n in range(1000, 4000)]
    assert median(logs) == pytest.approx(0.0, abs=0.015)
    assert math.sqrt(fmean(x * x for x in logs)) == pytest.approx(0.2, rel=0.05)
    ratio = right.prefill(PREFILL).seconds(3000, 1024) / wrong.seconds(3000, 1024)
    assert ratio == pytest.approx(right.prefill(PREFILL).seconds(3000) / wrong.seconds(3000))
    assert erring.step(DECODE) == right.step(DECODE)
    erring.observe(Snapshot(0.0, (PREFILL,)), 0.0)
    assert erring.reference_s("sim", 5000) == right.reference_s("sim", 5000) > 0.0
