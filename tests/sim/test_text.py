"""The text is deterministic, depends on every token, and reads back as the tokens it was made of."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sim import text

tokens = st.lists(st.integers(0, text.VOCABULARY - 1), max_size=200)


@given(st.text(max_size=300))
def test_any_text_has_tokens_and_always_the_same(sample: str) -> None:
    ids = text.encode(sample)
    assert all(0 <= token < text.VOCABULARY for token in ids)
    assert text.encode(sample) == ids
    assert bool(ids) == bool(sample)


@given(st.lists(st.sampled_from(text.PIECES), max_size=100).map("".join))
def test_what_the_model_says_survives_the_tokenizer(said: str) -> None:
    """Of other text this cannot be held: two pieces may share an id, as the vocabulary is finite."""
    assert text.decode(text.encode(said)) == said


def test_every_piece_the_model_says_is_one_token_wherever_it_stands() -> None:
    for piece in text.PIECES:
        (token,) = text.encode(piece)
        assert text.encode("word" + piece)[-1] == token
        assert text.piece(token) == piece
        assert orjson.loads(b'"' + text.escaped(token) + b'"') == piece


def test_token_ids_are_the_same_in_another_process() -> None:
    sample = "def main(x): return 42 + größe"
    code = f"from orchestrator.sim.text import encode; print(encode({sample!r}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(text.encode(sample))


@given(tokens, tokens)
def test_folding_in_pieces_is_folding_at_once(head: list[int], tail: list[int]) -> None:
    assert text.fold(text.fold(1, head), tail) == text.fold(1, head + tail)


@given(tokens.filter(bool), st.data())
def test_any_other_token_is_another_state(prompt: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(prompt) - 1))
    other = data.draw(st.integers(0, text.VOCABULARY - 1).filter(lambda token: token != prompt[at]))
    changed = [*prompt[:at], other, *prompt[at + 1 :]]
    assert text.fold(1, prompt) != text.fold(1, changed)


def test_moving_a_token_is_another_state_at_any_distance() -> None:
    prompt = list(range(10, 210))
    for distance in range(1, 199):
        moved = prompt.copy()
        moved[0], moved[distance] = moved[distance], moved[0]
        assert text.fold(1, moved) != text.fold(1, prompt)


@given(tokens, st.integers(1, 16))
def test_block_states_are_the_states_at_the_blocks_ends(prompt: list[int], block: int) -> None:
    states = text.block_states(prompt, block)
    assert states == [text.fold(1, prompt[: end * block]) for end in range(1, len(prompt) // block + 1)]


def test_block_hashes_are_64_bit_seeded_and_chained() -> None:
    a = text.block_hashes(text.block_states(range(256), 64), seed=1)
    b = text.block_hashes(text.block_states([9, *range(1, 256)], 64), seed=1)
    other = text.block_hashes(text.block_states(range(256), 64), seed=2)
    assert len(a) == 4
    assert all(0 <= one < 1 << 64 for one in a)
    assert not set(a) & set(b)
    assert not set(a) & set(other)


@given(tokens, st.integers(1, 30))
def test_what_was_said_can_be_prompted_and_goes_on_as_before(prompt: list[int], cut: int) -> None:
    whole, _ = text.generate(text.fold(1, prompt), 40, ignore_eos=True)
    rest, _ = text.generate(text.fold(1, prompt + whole[:cut]), 40 - cut, ignore_eos=True)
    assert whole[:cut] + rest == whole


def test_the_end_of_sequence_comes_sometimes_and_can_be_forbidden() -> None:
    ended = [text.generate(seed, 2000) for seed in range(1, 60)]
    assert all(stopped and tokens[-1] == text.EOS for tokens, stopped in ended)
    lengths = [len(tokens) for tokens, _ in ended]
    assert 60 < sum(lengths) / len(lengths) < 500
    shortest = lengths.index(min(lengths)) + 1
    assert len(text.generate(shortest, 2000, least=min(lengths) + 1)[0]) > min(lengths)
    assert text.generate(1, 500, ignore_eos=True) == (text.generate(1, 500, ignore_eos=True)[0], False)


def test_corrupt_is_neither_of_the_two() -> None:
    mixed = text.corrupt(5, 7)
    assert mixed not in (5, 7)
    assert mixed == text.corrupt(5, 7)
    assert mixed < text.PRIME


def test_chat_prompts_depend_on_roles_and_on_images() -> None:
    plain = [{"role": "user", "content": "hello"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert text.chat_prompt(plain) == text.chat_prompt(parts)
    assert text.chat_prompt(plain).endswith("<|im_start|>assistant\n")
    one, two = (
        text.chat_prompt([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
        for url in ("data:a", "data:b")
    )
    assert one != two
    for wrong in ([1], [{"content": "x"}], [{"role": "user", "content": 5}], [{"role": "u", "content": [1]}]):
        with pytest.raises(ValueError, match=r"message|part"):
            text.chat_prompt(wrong)


def test_logprobs_are_negative_and_stable() -> None:
    values = [text.logprob(token, at) for token in range(300, 400) for at in range(5)]
    assert all(-4 < value < 0 for value in values)
    assert values[7] == text.logprob(301, 2)
