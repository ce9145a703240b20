"""What `pdctl drain` does: keep new work from an instance that goes on running, until that is undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import LaunchError
from orchestrator.launch.paths import StateDir
from orchestrator.launch.routerask import ask_router
from orchestrator.launch.status import OPERATOR

LONGEST_S = 24 * 3600.0
"""What the router takes as a deadline at most."""
MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain went: whether nothing is left on the instance, else what is."""

    drained: bool
    requests: int
    kv_tokens: int


async def drain(state: StateDir, name: str, deadline_s: float | None) -> Drained:
    """Have the router give `name` nothing new, and wait until it is empty, or for `deadline_s`.

    It stays so after that, also when it or the router is started anew, until `undo`. Raises LaunchError:
    there is no such instance, or no router of pdctl's.
    """
    limit_s = LONGEST_S if deadline_s is None else min(deadline_s, LONGEST_S)
    body = {"instance": name, "deadline_s": limit_s, "by": OPERATOR}
    status, told = await ask_router(state, "/drain", body, limit_s + MARGIN_S)
    if status != 200:
        raise _refused(told)
    return Drained(bool(told["drained"]), int(told["inflight"]), int(told["kv_tokens"]))


async def undo(state: StateDir, name: str) -> None:
    """Have the router give `name` work again. Raises LaunchError as `drain`."""
    status, told = await ask_router(state, "/ungate", {"instance": name, "by": OPERATOR}, MARGIN_S)
    if status != 200:
        raise _refused(told)


def _refused(told: Mapping[str, Any]) -> LaunchError:
    code = str(told.get("code"))
    return LaunchError(str(told.get("message")), reason="no-instance" if code == "not-found" else code)
