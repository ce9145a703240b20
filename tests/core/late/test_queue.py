"""The queues of a lane against naive ones: a list that is sorted anew, and a scan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import inf

from orchestrator.core.late.queue import CHUNK, PATIENCE_S, SWEEP, Backlog, Deadlines, Item, Queue
from orchestrator.policy.testing import make_request


def item(number, key=0.0, work_s=1.0, priority=1, **fields):
    usual = {"arrived_s": float(number), "first_token_by_s": inf, "latest_start_s": inf, **fields}
    return Item(make_request(id=f"r{number}"), work_s=work_s, key=(priority, key, number), **usual)


def filled(n):
    queue, items = Queue(), [item(i, key=(i * 7919) % n, work_s=0.25) for i in range(n)]
    for one in items:
        queue.add(one)
    return queue, items


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("aarm"), st.integers(0, 40), st.integers(0, 30)), max_size=150),
    st.integers(0, 3 * CHUNK),
)
def test_a_queue_is_a_list_sorted_by_key(events, already):
    queue, naive = filled(already)
    for number, (what, which, key) in enumerate(events):
        if what == "a":
            one = item(10_000 + number, key, work_s=key / 4, priority=which % 3)
            queue.add(one)
            naive.append(one)
        elif naive:
            one = naive[which % len(naive)]
            queue.remove(one)
            if what == "r":
                naive.remove(one)
            else:
                one.key = (0, float(key), one.key[2])
                one.work_s = float(which)
                queue.add(one)
    naive.sort(key=lambda one: one.key)
    assert list(queue) == naive
    assert len(queue) == len(naive)
    assert queue.first is (naive[0] if naive else None)
    for n in (0, 1, 16, CHUNK + 1, len(naive) + 5):
        assert queue.head(n) == naive[:n]
    assert queue.work_s == pytest.approx(sum(one.work_s for one in naive))
    for one in naive[:: max(1, len(naive) // 20)]:
        assert one in queue
        ahead = sum(other.work_s for other in naive if other.key < one.key)
        assert queue.ahead_s(one.key) == pytest.approx(ahead)


def test_what_is_not_in_a_queue_cannot_be_removed_and_a_twin_is_another():
    queue, items = filled(CHUNK + 5)
    with pytest.raises(KeyError):
        queue.remove(item(999_999))
    twin = item(3, key=items[3].key[1])
    assert twin.key == items[3].key
    assert twin not in queue
    with pytest.raises(KeyError):
        queue.remove(twin)
    assert len(queue) == CHUNK + 5


def test_work_is_taken_out_as_it_was_put_in_though_it_has_changed_since():
    queue, items = filled(10)
    items[4].work_s = 99.0
    queue.remove(items[4])
    assert queue.work_s == pytest.approx(9 * 0.25)


def test_a_long_queue_is_kept_in_chunks():
    queue, items = filled(20 * CHUNK)
    assert max(len(chunk.keys) for chunk in queue._chunks) <= CHUNK
    for one in items:
        queue.remove(one)
    assert (len(queue), queue._chunks, queue._last) == (0, [], [])


@given(st.lists(st.integers(0, 50), unique=True), st.data())
def test_a_backlog_is_in_order_of_arrival(numbers, data):
    backlog, naive = Backlog(), [item(n, arrived_s=float(n // 3)) for n in numbers]
    for one in naive:
        backlog.add(one)
    for one in data.draw(st.lists(st.sampled_from(naive), unique=True)) if naive else ():
        backlog.remove(one)
        naive.remove(one)
    naive.sort(key=lambda one: (one.arrived_s, one.key[2]))
    assert backlog.head(len(naive)) == naive
    assert backlog.head(2) == naive[:2]
    with pytest.raises(KeyError):
        backlog.remove(item(77))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans(), st.booleans()), max_size=40))
def test_deadlines_give_each_item_that_waits_once_when_it_is_due(rows):
    deadlines, due = Deadlines(), []
    for number, (latest_s, expires_s, late, queued) in enumerate(rows):
        one = item(number, latest_start_s=float(latest_s), expires_s=float(expires_s), late=late)
        one.queued = queued
        deadlines.remind(one)
        if queued:
            due.append((expires_s if late else min(latest_s, expires_s), one))
    for now_s in range(21):
        assert deadlines.next_s() == min((at_s for at_s, _ in due if at_s >= now_s), default=inf)
        found = set()
        while (one := deadlines.overdue(float(now_s))) is not None:
            found.add(one)
        assert found == {one for at_s, one in due if at_s == now_s}


def test_an_item_may_be_reminded_of_twice_at_one_moment():
    deadlines, one = Deadlines(), item(1, latest_start_s=5.0)
    one.queued = True
    deadlines.remind(one)
    deadlines.remind(one)
    assert deadlines.overdue(5.0) is deadlines.overdue(5.0) is one


def test_nothing_is_due_for_an_item_that_may_wait_for_ever():
    deadlines = Deadlines()
    deadlines.remind(item(1))
    assert (len(deadlines), deadlines.next_s()) == (0, inf)


def test_reminders_of_those_that_went_are_swept_out():
    deadlines, stays = Deadlines(), item(0, expires_s=600.0)
    stays.queued = True
    deadlines.remind(stays)
    for number in range(20 * SWEEP):
        deadlines.remind(item(number, expires_s=600.0))
    assert len(deadlines) <= SWEEP + 1
    assert deadlines.overdue(600.0) is stays


def test_patience_grows_with_the_prompt():
    one = item(1, cold_s=0.2, passed_s=10.0)
    assert one.settles_s == 10.0 + PATIENCE_S
    assert item(1, cold_s=7.0, passed_s=10.0).settles_s == 17.0
    assert item(1, cold_s=7.0).settles_s == inf


def test_what_is_due_is_told_from_arrival():
    assert item(3).due_s is None
    assert item(3, first_token_by_s=5.5).due_s == 2.5
