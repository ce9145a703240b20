"""Durations, sizes, GPUs, NICs and ranges of ports, as YAML writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.duration import DURATION_PATTERN, parse_duration
from orchestrator.topology.values import (
    SIZE_PATTERN,
    Nics,
    flag_name,
    parse_gpus,
    parse_nics,
    parse_ports,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("40ms", 0.04),
        ("1.5s", 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("0s", 0),
        ("1m0.5s", 60.5),
        ("3us40ns", 3.04e-6),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_duration_is_the_very_number_that_is_written() -> None:
    assert [parse_duration(t) for t in ("248.7us", "2.898ns", "0.1ms")] == [248.7e-6, 2.898e-9, 1e-4]


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 s", "-1s", "1.s", "1d", "1s ", 5, None, True, "1e3s", "٣s"]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("64MiB", 64 << 20),
        ("64 MiB", 64 << 20),
        ("1KB", 1000),
        ("1.5KiB", 1536),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64", "MiB", "64mib", "-1MiB", "1iB", 64, None, "1 2MiB"])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.text(alphabet="0123456789.numshKMGTiB ", max_size=8))
def test_the_schema_accepts_what_the_parser_does(text: str) -> None:
    """Editors validate by the pattern, pdctl by the parser: they agree."""
    for parse, pattern in ((parse_duration, DURATION_PATTERN), (parse_size, SIZE_PATTERN)):
        try:
            parse(text)
            accepted = True
        except ValueError:
            accepted = False
        assert accepted == bool(re.fullmatch(pattern, text))


def test_gpus_nics_and_ports() -> None:
    assert parse_gpus(3) == (0, 1, 2)
    assert parse_gpus([2, 5]) == (2, 5)
    assert parse_ports("20000 - 20009") == (20000, 20009)
    by_gpu = parse_nics({"0": "mlx5_0", "1": ["mlx5_1", "mlx5_2"]})
    assert by_gpu.near((1, 0)) == ("mlx5_1", "mlx5_2", "mlx5_0")
    assert by_gpu.near((7,)) == ()
    assert parse_nics(["a", "b"]) == Nics(shared=("a", "b"))
    assert parse_nics(["a", "b"]).near((3,)) == ("a", "b")
    assert parse_nics(by_gpu) is by_gpu
    for wrong in (True, -1, "2", [True], [-1], 2000):
        with pytest.raises(ValueError):
            parse_gpus(wrong)


def test_flag_names_have_one_form() -> None:
    assert {flag_name(n) for n in ("--a-b", "a_b", "a-b", "--a_b")} == {"a-b"}
