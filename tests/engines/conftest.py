"""What the adapters' tests share: captured bodies, and makers of specs, endpoints and hand-off requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from orchestrator.core.types import Endpoint, PathKind, Role
from orchestrator.engines.base import HandoffRequest, InstanceSpec, Leg, LintContext, Setting
from orchestrator.engines.splice import JsonBody

DATA = Path(__file__).resolve().parent.parent / "data"
PATHS = {
    PathKind.CHAT: "/v1/chat/completions",
    PathKind.COMPLETION: "/v1/completions",
    PathKind.GENERATE: "/generate",
    PathKind.EMBED: "/v1/embeddings",
}


@pytest.fixture
def captured() -> Callable[[str], bytes]:
    """A body that a real engine sent, by its path under tests/data."""
    return lambda name: (DATA / name).read_bytes()


@pytest.fixture
def spec() -> Callable[..., InstanceSpec]:
    """An instance spec; flags and env may be plain values."""

    def make(
        role: Role = Role.PREFILL,
        *,
        flags: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> InstanceSpec:
        values: dict[str, Any] = {
            "name": f"{role.value}-0",
            "pool": role.value,
            "role": role,
            "index": 0,
            "model_path": "/models/tiny",
            "served_name": "tiny",
            "address": "10.0.0.1",
            "bind": "10.0.0.1",
            "ports": {"http": 30000},
            "disaggregated": role is not Role.UNIFIED,
            "drain_s": 60.0,
        } | fields
        return InstanceSpec(flags=_settings(flags), env=_settings(env), **values)

    return make


@pytest.fixture
def lint_of() -> Callable[..., list[str]]:
    """`rule: message` of every finding of an adapter about some specs."""

    def run(adapter: Any, *specs: InstanceSpec) -> list[str]:
        pools = {s.pool: ("t.yaml", 7) for s in specs}
        return [f"{p.rule}: {p.message}" for p in adapter.lint(LintContext(specs, pools))]

    return run


@pytest.fixture
def endpoint() -> Callable[..., Endpoint]:
    """An endpoint as a hand-off sees it."""

    def make(role: Role, url: str = "http://10.0.0.1:30000", **fields: Any) -> Endpoint:
        values: dict[str, Any] = {"engine": "x", "model": "tiny", "ready": True} | fields
        return Endpoint(id=f"{role.value}-0", pool=role.value, role=role, url=url, **values)

    return make


@pytest.fixture
def request_of(endpoint: Callable[..., Endpoint]) -> Callable[..., HandoffRequest]:
    """A hand-off request for a body, to a pair unless `prefill` is None."""

    def make(body: bytes | Mapping[str, Any], kind: PathKind = PathKind.COMPLETION, **fields: Any) -> Any:
        parsed = JsonBody(body if isinstance(body, bytes) else orjson.dumps(body))
        values: dict[str, Any] = {
            "prefill": endpoint(Role.PREFILL),
            "decode": endpoint(Role.DECODE),
            "room": 77,
            "stream": bool(parsed.fields.get("stream")),
        } | fields
        return HandoffRequest(request_id="ab" * 16, path=PATHS[kind], kind=kind, body=parsed, **values)

    return make


@pytest.fixture
def bytes_of() -> Callable[[Leg], bytes]:
    """What a leg writes."""
    return lambda leg: b"".join(leg.body)


def _settings(values: Mapping[str, Any] | None) -> dict[str, Setting]:
    return {
        name: Setting(value, f"topology t.yaml:{i}")
        for i, (name, value) in enumerate((values or {}).items(), 30)
    }
