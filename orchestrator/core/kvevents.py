"""What an engine tells of its KV cache, engine by engine the same, and the order in which it was told."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import StrEnum

from orchestrator.core.frozen import frozen


class Tier(StrEnum):
    """Where a block lies: on the device, where a prompt can use it as it is, or somewhere behind it."""

    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"


@frozen(frozen=True, slots=True)
class BlocksStored:
    """A chain of blocks can be found from now on; the first follows the block `parent`, None: nothing.

    `hashes` are the engine's own, as 60-bit numbers (`key`), `tokens` those of all the blocks, each 4 bytes,
    little-endian. A block that depends on more than its tokens (an image, an adapter, a salt) is `private`:
    nobody can name it by its tokens, nor what follows it.
    """

    hashes: Sequence[int]
    parent: int | None
    tokens: bytes
    block_tokens: int
    tier: Tier = Tier.DEVICE
    private: bool = False
    group: int = 0
    """Which of the engine's groups of layers: each keeps blocks of its own under the same hashes."""


@frozen(frozen=True, slots=True)
class BlocksRemoved:
    """One copy of each of these blocks has gone."""

    hashes: Sequence[int]
    tier: Tier = Tier.DEVICE
    group: int = 0


@frozen(frozen=True, slots=True)
class BlocksCleared:
    """The whole cache is empty."""


KvEvent = BlocksStored | BlocksRemoved | BlocksCleared

KEY_MASK = (1 << 60) - 1
"""A number up to here takes 32 bytes in memory, any larger one 48. Of 10 million keys of 60 bits, two are the
same by chance once in twenty thousand deployments."""


def key(told: int) -> int:
    """An engine's hash, signed or not, as the number that it is known by here."""
    return told & KEY_MASK


@frozen(frozen=True, slots=True)
class Reset:
    """All that was told before is void: a life of the publisher has `begun`, from which on everything is
    told; it was `restarted`, and more is to be found out; or batches are `lost` for good."""

    why: str


BEGUN, RESTARTED, LOST = "begun", "restarted", "lost"

Step = Reset | bytes
"""What to do next with what was believed: void it, or apply a batch."""

HELD_BATCHES = 4096
"""Live batches kept while a replay is under way; one step of an engine makes one."""


class Feed:
    """One publisher's batches in order: each number once, none left out, no life mixed with another.

    A publisher numbers its batches from 0 in each life, and keeps the last ones for a replay. `asks` is the
    number from which a replay is wanted, None: none is; `asked` counts the replays asked for, so that whoever
    runs one sees that it is superseded. A replay begins with the last batch that is known already: another
    one under the same number is another process's. Every live batch is handed in (`live`), and once a replay
    was asked for what came of it (`replayed`, then `replay_ended`). A replay with a hole, or without an end,
    is asked for again from there as long as each brings something: engines send it in one go, and ZeroMQ
    drops what its queue does not take.
    """

    def __init__(self, *, replays: bool = True) -> None:
        self.asks: int | None = None
        self.asked = 0
        self.batches = 0
        """Applied, in all lives."""
        self.gaps = 0
        """Times that a number was missing."""
        self._replays = replays
        self._next = 0
        self._mark = 0
        self._asked_next = 0
        """What `_next` was when the replay was asked for."""
        self._newest = -1
        self._begun = False
        self._seen = False
        self._stranger = False
        """It is not known yet whether it is the publisher that told what is known."""
        self._held: dict[int, bytes] = {}
        self.connected()

    def connected(self) -> None:
        """A connection was made: by whom, and what was published before it, is to be found out."""
        self._newest = -1
        self._stranger = self._next > 0
        self._held.clear()
        if self._replays:
            self._ask()

    def live(self, number: int, batch: bytes) -> list[Step]:
        """A batch has come."""
        steps: list[Step] = []
        if number <= self._newest:
            # Live ones only count up within one life.
            self._over(steps)
            self.connected()
        self._newest = number
        if self.asks is not None:
            self._hold(number, batch)
        elif number == self._next and not self._stranger:
            self._accept(number, batch, steps)
        elif not self._replays:
            self.gaps += 1
            self._lost(number, batch, steps)
        elif number > self._next:
            self.gaps += 1
            self._hold(number, batch)
            self._ask()
        return steps

    def replayed(self, number: int, batch: bytes) -> list[Step]:
        """A batch of the replay has come."""
        steps: list[Step] = []
        self._seen = True
        if number == self._next - 1:
            if self._mark != zlib.crc32(batch):
                self._over(steps)
                # This replay begins in the middle of the new life.
                self._ask()
            self._stranger = False
        elif number > self._next and self._brought:
            self._ask()
        elif number > self._next or (number == self._next and self._stranger):
            self._lost(number, batch, steps)
        elif number == self._next:
            self._accept(number, batch, steps)
        return steps

    def replay_ended(self, *, failed: bool = False) -> list[Step]:
        """The replay is over. `failed`: it has no end, and nothing is known of what it would have told."""
        steps: list[Step] = []
        if self._brought and (failed or min(self._held, default=0) > self._next):
            self._ask()
            return steps
        held, self._held = self._held, {}
        self.asks = None
        if failed:
            steps.append(Reset(LOST))
        elif self._next > 0 and not self._seen:
            # It does not have the last batch, nor a later one: it has only just begun, and is asked anew.
            self._over(steps)
            self._held = held
            self._ask()
            return steps
        if not failed and self._next == 0 and not held:
            self._begin(steps)
        for number, batch in sorted(held.items()):
            if number == self._next:
                self._accept(number, batch, steps)
            elif number > self._next:
                self._lost(number, batch, steps)
        return steps

    @property
    def _brought(self) -> bool:
        """Whether the replay has brought anything yet."""
        return self._next > self._asked_next

    def _ask(self) -> None:
        self.asks = max(0, self._next - 1)
        self.asked += 1
        self._seen = False
        self._asked_next = self._next

    def _hold(self, number: int, batch: bytes) -> None:
        if len(self._held) >= HELD_BATCHES:
            self._held.clear()
        self._held[number] = batch

    def _begin(self, steps: list[Step]) -> None:
        """All that this life has told and will tell is known."""
        if not self._begun:
            self._begun = True
            steps.append(Reset(BEGUN))

    def _accept(self, number: int, batch: bytes, steps: list[Step]) -> None:
        if number == 0:
            self._begin(steps)
        self._next = number + 1
        self._stranger = False
        self._mark = zlib.crc32(batch)
        self.batches += 1
        steps.append(batch)

    def _lost(self, number: int, batch: bytes, steps: list[Step]) -> None:
        self._begun = False
        if number:
            steps.append(Reset(LOST))
        self._accept(number, batch, steps)

    def _over(self, steps: list[Step]) -> None:
        """That life is over."""
        if self._next > 0 or self._begun:
            steps.append(Reset(RESTARTED))
        self._next = 0
        self._begun = self._stranger = False
        self._held.clear()
