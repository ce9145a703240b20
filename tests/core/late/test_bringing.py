"""Tokens on slower tiers: they count for what bringing them back saves, as is learned by endpoint."""

from __future__ import annotations

from typing import Any

import pytest
from late import MS, Deck, decodes, prefills

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.kvevents import BlocksRemoved, BlocksStored, Tier
from orchestrator.core.late.bringing import PRIOR, Bringing, Brought
from orchestrator.core.prediction import Curve

SIZE, TOKENS = 16, 2048
CURVE = Curve(MS)
PROMPT = b"".join((7 + n).to_bytes(4, "little") for n in range(TOKENS))
HASHES = list(range(1, TOKENS // SIZE + 1))


class Tiered(Deck):
    """Two prefill endpoints that tell of their caches; `p0` has the prompt, but on a slower tier."""

    def __init__(self, tier: Tier = Tier.HOST, **facts: Any) -> None:
        super().__init__([*prefills("p0", "p1", **facts), *decodes("d0")])
        self.index = self.scheduler.cached.exact
        for name in ("p0", "p1"):
            self.index.open(name, SIZE, None)
            self.index.reset(name, whole=True)
        self.index.apply("p0", [BlocksStored(HASHES, None, PROMPT, SIZE)])
        self.index.apply("p0", [BlocksStored(HASHES, None, b"", 0, tier), BlocksRemoved(HASHES[::-1])])

    def come(self, name: str) -> None:
        chains = {SIZE: token_chain(0, PROMPT, SIZE)}
        self.ask(name, TOKENS + 64, chains=chains, block_hashes=tuple(range(TOKENS // 128)))

    def work_s(self, name: str) -> float:
        """Of prefill, as predicted when it was sent."""
        return float(self.made[name][-1].predicted.prefill_s)  # type: ignore[union-attr]


def test_what_can_be_brought_back_is_worth_going_for() -> None:
    deck = Tiered()
    deck.come("r")
    assert deck.decision("r") == "->p0/d0"
    # 64 tokens are new, and bringing back takes a twentieth of computing.
    assert deck.work_s("r") == pytest.approx(64 * MS + PRIOR[Tier.HOST] * TOKENS * MS, rel=0.02)


def test_storage_is_slower_than_host_memory() -> None:
    host, storage = Tiered(), Tiered(Tier.STORAGE)
    for deck in (host, storage):
        deck.come("r")
    assert host.work_s("r") < storage.work_s("r") < (TOKENS + 64) * MS


def test_how_long_it_takes_is_learned() -> None:
    """An engine that takes as long as computing: in the end the tokens count for nothing."""
    deck = Tiered()
    for number in range(40):
        name = f"r{number}"
        deck.come(name)
        route = deck.route(name)
        takes_s = (TOKENS + 64) * MS
        deck.at(deck.now_s + takes_s)
        deck.prefilled(name)
        deck.first(name)
        deck.finish(name)
        # It leaves the device again at once.
        deck.index.apply(route.prefill or "", [])
        if route.prefill == "p1":
            break
    assert deck.route(name).prefill == "p1" or deck.work_s(name) > 0.9 * TOKENS * MS


def test_a_rate_is_one_endpoints_and_lasts_no_longer_than_its_process() -> None:
    bringing = Bringing()
    brought = Brought(Tier.HOST, 1000, 1000)
    for _ in range(60):
        bringing.learn("p0", brought, CURVE, 1100, 0.1 + 0.5)
    assert bringing.token_s("p0", Tier.HOST, CURVE) == pytest.approx(0.0005, rel=0.01)
    assert bringing.token_s("p1", Tier.HOST, CURVE) == PRIOR[Tier.HOST] * MS
    bringing.forget("p0")
    assert bringing.token_s("p0", Tier.HOST, CURVE) == PRIOR[Tier.HOST] * MS


def test_where_computing_is_faster_they_count_for_nothing() -> None:
    deck = Tiered()
    bringing = deck.scheduler._tracking.bringing
    for _ in range(60):
        bringing.learn("p0", Brought(Tier.HOST, TOKENS, TOKENS), CURVE, TOKENS + 64, 5.0)
    deck.come("r")
    assert deck.work_s("r") == pytest.approx((TOKENS + 64) * MS)
