"""A generation's output follows from its KV; stop strings cut it where they begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sim import text
from orchestrator.sim.calls import Params
from orchestrator.sim.generation import Generation
from orchestrator.sim.jobs import Job


class Nobody:
    def flush(self, gen: Generation) -> None:
        pass


def make(prompt: str = "hello there", limit: int = 60, **params: object) -> Generation:
    chosen = Params(ignore_eos=True, **params)  # type: ignore[arg-type]
    ids = tuple(text.encode(prompt))
    return Generation("g", Nobody(), 0, ids, chosen, limit=limit, block_tokens=4, now_s=0.0)


def full(gen: Generation) -> str:
    return gen.output_text(len(gen.tokens))


def test_the_output_follows_from_the_state() -> None:
    gen = make()
    own = full(gen)
    assert own == full(make())
    assert gen.plan(text.corrupt(gen.final, 1)) == 60
    assert full(gen) != own
    gen.plan(gen.final)
    assert full(gen) == own


def test_states_cover_prompt_and_output() -> None:
    gen = make(limit=20)
    assert gen.states == text.block_states((*gen.prompt, *gen.tokens), 4)


@given(st.integers(0, 200), st.integers(1, 12))
def test_a_stop_string_cuts_the_text_before_it(at: int, length: int) -> None:
    whole = full(make())
    stop = whole[at : at + length]
    if not stop:
        return
    gen = make(stop=(stop,))
    assert full(gen) == whole[: whole.index(stop)]
    assert (gen.reason, gen.matched) == ("stop", stop)
    assert len(gen.texts) == len(gen.tokens)
    # It ends with the token that completes the stop string, and no later.
    said = "".join(text.piece(token) for token in gen.tokens)
    assert stop in said
    assert stop not in "".join(text.piece(token) for token in gen.tokens[:-1])


def test_the_earliest_stop_string_counts() -> None:
    whole = full(make())
    gen = make(stop=(whole[30:34], whole[10:13]))
    assert full(gen) == whole[: min(whole.index(whole[30:34]), whole.index(whole[10:13]))]


def test_produced_and_cached_tokens_are_the_jobs_unless_a_peer_says_otherwise() -> None:
    gen = make(limit=5)
    assert (gen.produced, gen.cached_tokens) == (0, 0)
    gen.job = Job("g", 2, 5, produced=9, cached_tokens=4)
    assert (gen.produced, gen.cached_tokens) == (5, 4)
    gen.cached = 64
    assert gen.cached_tokens == 64
