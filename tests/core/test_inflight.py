"""The ledger: what each step holds and releases, that sums return to zero, and that misuse is an error."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.inflight import EXPECTED_OUTPUT_TOKENS, Ledger, expected_kv_tokens
from orchestrator.core.types import Inflight, Load, PathKind, Role, Route
from orchestrator.errors import AccountingError
from orchestrator.policy.testing import make_endpoint, make_request

PAIR = Route(prefill="p0", decode="d0")
ALONE = Route(decode="u0")
NOTHING = Inflight()


def test_a_pair_holds_prompt_work_on_prefill_and_memory_on_both_until_handed_over():
    ledger = Ledger()
    ledger.start(make_request(prompt_tokens=1000, max_tokens=100), PAIR, 0.0, cached_tokens=300)
    assert ledger.inflight("p0") == Inflight(1, 700, 1000)
    assert ledger.inflight("d0") == Inflight(1, 0, 1100)
    ledger.prefill_done(make_request().id)
    assert ledger.inflight("p0") == Inflight(0, 0, 1000)
    ledger.handed_over(make_request().id)
    assert ledger.inflight("p0") == NOTHING
    assert ledger.inflight("d0") == Inflight(1, 0, 1100)
    ledger.finish(make_request().id)
    assert ledger.inflight("d0") == NOTHING


@pytest.mark.parametrize("route", [PAIR, ALONE])
def test_each_answer_that_was_asked_for_is_a_sequence_where_it_decodes(route):
    ledger = Ledger()
    ledger.start(make_request(prompt_tokens=1000, max_tokens=100, n=4), route, 0.0)
    assert ledger.inflight(route.decode).requests == 4
    if route.prefill:
        assert ledger.inflight("p0").requests == 1
        ledger.rebind(make_request().id, Route(prefill="p0", decode="d1"), 1400)
        assert (ledger.inflight("d0"), ledger.inflight("d1").requests) == (NOTHING, 4)
    ledger.finish(make_request().id)
    assert all(ledger.inflight(name) == NOTHING for name in ("p0", "d0", "d1", "u0"))


def test_one_endpoint_holds_it_all():
    ledger = Ledger()
    ledger.start(make_request(prompt_tokens=1000, max_tokens=100), ALONE, 0.0)
    assert ledger.inflight("u0") == Inflight(1, 1000, 1100)
    ledger.handed_over(make_request().id)
    assert ledger.inflight("u0") == Inflight(1, 0, 1100)
    ledger.finish(make_request().id)
    assert ledger.inflight("u0") == NOTHING


def test_an_encode_leg_counts_until_the_end():
    ledger = Ledger()
    ledger.start(make_request(), Route(prefill="p0", decode="d0", encode="e0"), 0.0)
    assert ledger.inflight("e0") == Inflight(1, 0, 0)
    ledger.finish(make_request().id)
    assert ledger.inflight("e0") == NOTHING


def test_finish_tells_what_it_was():
    ledger = Ledger()
    ledger.start(make_request(), PAIR, 5.0)
    work = ledger.finish(make_request().id)
    assert (work.route, work.started_s) == (PAIR, 5.0)


@pytest.mark.parametrize("step", ["prefill_done", "handed_over", "finish"])
def test_a_step_of_unknown_work_is_an_error(step):
    with pytest.raises(AccountingError, match="request nobody is not in flight"):
        getattr(Ledger(), step)("nobody")


def test_what_finished_cannot_finish_again():
    ledger = Ledger()
    ledger.start(make_request(), PAIR, 0.0)
    ledger.finish(make_request().id)
    with pytest.raises(AccountingError):
        ledger.finish(make_request().id)
    assert ledger.inflight("d0") == NOTHING


def test_what_is_in_flight_cannot_start_again():
    ledger = Ledger()
    ledger.start(make_request(), PAIR, 0.0)
    with pytest.raises(AccountingError, match="started twice"):
        ledger.start(make_request(), ALONE, 0.0)
    assert ledger.inflight("u0") == NOTHING


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # which request
        st.sampled_from(["start", "prefill_done", "handed_over", "finish"]),
        st.sampled_from([PAIR, ALONE, Route(prefill="p0", decode="p1"), Route("d0", "p1", "e0")]),
        st.integers(0, 3000),
        st.integers(0, 4000),
        st.sampled_from(list(PathKind)),
    ),
    max_size=60,
)


@given(STEPS)
def test_sums_are_never_negative_and_return_to_zero(steps):
    """Any sequence whatever: legal steps count, illegal ones raise and change nothing."""
    ledger = Ledger()
    live = set()
    places = ("p0", "p1", "d0", "u0", "e0")
    for which, step, route, prompt, cached, path in steps:
        request = make_request(id=str(which), prompt_tokens=prompt, path=path)
        before = [ledger.inflight(p) for p in places]
        legal = (request.id in live) == (step != "start")
        if not legal:
            with pytest.raises(AccountingError):
                ledger.start(request, route, 0.0) if step == "start" else getattr(ledger, step)(request.id)
            assert [ledger.inflight(p) for p in places] == before
        elif step == "start":
            ledger.start(request, route, 0.0, cached_tokens=cached)
            live.add(request.id)
        else:
            getattr(ledger, step)(request.id)
            if step == "finish":
                live.discard(request.id)
        assert len(ledger) == len(live)
        for p in places:
            now = ledger.inflight(p)
            assert min(now.requests, now.prefill_tokens, now.kv_tokens) >= 0
    for request_id in live:
        ledger.finish(request_id)
    assert all(ledger.inflight(p) == NOTHING for p in places)
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("fields", "kv"),
    [
        ({"max_tokens": 100}, 1100),
        ({"max_tokens": 100, "n": 4}, 1400),
        ({"max_tokens": 100_000}, 1000 + EXPECTED_OUTPUT_TOKENS),
        ({"max_tokens": 100, "path": PathKind.EMBED}, 1000),
        ({"path": PathKind.TOKENIZE}, 0),
    ],
)
def test_expected_kv(fields, kv):
    assert expected_kv_tokens(make_request(prompt_tokens=1000, **fields)) == kv


def loaded(at_s, running, kv_used, endpoint_id="u0"):
    return make_endpoint(endpoint_id, load=Load(at_s, running, 0, kv_used, 100_000))


def test_a_snapshot_carries_what_is_in_flight_and_keeps_its_hands_off_older_ones():
    ledger = Ledger()
    ledger.observe([loaded(0.0, 0, 0), make_endpoint("p0", Role.PREFILL)])
    before = ledger.snapshot(0.0)
    ledger.start(make_request(prompt_tokens=1000, max_tokens=100), ALONE, 1.0)
    after = ledger.snapshot(1.0)
    assert (after.at_s, [e.id for e in after.endpoints]) == (1.0, ["u0", "p0"])
    assert after.endpoints[0].inflight == Inflight(1, 1000, 1100)
    assert before.endpoints[0].inflight == NOTHING
    assert after.endpoints[1] is before.endpoints[1]


def test_case_33_between_two_reports_the_router_adds_what_it_gave_since():
    """Case 33: everything within a polling window would go to the endpoint that looked idle."""
    ledger = Ledger()
    ledger.start(make_request(id="before", prompt_tokens=1000, max_tokens=0), ALONE, 0.0)
    ledger.observe([loaded(1.0, running=30, kv_used=50_000)])  # ours, and 29 of other clients
    for i in range(5):
        ledger.start(make_request(id=str(i), prompt_tokens=1000, max_tokens=0), ALONE, 2.0)
    (endpoint,) = ledger.snapshot(2.0).endpoints
    assert (endpoint.requests, endpoint.kv_used_tokens) == (35, 55_000)
    for request_id in ("before", "0", "1"):
        ledger.finish(request_id)
    (endpoint,) = ledger.snapshot(3.0).endpoints
    assert (endpoint.requests, endpoint.kv_used_tokens) == (32, 52_000)
    ledger.observe([loaded(4.0, running=31, kv_used=51_000)])  # a new report has seen all that
    (endpoint,) = ledger.snapshot(4.0).endpoints
    assert (endpoint.requests, endpoint.kv_used_tokens) == (31, 51_000)


@pytest.mark.parametrize("named", [False, True])
def test_a_report_has_not_seen_what_was_only_guessed(named):
    """Of a decode side that others use too: their work must not be taken for what was to come here."""
    ledger = Ledger()
    ledger.start(make_request(), Route(prefill="p0", decode="u0"), 0.0, kv_tokens=0, guessed=True)
    ledger.observe([loaded(1.0, running=1, kv_used=3000)])
    (endpoint,) = ledger.snapshot(1.0).endpoints
    assert endpoint.requests == 2
    if named:
        ledger.rebind(make_request().id, Route(prefill="p0", decode="u0"), 1000)
        (endpoint,) = ledger.snapshot(1.0).endpoints
        assert (endpoint.requests, endpoint.kv_used_tokens) == (2, 4000)
        ledger.observe([loaded(2.0, running=2, kv_used=4000)])
        (endpoint,) = ledger.snapshot(2.0).endpoints
        assert (endpoint.requests, endpoint.kv_used_tokens) == (2, 4000)
    ledger.finish(make_request().id)
    (endpoint,) = ledger.snapshot(2.0).endpoints
    assert (endpoint.requests, endpoint.kv_used_tokens) == (1, 3000)
    assert ledger.inflight("u0") == NOTHING


def test_the_same_report_seen_again_is_not_a_new_one():
    ledger = Ledger()
    ledger.observe([loaded(1.0, running=3, kv_used=0)])
    ledger.start(make_request(), ALONE, 2.0)
    ledger.observe([loaded(1.0, running=3, kv_used=0), make_endpoint("other")])
    assert ledger.snapshot(2.0).endpoints[0].requests == 4


def test_an_endpoint_given_again_unchanged_keeps_its_view():
    ledger = Ledger()
    one, two = loaded(1.0, 3, 0, "u0"), loaded(1.0, 3, 0, "u1")
    ledger.observe([one, two])
    ledger.start(make_request(), ALONE, 2.0)
    before = ledger.snapshot(2.0)
    ledger.start(make_request(id="2"), ALONE, 2.0)
    ledger.observe([two, one])
    after = ledger.snapshot(2.0)
    assert [e.id for e in after.endpoints] == ["u1", "u0"]
    assert after.endpoints[0] is before.endpoints[1]
    assert after.endpoints[1].requests == 5
    ledger.observe([loaded(2.0, 3, 0, "u1")])
    assert ledger.snapshot(2.0).endpoints[0].load.at_s == 2.0


def test_never_less_than_the_routers_own():
    ledger = Ledger()
    ledger.start(make_request(prompt_tokens=1000, max_tokens=100), ALONE, 0.0)
    ledger.observe([loaded(1.0, running=0, kv_used=0)])  # the engine has not counted it yet
    (endpoint,) = ledger.snapshot(1.0).endpoints
    assert (endpoint.requests, endpoint.kv_used_tokens, endpoint.kv_free_tokens()) == (1, 1100, 98_900)


def test_what_the_router_says_of_in_flight_is_not_the_endpoints_to_say():
    ledger = Ledger()
    ledger.observe([replace(make_endpoint("u0"), inflight=Inflight(9, 9, 9))])
    assert ledger.snapshot(0.0).endpoints[0].inflight == NOTHING


def test_work_at_an_endpoint_that_left_is_still_released():
    ledger = Ledger()
    ledger.observe([make_endpoint("u0")])
    ledger.start(make_request(), ALONE, 0.0)
    ledger.observe([])
    assert ledger.snapshot(1.0).endpoints == ()
    assert ledger.inflight("u0").requests == 1
    ledger.finish(make_request().id)
    ledger.observe([make_endpoint("u0")])
    assert ledger.snapshot(2.0).endpoints[0].inflight == NOTHING


def test_a_snapshot_tells_the_time_of_day_of_its_own_moment():
    ledger = Ledger()
    ledger.observe([make_endpoint("u0")], 1_700_000_000.0)
    assert ledger.snapshot(12.5).unix_s == 1_700_000_012.5
