"""Believed hits against reported ones: tokens and pages, what a report corrects, the ceiling, the figures."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck, Seen, cached_tokens, share
from orchestrator.core.types import End, Outcome, PathKind, RequestView, Route

BLOCK = 128
IDS = (f"{i:032x}" for i in range(1_000_000))
ROUTE = Route(decode="d0", prefill="p0")


def request(blocks: Sequence[int], tokens: int | None = None, **more: object) -> RequestView:
    if tokens is None:
        tokens = BLOCK * len(blocks) + 50
    fields = {"model": "m", "path": PathKind.CHAT, "arrived_s": 0.0, "max_tokens": 16, **more}
    return RequestView(id=next(IDS), prompt_tokens=tokens, block_hashes=tuple(blocks), **fields)


def told(
    view: RequestView, cached: int | None, prompt: int | None = None, end: End = End.COMPLETED
) -> Outcome:
    return Outcome(view.id, end, 200, route=ROUTE, prompt_tokens=prompt, cached_tokens=cached)


class Engine:
    """An engine's own prefix cache, which tells what it found; it counts a fifth fewer tokens."""

    page = 16

    def __init__(self, blocks: int) -> None:
        self.capacity = blocks
        self.held: OrderedDict[int, None] = OrderedDict()

    def serve(self, view: RequestView) -> Outcome:
        found = 0
        for block in view.block_hashes:
            if block not in self.held:
                break
            found += 1
        for block in reversed(view.block_hashes):
            self.held[block] = None
            self.held.move_to_end(block)
        while len(self.held) > self.capacity:
            self.held.popitem(last=False)
        prompt = int(0.8 * view.prompt_tokens)
        cached = min(int(0.8 * BLOCK * found), prompt - 1)
        return told(view, cached - cached % self.page, prompt)


def prompts(number: int, seed: int = 1) -> Iterator[tuple[int, ...]]:
    """Conversations: each prompt goes on where an earlier one ended, or begins anew."""
    rng = Random(seed)
    known: list[tuple[int, ...]] = [()]
    for _ in range(number):
        before = rng.choice(known[-30:])
        prompt = (*before, *(rng.getrandbits(64) for _ in range(rng.randrange(1, 12))))
        known.append(prompt)
        yield prompt


# -- tokens


def test_a_prompt_that_is_cached_whole_computes_its_last_page_all_the_same():
    view = request(range(4), tokens=4 * BLOCK)
    assert cached_tokens(view, 4, BLOCK) == 4 * BLOCK - 1
    assert cached_tokens(view, 4, BLOCK, 16) == 4 * BLOCK - 16
    assert cached_tokens(view, 4, BLOCK, 64) == 4 * BLOCK - 64
    assert cached_tokens(view, 3, BLOCK, 64) == 3 * BLOCK
    assert cached_tokens(view, 3, BLOCK, 100) == 300
    assert cached_tokens(view, 0, BLOCK, 16) == 0


def test_blocks_of_token_ids_have_fewer_tokens_than_blocks_of_text():
    ids = request(range(10), tokens=700)
    assert cached_tokens(ids, 5, BLOCK) == 350
    assert cached_tokens(ids, 10, BLOCK) == 699
    assert cached_tokens(request((), tokens=3), 0, BLOCK) == 0


# -- what is believed, and what corrects it


def test_what_is_sent_is_believed_from_then_on():
    check = PrefixCheck(PrefixIndex(), BLOCK)
    assert check.sent(request(range(1, 9)), "p0", 16) == 0
    assert check.sent(request(range(1, 9)), "p0", 16) == 8 * BLOCK
    assert check.sent(request(range(1, 9)), "p1", 16) == 0
    assert check.sent(request(range(1, 9), path=PathKind.TOKENIZE), "p0", 16) == 0
    assert check.sent(request(()), "p0", 16) == 0


def test_a_prompt_that_failed_before_it_was_computed_is_not_believed():
    check = PrefixCheck(PrefixIndex(), BLOCK)
    for end in (End.FAILED, End.CANCELLED):
        view = request(range(1, 9))
        check.sent(view, "p0", 16)
        check.ended(told(view, None, end=end))
        assert check.index.cached_blocks("p0", range(1, 9)) == 0
    view = request(range(1, 9))
    check.sent(view, "p0", 16)
    check.computed(view.id)
    check.ended(told(view, None, end=End.CANCELLED))
    assert check.index.cached_blocks("p0", range(1, 9)) == 8
    check.computed("never-sent")
    check.ended(Outcome("never-sent", End.REFUSED, 429))


@pytest.mark.parametrize("cached", [512, 528, 500, 490])
def test_a_report_that_is_near_enough_changes_nothing(cached):
    check = PrefixCheck(PrefixIndex(100), BLOCK)
    for _ in range(2):
        view = request(range(4), tokens=600)
        check.sent(view, "p0", 16)
        check.ended(told(view, cached, 600))
    assert check.index.capacity("p0") == 100


def test_case_36_an_engine_that_flushed_its_cache_is_found_out():
    """Nobody told: no new incarnation, only reports of less than was believed."""
    check, engine = PrefixCheck(PrefixIndex(1000), BLOCK), Engine(1000)

    def serve(blocks: Sequence[int]) -> int:
        view = request(blocks)
        predicted = check.sent(view, "p0", engine.page)
        check.ended(engine.serve(view))
        return predicted

    old = list(prompts(80))
    for blocks in old:
        serve(blocks)
    believed = check.index.blocks("p0")
    engine.held.clear()
    assert serve(old[0]) > 0  # the first one that comes back is believed, and was wrong
    assert check.index.blocks("p0") < believed
    for blocks in old[1:12]:
        serve(blocks)
    now = {blocks: check.index.cached_blocks("p0", blocks) for blocks in old}
    real = {blocks: sum(b in engine.held for b in blocks) for blocks in old}
    assert sum(now.values()) <= 1.3 * sum(real.values())


def test_case_36_predictions_are_checked_against_reports_and_the_share_of_errors_is_told():
    """An engine that keeps half of what its memory would hold: errors become rare, and are counted."""
    check, engine = PrefixCheck(PrefixIndex(400), BLOCK), Engine(200)
    early = 0.0
    for number, blocks in enumerate(prompts(3000)):
        view = request(blocks)
        check.sent(view, "p0", engine.page)
        check.ended(engine.serve(view))
        if number == 300:
            early = share(check.checked) or 0.0
    figures = check.checked["p0"]
    assert figures.requests == 3000
    assert 0 < figures.reported < figures.prompt
    assert figures.predicted == pytest.approx(figures.reported, rel=0.1)
    final = share(check.checked)
    assert final is not None
    assert final <= max(0.05, early)
    assert 150 <= check.index.capacity("p0") <= 270


def test_several_prompts_in_one_request_correct_nothing():
    check = PrefixCheck(PrefixIndex(100), BLOCK)
    for _ in range(2):
        view = request(range(1, 9), n=3)
        check.sent(view, "p0", 16)
        check.ended(told(view, 0, 1000))
    assert check.index.capacity("p0") == 100
    assert check.checked == {}
    assert share(check.checked) is None


# -- the ceiling


def test_what_anybody_sent_before_is_seen():
    seen = Seen(bits=10)
    assert seen.leading(range(1, 21)) == 0
    assert seen.leading(range(1, 21)) == 20
    assert seen.leading(range(1, 100)) == 20
    assert seen.leading((*range(1, 12), 200, 201)) == 8  # of every four blocks the last is known
    assert seen.leading((1, 2, 3, 30, 31)) == 3
    assert seen.leading((40, 41), least=2) == 2
    assert seen.leading(()) == 0


def test_it_forgets_the_oldest_and_stays_as_large_as_it_is():
    seen, rng = Seen(bits=8), Random(2)
    first = [rng.getrandbits(64) for _ in range(10)]
    seen.leading(first)
    for _ in range(500):
        seen.leading([rng.getrandbits(64) for _ in range(10)])
    assert seen.leading(first) == 0


def test_the_ceiling_is_what_one_endless_shared_cache_would_have_had():
    check = PrefixCheck(PrefixIndex(), BLOCK)
    for endpoint in ("p0", "p1", "p0"):
        view = request(range(1, 9))
        check.sent(view, endpoint, 16)
        check.ended(told(view, 8 * BLOCK if check.hits and endpoint == "p0" else 0, view.prompt_tokens))
    hits = check.hits["m"]
    assert hits.ceiling == 2 * 8 * BLOCK
    assert hits.hit == 8 * BLOCK
    assert hits.prompt == 3 * (8 * BLOCK + 50)


def test_a_second_attempt_has_not_seen_itself():
    check = PrefixCheck(PrefixIndex(), BLOCK)
    view = request(range(1, 9))
    check.sent(view, "p0", 16)
    check.ended(told(view, None, end=End.FAILED))
    again = request(range(1, 9), avoid=("p0",))
    check.sent(again, "p1", 16)
    check.ended(told(again, None))
    assert check.hits["m"].ceiling == 0


def test_hits_that_nobody_reports_are_counted_as_predicted():
    check = PrefixCheck(PrefixIndex(), BLOCK)
    for _ in range(2):
        view = request(range(1, 9))
        check.sent(view, "p0", 16)
        check.ended(told(view, None))
    assert check.hits["m"].hit == check.hits["m"].ceiling == 8 * BLOCK
    assert check.checked == {}
