"""SGLang's `POST /pd_role_switch`: what it refuses, and what it answers."""

from __future__ import annotations

from typing import Any

import orjson

from orchestrator.sim.host import Host


def refusal(host: Host, asked: dict[str, Any]) -> str:
    """Why the role is not switched; empty if it is."""
    if not host.options.role_switch:
        return "--enable-pd-role-switch is not set on this server"
    if asked.get("new_role") not in ("prefill", "decode") or host.options.role not in ("prefill", "decode"):
        return "new_role must be prefill or decode"
    if host.engine.generations or host.calls:
        return "instance is not idle; drain all requests before switching"
    if asked["new_role"] == "decode" and asked.get("decode_cuda_graph_memory_gb") is None:
        return "decode_cuda_graph_memory_gb is required before capturing decode graphs"
    return ""


def told(old: str, asked: dict[str, Any], refused: str) -> bytes:
    """The body of the answer."""
    return orjson.dumps({
        "rid": None, "http_worker_ipc": None, "success": not refused, "message": refused or "ok",
        "old_role": old if old in ("prefill", "decode") else "null", "new_role": asked.get("new_role"),
        "safe_to_restore": bool(refused),
    })  # fmt: skip
