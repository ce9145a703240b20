"""no-hit-spread: a prompt that nobody holds has a place of its own, and one that somebody holds has none."""

from collections import Counter

from orchestrator.policy import Load
from orchestrator.policy.build import make_policy
from orchestrator.policy.rendezvous import hashed
from orchestrator.policy.testing import FakePrefix, make_context, make_endpoint, make_request

POLICY = make_policy("no-hit-spread", {})


def scores(blocks, endpoints, **cached):
    context = make_context(endpoints, prefix=FakePrefix(cached))
    return POLICY.score(make_request(block_hashes=blocks), endpoints, context)


def homes(endpoints, n=4000):
    counts = Counter()
    for i in range(n):
        shares = scores((hashed(str(i)), 5), endpoints)
        counts[endpoints[shares.index(1.0)].id] += 1
    return [round(counts[e.id] / n, 1) for e in endpoints]


def sized(endpoint_id, tokens):
    return make_endpoint(endpoint_id, load=Load(0.0, kv_total_tokens=tokens))


def test_new_prefixes_land_evenly():
    assert homes([make_endpoint(i) for i in "abcde"]) == [0.2] * 5


def test_a_larger_cache_gets_more_of_them():
    assert homes([sized("a", 100_000), sized("b", 300_000), make_endpoint("silent")]) == [0.2, 0.5, 0.3]


def test_the_place_is_by_the_first_block():
    endpoints = [make_endpoint(i) for i in "abcd"]
    assert scores((7, 1, 2), endpoints) == scores((7,), endpoints)
    assert sorted(scores((7,), endpoints), reverse=True) == [1.0, 0.5, 0.25, 0.125]


def test_once_somebody_holds_it_the_cache_decides():
    endpoints = [make_endpoint(i) for i in "abcd"]
    assert scores((7, 8), endpoints, b=1) == [0.0] * 4
    assert scores((), endpoints) == [0.0] * 4
