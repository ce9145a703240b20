"""Input log-probabilities from prefill in decode's answer, on captured pairs of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.core.types import PathKind
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import LegFailed

Captured = Callable[[str], bytes]


@pytest.mark.parametrize(
    ("kind", "fields", "needed"),
    [
        (PathKind.GENERATE, {"return_logprob": True, "logprob_start_len": 0}, True),
        (PathKind.GENERATE, {"return_logprob": [False, True], "logprob_start_len": [-1, 3]}, True),
        (PathKind.GENERATE, {"return_logprob": True}, False),
        (PathKind.GENERATE, {"return_logprob": True, "logprob_start_len": -1}, False),
        (PathKind.GENERATE, {"logprob_start_len": 0}, False),
        (PathKind.COMPLETION, {"echo": True, "logprobs": 1}, True),
        (PathKind.COMPLETION, {"echo": True, "logprobs": 0}, False),
        (PathKind.COMPLETION, {"logprobs": 1}, False),
        (PathKind.CHAT, {"logprobs": True}, False),
    ],
)
def test_when_prefill_is_needed(kind: PathKind, fields: dict[str, Any], needed: bool) -> None:
    assert SGLang().needs_merge(kind, JsonBody(orjson.dumps(fields))) is needed


def test_case_24_generate(captured: Captured) -> None:
    prefill = captured("sglang/generate_logprobs_prefill.json")
    decode = captured("sglang/generate_logprobs_decode.json")
    merged = SGLang().merge(PathKind.GENERATE, prefill, decode)
    ours, theirs = orjson.loads(prefill)["meta_info"], orjson.loads(decode)["meta_info"]
    told = orjson.loads(merged)
    assert len(told["meta_info"]["input_token_logprobs"]) == told["meta_info"]["prompt_tokens"] == 7
    assert told["meta_info"]["input_token_logprobs"] == ours["input_token_logprobs"]
    assert told["meta_info"]["input_top_logprobs"] == ours["input_top_logprobs"]
    rest = {k: v for k, v in told["meta_info"].items() if not k.startswith("input_")}
    assert rest == {k: v for k, v in theirs.items() if not k.startswith("input_")}
    assert told["text"] == orjson.loads(decode)["text"]
    # All bytes but those of the lists are decode's own.
    head, _, tail = decode.partition(b'"input_token_logprobs":[]')
    assert merged.startswith(head)
    assert merged.endswith(tail.partition(b'"input_top_logprobs":[]')[2])


def test_case_24_a_batch(captured: Captured) -> None:
    prefill = captured("sglang/generate_logprobs_prefill.json")
    decode = captured("sglang/generate_logprobs_decode.json")
    merged = SGLang().merge(PathKind.GENERATE, b"[%b,%b]" % (prefill, prefill), b"[%b,%b]" % (decode, decode))
    single = orjson.loads(SGLang().merge(PathKind.GENERATE, prefill, decode))
    assert orjson.loads(merged) == [single, single]


def test_case_24_completion_with_echo(captured: Captured) -> None:
    prefill = captured("sglang/completion_echo_logprobs_prefill.json")
    decode = captured("sglang/completion_echo_logprobs_decode.json")
    choice = orjson.loads(SGLang().merge(PathKind.COMPLETION, prefill, decode))["choices"][0]
    tokens = choice["logprobs"]["tokens"]
    assert tokens == ["def", " get", "_", "loads", "(", "self", "):", "Writ", "Occup", "router"]
    assert "".join(tokens) == choice["text"]
    assert all(
        len(choice["logprobs"][name]) == 10 for name in ("token_logprobs", "top_logprobs", "text_offset")
    )
    assert choice["logprobs"]["token_logprobs"][0] is None


@pytest.mark.parametrize("kind", [PathKind.GENERATE, PathKind.COMPLETION])
@pytest.mark.parametrize("prefill", [b"", b"{}", b"[]", b'{"meta_info":1}', b'{"choices":[]}'])
def test_answers_that_do_not_fit_are_a_failed_leg(captured: Captured, kind: PathKind, prefill: bytes) -> None:
    decode = captured("sglang/completion_echo_logprobs_decode.json")
    with pytest.raises(LegFailed):
        SGLang().merge(kind, prefill, decode)
