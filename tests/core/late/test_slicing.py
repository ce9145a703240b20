"""Prefix slices: where they end, who goes in between, and that nothing is left of one that is given up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late import Deck, decodes, prefills, unified

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.late.slicing import end_of
from orchestrator.core.prediction import Curve
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import End, Outcome

LONG, BLOCK = 8192, 128
"""A prompt of 8.2 s."""


class Sliced(Deck):
    """Endpoints that take slices of a second, and prompts whose tokens are known."""

    def __init__(self, endpoints=None, **settings):
        given = endpoints or [*prefills("p0", slices=True), *decodes("d0")]
        super().__init__([_with_blocks(e) for e in given], **{"slices_s": 1.0, **settings})

    def ask(self, name, tokens, **fields):
        first = sum(name.encode()) * 1000
        hashes = tuple(range(first, first + tokens // 128))
        super().ask(name, tokens, **{"block_hashes": hashes, "parts": True, **fields})

    def run(self, name, seconds=1.0):
        """Let its slice be computed."""
        self.at(self.now_s + seconds)
        self.sliced(name)

    def idle(self):
        """Whether nobody has anything to do, by the books."""
        scheduler = self.scheduler
        assert len(scheduler._slices) == 0
        return not len(scheduler.ledger) and all(not s.running for s in scheduler._board.stations.values())


def _with_blocks(endpoint):
    return replace(endpoint, block_size=BLOCK)


def test_a_long_prompt_goes_in_slices_and_its_rest_with_the_request():
    deck = Sliced()
    deck.ask("long", LONG)
    seen = []
    while "@" in deck.decision("long"):
        seen.append(deck.decision("long"))
        deck.run("long")
    assert seen == [f"{n * 896}@p0" for n in range(1, 9)]
    assert deck.decision("long") == "->p0/d0"
    assert deck.made["long"][-1].predicted.cached_tokens == 8 * 896
    deck.prefilled("long")
    deck.finish("long", prompt_tokens=LONG, cached_tokens=8 * 896)
    assert deck.idle()


def test_a_short_one_goes_in_between():
    deck = Sliced()
    deck.ask("long", LONG)
    deck.ask("short", 256)
    assert deck.decision("short") == "wait"
    deck.run("long")
    assert deck.decision("short") == "->p0/d0"
    assert deck.decision("long") == "896@p0"
    deck.at(deck.now_s + 0.256)
    deck.prefilled("short")
    assert deck.decision("long") == "1792@p0"


@pytest.mark.parametrize(
    ("tokens", "fields", "facts", "settings"),
    [
        (1280, {}, {"slices": True}, {}),
        (LONG, {"parts": False}, {"slices": True}, {}),
        (LONG, {"block_hashes": ()}, {"slices": True}, {}),
        (LONG, {}, {}, {}),
        (LONG, {}, {"slices": True}, {"slices_s": 0.0}),
        (LONG, {"n": 2}, {"slices": True}, {}),
    ],
    ids=["short", "tokens-unknown", "no-blocks", "engine-cannot", "off", "several-samples"],
)
def test_what_goes_whole(tokens, fields, facts, settings):
    deck = Sliced([*prefills("p0", **facts), *decodes("d0")], **settings)
    deck.ask("r", tokens, **fields)
    assert deck.decision("r") == "->p0/d0"


def test_a_class_has_slices_of_its_own():
    classes = {"whole": SloClass("whole", slices_s=0.0), "fine": SloClass("fine", slices_s=0.5)}
    deck = Sliced([*prefills("p0", "p1", slices=True), *decodes("d0")], classes=classes)
    deck.ask("a", LONG, slo_class="whole")
    deck.ask("b", LONG, slo_class="fine")
    assert (deck.decision("a"), deck.decision("b")) == ("->p0/d0", "384@p1")


def test_one_endpoint_that_serves_alone_takes_slices_too():
    deck = Sliced(unified("u0", slices=True))
    deck.ask("long", 1536)
    assert deck.decision("long") == "896@u0"
    deck.run("long")
    assert deck.decision("long") == "->u0"


def test_after_a_slice_that_failed_the_rest_goes_whole():
    deck = Sliced()
    deck.ask("long", LONG)
    deck.run("long")
    deck.sliced("long", "failed")
    assert deck.decision("long") == "->p0/d0"
    assert deck.made["long"][-1].predicted.cached_tokens == 896, "what had been computed is there"
    deck.finish("long")
    assert deck.idle()


def test_slices_shorter_than_a_block_of_text_get_on_all_the_same():
    """The approximate index knows blocks of 128 tokens; the engine's own are of 16."""
    deck = Sliced(
        [replace(e, block_size=16) for e in (*prefills("p0", slices=True), *decodes("d0"))], slices_s=0.06
    )
    deck.observe(*(replace(e, block_size=16) for e in deck.endpoints))
    deck.ask("long", 1024)
    ends = []
    while "@" in deck.decision("long"):
        ends.append(int(deck.decision("long").partition("@")[0]))
        deck.run("long", 0.06)
    assert ends == [48 * n for n in range(1, len(ends) + 1)]
    assert ends[-1] > 900


class Forgetful(Sliced):
    """An engine that tells what it holds, which is nothing whenever it is asked."""

    def __init__(self):
        super().__init__()
        self.index = self.scheduler.cached.exact
        self.index.open("p0", BLOCK, None)
        self.index.reset("p0", whole=True)
        tokens = (7).to_bytes(4, "little") * LONG
        self.ask("long", LONG, chains={BLOCK: token_chain(0, tokens, BLOCK)})

    def overtaken(self, name):
        """A slice is over, another request goes in between, and meanwhile the slice is evicted."""
        self.ask(name, 256)
        self.run("long")
        self.index.apply("p0", [])
        self.at(self.now_s + 0.256)
        self.prefilled(name)
        self.finish(name)


def test_what_was_evicted_is_computed_again():
    deck = Forgetful()
    assert deck.decision("long") == "896@p0"
    deck.run("long")
    assert deck.decision("long") == "1792@p0"
    deck.overtaken("short")
    assert deck.decision("long") == "896@p0", "it begins anew"


def test_an_engine_that_loses_all_slices_computes_it_whole_at_last():
    deck = Forgetful()
    for number in range(300):
        if "@" not in deck.decision("long"):
            break
        deck.overtaken(f"s{number}")
    assert deck.decision("long") == "->p0/d0"


@pytest.mark.parametrize("how", ["cancel", "finish"])
def test_a_request_that_is_given_up_gives_its_place_to_the_next(how):
    deck = Sliced()
    deck.ask("long", LONG)
    deck.ask("other", 256)
    if how == "cancel":
        deck.cancel("long")
    outcome = Outcome("long", End.CANCELLED, 499)
    deck._take(deck.scheduler.finish(outcome, deck.now_s))
    assert deck.decision("other") == "->p0/d0"
    deck.finish("other")
    assert deck.idle()


def test_one_that_cannot_be_on_time_is_refused_between_two_slices():
    deck = Sliced(classes={"chat": SloClass("chat", ttft=Target(2.0, per_cold_prefill=1.0))})
    deck.ask("long", 3072, slo_class="chat")
    deck.ask("s", 512, slo_class="chat")
    deck.run("long")
    for n in range(8):
        deck.ask(f"s{n}", 512, slo_class="chat")
        deck.at(deck.now_s + 0.512)
        for name in [n for n in deck.views if n in deck.scheduler.ledger]:
            deck.prefilled(name)
            deck.finish(name)
    assert deck.decision("long").startswith("no:slo")


def test_hits_do_not_count_what_slices_left():
    deck = Sliced()
    deck.ask("long", 2048)
    while "@" in deck.decision("long"):
        deck.run("long")
    deck.prefilled("long")
    deck.finish("long", prompt_tokens=2048, cached_tokens=1792)

    (hits,) = deck.scheduler.cached.hits.values()
    assert (hits.prompt, hits.hit, hits.ceiling) == (2048, 0, 0)


curves = st.builds(
    Curve,
    token_s=st.floats(1e-6, 1e-2),
    token2_s=st.one_of(st.just(0.0), st.floats(1e-12, 1e-7)),
    fixed_s=st.floats(0.0, 0.1),
)


@given(
    curves, st.integers(1, 200_000), st.floats(0.0, 1.0), st.floats(0.05, 10.0), st.sampled_from([1, 16, 512])
)
def test_where_a_slice_ends(curve, tokens, held, seconds, block):
    """At a block's end, behind what is there, in the time that it may take; and not for a short rest."""
    cached = int(held * (tokens - 1))
    end = end_of(curve, tokens, cached, seconds, block)
    if end is None:
        return
    assert cached < end < tokens
    assert end % block == 0
    assert curve.seconds(end, cached) <= seconds * 1.001 + curve.fixed_s
    assert curve.seconds(tokens, cached) > seconds
