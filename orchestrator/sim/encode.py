"""Encode-only engines: SGLang's encoder server and who asks it, vLLM's chat route that answers with names."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import orjson

from orchestrator.sim.dialect import Routes, empty, read_json
from orchestrator.sim.fetching import post
from orchestrator.sim.host import Host, answer
from orchestrator.wire.client import Pool, WireError
from orchestrator.wire.exchange import Exchange

ENCODE_S = 0.070
"""Seconds a vision tower needs for one image of 1024 x 1024 (measured on Qwen3.5-397B's)."""


REQUEST_TIMEOUT_S = 180.0
"""Default of SGLANG_ENCODER_REQ_TIMEOUT."""

_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")

UNREAD = (
    "    len(req.origin_input_ids)\nTypeError: object of type 'NoneType' has no len()\n"
    "an encoder gave no embedding"
)
"""What ends the scheduler of an engine whose encoder failed."""


class EncoderServer:
    """SGLang's encoder: `/encode` answers `null` once the items are encoded and on their way.

    One that it cannot read is a 400.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._encoded = 0
        self.routes: Routes = {("GET", "/health"): empty, ("POST", "/encode"): self._encode}
        for path in ("/send", "/scheduler_receive_meta_data", "/scheduler_receive_url"):
            self.routes[("POST", path)] = self._taken

    def state(self) -> dict[str, int]:
        """How many items it has encoded."""
        return {"encoded": self._encoded}

    def _encode(self, exchange: Exchange) -> None:
        asked = read_json(exchange)
        items = asked.get("mm_items")
        if not isinstance(items, list) or not all(map(_readable, items)):
            failure = {"status": "error", "message": "cannot identify image", "req_id": asked.get("req_id")}
            answer(exchange, 400, orjson.dumps(failure))
            return
        self._encoded += len(items)
        self._host.later(len(items) * ENCODE_S, lambda: answer(exchange, 200, b"null"))

    @staticmethod
    def _taken(exchange: Exchange) -> None:
        read_json(exchange)
        answer(exchange, 200, b"null")


class Encoders:
    """The encoders of an engine that computes prompts: each request's images go to one of them.

    As on the real engine, the process does not outlive an encoder that refuses an image or is not there.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pool = Pool(connect_timeout_s=1.0)
        self._timeout_s = host.options.env_s("SGLANG_ENCODER_REQ_TIMEOUT", REQUEST_TIMEOUT_S)

    def before(self, exchange: Exchange, body: dict[str, Any], go: Callable[[], None]) -> None:
        """Call `go` once the images of `body` are encoded; at once if it has none."""
        items = images(body)
        if not items or not self._host.options.encoder_urls:
            go()
            return
        self._host.calls += 1
        self._host.spawn(self._encoded(exchange, items, go))

    def close(self) -> None:
        """Let go of the encoders."""
        self._pool.close()

    async def _encoded(self, exchange: Exchange, items: list[str], go: Callable[[], None]) -> None:
        host = self._host
        url = host.rng.choice(host.options.encoder_urls)
        asked = {
            "encoder_idx": 0, "encoder_url": url, "mm_items": items, "num_parts": 1, "part_idx": 0,
            "req_id": f"{host.hexid()}_local_part_0", "modality": "IMAGE", "prefill_host": host.options.host,
            "embedding_port": None, "time_stats_json": None,
        }  # fmt: skip
        where = urlsplit(url)
        try:
            status, _ = await post(
                self._pool, where.hostname or "", where.port or 80, "/encode", orjson.dumps(asked),
                host.clock.real_s(self._timeout_s),
            )  # fmt: skip
        except (WireError, TimeoutError):
            status = 0
        host.calls -= 1
        if status != 200:
            host.die(UNREAD)
        elif not exchange.closed:
            go()


def _readable(item: object) -> bool:
    """Whether an item is an image; what is behind a link is taken to be one."""
    if not isinstance(item, str):
        return False
    if item.startswith(("http://", "https://")):
        return True
    try:
        data = base64.b64decode(item.rpartition(",")[2], validate=True)
    except ValueError:
        return False
    return data.startswith(_SIGNATURES)


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
