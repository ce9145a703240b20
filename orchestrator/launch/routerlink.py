"""The supervisor's hints to the router over its Unix socket: gate, drain, ungate, reload."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import httpx

from orchestrator.fabric import unix

log = logging.getLogger(__name__)

HINT_TIMEOUT_S = 5.0
DRAIN_MARGIN_S = 2.0
"""How much longer than its own deadline an answer to /drain may take to arrive."""


class RouterLink(Protocol):
    """What the supervisor tells the router. All of it is advice: without a router nothing is lost but
    grace, so nothing here raises when it cannot be reached."""

    async def drain(self, name: str, deadline_s: float) -> None:
        """Gate the instance, then return when nothing is in flight on it, at the deadline, or at once if
        there is no router."""
        ...

    async def ungate(self, name: str, incarnation: int) -> None:
        """The instance is ready; requests may go to this incarnation of it."""
        ...

    async def gate(self, name: str) -> None:
        """Send the instance nothing new."""
        ...

    async def reload(self) -> None:
        """The plan file has changed; read it again."""
        ...

    async def joined(self, name: str) -> str | None:
        """None when the router gives the instance work, or when there is no router that could tell; else
        why it does not."""
        ...


class SocketRouterLink:
    """The link over `router.sock`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def drain(self, name: str, deadline_s: float) -> None:
        """See `RouterLink`."""
        if await self._post("/gate", {"instance": name}, HINT_TIMEOUT_S):
            body = {"instance": name, "deadline_s": deadline_s}
            await self._post("/drain", body, deadline_s + DRAIN_MARGIN_S)

    async def ungate(self, name: str, incarnation: int) -> None:
        """See `RouterLink`."""
        await self._post("/ungate", {"instance": name, "incarnation": str(incarnation)}, HINT_TIMEOUT_S)

    async def gate(self, name: str) -> None:
        """See `RouterLink`."""
        await self._post("/gate", {"instance": name}, HINT_TIMEOUT_S)

    async def reload(self) -> None:
        """See `RouterLink`."""
        await self._post("/reload", {}, HINT_TIMEOUT_S)

    async def joined(self, name: str) -> str | None:
        """See `RouterLink`."""
        answer = await self._ask("GET", "/endpoints", None, HINT_TIMEOUT_S)
        if answer is None:
            return None
        try:
            endpoints = {e["name"]: e for e in answer.json()["endpoints"]}
            found = endpoints.get(name)
            if found is None:
                return "the router does not know it"
            return None if found["ready"] and not found["gated"] else str(found["why"])
        except (KeyError, TypeError, ValueError):
            log.warning("router: /endpoints answered something else")
            return None

    async def _post(self, path: str, body: Mapping[str, object], timeout_s: float) -> bool:
        """Whether the router took the hint."""
        return await self._ask("POST", path, body, timeout_s) is not None

    async def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout_s: float
    ) -> httpx.Response | None:
        """The router's answer; None, and a line in the log, if there is no good one."""
        try:
            with unix.short(self._socket) as name:
                transport = httpx.AsyncHTTPTransport(uds=name)
                async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                    answer = await client.request(
                        method, f"http://router{path}", json=body, timeout=timeout_s
                    )
        except httpx.ConnectError:
            # No router, or not yet: it reads the plan when it starts.
            return None
        except (httpx.HTTPError, OSError) as error:
            log.warning("router: %s: %s", path, error or type(error).__name__)
            return None
        if answer.status_code != 200:
            log.warning("router: %s answered %d: %s", path, answer.status_code, answer.text[:200])
            return None
        return answer
