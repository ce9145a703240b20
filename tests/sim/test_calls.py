"""Request bodies as clients send them become prompts and parameters, or one clear refusal."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.sim.calls import BadCall, chat_call, completion_call, generate_call
from orchestrator.sim.text import encode


def test_a_prompt_is_text_ids_or_a_list_of_either() -> None:
    assert completion_call({"prompt": "a b"}).prompts == (tuple(encode("a b")),)
    assert completion_call({"prompt": [5, 6]}).prompts == ((5, 6),)
    batch = completion_call({"prompt": ["a", [7]]})
    assert (batch.prompts, batch.batch, batch.texts) == ((tuple(encode("a")), (7,)), True, ("a", None))


def test_parameters_are_read_where_each_api_has_them() -> None:
    completion = completion_call({"prompt": "x", "stop": "end", "logprobs": 2, "ignore_eos": True})
    (params,) = completion.params
    assert (params.max_tokens, params.stop, params.logprobs, params.ignore_eos) == (16, ("end",), 2, True)
    messages = [{"role": "user", "content": "x"}]
    chat = chat_call({"messages": messages, "max_completion_tokens": 9, "max_tokens": 4, "logprobs": True})
    assert (chat.params[0].max_tokens, chat.params[0].logprobs) == (9, 0)
    assert chat_call({"messages": messages}).params[0].max_tokens is None
    sampling = {"max_new_tokens": 7, "stop": ["a", ""], "min_new_tokens": 3}
    generate = generate_call({"text": "x", "sampling_params": sampling})
    assert (generate.params[0].max_tokens, generate.params[0].stop) == (7, ("a",))
    assert generate.params[0].min_tokens == 3
    each = generate_call({"input_ids": [[1], [2]], "sampling_params": [{"max_new_tokens": 1}, {}]})
    assert [one.max_tokens for one in each.params] == [1, 128]


def test_stream_options_and_echo() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    call = completion_call({"prompt": "abc", "stream": True, "stream_options": options, "echo": True})
    assert call.stream
    assert call.include_usage
    assert call.continuous_usage
    assert call.echo
    assert call.prompt_text(0) == "abc"


BAD: list[tuple[Any, dict[str, Any], str | None]] = [
    (completion_call, {}, "prompt"),
    (completion_call, {"prompt": ""}, "prompt"),
    (completion_call, {"prompt": {}}, "prompt"),
    (completion_call, {"prompt": ["a", 1]}, "prompt"),
    (completion_call, {"prompt": [1, 10**9]}, "prompt"),
    (completion_call, {"prompt": [-1]}, "prompt"),
    (completion_call, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    (completion_call, {"prompt": "x", "max_tokens": "9"}, "max_tokens"),
    (completion_call, {"prompt": "x", "n": 0}, "n"),
    (completion_call, {"prompt": "x", "n": "2"}, "n"),
    (completion_call, {"prompt": "x", "stop": 5}, "stop"),
    (completion_call, {"prompt": "x", "stop": [5]}, "stop"),
    (completion_call, {"prompt": "x", "stream_options": 1}, "stream_options"),
    (chat_call, {}, "messages"),
    (chat_call, {"messages": []}, "messages"),
    (chat_call, {"messages": [{"content": "x"}]}, "messages"),
    (generate_call, {}, "text"),
    (generate_call, {"text": ["a"], "sampling_params": [1]}, "sampling_params"),
    (generate_call, {"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
]


@pytest.mark.parametrize(("read", "body", "param"), BAD)
def test_what_no_engine_would_take_is_refused_naming_the_field(
    read: Any, body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(BadCall) as caught:
        read(body)
    assert caught.value.param == param
