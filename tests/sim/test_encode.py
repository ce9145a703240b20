"""Encode-only engines of either dialect, as processes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from orchestrator.sim.encode import ec_transfer_params, images
from orchestrator.sim.testing import SimProcess, spawn

PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAg"


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
            ("/encode", {"mm_items": [PNG, "http://x/cat"], "req_id": "r", "modality": "IMAGE"}),
            ("/scheduler_receive_url", {"req_id": "r", "receive_count": 1, "receive_url": "127.0.0.1:1"}),
        ):
            answer = await client.post(engine, path, body)
            assert (answer.status_code, json.loads(answer.text)) == (200, None)
        assert (await client.state(engine))["encoded"] == 2
        for broken in ("data:image/png;base64,AAAA", "no base64", None):
            answer = await client.post(engine, "/encode", {"mm_items": [PNG, broken], "req_id": "r"})
            assert (answer.status_code, answer.json()["req_id"]) == (400, "r")
        assert (await client.get(engine, "/health")).status_code == 200
        assert (await client.post(engine, "/v1/completions", {"prompt": "x"})).status_code == 404


async def test_sglang_has_images_encoded_and_answers_as_it_does_alone(client: Any) -> None:
    with SimProcess("--role", "encode", "--speed", "20") as encoder:
        roles = ((), ("--encoder-urls", encoder.url))
        with spawn(*roles, common=("--speed", "20")) as (alone, aided):
            for body in (chat(PNG, PNG), chat()):
                answers = [
                    await client.post(e, "/v1/chat/completions", {**body, "max_tokens": 8})
                    for e in (alone, aided)
                ]
                texts = [a.json()["choices"][0]["message"]["content"] for a in answers]
                assert texts[0] == texts[1]
            assert (await client.state(encoder))["encoded"] == 2
            await client.idle(alone, aided)


@pytest.mark.parametrize("gone", [False, True])
async def test_sglang_dies_of_an_encoder_that_fails(client: Any, gone: bool) -> None:
    with SimProcess("--role", "encode", "--speed", "20") as encoder:
        url = "http://127.0.0.1:1" if gone else encoder.url
        with SimProcess("--speed", "20", "--encoder-urls", url) as engine:
            with pytest.raises(httpx.TransportError):
                await client.post(engine, "/v1/chat/completions", chat(PNG if gone else "data:,x"))
            assert engine.wait() == 1
            assert "len(req.origin_input_ids)" in engine.errors()
