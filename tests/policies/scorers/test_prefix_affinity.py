"""prefix-affinity: the share of the prompt that need not be computed."""

import pytest

from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import FakePrefix, make_context, make_endpoint, make_request

ENDPOINTS = [make_endpoint(i) for i in "abc"]


def scores(cached, blocks=10, prompt_tokens=1280, **params):
    context = make_context(ENDPOINTS, prefix=FakePrefix(cached))
    request = make_request(prompt_tokens=prompt_tokens, block_hashes=tuple(range(blocks)))
    return make_policy("prefix-affinity", params).score(request, ENDPOINTS, context)


def test_the_plain_share():
    assert scores({"a": 10, "b": 5}, full_tokens=0) == [1.0, 0.5, 0.0]


def test_a_short_prompt_scores_less_since_less_is_saved():
    assert scores({"a": 10, "b": 5}, full_tokens=12_800) == [0.1, 0.05, 0.0]
    assert scores({"a": 10}, full_tokens=1000) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("prompt_tokens", [0, 100, 1279, 1281, 2560])
def test_an_estimate_of_the_prompt_that_is_off_keeps_it_a_share(prompt_tokens):
    (best, *_) = scores({"a": 10}, prompt_tokens=prompt_tokens, full_tokens=0)
    assert best == 1280 / max(1280, prompt_tokens)


def test_without_hashes_it_has_no_opinion():
    assert scores({"a": 10}, blocks=0, full_tokens=0) == [0.0, 0.0, 0.0]
