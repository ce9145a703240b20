"""What a request that gets no endpoint is told."""

from late import decodes, inf, prefills

from orchestrator.core.admission import MAX_RETRY_S, Drain
from orchestrator.core.inflight import Ledger
from orchestrator.core.late.decodes import Decodes
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.queue import Item
from orchestrator.core.late.refusals import Refusals
from orchestrator.core.late.station import Station
from orchestrator.core.prediction import Curve
from orchestrator.core.slo import SloClass
from orchestrator.policy.testing import make_request


def lane(waiting=(), stations=2):
    made = [Station(e, Curve(0.001), True) for e in prefills(*(f"p{i}" for i in range(stations)))]
    lane = Lane(("m", frozenset(), frozenset(), frozenset()), made, Decodes(Ledger(), ()))
    for number, work_s in enumerate(waiting):
        lane.add(item(number, work_s))
    return lane


def item(number=0, work_s=1.0, by_s=inf):
    return Item(
        make_request(id=f"r{number}"), 10.0, work_s, by_s, inf, slo=SloClass("chat"), key=(1, 0.0, number)
    )


def test_no_capacity_tells_what_there_is():
    ends = [*prefills("p0", "p1"), *decodes("d0")]
    ends[1].ready = False
    reject = Refusals(Drain()).no_capacity(make_request(), ends)
    assert (reject.http_status, reject.reason, reject.retry_after_s) == (503, "no-capacity", None)
    assert "prefill 1 of 2, decode 1 of 1" in reject.message
    other = Refusals(Drain()).no_capacity(make_request(model="other"), ends)
    assert "no endpoint has this model" in other.message


def test_what_cannot_be_on_time_hears_of_its_promise_and_of_the_queue():
    reject = Refusals(Drain()).unreachable(item(by_s=12.0), lane([3.0, 5.0]), 11.5, 4, None)
    assert (reject.http_status, reject.reason) == (429, "slo-unreachable")
    assert "within 2.00 s; after 1.50 s" in reject.message
    assert "2 requests with 8.0 s of prefill wait for 2 endpoints" in reject.message


def test_they_come_back_when_the_queue_has_drained_and_not_all_at_once():
    refusals, busy = Refusals(Drain()), lane([30.0, 30.0])
    assert refusals.timeout(item(), busy, 10.0, 100).retry_after_s == 30.0
    calm = lane()
    told = [refusals.queue_full(make_request(), 9, calm, 10.0, 5).retry_after_s for _ in range(3)]
    assert told == sorted(set(told)), "each a place of its own"
    assert refusals.timeout(item(), lane([1e6]), 10.0, 1).retry_after_s == MAX_RETRY_S


def test_each_has_a_reason_of_its_own():
    refusals = Refusals(Drain())
    assert refusals.queue_full(make_request(), 9, lane(), 0.0, 0).reason == "queue-full"
    assert refusals.timeout(item(), lane(stations=0), 610.0, 0).reason == "queue-timeout"
