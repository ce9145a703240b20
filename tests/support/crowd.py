"""Many requests under way at a deployment, and what of them waits where."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
from asking import COMPLETION, limited
from deployment import GUARD_S, Deployment, eventually


def completion(prompt: str = "hello", tokens: int = 8, *, stream: bool = False) -> dict[str, Any]:
    """A completion that does not end early."""
    return {**limited(COMPLETION, {"prompt": prompt}, tokens), "ignore_eos": True, "stream": stream}


class Crowd:
    """Clients of one deployment, each with a thread of its own."""

    def __init__(self, made: Deployment, pool: ThreadPoolExecutor) -> None:
        self.made = made
        self._pool = pool

    def ask(self, body: Mapping[str, Any], **headers: str) -> Future[httpx.Response]:
        """Send a completion; its answer later."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._pool.submit(self.made.client.post, COMPLETION, json=body, headers=names)

    def fill(self, **headers: str) -> list[Future[httpx.Response]]:
        """Requests until one of them has to wait in the router, as every later one then does."""
        sent = []
        while not waiting(self.made):
            before = under_way(self.made)
            # Too long to go together with another.
            sent.append(self.ask(completion(f"{before} " + "so many words " * 1000), **headers))
            eventually(lambda count=before + 1: under_way(self.made) == count)  # type: ignore[misc]
        return sent


@contextmanager
def crowd(made: Deployment, size: int = 64) -> Iterator[Crowd]:
    """Clients; all must have been answered at the end."""
    with ThreadPoolExecutor(size) as pool:
        yield Crowd(made, pool)


def under_way(made: Deployment) -> int:
    """Requests that the router has accepted and not ended."""
    return int(made.metrics()["pdctl_inflight_requests"])


def waiting(made: Deployment) -> int:
    """Those of them that wait in the router."""
    return int(made.metrics()["pdctl_queued_requests"])


@contextmanager
def sent(
    made: Deployment, path: str, content: bytes | Mapping[str, Any], cut: int | None = None
) -> Iterator[socket.socket]:
    """A client that has sent its request, or the first `cut` bytes of its body, and leaves at the end."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    host, _, port = made.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), GUARD_S) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body[:cut])
        yield client
