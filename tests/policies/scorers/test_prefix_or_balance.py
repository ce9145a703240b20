"""prefix-or-balance: three rules, and which of them applies."""

from orchestrator.policy import Inflight
from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import FakePrefix, make_context, make_endpoint, make_request


def best(requests, cached, blocks=10, **params):
    """The best endpoint and the ranking, given requests and cached blocks of each."""
    endpoints = [make_endpoint(f"e{i}", inflight=Inflight(n)) for i, n in enumerate(requests)]
    context = make_context(endpoints, prefix=FakePrefix({f"e{i}": n for i, n in enumerate(cached)}))
    request = make_request(prompt_tokens=blocks * 128, block_hashes=tuple(range(blocks)))
    scores = make_policy("prefix-or-balance", params).score(request, endpoints, context)
    assert all(0.0 <= s <= 1.0 for s in scores)
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


def test_a_long_match_is_followed():
    assert best([60, 0, 10], [3, 0, 5]) == [2, 0, 1]


def test_a_short_one_is_not():
    assert best([60, 0, 10], [2, 0, 1]) == [1, 2, 0]
    assert best([60, 0, 10], [2, 0, 1], cache_threshold=0.2) == [0, 2, 1]
    assert best([60, 0, 10], [0, 0, 0], cache_threshold=0.0) == [1, 2, 0]


def test_among_equal_matches_the_load_decides():
    assert best([60, 0, 10], [5, 0, 5]) == [2, 0, 1]
    assert best([5, 9, 0], [9, 9, 9]) == [2, 0, 1]


def test_out_of_balance_the_load_alone_decides():
    """By requests and by ratio: either of them alone is no imbalance."""
    assert best([65, 0, 10], [9, 0, 0]) == [1, 2, 0]
    assert best([64, 0, 10], [9, 0, 0])[0] == 0
    assert best([265, 200, 210], [9, 0, 0])[0] == 0
    assert best([30, 0, 10], [9, 0, 0], balance_requests=20) == [1, 2, 0]
    assert best([130, 60, 70], [9, 0, 0], balance_ratio=3.0)[0] == 0


def test_a_prompt_without_blocks_goes_by_load():
    assert best([3, 1, 2], [0, 0, 0], blocks=0) == [1, 2, 0]
