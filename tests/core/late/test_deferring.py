"""deferring: whoever is put off goes last, comes back when there is time, and no order can harm the queue."""

import pytest
from late import Deck, PutsOff, decodes, prefills

from orchestrator.core.late.deferring import LOOK
from orchestrator.core.slo import Priority, SloClass, Target


def pair(**options):
    return Deck([*prefills("p0"), *decodes("d0")], **options)


def ask(deck, n=4):
    deck.ask("busy", 1000)
    for i in range(n):
        deck.at(0.01 * (i + 1))
        deck.ask(f"r{i}", 1000 - i)


def went(deck, n=4):
    return [f"r{i}" for i in range(n) if deck.decision(f"r{i}") != "wait"]


def test_whoever_is_put_off_goes_last_the_shortest_first():
    deck = pair(order=PutsOff(lambda queue: [w for w in queue if w.request.id in ("r0", "r1")]))
    ask(deck)
    done, all_went = "busy", []
    for _ in range(4):
        deck.prefilled(done)
        (done,) = set(went(deck)) - set(all_went)
        all_went.append(done)
    assert all_went == ["r2", "r3", "r1", "r0"]


def test_to_put_off_all_starves_nobody():
    deck = pair(order=PutsOff(lambda queue: queue))
    ask(deck)
    deck.prefilled("busy")
    assert went(deck) == ["r3"]


def test_whoever_was_put_off_comes_back_when_there_is_time():
    deck = pair(order=PutsOff(lambda queue: queue[:1] if len(queue) > 3 else []))
    ask(deck)
    deck.prefilled("busy")
    assert went(deck) == ["r1"]
    deck.prefilled("r1")
    assert went(deck) == ["r0", "r1"]


def test_one_that_names_what_was_never_queued_or_was_sent_is_passed_over():
    kept = []

    def stale(queue):
        kept.extend(queue)
        return kept[:1] if len(kept) > len(queue) else []

    told = []
    deck = pair(order=PutsOff(stale), on_policy_error=lambda name, error: told.append(str(error)))
    ask(deck)
    last = "busy"
    for i in range(4):
        deck.prefilled(last)
        last = f"r{i}"
        assert deck.decision(last) == "->p0/d0"
    assert "put off what was not in the queue" in told[0]


def test_one_that_sorts_what_it_is_given_cannot_harm_the_queue():
    def meddle(queue):
        assert not hasattr(queue, "sort")
        return queue[:-1]

    deck = pair(order=PutsOff(meddle))
    ask(deck)
    deck.prefilled("busy")
    assert went(deck) == ["r3"]


def test_it_is_asked_when_an_eighth_has_come_or_gone():
    order = PutsOff(lambda queue: [])
    deck = pair(order=order)
    ask(deck, n=80)
    deck.prefilled("busy")
    (first, *_), *_ = order.asked[-1:]
    assert first == 80
    before = len(order.asked)
    for i in range(20):
        deck.prefilled(f"r{i}")
    assert len(order.asked) - before == 2


def test_of_a_long_queue_it_is_shown_the_front_and_those_put_off():
    order = PutsOff(lambda queue: [w for w in queue if w.request.id in ("r3", "r7")])
    deck = pair(order=order)
    deck.ask("busy", 1000)
    for some, last in ((range(LOOK + 50), "busy"), (range(LOOK + 50, LOOK + 400), "r0")):
        for i in some:
            deck.ask(f"r{i}", 1000, arrived_s=i * 1e-3)
        deck.prefilled(last)
    assert [n for n, _, _ in order.asked if n > 1] == [LOOK, LOOK + 2]
    assert went(deck, LOOK) == ["r0", "r1"]
    deferred = {item.request.id for item, _ in deck.scheduler._waiting.values() if item.deferred}
    assert deferred == {"r3", "r7"}


def test_the_higher_priority_has_the_machine_first():
    order = PutsOff(lambda queue: [])
    classes = {
        "now": SloClass("now", Target(9.0), priority=Priority.REALTIME),
        "soon": SloClass("soon", Target(9.0)),
    }
    deck = Deck([*prefills("p0", "p1"), *decodes("d0")], order=order, classes=classes)
    for name in ("busy0", "busy1"):
        deck.ask(name, 1000, slo_class="now")
    deck.ask("a", 1000, slo_class="now")
    deck.ask("b", 600, slo_class="soon")
    deck.prefilled("busy0")
    (n, now_s, capacity), (m, after_s, _) = order.asked[-2:]
    assert (n, m, capacity) == (1, 1, 2.0)
    assert after_s - now_s == pytest.approx(0.5)


def test_what_was_put_off_is_forgotten_with_the_order():
    deck = pair(order=PutsOff(lambda queue: queue[:1]))
    ask(deck)
    deck.observe()
    assert any(item.deferred for item, _ in deck.scheduler._waiting.values())
    deck.scheduler.profile = pair().scheduler.profile
    assert not any(item.deferred for item, _ in deck.scheduler._waiting.values())
