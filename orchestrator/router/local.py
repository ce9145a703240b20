"""What the router answers itself: which models there are, whether it can serve, and what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from orchestrator.core.types import Endpoint, Role, Snapshot
from orchestrator.errors import NoCapacity, NotServed


def models(names: Sequence[str], snapshot: Snapshot) -> bytes:
    """`GET /v1/models`: the OpenAI list, with the context length where an engine told it."""
    return orjson.dumps({"object": "list", "data": [_model(name, snapshot) for name in names]})


def model(name: str, names: Sequence[str], snapshot: Snapshot) -> bytes:
    """`GET /v1/models/NAME`. Raises NotServed."""
    if name not in names:
        message = f"the model {name!r} is not served here; served: {', '.join(names)}"
        raise NotServed(message, reason="unknown-model", param="model")
    return orjson.dumps(_model(name, snapshot))


def ready(names: Sequence[str], snapshot: Snapshot, draining: bool) -> bytes:
    """`GET /ready`: fine while a request for some model could be served. Raises NoCapacity otherwise."""
    if draining:
        raise NoCapacity("the router is stopping", reason="draining")
    if not any(_routable(name, snapshot) for name in names):
        raise NoCapacity(f"no endpoints are ready for any of: {', '.join(names)}")
    return b'{"status":"ready"}'


def server_info(snapshot: Snapshot, version: str) -> bytes:
    """`GET /server_info`, in the two shapes that load generators read: by role, or of a single server.

    Per endpoint only what tells nothing of the inside: no address, no launch arguments.
    """
    by_role: dict[str, list[dict[str, Any]]] = {}
    for endpoint in snapshot.endpoints:
        by_role.setdefault(endpoint.role.value, []).append(_info(endpoint))
    about: dict[str, Any] = {"router": "pdctl", "version": version}
    if Role.PREFILL in by_role or Role.DECODE in by_role:
        return orjson.dumps({**about, "prefill": [], "decode": [], **by_role})
    unified = by_role.get(Role.UNIFIED) or [{"internal_states": [{}]}]
    return orjson.dumps({**unified[0], **about, **by_role})


def _info(endpoint: Endpoint) -> dict[str, Any]:
    load = endpoint.load
    state = {} if load is None else {"running": load.running, "waiting": load.waiting}
    return {
        "id": endpoint.id,
        "model": endpoint.model,
        "ready": endpoint.ready,
        "max_model_len": endpoint.max_model_len,
        "internal_states": [state],
    }


def _model(name: str, snapshot: Snapshot) -> dict[str, Any]:
    lengths = [e.max_model_len for e in snapshot.endpoints if e.model == name and e.max_model_len]
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "pdctl",
        "root": name,
        "parent": None,
        "max_model_len": min(lengths, default=None),
    }


def _routable(name: str, snapshot: Snapshot) -> bool:
    if snapshot.ready(name, Role.UNIFIED):
        return True
    return bool(snapshot.ready(name, Role.PREFILL) and snapshot.ready(name, Role.DECODE))
