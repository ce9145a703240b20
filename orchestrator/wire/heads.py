"""Heads that were parsed before: the same bytes mean the same, so that they need no parser again."""

from __future__ import annotations

from typing import Generic, TypeVar

HeadT = TypeVar("HeadT")

MAX_HEADS = 512
"""Heads kept. A client, or an engine, repeats its own but for the length of the body (and the date)."""

MAX_KEPT_BYTES = 2048
"""Longer heads are not kept, so that strangers cannot fill the memory: 1 MB at most."""

MAX_DIGITS = 15
"""Of a length; more are left to the parser, which knows what overflows."""

BODILESS = frozenset((204, 304))
"""Statuses without a body whatever length is told: what such a head means hangs on its digits."""

_END = b"\r\n\r\n"
_NAME_BYTES = len(b"\r\ncontent-length: ")

Key = tuple[bytes, bytes]
"""A head without the digits of its Content-Length: what stands before them, and after them."""


def whole(data: bytes) -> tuple[Key, int] | None:
    """If `data` is one message framed by its Content-Length, not a byte more or less: its head's key, and
    where its body begins."""
    body = data.find(_END) + 4
    if not 4 <= body <= MAX_KEPT_BYTES:
        return None
    at = data.find(b"\r\nContent-Length: ", 0, body)
    if at < 0:
        at = data.find(b"\r\ncontent-length: ", 0, body)
        if at < 0:
            return None
    at += _NAME_BYTES
    end = data.find(b"\r\n", at, body)
    digits = data[at:end]
    if not digits.isdigit() or len(digits) > MAX_DIGITS or len(data) - body != int(digits):
        return None
    return (data[:at], data[end:body]), body


class Heads(Generic[HeadT]):
    """What the parser made of heads, by key.

    Only what the parser took whole is kept, and that it took a head does not depend on the digits of the
    length, so that a kept head can never be read otherwise than the parser would.
    """

    def __init__(self) -> None:
        self._known: dict[Key, HeadT] = {}
        self.get = self._known.get
        """The head kept under a key, or None."""

    def __len__(self) -> int:
        """Heads kept."""
        return len(self._known)

    def keep(self, key: Key, head: HeadT) -> None:
        """Remember a head; all others are forgotten when there are too many."""
        if len(self._known) >= MAX_HEADS:
            self._known.clear()
        self._known[key] = head
