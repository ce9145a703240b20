"""Requests that end SGLang's process, refused before they reach it; each was sent to the real engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.types import Endpoint, PathKind, Role
from orchestrator.engines.base import HandoffRequest, InstanceSpec, Leg
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sglang.limits import INT32
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest

FACTS = {"vocab_size": 2048}
CHAT, COMPLETION, GENERATE = PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE


def check(kind: PathKind, fields: Mapping[str, Any], facts: Mapping[str, Any] = FACTS) -> None:
    SGLang().check(kind, JsonBody(orjson.dumps(fields)), True, facts)


def refusal(kind: PathKind, fields: Mapping[str, Any], facts: Mapping[str, Any] = FACTS) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        check(kind, fields, facts)
    assert caught.value.http_status == 400
    return caught.value


@pytest.mark.parametrize("name", ["prompt", "input_ids", "input"])
@pytest.mark.parametrize(
    "ids", [[1, 2048], [1, -5], [2**40], [[1, 2], [3, 99999]], [[1], [-1]], [[], [2048]], [1.0, 99999.0]]
)
def test_token_ids_outside_the_vocabulary(name: str, ids: list[Any]) -> None:
    kinds = {"prompt": (COMPLETION,), "input_ids": (GENERATE, CHAT), "input": (PathKind.EMBED,)}
    for kind in kinds[name]:
        error = refusal(kind, {"messages": [], name: ids})
        assert (error.reason, error.param) == ("bad-token-id", name)


def test_the_refusal_names_the_id_and_the_bounds() -> None:
    assert refusal(COMPLETION, {"prompt": [7, 2048]}).message == (
        "`prompt` holds the token id 2048; this model's go from 0 to 2047"
    )
    assert "the token id -3;" in refusal(COMPLETION, {"prompt": [-3, 99999]}).message


@pytest.mark.parametrize(
    "prompt",
    [
        [1, "99999"],
        ["1", 99999],
        [["1", "99999"]],
        [[1], 5],
        [[1], "x"],
        [[1], {"99999": 1}],
        [None],
        [[None]],
    ],
)
def test_what_the_engine_might_read_as_token_ids(prompt: list[Any]) -> None:
    """Its parser takes "99999" for a number where the others are numbers."""
    assert refusal(COMPLETION, {"prompt": prompt}).reason == "bad-token-id"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (COMPLETION, {"prompt": [0, 2047]}),
        (COMPLETION, {"prompt": [[0], [2047, 5], []]}),
        (COMPLETION, {"prompt": ["text", "99999"]}),
        (COMPLETION, {"prompt": "99999"}),
        (COMPLETION, {"prompt": []}),
        (COMPLETION, {"prompt": [True]}),
        (COMPLETION, {"prompt": "x", "logit_bias": {"5": -1e9, "6": 100}, "repetition_penalty": 1e-6}),
        (COMPLETION, {"prompt": "x", "logit_bias": {}, "repetition_penalty": None}),
        (GENERATE, {"text": "x", "sampling_params": {"top_k": INT32, "stop_token_ids": [2047]}}),
        (GENERATE, {"input_ids": [5], "return_logprob": True, "top_logprobs_num": [2, None]}),
        (CHAT, {"messages": [], "logprobs": True, "top_logprobs": 20, "top_k": -1, "stop_token_ids": []}),
        (PathKind.EMBED, {"input": [{"text": "x"}]}),
        (PathKind.EMBED, {"input": [5, 6]}),
        (PathKind.RESPONSES, {"input": [{"role": "user", "content": "x"}]}),
        (PathKind.TOKENIZE, {"prompt": ["a", "b"]}),
    ],
)
def test_what_the_engine_survives_passes(kind: PathKind, fields: dict[str, Any]) -> None:
    check(kind, fields)


@pytest.mark.parametrize("kind", [CHAT, COMPLETION, PathKind.MESSAGES, PathKind.RESPONSES])
@pytest.mark.parametrize("top_k", [2**31, 10**12, 1e12, "1000000000000", [5]])
def test_top_k_beyond_32_bits(kind: PathKind, top_k: Any) -> None:
    error = refusal(kind, {"messages": [], "prompt": "x", "top_k": top_k})
    assert (error.reason, error.param) == ("too-many", "top_k")


def test_sampling_parameters_of_generate() -> None:
    for sampling in ({"top_k": 2**31}, [{"top_k": 5}, {"top_k": 2**31}]):
        assert refusal(GENERATE, {"text": "x", "sampling_params": sampling}).param == "top_k"
    for stops in ([2048], [-1], ["99999"], {"99999": 1}):
        error = refusal(GENERATE, {"text": "x", "sampling_params": {"stop_token_ids": stops}})
        assert error.param == "stop_token_ids"


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": "1e-300"},
        {"logit_bias": {"5": 1e38}},
        {"logit_bias": {"5": 0, "6": -1e10}},
        {"logit_bias": {"5": "1e38"}},
    ],
)
def test_numbers_that_leave_no_probabilities(sampling: dict[str, Any]) -> None:
    for kind, fields in (
        (COMPLETION, {"prompt": "x", **sampling}),
        (CHAT, {"messages": [], **sampling}),
        (GENERATE, {"text": "x", "sampling_params": sampling}),
    ):
        error = refusal(kind, fields)
        assert (error.reason, error.param) == ("out-of-range", next(iter(sampling)))


def test_stop_patterns_that_may_never_end() -> None:
    """`(.+)+\\0` kept the scheduler busy at 40 tokens of text, and with it every request of the engine."""
    for pattern in ("(.+)+\\x00", ["a", "b"]):
        assert refusal(COMPLETION, {"prompt": "x", "stop_regex": pattern}).reason == "unsupported"
        assert refusal(CHAT, {"messages": [], "stop_regex": pattern}).param == "stop_regex"
        fields = {"text": "x", "sampling_params": {"stop_regex": pattern}}
        assert refusal(GENERATE, fields).param == "stop_regex"
    check(COMPLETION, {"prompt": "x", "stop_regex": None, "stop": ["a+"]})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (COMPLETION, "logprobs", 5000),
        (COMPLETION, "logprobs", "5000"),
        (CHAT, "top_logprobs", 2049),
        (GENERATE, "top_logprobs_num", 5000),
        (GENERATE, "top_logprobs_num", [1, 5000]),
    ],
)
def test_more_log_probabilities_than_tokens(kind: PathKind, name: str, value: Any) -> None:
    error = refusal(kind, {"messages": [], "prompt": "x", "text": "x", name: value})
    assert (error.reason, error.param) == ("too-many", name)


def test_without_a_known_vocabulary_the_certain_deaths_are_refused() -> None:
    for prompt in ([-1], [2**31], [[1], [2**31]]):
        assert refusal(COMPLETION, {"prompt": prompt}, {}).reason == "bad-token-id"
    check(COMPLETION, {"prompt": [2**31 - 1]}, {})
    assert refusal(COMPLETION, {"prompt": "x", "logprobs": 2**32}, {}).param == "logprobs"


def test_a_unified_engine_is_no_harder() -> None:
    with pytest.raises(BadRequest):
        SGLang().check(COMPLETION, JsonBody(b'{"prompt":[99999]}'), False, FACTS)


NUMBERS = st.integers(-10, 3000) | st.floats(-10, 3000)


@given(st.lists(NUMBERS, min_size=1) | st.lists(st.lists(NUMBERS), min_size=1))
def test_exactly_the_ids_of_the_vocabulary_pass(prompt: list[Any]) -> None:
    flat = [x for one in prompt for x in (one if isinstance(one, list) else [one])]
    if all(0 <= x <= 2047 for x in flat):
        check(COMPLETION, {"prompt": prompt})
    else:
        refusal(COMPLETION, {"prompt": prompt})


def test_the_vocabulary_is_a_fact_of_the_endpoint(spec: Callable[..., InstanceSpec]) -> None:
    assert SGLang().facts(spec(Role.DECODE, vocab_size=2048))["vocab_size"] == 2048
    assert "vocab_size" not in SGLang().facts(spec(Role.DECODE))


@pytest.mark.parametrize(
    ("name", "value"), [("custom_labels", {"a": "b"}), ("positional_embed_overrides", [1])]
)
def test_fields_that_end_the_engine_whatever_they_hold_never_arrive(
    request_of: Callable[..., HandoffRequest],
    bytes_of: Callable[[Leg], bytes],
    endpoint: Callable[..., Endpoint],
    name: str,
    value: Any,
) -> None:
    prefill = endpoint(Role.PREFILL, facts={"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998})
    for kind, body in ((COMPLETION, {"prompt": "x"}), (GENERATE, {"text": "x"}), (CHAT, {"messages": []})):
        for one in (prefill, None):
            legs = SGLang().handoff(request_of({**body, name: value}, kind, prefill=one)).start()
            assert all(name not in orjson.loads(bytes_of(leg)) for leg in legs)


@pytest.mark.parametrize("rid", [["a"], {"a": 1}, 5, None])
def test_a_clients_rid_never_arrives(
    request_of: Callable[..., HandoffRequest], bytes_of: Callable[[Leg], bytes], rid: Any
) -> None:
    """One of another form ends the request with a bare 500; every leg carries the router's own."""
    request = request_of({"prompt": "x", "rid": rid}, prefill=None)
    (leg,) = SGLang().handoff(request).start()
    assert orjson.loads(bytes_of(leg))["rid"] == leg.engine_id
    (leg,) = SGLang().handoff(request_of({"input": "x", "rid": rid}, PathKind.EMBED, prefill=None)).start()
    assert "rid" not in orjson.loads(bytes_of(leg))
