"""The smallest engine adapter that a router can join, as a user's own file would hold it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.types import Load, PathKind, Role
from orchestrator.engines.base import HttpCall, NotYet
from orchestrator.engines.vllm import VLLM


class Stub:
    """Speaks to the stub server of tests/router/conftest.py."""

    name = "stub"
    roles = frozenset(Role)
    idle_s = 2.0
    guarded_fields: frozenset[str] = frozenset()
    guarded_headers: frozenset[str] = frozenset()
    hints = ()

    def bind(self, options: Mapping[str, Any]) -> Stub:
        return self

    def serves(self, kind: PathKind, role: Role, disaggregated: bool) -> bool:
        return kind is PathKind.CHAT and disaggregated

    def discover(self, role: Role, facts: Mapping[str, Any]) -> Mapping[str, HttpCall]:
        return {"info": HttpCall("GET", "/info", timeout_s=2.0)}

    def learn(self, name: str, status: int, body: bytes) -> Mapping[str, Any] | NotYet:
        if status != 200:
            return NotYet(f"status {status}")
        told: dict[str, Any] = json.loads(body)
        return NotYet(told["not_yet"]) if "not_yet" in told else told

    def load_call(self) -> HttpCall:
        return HttpCall("GET", "/load", timeout_s=2.0)

    def load(self, body: bytes, facts: Mapping[str, Any], at_s: float) -> Load:
        told = json.loads(body)
        return Load(at_s=at_s, running=told["running"], progress=told.get("progress"))

    def flush(self) -> HttpCall | None:
        return HttpCall("POST", "/flush", timeout_s=2.0)


class NoFlush(Stub):
    """An engine without a cache to empty."""

    def flush(self) -> HttpCall | None:
        return None


class BadFlush(Stub):
    """An adapter with a bug."""

    def flush(self) -> HttpCall | None:
        raise KeyError("flush")


class Whole(Stub, VLLM):
    """A unified engine whose hand-off is a real adapter's, so that requests go through."""

    def serves(self, kind: PathKind, role: Role, disaggregated: bool) -> bool:
        return kind in (PathKind.CHAT, PathKind.COMPLETION) and role is Role.UNIFIED
