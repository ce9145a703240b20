"""The index by KV events: whom it knows, how much each holds, and when it is not to be trusted."""

from array import array
from dataclasses import replace

import pytest

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.kvevents import BlocksCleared, BlocksRemoved, BlocksStored, Tier
from orchestrator.core.kvindex import EXACT, OVERFULL, UNPROVEN, WRONG, KvIndex
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.types import End, Outcome
from orchestrator.policy.testing import make_request

SIZE = 16


def packed(tokens):
    return array("I", tokens).tobytes()


def request(tokens, sizes=(SIZE,), **more):
    chains = {size: token_chain(0, packed(tokens), size) for size in sizes}
    return replace(make_request(prompt_tokens=len(tokens), **more), chains=chains)


def stored(tokens, first=1, **more):
    hashes = range(first, first + len(tokens) // SIZE)
    return BlocksStored(hashes, more.pop("parent", None), packed(tokens), SIZE, **more)


def index(*names, whole=True, capacity=100_000, **more):
    made = KvIndex(**more)
    for name in names or ("p0",):
        made.open(name, SIZE, capacity)
        made.reset(name, whole=whole)
    return made


def test_who_is_known_from_the_beginning_is_gone_by():
    made = index("p0", "p1")
    made.apply("p0", [stored(range(64))])
    found = {"p1": 48, "d0": 7}
    made.correct(request(range(80)), found)
    assert found == {"p0": 64, "d0": 7}, "p1 holds nothing, whatever was believed; of d0 nothing is told"
    assert made.held("p0", request(range(80))) == 64
    assert made.held("d0", request(range(80))) is None
    assert made.held("p0", make_request()) is None


def test_the_last_token_is_never_found():
    made, found = index(), {}
    made.apply("p0", [stored(range(64))])
    made.correct(request(range(64)), found)
    assert found == {"p0": 63}


def test_what_is_coming_counts_as_there_until_it_is_told_of():
    made, asked = index(), request(range(100))
    coming = made.sent("p0", request([*range(64), 7, 8]))
    found = {}
    made.correct(asked, found)
    assert found == {"p0": 64}
    assert made.held("p0", asked, sure=True) == 0
    made.apply("p0", [stored(range(16))])
    assert made.held("p0", asked) == 64, "only a part of it is computed"
    made.computed("p0", coming)
    assert made.held("p0", asked) == made.held("p0", asked, sure=True) == 64, "its event is on its way"
    made.apply("p0", [stored(range(16, 48), first=2, parent=1)])
    assert made.held("p0", asked) == 48, "what it has told since is what there is"


def test_what_was_never_computed_is_not_coming():
    made, asked = index(), request(range(100))
    made.lost("p0", made.sent("p0", asked))
    assert made.held("p0", asked) == 0
    made.computed("p0", made.sent("p0", asked))
    made.apply("p0", [BlocksCleared()])
    assert made.held("p0", asked) == 0
    assert made.sent("d0", asked) is None
    assert made.sent("p0", make_request()) is None


def test_each_endpoint_is_asked_in_blocks_of_its_own_size():
    made = index("p0")
    made.open("p1", 32, None)
    made.reset("p1", whole=True)
    made.apply("p1", [BlocksStored([5], None, packed(range(32)), 32)])
    made.apply("p0", [stored(range(16))])
    found = {}
    made.correct(request(range(64), made.sizes), found)
    assert made.sizes == (16, 32)
    assert found == {"p0": 16, "p1": 32}
    made.close("p0")
    assert made.sizes == (32,)


def test_clear_empties_and_other_tiers_and_groups_of_layers_do_not_count():
    made, prompt = index(), request(range(64))
    made.apply("p0", [stored(range(32)), stored(range(32), tier=Tier.HOST)])
    made.apply("p0", [BlocksRemoved([1, 2], Tier.HOST), BlocksRemoved([1, 2], group=1)])
    assert made.held("p0", prompt) == 32
    made.apply("p0", [BlocksCleared(), stored(range(16), first=8)])
    assert made.held("p0", prompt) == 16


def tiered(*events):
    made = index()
    made.apply("p0", [stored(range(128)), *events])
    return made


def copied(blocks, tier, first=1):
    """As engines tell of a copy: by its hashes alone."""
    return BlocksStored(range(first, first + blocks), None, b"", 0, tier)


def test_blocks_on_slower_tiers_are_known_behind_those_on_the_device():
    made = tiered(copied(6, Tier.HOST), copied(8, Tier.STORAGE), BlocksRemoved([8, 7, 6, 5]))
    asked, found = request(range(200)), {}
    assert made.tiers
    made.correct(asked, found)
    assert found == {"p0": 64}
    (behind,) = made.behind(asked).values()
    assert (behind.held, behind.slow) == (64, [(Tier.HOST, 32), (Tier.STORAGE, 32)])
    assert made.held("p0", asked) == 128, "what the engine will report"


def test_a_copy_of_what_nobody_has_told_of_is_nothing():
    made = tiered(copied(4, Tier.HOST, first=100))
    assert made.behind(request(range(200))) == {}


def test_a_chain_may_go_on_on_another_tier():
    """Its tokens come with it, but what it follows is elsewhere."""
    more = BlocksStored([9, 10], 8, packed(range(128, 160)), SIZE, Tier.HOST)
    made = tiered(more, BlocksStored([11], 10, packed(range(160, 176)), SIZE))
    (behind,) = made.behind(request(range(200))).values()
    assert (behind.held, behind.slow) == (128, [(Tier.HOST, 32)])


def test_what_leaves_a_tier_or_is_cleared_is_there_no_more():
    made = tiered(copied(8, Tier.HOST), BlocksRemoved([8, 7, 6, 5]), BlocksRemoved([8, 7], Tier.HOST))
    (behind,) = made.behind(request(range(200))).values()
    assert behind.slow == [(Tier.HOST, 32)]
    made.apply("p0", [BlocksCleared()])
    assert made.behind(request(range(200))) == {}


def test_one_that_is_not_gone_by_tells_of_no_tier():
    made = index(whole=False)
    made.apply("p0", [stored(range(128)), copied(8, Tier.HOST), BlocksRemoved([8, 7, 6, 5])])
    assert made.behind(request(range(200))) == {}


def test_who_is_known_from_the_middle_must_first_prove_itself():
    made, prompt = index(whole=False), request(range(64))
    made.apply("p0", [stored(range(64))])
    assert not made.exact("p0")
    found = {"p0": 5}
    made.correct(prompt, found)
    assert found == {"p0": 5}, "the approximate index is gone by"
    for _ in range(40):
        made.check("p0", 48, 48, 64)
    assert made.exact("p0")


def test_one_that_is_wrong_is_dropped_told_anew_and_must_prove_itself():
    made, dropped = index(max_error=0.1), []
    made.on_drop = dropped.append
    made.apply("p0", [stored(range(64))])
    for _ in range(30):
        made.check("p0", 64, 62, 64)
    assert made.exact("p0"), "3 % is within the bound"
    assert dropped == []
    while not dropped:
        made.check("p0", 64, 0, 64)
    assert dropped == ["p0"]
    holder = made.holders["p0"]
    assert (holder.state, holder.drops, len(holder.blocks), holder.error) == (WRONG, 1, 0, None)
    made.reset("p0", whole=True)
    assert holder.state == UNPROVEN, "the same history has misled it once"
    for _ in range(40):
        made.check("p0", 64, 64, 64)
    assert holder.state == EXACT


def test_a_single_odd_report_drops_nothing():
    made = index()
    made.check("p0", 64, 0, 64)
    for _ in range(40):
        made.check("p0", 64, 64, 64)
    assert made.exact("p0")


def test_more_blocks_than_its_memory_has_are_a_sign_that_events_were_lost():
    made = index(capacity=SIZE * 8)
    made.apply("p0", [stored(range(16 * 10))])
    assert made.exact("p0")
    made.apply("p0", [stored(range(1000, 1000 + 16 * 10), first=50)])
    assert made.holders["p0"].state == OVERFULL


def test_events_of_one_that_was_closed_change_nothing():
    made = index()
    made.close("p0")
    made.apply("p0", [stored(range(64))])
    made.reset("p0", whole=True)
    made.check("p0", 1, 1, 1)
    assert made.holders == {}


def test_what_contradicts_itself_is_said():
    with pytest.raises(ValueError, match="tokens"):
        index().apply("p0", [BlocksStored([1, 2], None, packed(range(16)), 16)])


# With the approximate index, as schedulers use both.


def both(whole=True):
    check = PrefixCheck(PrefixIndex(), 128)
    check.exact.open("p0", SIZE, None)
    check.exact.reset("p0", whole=whole)
    return check


def outcome(request, cached):
    return Outcome(request.id, End.COMPLETED, 200, prompt_tokens=request.prompt_tokens, cached_tokens=cached)


def ask(tokens, n, hashes):
    return request(tokens, id=f"r{n}", block_hashes=hashes)


HASHES = tuple(range(900, 908))


def test_what_was_sent_counts_until_it_is_computed_then_what_is_told():
    check, tokens = both(), list(range(1024))
    first, second = ask(tokens, 1, HASHES), ask(tokens, 2, HASHES)
    assert check.tokens(first) == {}
    assert check.sent(first, "p0", SIZE) == 0
    assert check.tokens(second) == {"p0": 1023}, "on its way: it will be there"
    check.computed(first.id)
    assert check.tokens(second) == {"p0": 1023}, "computed: its event is on its way"
    check.exact.apply("p0", [BlocksRemoved([77])])
    assert check.tokens(second) == {}, "an event has come, and does not say that it is kept"
    check.exact.apply("p0", [stored(tokens[:512])])
    assert check.tokens(second) == {"p0": 512}
    assert check.sent(second, "p0", SIZE) == 512


def test_policies_read_the_same_in_the_blocks_they_know():
    check, tokens = both(), list(range(1024))
    asked = ask(tokens, 1, HASHES)
    check.exact.apply("p0", [stored(tokens[:512])])
    reader = check.reader(asked)
    assert reader.cached_blocks("p0", asked.block_hashes) == 4
    assert reader.cached_blocks("p1", asked.block_hashes) == 0
    assert reader.cached_blocks("p0", (1, 2)) == 0, "of another prompt the approximate index tells"
    assert check.reader(make_request()) is check.index
    check.exact.apply("p0", [stored(tokens[512:], first=500, parent=32)])
    assert check.reader(asked).cached_blocks("p0", asked.block_hashes) == 8


def test_reports_are_held_against_what_was_told_and_a_wrong_index_steps_back():
    check, tokens = both(), list(range(1024))
    check.exact.apply("p0", [stored(tokens)])
    for n in range(20):
        asked = ask(tokens, n, HASHES)
        assert check.sent(asked, "p0", SIZE) == 1008
        check.computed(asked.id)
        check.ended(outcome(asked, 1008))
    assert check.exact.holders["p0"].error == 0.0
    for n in range(20):
        asked = ask(tokens, n, HASHES)
        check.sent(asked, "p0", SIZE)
        check.computed(asked.id)
        check.ended(outcome(asked, 0))
    assert not check.exact.exact("p0")
    assert check.exact.holders["p0"].drops == 1
