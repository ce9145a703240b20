"""Readiness as the supervisor sees it: an instance's probes, performed with the right key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import httpx

from orchestrator.engines.base import HttpCall
from orchestrator.launch.unit import Unit


class Prober(Protocol):
    """Asks whether a unit may be given work."""

    async def ask(self, unit: Unit, calls: Sequence[HttpCall]) -> str | None:
        """None when every one of `calls` answered 200; else what the first one that did not said."""
        ...


class HttpProber:
    """The prober for what speaks HTTP. Use it as an async context manager."""

    def __init__(self) -> None:
        # No proxy from the environment: engines are reached directly, whatever http_proxy says.
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)

    async def __aenter__(self) -> HttpProber:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def ask(self, unit: Unit, calls: Sequence[HttpCall]) -> str | None:
        """See `Prober`."""
        for call in calls:
            failed = await self._ask(unit, call)
            if failed is not None:
                return failed
        return None

    async def _ask(self, unit: Unit, call: HttpCall) -> str | None:
        url = httpx.URL(unit.url)
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
            answer = await self._client.request(
                call.method, url, content=call.body, headers=headers, timeout=call.timeout_s
            )
        except httpx.ConnectError:
            return f"{what}: nothing listens yet"
        except httpx.TimeoutException:
            return f"{what}: no answer within {call.timeout_s:g} s"
        except httpx.HTTPError as error:
            return f"{what}: {error or type(error).__name__}"
        return None if answer.status_code == 200 else f"{what}: {answer.status_code}"
