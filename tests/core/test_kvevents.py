"""The order of KV events: gaps, replays and lives of a publisher, whatever is lost on the way."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.kvevents import BEGUN, KEY_MASK, LOST, RESTARTED, Feed, Reset, key


def b(number, life=0):
    return b"%d/%d" % (number, life)


def replay(feed, batches):
    """Run the replay that is asked for, by a publisher that still has `batches` (number: bytes)."""
    steps = []
    while feed.asks is not None:
        asked = feed.asked
        for number, batch in sorted(batches.items()):
            if number >= feed.asks:
                steps += feed.replayed(number, batch)
            if feed.asked != asked:
                break
        else:
            steps += feed.replay_ended()
    return steps


def test_keys_take_the_same_room_whether_signed_or_not():
    assert key(-1) == KEY_MASK
    assert key(2**64 - 1) == KEY_MASK
    assert key(5) == 5


def test_a_publisher_that_has_told_nothing_is_known_to_be_empty():
    feed = Feed()
    assert feed.asks == 0
    assert feed.replay_ended() == [Reset(BEGUN)]
    assert feed.live(0, b(0)) == [b(0)]
    assert feed.live(1, b(1)) == [b(1)]
    assert (feed.batches, feed.gaps, feed.asks) == (2, 0, None)


def test_who_comes_late_has_the_beginning_replayed():
    feed = Feed()
    assert feed.live(3, b(3)) == [], "held back until what was before it is known"
    steps = replay(feed, {n: b(n) for n in range(4)})
    assert steps == [Reset(BEGUN), b(0), b(1), b(2), b(3)]
    assert feed.live(3, b(3)) == [Reset(RESTARTED)], "the same number again is another life's"


def test_what_came_both_ways_is_taken_once():
    feed = Feed()
    feed.live(1, b(1))
    feed.live(2, b(2))
    assert replay(feed, {0: b(0), 1: b(1)}) == [Reset(BEGUN), b(0), b(1), b(2)]


def test_a_gap_is_replayed_from_the_last_batch_that_is_known():
    feed = Feed()
    feed.replay_ended()
    feed.live(0, b(0))
    assert feed.live(3, b(3)) == []
    assert (feed.asks, feed.gaps) == (0, 1)
    assert replay(feed, {n: b(n) for n in range(4)}) == [b(1), b(2), b(3)]


def test_what_is_kept_no_longer_is_lost_and_said_so():
    feed = Feed()
    feed.replay_ended()
    feed.live(0, b(0))
    feed.live(9, b(9))
    assert replay(feed, {n: b(n) for n in range(7, 10)}) == [Reset(LOST), b(7), b(8), b(9)]


def test_without_a_replay_every_gap_is_a_loss():
    feed = Feed(replays=False)
    assert feed.asks is None
    assert feed.live(4, b(4)) == [Reset(LOST), b(4)]
    assert feed.live(6, b(6)) == [Reset(LOST), b(6)]
    feed.connected()
    assert feed.live(7, b(7, 1)) == [Reset(LOST), b(7, 1)], "it may be another process"
    feed.connected()
    assert feed.live(0, b(0, 2)) == [Reset(BEGUN), b(0, 2)]
    feed.connected()
    assert feed.live(9, b(9, 2)) == [Reset(LOST), b(9, 2)]
    feed.connected()
    assert feed.live(3, b(3, 3)) == [Reset(LOST), b(3, 3)], "numbers that lag behind are another process's"


def test_another_process_behind_the_same_numbers_is_noticed_by_what_it_said():
    feed = Feed()
    feed.replay_ended()
    for n in range(3):
        feed.live(n, b(n))
    feed.connected()
    new = {n: b(n, life=1) for n in range(5)}
    assert replay(feed, new) == [Reset(RESTARTED), Reset(BEGUN), *new.values()]


def test_another_process_that_has_told_less_is_noticed_too():
    for told in ({}, {0: b(0, 1)}):
        feed = Feed()
        feed.replay_ended()
        for n in range(3):
            feed.live(n, b(n))
        feed.connected()
        assert replay(feed, told) == [Reset(RESTARTED), Reset(BEGUN), *told.values()]


def test_a_new_life_that_comes_live_is_noticed_by_its_numbers():
    feed = Feed()
    feed.replay_ended()
    for n in range(3):
        feed.live(n, b(n))
    assert feed.live(0, b(0, 1)) == [Reset(RESTARTED)]
    assert replay(feed, {0: b(0, 1), 1: b(1, 1)}) == [Reset(BEGUN), b(0, 1), b(1, 1)]


def test_the_same_process_after_a_broken_connection_goes_on():
    feed = Feed()
    feed.replay_ended()
    feed.live(0, b(0))
    feed.connected()
    assert feed.asks == 0
    assert replay(feed, {0: b(0), 1: b(1)}) == [b(1)]


def dropping(feed, batches, *, most):
    """As `replay`, but `most` messages of each arrive, and neither the rest nor the end."""
    steps, times = [], 0
    while feed.asks is not None:
        times += 1
        sent = [(n, batch) for n, batch in sorted(batches.items()) if n >= feed.asks]
        for number, batch in sent[:most]:
            steps += feed.replayed(number, batch)
        steps += feed.replay_ended(failed=len(sent) > most)
    return steps, times


def test_a_replay_without_its_end_is_gone_on_with_from_there():
    feed = Feed()
    steps, times = dropping(feed, {n: b(n) for n in range(10)}, most=4)
    assert steps == [Reset(BEGUN), *(b(n) for n in range(10))]
    assert times == 3


def test_a_replay_that_brings_nothing_more_is_given_up():
    feed = Feed()
    steps, times = dropping(feed, {n: b(n) for n in range(10)}, most=1)
    assert steps == [Reset(BEGUN), b(0), Reset(LOST)]
    assert times == 2


def test_a_hole_in_a_replay_is_asked_for_again():
    feed = Feed()
    assert feed.replayed(0, b(0)) == [Reset(BEGUN), b(0)]
    before = feed.asked
    assert feed.replayed(5, b(5)) == []
    assert (feed.asked, feed.asks) == (before + 1, 0)
    assert replay(feed, {n: b(n) for n in range(7)}) == [b(n) for n in range(1, 7)]


def test_what_is_missing_between_a_replay_and_live_batches_is_asked_for_again():
    feed = Feed()
    feed.live(6, b(6))
    feed.replayed(0, b(0))
    assert feed.replay_ended() == []
    assert replay(feed, {n: b(n) for n in range(6)}) == [b(n) for n in range(1, 7)]


def test_a_replay_that_fails_leaves_nothing_believed():
    feed = Feed()
    feed.live(4, b(4))
    assert feed.replay_ended(failed=True) == [Reset(LOST), Reset(LOST), b(4)]
    assert feed.live(5, b(5)) == [b(5)]


@given(st.data())
def test_whatever_is_lost_and_whoever_restarts_all_that_is_applied_belongs_to_one_life(data):
    """After each replay what was applied since the last Reset is an unbroken run of the newest life; since a
    BEGUN it is all of it."""
    feed, life, number = Feed(), 0, 0
    kept, applied, whole = {}, [], False

    def take(steps):
        nonlocal applied, whole
        for step in steps:
            if isinstance(step, Reset):
                applied, whole = [], step.why == BEGUN
            else:
                applied.append(step)

    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(("live", "live", "live", "lost", "restart", "replay")))
        if what == "restart":
            life, number, kept = life + 1, 0, {}
            feed.connected()
        elif what == "replay":
            take(replay(feed, kept))
        else:
            batch = b(number, life)
            kept[number] = batch
            kept.pop(number - data.draw(st.integers(3, 8)), None)
            if what == "live":
                take(feed.live(number, batch))
            number += 1
    feed.connected()
    take(replay(feed, kept))
    got = [tuple(map(int, step.split(b"/"))) for step in applied]
    assert {of for _, of in got} <= {life}
    numbers = [n for n, _ in got]
    if numbers:
        assert numbers == list(range(0 if whole else numbers[0], number))
    else:
        assert not kept
