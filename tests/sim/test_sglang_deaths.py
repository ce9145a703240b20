"""The numbers that end a simulated SGLang are those that ended the real one, and its adapter refuses each."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from orchestrator.core.types import PathKind
from orchestrator.engines.sim import Sim
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest
from orchestrator.sim.sglang_deaths import cause
from orchestrator.sim.testing import SimProcess
from orchestrator.sim.text import VOCABULARY

KINDS = {"completions": PathKind.COMPLETION, "chat": PathKind.CHAT, "generate": PathKind.GENERATE}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": [1, VOCABULARY]}),
    ("completions", {"prompt": [-5]}),
    ("completions", {"prompt": [[1], [2, 999_999]]}),
    ("completions", {"prompt": [["1", "999999"]]}),
    ("completions", {"prompt": [1, "999999"]}),
    ("completions", {"prompt": [1.0, 999_999.0]}),
    ("chat", {**CHAT, "input_ids": [999_999]}),
    ("generate", {"input_ids": [[1, 2], [1, -5]]}),
]
NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("completions", {"prompt": "x", "logprobs": VOCABULARY + 1}),
    ("completions", {"prompt": "x", "top_k": 2**31}),
    ("completions", {"prompt": "x", "min_tokens": 2, "stop_token_ids": [999_999]}),
    ("chat", {**CHAT, "logprobs": True, "top_logprobs": 10**6}),
    ("generate", {"text": "x", "top_logprobs_num": [1, 10**6]}),
    ("generate", {"text": "x", "sampling_params": [{"top_k": 10**12}]}),
]
DEADLY = PROMPTS + NUMBERS


@pytest.mark.parametrize(("kind", "body"), DEADLY)
def test_each_is_a_death_that_the_adapter_prevents(kind: str, body: dict[str, Any]) -> None:
    assert cause(body, "prefill")
    with pytest.raises(BadRequest):
        Sim().check(KINDS[kind], JsonBody(json.dumps(body).encode()), True, {"vocab_size": VOCABULARY})


def test_decode_minds_no_prompt() -> None:
    assert not any(cause(body, "decode") for _, body in PROMPTS)
    assert all(cause(body, "decode") for _, body in NUMBERS)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [0, VOCABULARY - 1], "top_k": 2**31 - 1, "logprobs": 5, "stop_token_ids": [999_999]},
        {"prompt": ["999999"]},
        {"prompt": "x", "top_k": None, "logprobs": -1, "min_tokens": 3, "stop_token_ids": []},
        {"text": "x", "sampling_params": None, "top_logprobs_num": None},
        {**CHAT, "logprobs": True},
    ],
)
def test_what_the_real_one_survives_ends_nothing(body: dict[str, Any]) -> None:
    assert cause(body, "unified") is None


def test_the_process_ends_as_by_a_crash() -> None:
    with SimProcess("--speed", "40") as engine:
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{engine.url}/v1/completions", json={"prompt": [1, VOCABULARY]}, timeout=30)
        assert engine.wait() != 0
        assert "index out of range" in engine.errors()
