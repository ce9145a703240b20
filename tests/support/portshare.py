"""Ports for tests that must know theirs beforehand: each is given to one test of one worker."""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 10_000, 32_000
"""Below the ephemeral range, so that no outgoing connection takes one meanwhile."""


def _share() -> range:
    """What of the range is this worker's, where the tests are dealt out to several."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = (LAST - FIRST) // workers
    return range(FIRST + number * width, FIRST + (number + 1) * width)


SHARE = _share()
# Not from its beginning: another run of the tests may be under way on this machine.
_next_port = random.choice(SHARE[:: len(SHARE) // 100])


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody holds, and that no other test was given lately."""
    global _next_port
    while True:
        first, _next_port = _next_port, _next_port + count
        if _next_port > SHARE.stop:
            _next_port = SHARE.start
            continue
        try:
            for port in range(first, _next_port):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first
