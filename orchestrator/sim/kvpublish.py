"""KV events as real engines publish them: numbered batches over ZeroMQ, with a replay of the last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from orchestrator.sim import text
from orchestrator.sim.blocks import BlockPool
from orchestrator.sim.generation import Generation

END = b"\xff" * 8
"""The number that ends a replay."""

BUFFER = 10_000
"""Batches kept for a replay, in both engines."""

Block = tuple[int | None, tuple[int, ...]]
"""The hash before a block's own, and its tokens."""


class KvPublisher:
    """A PUB socket, and a ROUTER that replays. Ports of 0 are chosen freely; made within a running loop.

    `muted`: batches are numbered and kept, and reach no subscriber, as over a full queue.
    """

    def __init__(self, host: str, port: int, replay_port: int, topic: str = "") -> None:
        self.topic = topic.encode()
        self.muted = False
        self.number = 0
        self._context = zmq.Context(io_threads=1)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=BUFFER)
        self._pub, self._router = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        self.port, self.replay_port = _bind(self._pub, host, port), _bind(self._router, host, replay_port)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._router.fileno(), self._replay)

    def publish(self, batch: bytes) -> None:
        """The next batch."""
        number, self.number = self.number, self.number + 1
        self._kept.append((number, batch))
        if not self.muted:
            self._pub.send_multipart((self.topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        """Close both sockets."""
        if not self._router.closed:
            self._loop.remove_reader(self._router.fileno())
            self._context.destroy(linger=0)

    def _replay(self) -> None:
        """Answer every request that is there: its descriptor tells of a change, not of what is left."""
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3:
                continue
            who, _, first = frames
            for number, batch in self._kept:
                if number >= int.from_bytes(first, "big"):
                    self._router.send_multipart((who, b"", self.topic, number.to_bytes(8, "big"), batch))
            self._router.send_multipart((who, b"", b"", END, b""))


class KvTeller:
    """Publishes what has become findable in a block pool and what has gone, in the words of a dialect."""

    def __init__(
        self,
        publisher: KvPublisher,
        pool: BlockPool,
        block_tokens: int,
        dialect: str,
        wall_s: Callable[[], float],
    ) -> None:
        self.publisher = publisher
        self._pool = pool
        self._size = block_tokens
        self._sglang = dialect == "sglang"
        self._wall_s = wall_s
        self._blocks: dict[int, Block] = {}

    def know(self, gen: Generation, hashes: Sequence[int]) -> None:
        """What the blocks of a sequence will hold once they are computed."""
        tokens, size, before = (*gen.prompt, *gen.tokens), self._size, None
        if len(self._blocks) > 4 * self._pool.blocks:
            held = self._pool.findable()
            self._blocks = {name: block for name, block in self._blocks.items() if name in held}
        for index, name in enumerate(hashes):
            self._blocks[name] = (before, tokens[index * size : (index + 1) * size])
            before = name

    def tell(self) -> None:
        """Publish what has changed since the last time, if anything has."""
        changes, self._pool.log = self._pool.log, []
        events: list[dict[str, Any]] = []
        for stored, name in changes:
            event = self._stored(name, events) if stored else self._removed([name])
            if event is not None:
                events.append(event)
        if events and not self._pool.findable():
            events = [{"type": "AllBlocksCleared"}]
        if events:
            self.publisher.publish(msgspec.msgpack.encode([self._wall_s(), events, 0]))

    def _stored(self, name: int, events: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The event of a block; None if it only goes on the chain of the last one."""
        before, tokens = self._blocks[name]
        parent = None if before is None else self._told(before)
        last = events[-1] if events else {}
        if "token_ids" in last and last["block_hashes"][-1] == parent:
            last["block_hashes"].append(self._told(name))
            last["token_ids"] += tokens
            return None
        event: dict[str, Any] = {
            "type": "BlockStored", "block_hashes": [self._told(name)],
            "parent_block_hash": parent,
            "token_ids": list(tokens), "block_size": self._size, "lora_id": None, "medium": "GPU",
        }  # fmt: skip
        if not self._sglang:
            event |= {
                "lora_name": None, "extra_keys": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
            }  # fmt: skip
        return event

    def _removed(self, names: list[int]) -> dict[str, Any]:
        event: dict[str, Any] = {
            "type": "BlockRemoved", "block_hashes": [self._told(name) for name in names], "medium": "GPU",
        }  # fmt: skip
        return event if self._sglang else event | {"group_idx": 0}

    def _told(self, name: int) -> int:
        """A hash as this kind of engine would have it: they never match the other's."""
        if not self._sglang:
            return name
        mixed = text.block_hashes((name,), 1)[0]
        return mixed - (1 << 64) if mixed >> 63 else mixed


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> int:
    """Raises OSError where the address is taken."""
    at = f"[{host}]" if ":" in host else host
    try:
        socket.bind(f"tcp://{at}:{port or '*'}")
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"{error.strerror} (tcp://{at}:{port})") from error
    bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(bound.rstrip("\0").rpartition(":")[2])
