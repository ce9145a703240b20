"""Where an SGLang server tells of its KV cache, and how it is asked for a prompt's tokens (0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from orchestrator.core.types import PathKind
from orchestrator.engines.base import HttpCall
from orchestrator.engines.kv import KvSource, reachable, written

TOKENIZE_TIMEOUT_S = 2.0

_CHAT = (
    "model", "messages", "tools", "tool_choice", "reasoning_effort", "continue_final_message",
    "chat_template_kwargs", "add_generation_prompt",
)  # fmt: skip
_ELSEWHERE = (
    "extra_key",
    "cache_salt",
    "lora_path",
    "response_format",
    "suffix",
    "image_data",
    "input_embeds",
)
"""What changes the prompt, or by what its blocks are found, and cannot be said to /tokenize."""


def source(host: str, known: Mapping[str, Any]) -> KvSource | str:
    """Where its events are, by the `kv_events` of /server_info; or why nowhere."""
    found = written(known)
    if found is not None:
        return found
    told = known.get("kv_events")
    if not isinstance(told, dict) or told.get("publisher") != "zmq":
        return "it publishes none (--kv-events-config)"
    if (told.get("dp_size") or 1) > 1:
        return "its DP ranks have a cache each, and the engine chooses between them"
    port, replay = told.get("endpoint_port_base"), told.get("replay_endpoint_port_base")
    if not isinstance(port, int):
        return "its events are not published over TCP"
    size, topic = told.get("block_size"), told.get("topic")
    return KvSource(
        reachable(host, port),
        reachable(host, replay) if isinstance(replay, int) else None,
        topic if isinstance(topic, str) else "",
        size if isinstance(size, int) else None,
    )


def tokenize(kind: PathKind, fields: Mapping[str, Any]) -> HttpCall | None:
    """The call that tells a prompt's tokens; None where it would tell others than the engine's own."""
    if any(fields.get(name) is not None for name in _ELSEWHERE):
        return None
    if kind is PathKind.CHAT:
        asked = {name: fields[name] for name in _CHAT if fields.get(name) is not None}
    else:
        prompt = fields.get("text" if kind is PathKind.GENERATE else "prompt")
        if kind not in (PathKind.COMPLETION, PathKind.GENERATE) or not isinstance(prompt, str):
            return None
        asked = {"prompt": prompt}
    return HttpCall("POST", "/tokenize", orjson.dumps(asked), timeout_s=TOKENIZE_TIMEOUT_S)
