"""The supervisor's hints to the router over its Unix socket, and what it learns of endpoints there."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from orchestrator.core.pairs import Standing
from orchestrator.core.types import End
from orchestrator.fabric import unix
from orchestrator.launch.status import OPERATOR, BadPair
from orchestrator.topology.plan import Plan

log = logging.getLogger(__name__)

HINT_TIMEOUT_S = 5.0
DRAIN_MARGIN_S = 2.0
"""How much longer than its own deadline an answer to /drain may take to arrive."""


_BY = {"by": "controller"}
"""Who gates, in the router's words: what an operator has drained stays so, whatever the controller does."""


class SeenEndpoint(NamedTuple):
    """What the router says of an endpoint: whether and why not it gives it work, who gates it, why it is
    taken to hang, if it is, and how its circuit breaker stands."""

    ready: bool
    why: str
    gates: tuple[str, ...]
    hung: str
    circuit: str
    apart: str


class Figures(NamedTuple):
    """What the router has counted in its life: requests that ended (without those that clients gave up),
    those of them that failed or were refused, those that were promised something, and how many did
    not get it."""

    requests: float
    failed: float
    promised: float
    missed: float


class Seen(NamedTuple):
    """What the router says of all endpoints; `restart` are those that it advises to start anew."""

    endpoints: Mapping[str, SeenEndpoint]
    bad: tuple[BadPair, ...]
    restart: tuple[str, ...]

    def bad_with(self, name: str) -> Mapping[str, str]:
        """With whom `name` forms bad pairs, and why; with itself, if it serves alone."""
        sides = {(p or d, d, why) for p, d, why in self.bad} | {(d, p or d, why) for p, d, why in self.bad}
        return {other: why for one, other, why in sorted(sides) if one == name}


class Sick(NamedTuple):
    """Instances that a new process might mend, each with why: those that hang, and those with two bad pairs
    or more and no good one, the most bad ones first. None that an operator has drained: somebody may be
    looking into it."""

    hung: Mapping[str, str]
    mispaired: Mapping[str, str]


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

    async def reload(self) -> str:
        """The plan file has changed; read it again. Why the router does not serve it, else an empty text."""
        ...

    async def figures(self) -> Figures | None:
        """How requests have fared; None where no router tells."""
        ...

    async def joined(self, name: str, *, apart_too: bool = False) -> str | None:
        """None when the router gives the instance work, or when there is no router that could tell; else
        why it does not. `apart_too`: one that is well, and only does not go with those in use, will do."""
        ...

    async def pid(self) -> int | None:
        """The router's process, as it says itself; None if none answers."""
        ...

    async def sick(self) -> Sick:
        """Who should be started anew by what the router sees."""
        ...


class SocketRouterLink:
    """The link over `router.sock`; or, for a router on another node, over its admin listener at `url`, where
    it demands the admin `key`."""

    def __init__(self, socket: Path, url: str = "", key: str | None = None) -> None:
        self._socket = socket
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if url and key else {}

    async def drain(self, name: str, deadline_s: float) -> None:
        """See `RouterLink`."""
        if await self._post("/gate", {"instance": name, **_BY}, HINT_TIMEOUT_S):
            body = {"instance": name, "deadline_s": deadline_s, **_BY}
            await self._post("/drain", body, deadline_s + DRAIN_MARGIN_S)

    async def ungate(self, name: str, incarnation: int) -> None:
        """See `RouterLink`."""
        body = {"instance": name, "incarnation": str(incarnation), **_BY}
        await self._post("/ungate", body, HINT_TIMEOUT_S)

    async def gate(self, name: str) -> None:
        """See `RouterLink`."""
        await self._post("/gate", {"instance": name, **_BY}, HINT_TIMEOUT_S)

    async def reload(self) -> str:
        """See `RouterLink`. One on another node has a plan of its own."""
        if self._url:
            return ""
        answer = await self._request("POST", "/reload", {}, HINT_TIMEOUT_S)
        if answer is None or answer.status_code == 200:
            return ""
        try:
            return str(answer.json()["error"]["message"])
        except (KeyError, TypeError, ValueError):
            return f"/reload answered {answer.status_code}"

    async def figures(self) -> Figures | None:
        """See `RouterLink`."""
        answer = await self._ask("GET", "/metrics", None, HINT_TIMEOUT_S)
        return None if answer is None else _figures(answer.text)

    async def joined(self, name: str, *, apart_too: bool = False) -> str | None:
        """See `RouterLink`."""
        seen = await self.seen()
        if seen is None:
            return None
        found = seen.endpoints.get(name)
        if found is None:
            return "the router does not know it"
        # One that an operator keeps out is as it is meant to be.
        well = found.ready or OPERATOR in found.gates or (apart_too and found.apart)
        return None if well else found.why

    async def pid(self) -> int | None:
        """See `RouterLink`."""
        answer = await self._ask("GET", "/health", None, HINT_TIMEOUT_S)
        try:
            return None if answer is None else int(answer.json()["pid"])
        except (KeyError, TypeError, ValueError):
            return None

    async def sick(self) -> Sick:
        """See `RouterLink`."""
        seen = await self.seen()
        if seen is None:
            return Sick({}, {})
        ours = {name: e for name, e in seen.endpoints.items() if OPERATOR not in e.gates}
        advised = {name: bad for name in seen.restart if name in ours and (bad := seen.bad_with(name))}
        return Sick(
            hung={name: e.hung for name, e in ours.items() if e.hung},
            mispaired={
                name: f"{len(peers)} bad pairs and no good one: {next(iter(peers.values()))}"
                for name, peers in sorted(advised.items(), key=lambda item: -len(item[1]))
            },
        )

    async def seen(self, timeout_s: float = HINT_TIMEOUT_S) -> Seen | None:
        """All that the router says of its endpoints; None if there is no router that could tell."""
        answer = await self._ask("GET", "/endpoints", None, timeout_s)
        if answer is None:
            return None
        try:
            return _seen(answer.json())
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
        answer = await self._request(method, path, body, timeout_s)
        if answer is not None and answer.status_code != 200:
            log.warning("router: %s answered %d: %s", path, answer.status_code, answer.text[:200])
            return None
        return answer

    async def _request(
        self, method: str, path: str, body: Mapping[str, object] | None, timeout_s: float
    ) -> httpx.Response | None:
        """Whatever the router answers; None, and a line in the log, if it does not."""
        try:
            if self._url:
                return await self._send(None, method, f"{self._url}{path}", body, timeout_s)
            with unix.short(self._socket) as name:
                transport = httpx.AsyncHTTPTransport(uds=name)
                return await self._send(transport, method, f"http://router{path}", body, timeout_s)
        except httpx.ConnectError:
            # No router, or not yet: it reads the plan when it starts.
            return None
        except (httpx.HTTPError, OSError) as error:
            log.warning("router: %s: %s", path, error or type(error).__name__)
            return None

    async def _send(
        self,
        transport: httpx.AsyncHTTPTransport | None,
        method: str,
        url: str,
        body: Mapping[str, object] | None,
        timeout_s: float,
    ) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return await client.request(method, url, json=body, timeout=timeout_s, headers=self._headers)


def _figures(text: str) -> Figures:
    """From the router's metrics."""
    ends: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    for name, label, counts in (
        ("pdctl_requests_total", "end", ends),
        ("pdctl_slo_requests_total", "verdict", verdicts),
    ):
        for line in re.finditer(rf'^{name}{{.*?\b{label}="([^"]*)".*}} (\S+)$', text, re.MULTILINE):
            counts[line[1]] += int(float(line[2]))
    requests = sum(ends.values()) - ends[End.CANCELLED]
    promised = sum(verdicts.values()) - verdicts["unjudged"]
    return Figures(requests, requests - ends[End.COMPLETED], promised, promised - verdicts["kept"])


def _seen(told: Any) -> Seen:
    """The answer of `GET /endpoints`. Raises KeyError, TypeError or ValueError on anything else."""
    doubtful = told["pairs"].get("doubtful", ())
    bad = [
        BadPair(str(pair["prefill"]), str(pair["decode"]), str(pair["why"]))
        for pair in doubtful
        if pair["standing"] == Standing.BAD
    ]
    endpoints = {
        str(e["name"]): SeenEndpoint(
            bool(e["ready"]),
            str(e["why"]),
            tuple(e["gates"]),
            str(e["hung"]),
            str(e["circuit"]),
            str(e["apart"]),
        )
        for e in told["endpoints"]
    }
    return Seen(endpoints, tuple(bad), tuple(map(str, told["pairs"].get("restart", ()))))


def link_of(socket: Path, plan: Plan, before: RouterLink) -> SocketRouterLink:
    """How the router of `plan` is reached from its node: over `socket`, or on another node by its admin
    listener."""
    router = plan.router
    if router is None or plan.node in (None, router.node) or router.kind != "pdctl":
        return SocketRouterLink(socket)
    if not router.remote_admin_url:
        log.warning("the router's admin listener cannot be reached from this node: it is told of no stop")
        return SocketRouterLink(socket)
    return SocketRouterLink(socket, router.remote_admin_url, router.credentials.admin_key)
