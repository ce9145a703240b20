"""Encode-only engines: SGLang's encoder server, and vLLM's chat route that answers with embeddings' names."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from orchestrator.sim.dialect import Routes, empty, read_json
from orchestrator.sim.host import Host, answer
from orchestrator.wire.exchange import Exchange

ENCODE_S = 0.070
"""Seconds a vision tower needs for one image of 1024 x 1024 (measured on Qwen3.5-397B's)."""


def sglang_routes(host: Host) -> Routes:
    """The encoder server: `/encode` answers `null` once the items are encoded and on their way."""

    def encode(exchange: Exchange) -> None:
        items = read_json(exchange).get("mm_items")
        count = len(items) if isinstance(items, list) else 1
        host.later(count * ENCODE_S, lambda: answer(exchange, 200, b"null"))

    def taken(exchange: Exchange) -> None:
        read_json(exchange)
        answer(exchange, 200, b"null")

    routes: Routes = {("GET", "/health"): empty, ("POST", "/encode"): encode}
    for path in ("/send", "/scheduler_receive_meta_data", "/scheduler_receive_url"):
        routes[("POST", path)] = taken
    return routes


def images(body: dict[str, Any]) -> list[str]:
    """The image URLs of a chat body, in order."""
    found = []
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            image = part.get("image_url") if isinstance(part, dict) else None
            url = image.get("url") if isinstance(image, dict) else image
            if isinstance(url, str):
                found.append(url)
    return found


def ec_transfer_params(urls: list[str]) -> dict[str, Any] | None:
    """What vLLM's example connector answers: the store is addressed by content."""
    params: dict[str, Any] = {}
    for index, url in enumerate(urls):
        name = hashlib.sha256(url.encode()).hexdigest()
        entry = params.setdefault(name, {"item_indices": [], "metadata": {"image_grid_thw": [1, 36, 36]}})
        entry["item_indices"].append(index)
    return params or None


def vllm_chat(host: Host, exchange: Exchange, model: str) -> None:
    """An encode-only chat call: no text, and the names of what was encoded. Raises ValueError."""
    body = read_json(exchange)
    urls = images(body)
    given = exchange.header(b"x-request-id")
    request_id = given.decode("latin-1") if given else host.hexid(16)
    message = {
        "role": "assistant", "content": "", "refusal": None, "annotations": None, "audio": None,
        "function_call": None, "reasoning": None,
    }  # fmt: skip
    choice = {
        "index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None,
        "token_ids": None, "routed_experts": None,
    }  # fmt: skip
    reply = {
        "id": f"chatcmpl-{request_id}", "object": "chat.completion", "created": host.created(),
        "model": model, "choices": [choice], "service_tier": None, "system_fingerprint": None,
        "usage": {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0},
        "kv_transfer_params": None, "ec_transfer_params": ec_transfer_params(urls), "metrics": None,
    }  # fmt: skip
    host.later(len(urls) * ENCODE_S, lambda: answer(exchange, 200, orjson.dumps(reply)))
