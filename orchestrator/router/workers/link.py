"""One end of the connection between a relay and the scheduler: frames in, frames out in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from orchestrator.router.workers.messages import BadFrame, Frames

log = logging.getLogger(__name__)


class Link(asyncio.Protocol):
    """Gives each frame to `heard`, and tells `lost` once when the connection is over.

    What is sent within one turn of the loop is written at once.
    """

    def __init__(self, heard: Callable[[int, bytes], None], lost: Callable[[], None]) -> None:
        self._heard, self._lost = heard, lost
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.closed = False

    def send(self, frame: bytes) -> None:
        """Send a frame soon; nothing where the connection is over."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(frame)

    def flush(self) -> None:
        """Write what was sent."""
        if self._out and self._transport is not None and not self.closed:
            out, self._out = self._out, []
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def close(self) -> None:
        """Write what was sent, and end the connection."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            for kind, body in self._frames.feed(data):
                self._heard(kind, body)
        except BadFrame as error:
            log.error("a worker's connection is broken", extra={"why": str(error)})
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.closed = True
        self._lost()
