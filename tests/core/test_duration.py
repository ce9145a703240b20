"""Durations: what is read, what is refused, and that what is shown reads back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.duration import parse_duration, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("40ms", 0.04), ("1.5s", 1.5), ("2.9ns", 2.9e-9), ("1h30m", 5400.0), ("0s", 0.0), ("250us", 0.00025)],
)
def test_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "1.s", "-1s", "1 s", "1S", 5, 1.5, None, True])
def test_refused(text):
    with pytest.raises(ValueError, match="is not a duration; write a number with its unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.04, "40ms"),
        (1.5, "1.5s"),
        (60.0, "1m"),
        (90.0, "90s"),
        (7200.0, "2h"),
        (2.5e-8, "25ns"),
    ],
)
def test_shown(seconds, text):
    assert show_duration(seconds) == text


@given(st.integers(1, 10**6).map(lambda n: n / 1000))
def test_what_is_shown_reads_back(seconds):
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds, rel=1e-5)
