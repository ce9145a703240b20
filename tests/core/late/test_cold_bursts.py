"""Requests of one prefix that nobody holds, at once: one endpoint gets them until the wait is too long."""

from collections import Counter

import pytest
from late import Deck, decodes, prefills

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.types import End

PREFIX, TAIL, SIZE = 6400, 128, 16
NAMES = tuple(f"p{n}" for n in range(4))


def tokens(number, tail):
    prefix = [7] * PREFIX
    own = [100 + number] * tail
    return b"".join(t.to_bytes(4, "little") for t in (*prefix, *own))


class Burst(Deck):
    """Four prefill endpoints; `exact`: they tell of their caches, which are empty."""

    def __init__(self, exact, **settings):
        super().__init__([*prefills(*NAMES), *decodes("d0")], **settings)
        self.exact = exact
        self.index = self.scheduler.cached.exact
        if exact:
            for name in NAMES:
                self.index.open(name, SIZE, None)
                self.index.reset(name, whole=True)

    def come(self, number, tail=TAIL):
        own = range(1000 * (number + 1), 1000 * (number + 1) + tail // 128)
        hashes = (*range(PREFIX // 128), *own)
        more = {"chains": {SIZE: token_chain(0, tokens(number, tail), SIZE)}} if self.exact else {}
        self.ask(f"r{number}", PREFIX + tail, block_hashes=hashes, **more)

    def serve(self, count):
        """Let every prompt be computed in its time, until all `count` have gone somewhere."""
        done = set()
        while len(done) < count:
            sent = [n for n in range(count) if n not in done and self.decision(f"r{n}") != "wait"]
            assert sent, "somebody must be on his way"
            for n in sent:
                self.at(self.now_s + 0.05)
                self.prefilled(f"r{n}")
                done.add(n)
        return Counter(self.route(f"r{n}").prefill for n in range(count))


@pytest.mark.parametrize("exact", [False, True], ids=["approximate", "exact"])
class TestColdBursts:
    def test_the_first_takes_its_place_and_the_others_wait_for_it(self, exact):
        deck = Burst(exact)
        for number in range(4):
            deck.come(number)
        assert [deck.decision(f"r{n}") for n in range(4)].count("wait") == 3
        assert len(deck.serve(4)) == 1, "the prefix was computed once"

    def test_until_waiting_for_it_costs_more_than_the_prefix(self, exact):
        deck = Burst(exact)
        for number in range(40):
            deck.come(number, tail=1024)
        went = [deck.route(f"r{n}").prefill for n in range(40) if deck.decision(f"r{n}") != "wait"]
        assert 2 <= len(set(went)) == len(went), "a long line is worth another copy"
        assert len(set(went)) <= len(NAMES)

    def test_other_prefixes_go_elsewhere_meanwhile(self, exact):
        deck = Burst(exact)
        deck.come(0)
        deck.come(1)
        deck.ask("other", PREFIX, block_hashes=tuple(range(500_000, 500_050)))
        assert deck.decision("other") not in ("wait", deck.decision("r0"))

    def test_a_prefix_whose_first_prompt_fails_is_nobody_s(self, exact):
        deck = Burst(exact)
        deck.come(0)
        first = deck.route("r0").prefill
        deck.finish("r0", end=End.FAILED)
        deck.come(1)
        item = deck.scheduler.cached.tokens(deck.views["r1"])
        assert list(item) == [deck.route("r1").prefill], "what was to come from the first is not awaited"
        assert first in NAMES
