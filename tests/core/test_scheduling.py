"""The immediate scheduler: routes, refusals, accounting, and the cases that routing has to get right."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.contracts import Assign, Reject, Scheduler
from orchestrator.core.prefix import chain
from orchestrator.core.scheduling import ImmediateScheduler, least_work
from orchestrator.core.types import (
    End,
    Inflight,
    LegEvent,
    LegKind,
    Load,
    Outcome,
    PathKind,
    Role,
    Route,
    Snapshot,
)
from orchestrator.errors import AccountingError
from orchestrator.policy.build import build
from orchestrator.policy.testing import make_endpoint, make_request

NOTHING = Inflight()


def fleet(prefill=0, decode=0, unified=0, **fields):
    roles = ((Role.PREFILL, prefill), (Role.DECODE, decode), (Role.UNIFIED, unified))
    return [make_endpoint(f"{role.value[0]}{i}", role, **fields) for role, n in roles for i in range(n)]


def scheduler(endpoints, profile="priced", seed=0, **options):
    made = ImmediateScheduler(build(profile), rng=Random(seed), **options)
    made.observe(Snapshot(0.0, tuple(endpoints)), 0.0)
    return made


def decide(made, now_s=0.0, **fields):
    (decision,) = made.submit(make_request(**fields), now_s)
    assert decision.request_id == make_request(**fields).id
    return decision


def end(made, decision, now_s=0.0, **fields):
    outcome = Outcome(decision.request_id, End.COMPLETED, 200, route=decision.route, **fields)
    assert made.finish(outcome, now_s) == ()


def at_rest(made):
    return len(made.ledger) == 0 and all(e.inflight == NOTHING for e in made.ledger.snapshot(0.0).endpoints)


def test_it_is_a_scheduler():
    port: Scheduler = scheduler([])
    assert port.due_s() is None
    assert port.tick(1.0) == ()
    assert port.cancel("anything", 1.0) == ()


def test_a_pair_is_chosen_prefill_first_with_a_reason_for_each_side():
    decision = decide(scheduler(fleet(prefill=2, decode=2)))
    assert isinstance(decision, Assign)
    assert decision.route.prefill in ("p0", "p1")
    assert decision.route.decode in ("d0", "d1")
    assert [c.role for c in decision.why] == [Role.PREFILL, Role.DECODE]
    assert [c.chosen for c in decision.why] == [decision.route.prefill, decision.route.decode]


def test_decode_is_chosen_knowing_prefill(tmp_path):
    (tmp_path / "near.py").write_text(
        "class Near:\n"
        "    def filter(self, request, candidates, context):\n"
        "        return [c for c in candidates if c.labels['node'] == context.prefill.labels['node']]\n"
    )
    near = build({"decode": {"filters": ["./near.py:Near"]}}, tmp_path)
    endpoints = [
        make_endpoint(f"{role.value[0]}-{node}", role, labels={"node": node})
        for role in (Role.PREFILL, Role.DECODE)
        for node in ("n1", "n2", "n3")
    ]
    made = scheduler(endpoints)
    made.profile = near
    for i in range(20):
        route = decide(made, id=str(i)).route
        assert route.prefill[2:] == route.decode[2:]


def test_pairs_come_before_unified_which_take_what_no_pair_can():
    made = scheduler(fleet(prefill=1, decode=1, unified=1))
    assert decide(made).route == Route(decode="d0", prefill="p0")
    limited = {"decode": {"filters": [{"use": "queue-depth-limit", "max": 1}]}}
    made = scheduler(fleet(prefill=1, decode=1, unified=1), limited)
    assert decide(made, id="1").route.disaggregated
    assert decide(made, id="2").route == Route(decode="u0")


@pytest.mark.parametrize("sides", [{"prefill": 2}, {"decode": 2}])
def test_half_a_pair_serves_nothing_but_unified_do(sides):
    assert isinstance(decide(scheduler(fleet(**sides))), Reject)
    assert decide(scheduler(fleet(**sides, unified=1))).route == Route(decode="u0")


def test_nothing_ready_is_503_and_says_what_there_is():
    endpoints = [
        *fleet(prefill=2),
        *(make_endpoint(f"d{i}", Role.DECODE, ready=False) for i in range(3)),
        make_endpoint("x", Role.UNIFIED, model="other"),
    ]
    decision = decide(scheduler(endpoints))
    assert isinstance(decision, Reject)
    assert (decision.http_status, decision.reason, decision.retry_after_s) == (503, "no-capacity", None)
    assert "prefill 2 of 2, decode 0 of 3" in decision.message
    assert "no endpoint has this model" in decide(scheduler([])).message


def test_all_full_is_429_with_when_to_come_back_and_who_was_filtered_by_what():
    profile = {
        "prefill": {"filters": [{"use": "queue-depth-limit", "max": 1}]},
        "unified": {"filters": [{"use": "queue-depth-limit", "max": 1}]},
    }
    made = scheduler(fleet(prefill=2, decode=1, unified=1), profile)
    held = [decide(made, now_s=0.0, id=str(i)) for i in range(3)]
    decision = decide(made, now_s=1.0, id="late")
    assert isinstance(decision, Reject)
    assert (decision.http_status, decision.reason) == (429, "overloaded")
    assert "prefill: 2 by queue-depth-limit; unified: 1 by queue-depth-limit" in decision.message
    assert decision.retry_after_s == pytest.approx(10.0 / 3)
    end(made, held[0], now_s=30.0)
    assert isinstance(decide(made, now_s=30.0, id="again"), Assign)
    assert decide(made, now_s=30.0, id="later").retry_after_s == pytest.approx(30.0 / 3)


def test_a_full_decode_side_refuses_too():
    limited = {"decode": {"filters": [{"use": "queue-depth-limit", "max": 1}]}}
    made = scheduler(fleet(prefill=1, decode=2), limited)
    assert all(isinstance(decide(made, id=str(i)), Assign) for i in range(2))
    decision = decide(made, id="late")
    assert (decision.http_status, decision.reason) == (429, "overloaded")
    assert "decode: 2 by queue-depth-limit" in decision.message
    assert made.ledger.inflight("p0").requests == 2


def test_a_refused_request_holds_nothing_and_may_be_finished():
    made = scheduler([])
    decision = decide(made)
    made.finish(Outcome(decision.request_id, End.REFUSED, 503), 0.0)
    assert at_rest(made)


def test_only_endpoints_that_serve_the_path_are_candidates():
    asked = []

    def serves(kind, endpoint):
        asked.append((kind, endpoint.id))
        return kind is PathKind.CHAT or endpoint.role is Role.UNIFIED

    made = scheduler(fleet(prefill=1, decode=1, unified=1), serves=serves)
    assert decide(made, id="1", path=PathKind.CHAT).route.disaggregated
    for i in range(5):
        assert decide(made, id=f"m{i}", path=PathKind.MESSAGES).route == Route(decode="u0")
    assert len(asked) == 6  # once for each kind and endpoint, until the endpoints are observed again
    made = scheduler(fleet(prefill=1, decode=1), serves=serves)
    assert decide(made, path=PathKind.MESSAGES).http_status == 503


@pytest.mark.parametrize("kind", [PathKind.TOKENIZE, PathKind.EMBED])
def test_what_is_never_handed_off_goes_to_any_one_endpoint_that_serves_it(kind):
    made = scheduler(fleet(prefill=1, decode=1), serves=lambda kind, endpoint: endpoint.id == "p0")
    decision = decide(made, path=kind, prompt_tokens=1000, max_tokens=0)
    assert decision.route == Route(decode="p0")
    held = Inflight(1, 0, 0) if kind is PathKind.TOKENIZE else Inflight(1, 1000, 1000)
    assert made.ledger.inflight("p0") == held
    cached = made.prefix.cached_blocks("p0", make_request().block_hashes)
    assert cached == (0 if kind is PathKind.TOKENIZE else 8)
    end(made, decision)
    assert at_rest(made)


def test_endpoints_to_avoid_are_used_only_where_there_is_no_other():
    made = scheduler(fleet(prefill=2, decode=2))
    for i in range(10):
        route = decide(made, id=str(i), avoid=("p0", "d1")).route
        assert (route.prefill, route.decode) == ("p1", "d0")
    made = scheduler(fleet(prefill=1, decode=2))
    route = decide(made, avoid=("p0", "d1")).route
    assert (route.prefill, route.decode) == ("p0", "d0")
    made = scheduler(fleet(prefill=1, decode=1, unified=1))
    assert decide(made, avoid=("p0",)).route == Route(decode="u0")


def test_legs_release_what_they_are_done_with():
    made = scheduler(fleet(prefill=1, decode=1))
    decision = decide(made, prompt_tokens=1000, max_tokens=100, block_hashes=())

    def tell(leg, what):
        event = LegEvent(decision.request_id, leg, "x", what, 0.0)
        assert made.progress(event, 0.0) == ()
        return made.ledger.inflight("p0"), made.ledger.inflight("d0")

    decoding = Inflight(1, 0, 1100)
    assert tell(LegKind.PREFILL, "sent") == (Inflight(1, 1000, 1000), decoding)
    assert tell(LegKind.DECODE, "sent") == (Inflight(1, 1000, 1000), decoding)
    assert tell(LegKind.PREFILL, "done") == (Inflight(0, 0, 1000), decoding)
    assert tell(LegKind.DECODE, "first_token") == (NOTHING, decoding)
    assert tell(LegKind.PREFILL, "done") == (NOTHING, decoding)  # SGLang's may answer after the first token
    assert tell(LegKind.DECODE, "failed") == (NOTHING, decoding)
    end(made, decision)
    assert tell(LegKind.PREFILL, "done") == (NOTHING, NOTHING)  # after the end it changes nothing
    assert at_rest(made)


def test_a_unified_endpoints_prompt_is_computed_by_the_first_token():
    made = scheduler(fleet(unified=1))
    decision = decide(made, prompt_tokens=1000, max_tokens=100, block_hashes=())
    made.progress(LegEvent(decision.request_id, LegKind.UNIFIED, "u0", "first_token", 0.0), 0.0)
    assert made.ledger.inflight("u0") == Inflight(1, 0, 1100)


def test_finishing_what_is_not_in_flight_is_an_error_and_never_hidden():
    made = scheduler(fleet(unified=1))
    decision = decide(made)
    end(made, decision)
    with pytest.raises(AccountingError):
        end(made, decision)
    told = []
    made = scheduler(fleet(unified=1), on_accounting_error=told.append)
    end(made, decision)
    assert [type(error) for error in told] == [AccountingError]


def test_a_request_in_flight_cannot_be_submitted_again_but_a_failed_one_can():
    made = scheduler(fleet(unified=2))
    first = decide(made)
    with pytest.raises(AccountingError):
        made.submit(make_request(), 0.0)
    end(made, first)
    assert decide(made, avoid=(first.route.decode,)).route != first.route


def test_cached_blocks_are_no_work():
    made = scheduler(fleet(unified=1))
    end(made, decide(made, id="1", prompt_tokens=1050))
    decide(made, id="2", prompt_tokens=1050)  # eight blocks of 128 are there by now
    assert made.ledger.inflight("u0").prefill_tokens == 1050 - 8 * 128


def test_affinity_follows_the_prefix():
    made = scheduler(fleet(prefill=8, decode=1))
    prompt = bytes(range(256)) * 128
    first = decide(made, id="1", prompt_tokens=8192, block_hashes=chain(1, prompt, 512))
    end(made, first)
    longer = chain(1, prompt + b"and then another turn" * 100, 512)
    for i in range(5):
        decision = decide(made, id=f"turn{i}", prompt_tokens=8700, block_hashes=longer)
        assert decision.route.prefill == first.route.prefill
        end(made, decision)


def test_case_31_a_cache_miss_goes_to_the_least_loaded():
    """Case 31: not to the endpoint with the smallest index, which may be the busiest."""
    made = scheduler(fleet(prefill=4, decode=1))
    for i in range(3):
        decide(made, id=f"busy{i}", prompt_tokens=20_000, block_hashes=())
    busy = {e.id for e in made.ledger.snapshot(0.0).endpoints if e.inflight.prefill_tokens}
    assert len(busy) == 3
    assert decide(made, id="new", prompt_tokens=100, block_hashes=()).route.prefill not in busy


def test_case_31_a_prefix_that_all_share_does_not_draw_all_to_one_endpoint():
    """Case 31, the other way round: with affinity outweighed by load, the hot prefix spreads."""
    made = scheduler(fleet(prefill=4, decode=1))
    hot = chain(1, bytes(32_768), 512)
    for i in range(400):
        decide(made, id=str(i), prompt_tokens=9000, block_hashes=hot)
    counts = [made.ledger.inflight(f"p{i}").requests for i in range(4)]
    assert min(counts) > 60


def test_case_33_a_burst_between_two_reports_spreads():
    """Case 33: all endpoints report the same, once; the router adds what it gave since."""
    load = Load(0.0, running=10, waiting=5, kv_used_tokens=50_000, kv_total_tokens=500_000)
    for profile in ("priced", "least-requests"):
        made = scheduler(fleet(prefill=4, decode=4, load=load), profile)
        for i in range(40):
            decide(made, id=str(i), prompt_tokens=2000, block_hashes=())
        assert [made.ledger.inflight(f"{s}{i}").requests for s in "pd" for i in range(4)] == [10] * 8


def test_case_34_work_is_counted_in_tokens_not_requests():
    """Case 34: one long prompt weighs as much as many short ones."""
    made = scheduler(fleet(prefill=2, decode=1))
    long = decide(made, id="long", prompt_tokens=30_000, block_hashes=()).route.prefill
    for i in range(20):
        assert decide(made, id=str(i), prompt_tokens=200, block_hashes=()).route.prefill != long


def test_case_36_what_an_engine_reports_is_held_against_what_was_believed():
    """It evicted everything and nobody told: the next report does, and the one after is predicted right."""
    made = scheduler(fleet(unified=1, block_size=16))
    for i, (found, believed) in enumerate([(0, 0), (1024, 1024), (0, 1024), (1024, 1024)]):
        request_id = f"{i:032x}"
        decision = decide(made, id=request_id, prompt_tokens=1050)
        assert made.ledger.inflight("u0").prefill_tokens == 1050 - believed
        made.progress(LegEvent(request_id, LegKind.UNIFIED, "u0", "first_token", 1.0), 1.0)
        done = Outcome(
            request_id, End.COMPLETED, 200, route=decision.route, prompt_tokens=1050, cached_tokens=found
        )
        made.finish(done, 2.0)
    checked = made.cached.checked["u0"]
    assert (checked.requests, checked.reported, checked.predicted) == (4, 2048, 3072)
    assert checked.wrong == 1024
    assert made.prefix.capacity("u0") < 16_384


def test_case_36_a_restarted_engine_is_not_preferred_for_what_its_predecessor_cached():
    """Case 36."""
    made = scheduler(fleet(unified=2, incarnation="1"))
    first = decide(made)
    end(made, first)
    there = first.route.decode
    assert made.prefix.cached_blocks(there, make_request().block_hashes) == 8
    made.observe(Snapshot(1.0, tuple(fleet(unified=2, incarnation="1"))), 1.0)
    assert made.prefix.cached_blocks(there, make_request().block_hashes) == 8
    made.observe(Snapshot(2.0, tuple(fleet(unified=2, incarnation="2"))), 2.0)
    assert made.prefix.cached_blocks(there, make_request().block_hashes) == 0


def test_an_endpoint_that_left_is_forgotten():
    made = scheduler(fleet(unified=1))
    end(made, decide(made))
    made.observe(Snapshot(1.0, ()), 1.0)
    assert made.prefix.blocks("u0") == 0
    assert isinstance(decide(made), Reject)


def test_the_index_is_bounded_by_the_endpoints_memory():
    made = scheduler(fleet(unified=1, load=Load(0.0, kv_total_tokens=5 * 128 + 1)))
    decide(made)
    assert made.prefix.blocks("u0") == 5


def test_a_broken_policy_costs_no_request_and_is_counted(tmp_path):
    (tmp_path / "bad.py").write_text(
        "class Bad:\n"
        "    unit = 'share'\n"
        "    def score(self, request, candidates, context):\n"
        "        return [1 / 0]\n"
    )
    told = []
    made = ImmediateScheduler(
        build({"unified": {"scorers": ["./bad.py:Bad"]}}, tmp_path),
        rng=Random(0),
        on_policy_error=lambda name, error: told.append((name, str(error))),
    )
    made.observe(Snapshot(0.0, tuple(fleet(unified=3))), 0.0)
    decisions = [decide(made, id=str(i), block_hashes=()) for i in range(30)]
    assert all(d.why[0].fallbacks == ("./bad.py:Bad",) for d in decisions)
    said = f"policy ./bad.py:Bad: ZeroDivisionError: division by zero ({tmp_path / 'bad.py'}:4)"
    assert told == [("./bad.py:Bad", said)] * 30
    assert [made.ledger.inflight(f"u{i}").requests for i in range(3)] == [10, 10, 10]


def test_least_work_is_reached_where_it_is_named():
    assert least_work([make_endpoint("a")], Random(0)).id == "a"


@pytest.mark.parametrize("profile", ["priced", "round-robin", "least-requests", "random"])
def test_every_shipped_profile_uses_every_endpoint_and_comes_to_rest(profile):
    made = scheduler(fleet(prefill=3, decode=3), profile)
    decisions = [decide(made, id=str(i), block_hashes=()) for i in range(60)]
    assert {d.route.prefill for d in decisions} == {"p0", "p1", "p2"}
    assert {d.route.decode for d in decisions} == {"d0", "d1", "d2"}
    assert all(not c.fallbacks for d in decisions for c in d.why)
    for decision in decisions:
        end(made, decision)
    assert at_rest(made)


def test_the_same_seed_decides_the_same():
    def routes(seed):
        made = scheduler(fleet(prefill=4, decode=4), "random", seed)
        return [decide(made, id=str(i)).route for i in range(50)]

    assert routes(1) == routes(1)
    assert routes(1) != routes(2)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "prefill", "token", "finish", "observe"]),
        st.integers(0, 7),
        st.sampled_from(list(PathKind)),
        st.integers(0, 5000),
    ),
    max_size=80,
)


@given(ACTIONS, st.sampled_from(["priced", "round-robin"]))
def test_case_32_whatever_happens_every_request_is_decided_once_and_sums_return_to_zero(actions, profile):
    """Case 32: there is no path around the accounting."""
    made = scheduler(fleet(prefill=2, decode=2, unified=1), profile)
    live = {}
    for now, (what, which, path, tokens) in enumerate(actions):
        request_id = str(which)
        if what == "submit" and request_id not in live:
            live[request_id] = decide(made, float(now), id=request_id, path=path, prompt_tokens=tokens)
            assert isinstance(live[request_id], Assign)
        elif what == "observe":
            changed = fleet(prefill=1 + which % 2, decode=2, unified=1, incarnation=str(which))
            made.observe(Snapshot(float(now), tuple(changed)), float(now))
        elif what == "prefill":
            made.progress(LegEvent(request_id, LegKind.PREFILL, "p0", "done", now), float(now))
        elif what == "token":
            made.progress(LegEvent(request_id, LegKind.DECODE, "d0", "first_token", now), float(now))
        elif what == "finish" and request_id in live:
            end(made, live.pop(request_id), float(now))
    for decision in live.values():
        end(made, decision)
    made.observe(Snapshot(0.0, tuple(fleet(prefill=2, decode=2, unified=1))), 0.0)
    assert at_rest(made)
