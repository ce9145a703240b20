"""Where a vLLM server tells of its KV cache, and how it is asked for a prompt's tokens (0.32.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core.types import PathKind
from orchestrator.engines.base import HttpCall
from orchestrator.engines.kv import KvSource, port_of, reachable, written

TOKENIZE_TIMEOUT_S = 2.0

_CHAT: tuple[str, ...] = (
    "model", "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "chat_template", "chat_template_kwargs",
)  # fmt: skip
_COMPLETION: tuple[str, ...] = ("model", "prompt", "add_special_tokens")
_ELSEWHERE = ("documents", "reasoning_effort", "truncate_prompt_tokens", "prompt_embeds", "cache_salt",
              "mm_processor_kwargs", "tool_choice", "suffix")  # fmt: skip
"""What changes the prompt, or by what its blocks are found, and cannot be said to /tokenize."""


def source(host: str, known: Mapping[str, Any]) -> KvSource | str:
    """Where its events are, by what /kv_event_sources says (a configuration per DP rank); or why nowhere."""
    found = written(known)
    if found is not None:
        return found
    ranks = known.get("kv_events")
    if not isinstance(ranks, list) or not ranks:
        return "it publishes none (--kv-events-config)"
    if len(ranks) > 1:
        return "its DP ranks have a cache each, and the engine chooses between them"
    told = ranks[0]
    port, replay = port_of(told.get("endpoint")), port_of(told.get("replay_endpoint"))
    if port is None or told.get("publisher") != "zmq":
        return f"its events are not published over TCP: {told.get('endpoint')!r}"
    size, topic = known.get("block_size"), told.get("topic")
    return KvSource(
        reachable(host, port),
        None if replay is None else reachable(host, replay),
        topic if isinstance(topic, str) else "",
        size if isinstance(size, int) else None,
    )


def tokenize(kind: PathKind, fields: Mapping[str, Any]) -> HttpCall | None:
    """The call that tells a prompt's tokens; None where it would tell others than the engine's own."""
    names = {PathKind.CHAT: _CHAT, PathKind.COMPLETION: _COMPLETION}.get(kind)
    if names is None or (kind is PathKind.COMPLETION and not isinstance(fields.get("prompt"), str)):
        return None
    if any(fields.get(name) is not None for name in _ELSEWHERE):
        return None
    body = orjson.dumps({name: fields[name] for name in names if fields.get(name) is not None})
    return HttpCall("POST", "/tokenize", body, timeout_s=TOKENIZE_TIMEOUT_S)
