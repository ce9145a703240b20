"""One engine's KV events over real sockets: late, lost, replayed, restarted."""

import contextlib

import pytest
import zmq

from orchestrator.core.kvevents import BEGUN, LOST, RESTARTED, Reset
from orchestrator.engines.kv import KvSource
from orchestrator.router.kvfeed import KvFeed
from orchestrator.sim.kvpublish import KvPublisher


def source(publisher, *, replays=True):
    replay = f"tcp://127.0.0.1:{publisher.replay_port}" if replays else None
    return KvSource(f"tcp://127.0.0.1:{publisher.port}", replay, "kv")


@pytest.fixture
def publish():
    """Starts publishers, on given ports if another was there; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(port=0, replay_port=0):
            publisher = KvPublisher("127.0.0.1", port, replay_port, "kv")
            stack.callback(publisher.close)
            return publisher

        yield start


@pytest.fixture
def follow():
    """Starts feeds, each with the list of what it was told to do."""
    context = zmq.Context()
    with contextlib.ExitStack() as stack:
        stack.callback(context.destroy, linger=0)

        def start(of):
            steps = []
            feed = KvFeed(context, of, steps.append)
            stack.callback(feed.close)
            return feed, steps

        yield start


async def test_all_that_was_told_before_comes_first_and_then_what_is_told_live(publish, follow, until):
    publisher = publish()
    for body in (b"0", b"1"):
        publisher.publish(body)
    feed, steps = follow(source(publisher))
    await until(lambda: steps == [Reset(BEGUN), b"0", b"1"])
    assert feed.connected
    publisher.publish(b"2")
    await until(lambda: steps[-1] == b"2")


async def test_an_engine_that_has_told_nothing_is_empty(publish, follow, until):
    _, steps = follow(source(publish()))
    await until(lambda: steps == [Reset(BEGUN)])


async def test_what_is_lost_on_the_way_is_replayed(publish, follow, until):
    publisher = publish()
    feed, steps = follow(source(publisher))
    await until(lambda: steps)
    publisher.publish(b"0")
    await until(lambda: len(steps) == 2)
    publisher.muted = True
    publisher.publish(b"1")
    publisher.publish(b"2")
    publisher.muted = False
    publisher.publish(b"3")
    await until(lambda: steps == [Reset(BEGUN), b"0", b"1", b"2", b"3"])
    assert feed.feed.gaps == 1


async def test_without_a_replay_it_is_lost(publish, follow, until):
    publisher = publish()
    feed, steps = follow(source(publisher, replays=False))
    await until(lambda: feed.connected)

    def told():
        publisher.publish(b"x")
        return len(steps) > 2

    await until(told)
    assert steps[0] in (Reset(BEGUN), Reset(LOST))
    publisher.muted = True
    publisher.publish(b"y")
    publisher.muted = False
    publisher.publish(b"z")
    await until(lambda: steps[-2:] == [Reset(LOST), b"z"])


async def test_a_new_process_on_the_same_ports_is_begun_with_anew(publish, follow, until):
    first = publish()
    _, steps = follow(source(first))
    for body in (b"0", b"1"):
        first.publish(body)
    await until(lambda: steps[-1:] == [b"1"])
    ports = first.port, first.replay_port
    first.close()
    second = publish(*ports)
    second.publish(b"other")
    await until(lambda: steps[-3:] == [Reset(RESTARTED), Reset(BEGUN), b"other"])
    second.publish(b"more")
    await until(lambda: steps[-1] == b"more")


async def test_one_can_begin_from_the_beginning_again(publish, follow, until):
    publisher = publish()
    publisher.publish(b"0")
    feed, steps = follow(source(publisher))
    await until(lambda: steps == [Reset(BEGUN), b"0"])
    feed.again()
    await until(lambda: steps == [Reset(BEGUN), b"0"] * 2)
    assert feed.feed.batches == 2


async def test_a_long_replay_lets_others_work_meanwhile(publish, follow, until):
    publisher = publish()
    for _ in range(2000):
        publisher.publish(b"x")
    _, steps = follow(source(publisher))
    seen = set()

    def done():
        seen.add(len(steps))
        return len(steps) >= 2001

    await until(done)
    assert len(steps) == 2001
    assert len(seen) > 2


async def test_what_is_no_event_is_passed_over(follow, until):
    with zmq.Context() as context, context.socket(zmq.PUB) as stranger:
        port = stranger.bind_to_random_port("tcp://127.0.0.1")
        _, steps = follow(KvSource(f"tcp://127.0.0.1:{port}", None))

        def told():
            stranger.send_multipart((b"kv", b"short", b"x"))
            stranger.send_multipart((b"kv", bytes(8), b"0"))
            return steps

        await until(told)
        assert steps[:2] == [Reset(BEGUN), b"0"]
