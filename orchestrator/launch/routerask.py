"""One question of a command to the router of a state directory, over its admin socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch.paths import StateDir, reaching


async def ask_router(
    state: StateDir, path: str, body: Mapping[str, Any], timeout_s: float
) -> tuple[int, Mapping[str, Any]]:
    """Status and JSON of the answer to a POST; of a refusal, what stands under `error`.

    Raises LaunchError (`no-router`) when no router of pdctl's answers.
    """
    try:
        with reaching(state.router), unix.short(state.router) as name:
            transport = httpx.AsyncHTTPTransport(uds=name)
            async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                answer = await client.post(f"http://router{path}", json=body, timeout=timeout_s)
        told = answer.json() if answer.status_code == 200 else answer.json()["error"]
        return answer.status_code, dict(told)
    except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
        why = str(error) or type(error).__name__
        raise LaunchError(
            f"the router does not answer at {state.router} ({why}); see `pdctl ps`", reason="no-router"
        ) from error
