"""Reads one engine's KV events over ZeroMQ: subscribes, has replayed what was missed, survives both ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from orchestrator.core.kvevents import Feed, Step
from orchestrator.engines.kv import KvSource

log = logging.getLogger(__name__)

END = b"\xff" * 8
"""The number that ends a replay."""

REPLAY_S = 5.0
"""How long a replay may take to begin; engines answer between two steps."""

STALL_S = 1.0
"""How long it may take to go on, once it has begun: engines send it in one go."""

AGAIN_S = 10.0
"""After a replay that failed, the next is tried so much later."""

AT_ONCE = 16
"""Batches taken in before other work gets its turn: one may hold a prompt of a thousand blocks, a
millisecond of work."""


Context = zmq.Context[zmq.Socket[bytes]]
"""What sockets are made of."""


class KvFeed:
    """One subscription. `apply` is given what to do, in order; it must not raise.

    Made within a running loop; ends with `close`. It never ends by itself: a publisher that is not there is
    connected to again and again by ZeroMQ, and each connection begins with a replay.
    """

    def __init__(self, context: Context, source: KvSource, apply: Callable[[Step], None]) -> None:
        self.source = source
        self.feed = Feed(replays=source.replay is not None)
        self.connected = False
        self._context = context
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self._sub = context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.RCVHWM, 0)
        self._sub.setsockopt(zmq.LINGER, 0)
        self._sub.setsockopt(zmq.IPV6, 1)
        self._sub.subscribe(source.topic.encode())
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor: zmq.Socket[bytes] = self._sub.get_monitor_socket(events)
        self._replay: zmq.Socket[bytes] | None = None
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[zmq.Socket[bytes], asyncio.Handle] = {}
        self._watch(self._monitor, self._monitored)
        self._watch(self._sub, self._received)
        self._sub.connect(source.events)

    def again(self) -> None:
        """Begin from the beginning, as if nothing had been read yet."""
        batches, gaps = self.feed.batches, self.feed.gaps
        self.feed = Feed(replays=self.source.replay is not None)
        self.feed.batches, self.feed.gaps = batches, gaps
        self._running = 0
        if self.connected:
            self._ask()

    def close(self) -> None:
        """Stop reading."""
        self._end_replay()
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch(self._monitor)
        self._unwatch(self._sub)
        self._sub.disable_monitor()
        self._monitor.close(0)
        self._sub.close()

    # -- sockets in an event loop

    def _watch(self, socket: zmq.Socket[bytes], read: Callable[[list[bytes]], None]) -> None:
        """Have `read` called with every message. Its descriptor tells of a change, not of what is left."""

        def drain() -> None:
            self._turns.pop(socket, None)
            for _ in range(AT_ONCE):
                if socket.closed:
                    return
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    return
                read(frames)
            self._turns[socket] = self._loop.call_soon(drain)

        self._loop.add_reader(socket.fileno(), drain)
        # What came before the loop looked at it is told by no change.
        self._turns[socket] = self._loop.call_soon(drain)

    def _unwatch(self, socket: zmq.Socket[bytes]) -> None:
        turn = self._turns.pop(socket, None)
        if turn is not None:
            turn.cancel()
        if not socket.closed:
            self._loop.remove_reader(socket.fileno())

    def _monitored(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if self.connected:
            self.feed.connected()
            self._ask()

    def _received(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            log.warning("not a KV event", extra={"source": self.source.events, "frames": len(frames)})
            return
        self._take(self.feed.live(int.from_bytes(frames[1], "big"), frames[2]))
        self._ask()

    # -- replays

    def _ask(self) -> None:
        """Have replayed what the feed asks for, unless that is under way."""
        first = self.feed.asks
        if first is None or self.feed.asked == self._running or self.source.replay is None:
            return
        self._end_replay()
        self._running = self.feed.asked
        socket = self._replay = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(self.source.replay)
        socket.send_multipart((b"", first.to_bytes(8, "big")))
        self._watch(socket, self._replayed)
        self._time(REPLAY_S, self._timed_out)

    def _replayed(self, frames: list[bytes]) -> None:
        if len(frames) != 4:
            return
        number, batch = frames[2], frames[3]
        if number == END:
            self._end_replay()
            self._take(self.feed.replay_ended())
        else:
            self._time(STALL_S, self._timed_out)
            self._take(self.feed.replayed(int.from_bytes(number, "big"), batch))
        self._ask()

    def _timed_out(self) -> None:
        log.warning("no replay of KV events, or no end of it", extra={"source": self.source.replay})
        self._end_replay()
        self._take(self.feed.replay_ended(failed=True))
        if self.feed.asks is None:
            self._time(AGAIN_S, self._retry)
        self._ask()

    def _retry(self) -> None:
        self.feed.connected()
        self._ask()

    def _end_replay(self) -> None:
        socket, self._replay = self._replay, None
        if socket is not None:
            self._unwatch(socket)
            socket.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time(self, after_s: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(after_s, call)

    def _take(self, steps: list[Step]) -> None:
        for step in steps:
            self._apply(step)
