"""Traces: scaling, spreading, classes, and hashes that are equal exactly where prefixes are."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sim.replay.trace import Entry, Trace, ceiling, chained


def trace(*at: float) -> Trace:
    return Trace("t", tuple(Entry(a, 1000, 10) for a in at), 512)


def test_rate_is_what_faster_multiplies() -> None:
    one = trace(0.0, 1.0, 2.0, 4.0)
    assert one.rate == 1.0
    twice = one.faster(2.0)
    assert twice.rate == 2.0
    assert [e.at_s for e in twice.entries] == [0.0, 0.5, 1.0, 2.0]
    assert twice.notes == ("time divided by 2",)
    assert one.faster(1.0) is one


def test_the_first_requests_are_noted_as_such() -> None:
    assert trace(0.0, 1.0, 2.0).first(2).notes == ("first 2 of 3 requests",)
    assert len(trace(0.0, 1.0).first(5).entries) == 2


def test_arrivals_of_one_quantum_are_spread_evenly_inside_it() -> None:
    one = trace(0.0, 0.0, 0.0, 3.0, 6.0, 6.0)
    assert one.quantum_s() == 3.0
    assert [e.at_s for e in one.spread(3.0).entries] == [0.0, 1.0, 2.0, 3.0, 6.0, 7.5]
    assert one.spread(3.0).notes == ("arrivals spread inside quanta of 3 s",)
    assert trace(0.0, 0.4, 0.9, 1.0).quantum_s() is None
    with pytest.raises(ValueError, match="quantum"):
        one.spread(0.0)


def test_classes_are_drawn_by_share() -> None:
    one = Trace("t", tuple(Entry(i, 10, 1, slo_class="own") for i in range(2000)))
    mixed = one.mixed({"batch": 0.3, "realtime": 0.2}, Random(1))
    counts = {name: sum(e.slo_class == name for e in mixed.entries) for name in ("batch", "realtime", "own")}
    assert counts["batch"] == pytest.approx(600, rel=0.1)
    assert counts["realtime"] == pytest.approx(400, rel=0.1)
    assert counts["own"] == pytest.approx(1000, rel=0.1)
    assert mixed.notes == ("classes drawn at random: 30% batch, 20% realtime",)
    with pytest.raises(ValueError, match="shares"):
        one.mixed({"a": 0.7, "b": 0.4}, Random(1))


ids = st.lists(st.integers(0, 3), max_size=6)


@given(ids, ids, st.sampled_from([128, 256, 512, 1024]))
def test_hashes_are_equal_as_far_as_prefixes_are(a: list[int], b: list[int], block: int) -> None:
    """In any block size that fits; a block counts only where it is full."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    left, right = (chained(x, 512 * len(x), 512, block, 7) for x in (a, b))
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    assert common == min(512 * same // block, len(left), len(right))
    assert not set(left[common:]) & set(right[common:])


def test_a_block_that_is_not_full_has_no_hash() -> None:
    assert len(chained([1, 2, 3], 1100, 512, 512, 0)) == 2
    assert len(chained([1, 2, 3], 1100, 512, 128, 0)) == 8
    assert len(chained([1, 2, 3], 1100, 512, 1024, 0)) == 1
    with pytest.raises(ValueError, match="cannot be made"):
        chained([1], 512, 512, 300, 0)


def test_hashes_depend_on_the_seed_and_on_what_is_before() -> None:
    assert chained([1], 512, 512, 512, 1) != chained([1], 512, 512, 512, 2)
    assert chained([1, 5], 1024, 512, 512, 0)[1] != chained([2, 5], 1024, 512, 512, 0)[1]
    assert len(set(chained([0] * 9, 9 * 512, 512, 512, 0))) == 9
    assert all(0 <= h < 2**64 for h in chained(range(100), 51_200, 512, 128, 3))


def test_the_ceiling_is_what_an_infinite_cache_hits() -> None:
    entries = [
        Entry(0, 1024, 1, (1, 2)),
        Entry(1, 1100, 1, (1, 2, 3)),
        Entry(2, 1600, 1, (1, 9, 3, 4)),
        Entry(3, 1024, 1, (1, 2)),  # its last token is computed in any case, and its block with it
    ]
    assert ceiling(entries, 512) == (1024 + 512 + 512, 1024 + 1100 + 1600 + 1024)
