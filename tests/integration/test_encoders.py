"""Encode, prefill and decode apart: simulated SGLang, brought up by `pdctl` or behind `pdctl route`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import CHAT, COMPLETION
from deployment import MODEL, SPEED, Deployment, eventually, sim
from recorder import Recorder

from orchestrator.sim.testing import SimProcess

pytestmark = pytest.mark.integration

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(60))).decode()


def chat(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": MODEL, "messages": [{"role": "user", "content": parts}], "max_tokens": 8}


def test_encoders_come_up_are_watched_and_get_images_from_prefill_alone(
    deploy: Callable[..., Deployment], references: Mapping[str, httpx.Client]
) -> None:
    made = deploy({"encode": sim("encode", instances=2), "prefill": sim("prefill"), "decode": sim("decode")})
    made.up()
    made.serves()
    assert {n: (i["role"], i["state"]) for n, i in made.ps().items() if n.startswith("encode")} == {
        "encode-0": ("encode", "ready"),
        "encode-1": ("encode", "ready"),
    }
    plain = {"model": MODEL, "prompt": "hello", "max_tokens": 8}
    picture = chat(f"data:image/png;base64,{PNG}")
    for path, body in ((COMPLETION, plain), (CHAT, picture)):
        answers = [client.post(path, json=body) for client in (made.client, references["sglang"])]
        assert [a.status_code for a in answers] == [200, 200], answers[0].text
        ours, theirs = (a.json()["choices"][0] for a in answers)
        assert ours == theirs
    encoders = ["encode-0", "encode-1"]
    assert sum(made.engine_state(name)["encoded"] for name in encoders) == 1
    for url in ("data:image/png;base64,AAAA", "https://example.org/cat.png"):
        refused = made.client.post(CHAT, json=chat(url))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
    assert made.client.post("/tokenize", json={"model": MODEL, "prompt": "hello"}).status_code == 200
    shown = made.endpoints()
    for name in encoders:
        assert (shown[name]["ready"], shown[name]["load"], shown[name]["role"]) == (True, None, "encode")
    assert made.metric(r'pdctl_probe_errors_total\{.*call="load"') == 0
    made.at_rest()


def test_text_is_served_whether_or_not_there_is_an_encoder(tmp_path: Path) -> None:
    with ExitStack() as stack:
        unified = stack.enter_context(SimProcess("--speed", str(SPEED), "--served-model-name", MODEL))
        pools = {
            "encode": {"role": "encode", "engine": "sglang", "external": [{"url": "http://127.0.0.1:9"}]},
            "unified": {"role": "unified", "engine": "sglang", "external": [{"url": unified.url}]},
        }
        made = stack.enter_context(Deployment(tmp_path / "d", pools, model={"served_name": MODEL}))
        stack.enter_context(made.route())
        eventually(lambda: made.endpoints()["unified-0"]["ready"], made.endpoints)
        answer = made.client.post(COMPLETION, json={"model": MODEL, "prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200, answer.text
        shown = made.endpoints()
        assert {n: one["ready"] for n, one in shown.items()} == {"encode-0": False, "unified-0": True}


def test_an_image_reaches_prefill_and_decode_as_it_was_sent(tmp_path: Path) -> None:
    flags = ("--speed", str(SPEED), "--served-model-name", MODEL)
    with ExitStack() as stack:
        encoder = stack.enter_context(SimProcess("--role", "encode", *flags))
        asked = stack.enter_context(Recorder(encoder.port))
        prefill = stack.enter_context(SimProcess("--role", "prefill", "--encoder-urls", asked.url, *flags))
        decode = stack.enter_context(SimProcess("--role", "decode", *flags))
        before = [stack.enter_context(Recorder(engine.port)) for engine in (prefill, decode)]
        bootstrap = {"bootstrap_port": prefill.ports["bootstrap"]}
        pools = {
            "encode": {"role": "encode", "engine": "sglang", "external": [{"url": encoder.url}]},
            "p": {"role": "prefill", "engine": "sglang", "external": [{"url": before[0].url, **bootstrap}]},
            "d": {"role": "decode", "engine": "sglang", "external": [{"url": before[1].url}]},
        }
        made = stack.enter_context(Deployment(tmp_path / "d", pools, model={"served_name": MODEL}))
        stack.enter_context(made.route())
        made.serves()
        url = f"data:image/png;base64,{PNG}"
        sent = json.dumps(chat(url), indent=3).encode()
        answer = made.client.post(CHAT, content=sent)
        assert answer.status_code == 200, answer.text
        for recorder in before:
            (leg,) = recorder.calls(CHAT)
            assert leg.body.endswith(sent[1:])  # all but what the router put in front
            assert leg.json["messages"] == chat(url)["messages"]
        (encode,) = asked.calls("/encode")
        assert encode.json["mm_items"] == [url]


def test_case_47_an_encoder_that_hangs_holds_up_nobody_but_who_needs_it(
    deploy: Callable[..., Deployment],
) -> None:
    pools = {"encode": sim("encode"), "prefill": sim("prefill"), "decode": sim("decode")}
    made = deploy(pools, router={"timeouts": {"prefill": "2s", "hang": "1s"}}).up()
    made.serves()
    picture = chat(f"data:image/png;base64,{PNG}")
    plain = {"model": MODEL, "prompt": "hello", "max_tokens": 8}
    with made.fault("encode-0", "hang"), ThreadPoolExecutor() as threads:
        asking = threads.submit(made.client.post, CHAT, json=picture)
        eventually(lambda: made.metrics()["pdctl_inflight_requests"] == 1, made.unrest)
        for _ in range(5):
            answer = made.client.post(COMPLETION, json=plain)
            assert answer.status_code == 200, answer.text
        assert not asking.done()
        late = asking.result()
    assert late.status_code in (502, 503, 504), late.text
    assert late.json()["error"]["code"] == late.headers["x-pdctl-reason"]
    made.serves()
    assert made.client.post(CHAT, json=picture).status_code == 200
    made.at_rest()


def test_case_47_an_encoder_that_starts_last_keeps_no_text_waiting(deploy: Callable[..., Deployment]) -> None:
    slow = sim("encode", **{"load-delay-s": 600 * SPEED})
    made = deploy({"encode": slow, "prefill": sim("prefill"), "decode": sim("decode")})
    assert made.pdctl("up", "--detach", "--timeout", "2s").returncode == 3
    made.serves("prefill-0", "decode-0")
    answer = made.client.post(COMPLETION, json={"model": MODEL, "prompt": "hello", "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    assert not made.endpoints()["encode-0"]["ready"]
