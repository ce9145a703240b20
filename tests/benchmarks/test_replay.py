"""`bench replay`: speed of both profiles, and goodput of a live run beside its replays."""

import pytest
from benchmarks import replay


def test_it_tells_the_speed_of_each_profile(capsys):
    assert replay.main(["--first", "5", "--no-live"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("slo: ")
    assert "\nround-robin: " in told


def test_an_unknown_rate_is_refused(capsys):
    assert replay.main(["--first", "5", "--no-live", "--rate", "fast"]) == 2
    assert "--rate" in capsys.readouterr().err


def test_goodput_is_what_was_kept_of_what_was_offered():
    run = {"attainment": 0.8, "rate": 2.0}
    told = {"live": {"attainment": 0.9, "rate": 2.0}, "replays": [run, run]}
    assert replay.goodput(told) == pytest.approx((1.8, 1.6))
