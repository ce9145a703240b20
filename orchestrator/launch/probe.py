"""Readiness as the supervisor sees it: an instance's probes, performed with the right key."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import httpx

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, NotYet
from orchestrator.launch.identity import Told, adapter_of
from orchestrator.launch.unit import Unit

log = logging.getLogger(__name__)


class Prober(Protocol):
    """Asks whether a unit may be given work."""

    async def ask(self, unit: Unit, calls: Sequence[HttpCall]) -> str | None:
        """None when every one of `calls` answered 200; else what the first one that did not said."""
        ...

    async def order(self, unit: Unit, call: HttpCall) -> str | None:
        """Have a unit do something: None when it has (answered 200), else why not, with its words."""
        ...

    async def tell(self, unit: Unit) -> Told:
        """What a unit with an identity tells of itself, or why that cannot be known yet."""
        ...


WORDS = 200
"""So much of what an engine says to an order is shown."""


class HttpProber:
    """The prober for what speaks HTTP. Use it as an async context manager."""

    def __init__(self) -> None:
        # No proxy from the environment: engines are reached directly, whatever http_proxy says.
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)
        # Only the router speaks https, and is asked at its own address, which its certificate need not name.
        self._secure = httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=False)

    async def __aenter__(self) -> HttpProber:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        await self._secure.aclose()

    async def ask(self, unit: Unit, calls: Sequence[HttpCall]) -> str | None:
        """See `Prober`."""
        for call in calls:
            failed = await self._ask(unit, call)
            if failed is not None:
                return failed
        return None

    async def order(self, unit: Unit, call: HttpCall) -> str | None:
        """See `Prober`."""
        answer = await self._answer(unit, call)
        if isinstance(answer, str) or answer.status_code == 200:
            return answer if isinstance(answer, str) else None
        try:
            said = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            said = answer.text.strip()
        return f"{call.method} {call.path} answered {answer.status_code}: {said[:WORDS]}"

    async def tell(self, unit: Unit) -> Told:
        """See `Prober`."""
        try:
            return await self._tell(unit)
        except Exception as error:
            # An adapter may be a user's own file: its bug must not end the watch over its engine.
            log.exception("%s: the engine adapter failed", unit.name)
            return f"the engine adapter failed: {error!r}"

    async def _tell(self, unit: Unit) -> Told:
        assert unit.identity is not None
        adapter, learned = adapter_of(unit), dict[str, Any]()
        for name, call in adapter.discover(Role(unit.role), unit.identity.facts).items():
            answer = await self._answer(unit, call)
            if isinstance(answer, str):
                return answer
            try:
                told = adapter.learn(name, answer.status_code, answer.content)
            except ValueError as error:
                return f"{name}: its answer cannot be read: {error}"
            if isinstance(told, NotYet):
                return told.why
            learned.update(told)
        return learned

    async def _ask(self, unit: Unit, call: HttpCall) -> str | None:
        answer = await self._answer(unit, call)
        if isinstance(answer, str) or answer.status_code == 200:
            return answer if isinstance(answer, str) else None
        url = answer.request.url
        return f"{call.method} {url.path} on port {url.port}: {answer.status_code}"

    async def _answer(self, unit: Unit, call: HttpCall) -> httpx.Response | str:
        """Whatever the answer is, or why there is none."""
        url = httpx.URL(unit.asked_at or unit.url)
        if call.port is not None:
            url = url.copy_with(port=call.port)
        url = url.join(call.path)
        headers = list(call.headers)
        keys = unit.keys or {}
        key = keys.get(url.port or 80, keys.get(0))
        if key is not None:
            headers.append(("Authorization", f"Bearer {key}"))
        what = f"{call.method} {url.path} on port {url.port}"
        try:
            client = self._secure if url.scheme == "https" else self._client
            return await client.request(
                call.method, url, content=call.body, headers=headers, timeout=call.timeout_s
            )
        except httpx.ConnectError:
            return f"{what}: nothing listens yet"
        except httpx.TimeoutException:
            return f"{what}: no answer within {call.timeout_s:g} s"
        except httpx.HTTPError as error:
            return f"{what}: {error or type(error).__name__}"
