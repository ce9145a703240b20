"""Rendezvous hashing: the same everywhere, fair by weight, and few that move."""

from collections import Counter

import pytest

from orchestrator.policy.rendezvous import hashed, preferred
from orchestrator.policy.testing import make_endpoint

ENDPOINTS = [make_endpoint(i) for i in "abcd"]


def first(key, weights=None, endpoints=ENDPOINTS):
    shares = preferred(key, endpoints, weights)
    return endpoints[shares.index(1.0)].id


def test_a_hash_is_the_same_in_every_process():
    assert hashed("x-session") == 15953122451596329774


def test_every_key_has_an_order_of_endpoints():
    assert sorted(preferred(7, ENDPOINTS), reverse=True) == [1.0, 0.5, 0.25, 0.125]
    assert sorted(preferred(7, ENDPOINTS, [1.0] * 4), reverse=True) == [1.0, 0.5, 0.25, 0.125]
    assert preferred(7, []) == []


@pytest.mark.parametrize("weights", [None, [1.0] * 4])
def test_keys_spread_evenly(weights):
    counts = Counter(first(hashed(str(i)), weights) for i in range(4000))
    assert all(900 < counts[e.id] < 1100 for e in ENDPOINTS)


def test_weights_are_shares_of_the_keys():
    counts = Counter(first(hashed(str(i)), [1.0, 1.0, 2.0, 4.0]) for i in range(8000))
    assert [round(counts[i] / 1000) for i in "abcd"] == [1, 1, 2, 4]


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 2.0, 4.0]])
def test_one_that_leaves_moves_its_own_keys_only(weights):
    left = [ENDPOINTS[i] for i in (0, 1, 3)]
    rest = None if weights is None else [weights[i] for i in (0, 1, 3)]
    for i in range(300):
        key = hashed(str(i))
        before = first(key, weights)
        if before != "c":
            assert first(key, rest, left) == before
