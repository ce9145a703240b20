"""Requests for several answers: samples of one prompt, and batches of prompts."""

from __future__ import annotations

import pytest
from asks import OUTPUT, Answer, ask_for, completion, generate, post, tokens
from families import FAMILIES
from pair import SAMPLES, TEXTS, Pair

pytestmark = pytest.mark.parametrize("pair", FAMILIES, indirect=True)

IN_BATCH = (5, 33, 129)


def assert_items(told: Answer, expected: list[Answer]) -> None:
    """Each choice is what its prompt alone was answered by the unified server."""
    assert [c.text for c in told.choices] == [e.choices[0].text for e in expected]
    assert [c.finish for c in told.choices] == [e.choices[0].finish for e in expected]
    for choice, one in zip(told.choices, expected, strict=True):
        assert choice.tokens is None or choice.tokens == one.choices[0].tokens
    assert told.output_tokens == sum(e.output_tokens for e in expected)


def test_a_batch_of_token_lists(pair: Pair) -> None:
    told = pair.ask(completion([tokens(size) for size in IN_BATCH]))
    assert_items(told, [pair.reference.answers["completion", size] for size in IN_BATCH])
    assert told.prompt_tokens == sum(IN_BATCH)


def test_a_batch_of_texts(pair: Pair) -> None:
    assert_items(pair.ask(completion(list(TEXTS))), list(pair.reference.texts))


def test_a_streamed_batch(pair: Pair) -> None:
    told = pair.ask(pair.family.streamed(completion(list(TEXTS))))
    assert_items(told, list(pair.reference.texts))


def test_greedy_samples_are_all_the_one_answer(pair: Pair) -> None:
    told = pair.ask(ask_for("completion", 129).having(n=2))
    assert_items(told, [pair.reference.answers["completion", 129]] * 2)
    told = pair.ask(ask_for("chat", 129).having(n=2))
    assert_items(told, [pair.reference.answers["chat", 129]] * 2)


def test_samples_of_each_prompt_of_a_batch(pair: Pair) -> None:
    told = pair.ask(completion([tokens(size) for size in IN_BATCH], n=2))
    assert_items(told, [pair.reference.answers["completion", size] for size in IN_BATCH for _ in range(2)])


def test_samples_differ(pair: Pair) -> None:
    told, unified = pair.ask(SAMPLES), pair.reference.samples
    first, second = told.choices
    assert first.text != second.text
    assert told.output_tokens == unified.output_tokens == 2 * OUTPUT
    if pair.family.seeded:
        assert told.agrees(unified), f"{told}\nunified: {unified}"


def test_generate_takes_a_batch_and_samples(pair: Pair) -> None:
    """SGLang's path; vLLM has none of that name."""
    several = generate(tokens(5)).having(input_ids=[tokens(size) for size in IN_BATCH])
    samples = generate(tokens(5))
    samples = samples.having(sampling_params={**samples.body["sampling_params"], "n": 2})
    if "generate" not in pair.family.ways:
        assert {post(pair.client, ask).status_code for ask in (several, samples)} == {404}
        return
    assert_items(pair.ask(several), [pair.reference.answers["generate", size] for size in IN_BATCH])
    assert_items(pair.ask(samples), [pair.reference.answers["generate", 5]] * 2)


def test_what_cannot_be_taken_apart_is_refused(pair: Pair) -> None:
    for fields in ({"n": 0}, {"n": "2"}, {"n": 2.0}, {"best_of": 3}, {"n": 2, "prompt": [[5]] * 600}):
        refused = post(pair.client, completion(tokens(5)).having(**fields))
        assert refused.status_code == 400, f"{fields}: {refused.text[:300]}"
    pair.assert_serves()
