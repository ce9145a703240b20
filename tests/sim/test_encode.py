"""Encode-only engines of either dialect, as processes."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.sim.encode import ec_transfer_params, images
from orchestrator.sim.testing import SimProcess


def chat(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "what is this?"}, *parts]
    return {"model": "sim", "messages": [{"role": "user", "content": content}]}


def test_equal_images_have_one_name() -> None:
    urls = images(chat("data:a", "data:b", "data:a"))
    params = ec_transfer_params(urls)
    assert params is not None
    assert [entry["item_indices"] for entry in params.values()] == [[0, 2], [1]]
    assert all(len(name) == 64 for name in params)
    assert ec_transfer_params(images({"messages": [{"role": "user", "content": "no image"}]})) is None


async def test_vllms_encoder_answers_with_names_and_no_text(client: Any) -> None:
    with SimProcess("--dialect", "vllm", "--role", "encode", "--speed", "20") as engine:
        got = (await client.post(engine, "/v1/chat/completions", chat("data:a"))).json()
        assert got["choices"][0]["message"]["content"] == ""
        assert got["choices"][0]["finish_reason"] == "stop"
        assert next(iter(got["ec_transfer_params"].values()))["item_indices"] == [0]
        text = (await client.post(engine, "/v1/chat/completions", chat())).json()
        assert text["ec_transfer_params"] is None
        assert (await client.get(engine, "/health")).status_code == 200


async def test_sglangs_encoder_has_its_own_routes_and_no_others(client: Any) -> None:
    with SimProcess("--role", "encode", "--speed", "20") as engine:
        for path, body in (
            ("/encode", {"mm_items": ["data:a", "data:b"], "req_id": "r", "modality": "IMAGE"}),
            ("/scheduler_receive_url", {"req_id": "r", "receive_count": 1, "receive_url": "127.0.0.1:1"}),
        ):
            answer = await client.post(engine, path, body)
            assert (answer.status_code, json.loads(answer.text)) == (200, None)
        assert (await client.get(engine, "/health")).status_code == 200
        assert (await client.post(engine, "/v1/completions", {"prompt": "x"})).status_code == 404
