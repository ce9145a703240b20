"""vLLM's hand-offs: golden bytes of each leg, and what prefill's answers lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.core.types import LegKind, PathKind, Role
from orchestrator.engines.base import HandoffDone, HandoffFailed, HandoffRequest, Leg
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.vllm import VLLM
from orchestrator.errors import BadRequest, LegFailed, NoCapacity

Make = Callable[..., Any]
Captured = Callable[[str], bytes]
Bytes = Callable[[Leg], bytes]
ID = "ab" * 16
TO_DECODE = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
MOONCAKE = {"transfer": "mooncake", "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "engine_id": "e-1"}


@pytest.fixture
def paired(endpoint: Make, request_of: Make) -> Callable[..., HandoffRequest]:
    def make(body: object, kind: PathKind = PathKind.COMPLETION, **fields: Any) -> HandoffRequest:
        prefill = endpoint(
            Role.PREFILL,
            fields.pop("prefill_url", "http://10.0.0.1:30000"),
            facts=fields.pop("facts", {"transfer": "nixl"}),
            block_size=fields.pop("block_size", 128),
        )
        made: HandoffRequest = request_of(body, kind, prefill=prefill, **fields)
        return made

    return make


def body(**fields: Any) -> JsonBody:
    return JsonBody(orjson.dumps(fields))


def test_golden_nixl_chat_stream(paired: Make, captured: Captured, bytes_of: Bytes) -> None:
    raw = (
        b'{"model": "m", "messages": [{"role": "user", "content": "h\\u00e9"}], "max_tokens": 64,'
        b' "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "min_tokens": 8}'
    )
    machine = VLLM().handoff(paired(raw, PathKind.CHAT))
    (prefill,) = machine.start()
    assert bytes_of(prefill) == (
        b'{"kv_transfer_params":' + TO_DECODE + b',"max_completion_tokens":1,'
        b'"model": "m", "messages": [{"role": "user", "content": "h\\u00e9"}], "max_tokens": 1,'
        b' "stream": false, "logprobs": true, "min_tokens": 1}'
    )
    assert (prefill.relay, prefill.stream, prefill.engine_id) == (False, False, f"{ID}-p0")
    assert prefill.headers == (("content-type", "application/json"), ("x-request-id", f"{ID}-p0"))
    answer = captured("vllm/chat_prefill.json")
    (decode,) = machine.on_response(LegKind.PREFILL, 200, answer)  # type: ignore[misc]
    told = JsonBody(answer).text("kv_transfer_params")  # compact, as the engine writes it
    assert bytes_of(decode) == b'{"kv_transfer_params":' + told + b"," + raw[1:]
    assert (decode.kind, decode.relay, decode.stream) == (LegKind.DECODE, True, True)
    assert decode.headers[1] == ("x-request-id", f"{ID}-d0")
    assert machine.notes == {"prompt_tokens": 131, "cached_tokens": 0}


def test_a_short_completion_is_handed_off(paired: Make, captured: Captured, bytes_of: Bytes) -> None:
    machine = VLLM().handoff(paired({"prompt": [668, 1946, 313, 813, 1338], "max_tokens": 24}))
    assert JsonBody(bytes_of(machine.start()[0])).fields["max_tokens"] == 1
    (decode,) = machine.on_response(LegKind.PREFILL, 200, captured("vllm/completion_5_prefill.json"))  # type: ignore[misc]
    fields = JsonBody(bytes_of(decode)).fields
    assert fields["max_tokens"] == 24
    assert fields["kv_transfer_params"]["remote_num_tokens"] == 5


@pytest.mark.parametrize("kind", [PathKind.CHAT, PathKind.COMPLETION])
def test_prefill_computes_the_same_prompt_and_one_token(
    paired: Make, bytes_of: Bytes, kind: PathKind
) -> None:
    prompt = {
        "messages": [],
        "prompt": "x",
        "tools": [1],
        "tool_choice": "required",
        "chat_template_kwargs": {"a": 1},
        "response_format": {"type": "json_object"},
        "add_generation_prompt": False,
        "cache_salt": "s",
        "top_logprobs": 5,  # for prefill to refuse if it is too many
    }
    shape = {
        "echo": True,
        "return_token_ids": True,
        "stream_options": {},
        "max_completion_tokens": 9,
    }
    (prefill,) = VLLM().handoff(paired(prompt | shape, kind)).start()
    fields = JsonBody(bytes_of(prefill)).fields
    assert {name: fields[name] for name in prompt} == prompt
    assert (fields["max_tokens"], fields["max_completion_tokens"]) == (1, 1)
    assert not fields.keys() & {"echo", "return_token_ids", "stream_options", "stream"}


@pytest.mark.parametrize("field", sorted(VLLM.guarded_fields))
@pytest.mark.parametrize("facts", [{"transfer": "nixl"}, MOONCAKE])
def test_no_guarded_field_reaches_an_engine(
    paired: Make, captured: Captured, bytes_of: Bytes, field: str, facts: dict[str, Any]
) -> None:
    machine = VLLM().handoff(paired({"prompt": "x", field: "evil"}, facts=facts))
    legs = list(machine.start())
    step = machine.on_response(LegKind.PREFILL, 200, captured("vllm/completion_5_prefill.json"))
    legs += step if isinstance(step, tuple) else []
    assert [leg.kind for leg in legs] == [LegKind.PREFILL, LegKind.DECODE]
    assert all(b"evil" not in bytes_of(leg) for leg in legs)


def test_unified_gets_the_clients_bytes(request_of: Make, bytes_of: Bytes) -> None:
    raw = b'{ "prompt":["x","y"], "n":2 }'
    (leg,) = VLLM().handoff(request_of(raw, prefill=None)).start()
    assert bytes_of(leg) == raw
    assert (leg.kind, leg.relay) == (LegKind.UNIFIED, True)
    assert leg.headers[1] == ("x-request-id", f"{ID}-u0")


@pytest.mark.parametrize("alone", [True, False], ids=["unified", "prefill"])
def test_a_part_of_a_prompt_is_a_plain_request(
    paired: Make, request_of: Make, bytes_of: Bytes, alone: bool
) -> None:
    asked = request_of({"prompt": "x"}, prefill=None) if alone else paired({"prompt": "x"})
    machine = VLLM().part(asked, "tiny", [5, 6, 7], 3)
    (leg,) = machine.start()
    assert orjson.loads(bytes_of(leg)) == {
        "model": "tiny", "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0
    }  # fmt: skip
    assert (leg.kind, leg.relay, leg.path) == (LegKind.PREFILL, False, "/v1/completions")
    assert leg.endpoint == (asked.prefill or asked.decode).id
    assert leg.engine_id == f"{ID}-s0.0003"
    assert ("x-request-id", leg.engine_id) in leg.headers
    assert isinstance(machine.on_response(LegKind.PREFILL, 200, answer(None)), HandoffDone)
    aborted = answer(None, choices=[{"finish_reason": "abort", "text": ""}])
    assert isinstance(machine.on_response(LegKind.PREFILL, 200, aborted), HandoffFailed)
    assert isinstance(machine.on_response(LegKind.PREFILL, 500, b"{}"), HandoffFailed)


def answer(params: object, **fields: Any) -> bytes:
    told = {
        "choices": [{"finish_reason": "length"}],
        "usage": {"prompt_tokens": 5},
        "kv_transfer_params": params,
    }
    return orjson.dumps(told | fields)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (answer(None), "they are missing"),
        (orjson.dumps({"choices": [{"finish_reason": "length"}]}), "they are missing"),
        (answer({"do_remote_prefill": True}), "do_remote_decode"),
        (answer(None, choices=[{"finish_reason": "error", "text": ""}]), "cut the request short"),
        (b"", "not what it should be"),
        (b"[]", "not what it should be"),
    ],
)
def test_a_prefill_without_good_parameters_ends_the_request(paired: Make, told: bytes, says: str) -> None:
    step = VLLM().handoff(paired({"prompt": "x"})).on_response(LegKind.PREFILL, 200, told)
    assert isinstance(step, HandoffFailed)
    assert type(step.error) is LegFailed
    assert says in step.error.message


def test_case_13_a_prefills_refusal_is_the_clients(paired: Make, captured: Captured) -> None:
    machine = VLLM().handoff(paired({"prompt": "x"}))
    step = machine.on_response(LegKind.PREFILL, 400, captured("vllm/error_max_tokens.json"))
    assert isinstance(step, HandoffFailed)
    assert step.error.http_status == 400


def test_the_number_of_blocks_is_checked_against_the_prefills_block_size(
    paired: Make, captured: Captured
) -> None:
    told = captured("vllm/chat_prefill.json")  # 131 tokens in 2 blocks
    for block_size, good in ((128, True), (64, False), (256, False), (None, True)):
        step = (
            VLLM()
            .handoff(paired({"prompt": "x"}, block_size=block_size))
            .on_response(LegKind.PREFILL, 200, told)
        )
        assert isinstance(step, tuple) is good


def test_a_loopback_side_channel_is_no_use_to_another_host(
    paired: Make, endpoint: Make, captured: Captured
) -> None:
    request = paired({"prompt": "x"}, decode=endpoint(Role.DECODE, "http://10.0.0.2:30000"))
    step = (
        VLLM().handoff(request).on_response(LegKind.PREFILL, 200, captured("vllm/completion_5_prefill.json"))
    )
    assert isinstance(step, HandoffFailed)
    assert "cannot reach" in step.error.message


def test_two_names_of_one_host_are_one_host(paired: Make, endpoint: Make, captured: Captured) -> None:
    decode = endpoint(Role.DECODE, "http://localhost:30000")
    request = paired({"prompt": "x"}, prefill_url="http://127.0.0.1:30001", decode=decode)
    told = captured("vllm/completion_5_prefill.json")
    assert isinstance(VLLM().handoff(request).on_response(LegKind.PREFILL, 200, told), tuple)


def test_golden_mooncake(paired: Make, bytes_of: Bytes) -> None:
    raw = b'{"prompt":"x","max_tokens":64,"stop":["a"],"stream":true}'
    prefill, decode = VLLM().handoff(paired(raw, facts=MOONCAKE)).start()
    assert bytes_of(prefill) == (
        b'{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%s-p0"},'
        b'"ignore_eos":true,"prompt":"x","max_tokens":1,"stream":false}' % ID.encode()
    )
    assert bytes_of(decode) == (
        b'{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
        b'"remote_bootstrap_addr":"http://10.0.0.1:8998","remote_engine_id":"e-1","transfer_id":"%s-p0"},'
        % ID.encode()
        + raw[1:]
    )
    assert (prefill.relay, decode.relay, decode.stream) == (False, True, True)
    assert (prefill.owed, decode.owed) == (True, False)


@pytest.mark.parametrize("kind", [PathKind.CHAT, PathKind.COMPLETION])
def test_a_lease_is_freed_by_a_leg_that_never_runs(paired: Make, captured: Captured, kind: PathKind) -> None:
    told = captured("vllm/completion_5_prefill.json")
    request = paired({"prompt": "x", "model": "m"}, kind)
    machine = VLLM().handoff(request)
    (prefill,) = machine.start()
    assert not prefill.owed
    (decode,) = machine.on_response(LegKind.PREFILL, 200, told)  # type: ignore[misc]
    assert decode.release is not None
    call = decode.release()
    sent = orjson.loads(call.body)
    assert (call.method, call.path, sent["model"]) == ("POST", request.path, "pdctl:release")
    assert sent["kv_transfer_params"] == orjson.loads(told)["kv_transfer_params"]
    assert ("messages" in sent) is (kind is PathKind.CHAT)


def test_mooncakes_kv_is_dropped_unless_prefill_ends_by_length(paired: Make) -> None:
    machine = VLLM().handoff(paired({"prompt": "x"}, facts=MOONCAKE))
    assert machine.on_response(LegKind.PREFILL, 200, answer(None)) == HandoffDone({"prompt_tokens": 5})
    step = machine.on_response(LegKind.PREFILL, 200, answer(None, choices=[{"finish_reason": "stop"}]))
    assert isinstance(step, HandoffFailed)


@pytest.mark.parametrize("missing", ["bootstrap_host", "bootstrap_port", "engine_id"])
def test_mooncake_needs_an_address_that_answers(paired: Make, missing: str) -> None:
    facts = {name: value for name, value in MOONCAKE.items() if name != missing}
    with pytest.raises(LegFailed, match="bootstrap address"):
        VLLM().handoff(paired({"prompt": "x"}, facts=facts)).start()


def test_an_unknown_connector_is_no_hand_off(paired: Make) -> None:
    with pytest.raises(LegFailed, match="no known hand-off"):
        VLLM().handoff(paired({"prompt": "x"}, facts={"transfer": "LMCacheConnectorV1"}))


@pytest.mark.parametrize(
    ("kind", "fields", "count"),
    [
        (PathKind.COMPLETION, {"prompt": "x"}, None),
        (PathKind.COMPLETION, {"prompt": [1, 2, 3]}, None),
        (PathKind.COMPLETION, {"prompt": ["a", "b"]}, 2),
        (PathKind.COMPLETION, {"prompt": ["a"]}, 1),
        (PathKind.COMPLETION, {"prompt": [[1], [2]], "n": 2}, 4),
        (PathKind.CHAT, {"messages": [{}, {}]}, None),
        (PathKind.CHAT, {"messages": [], "n": 3}, 3),
    ],
)
def test_case_23_everything_is_single_when_handed_off(
    kind: PathKind, fields: dict[str, Any], count: int | None
) -> None:
    items = VLLM().split(kind, body(**fields), True)
    assert (None if items is None else len(items)) == count
    assert VLLM().split(kind, body(**fields), False) is None
    assert VLLM().rooms(kind, body(**fields)) == 1


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PathKind.COMPLETION, {"use_beam_search": True}),
        (PathKind.CHAT, {"prompt_logprobs": 0}),
        (PathKind.COMPLETION, {"echo": True, "logprobs": 0}),
        (PathKind.COMPLETION, {"prompt_embeds": "x"}),
        (PathKind.CHAT, {"n": "2"}),
        (PathKind.CHAT, {"truncate_prompt_tokens": -1}),
        (PathKind.COMPLETION, {"truncate_prompt_tokens": -1, "max_tokens": 0}),
    ],
)
def test_what_a_pair_cannot_do_is_refused_and_a_unified_engine_may_try(
    kind: PathKind, fields: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest):
        VLLM().check(kind, body(**fields), True)
    VLLM().check(kind, body(**fields), False)


@pytest.mark.parametrize("disaggregated", [True, False])
@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("value", ["x", "", [], 0, False, None, {}, [1]])
def test_parameters_in_xargs_are_refused(disaggregated: bool, name: str, value: Any) -> None:
    """Whatever their value: an empty one ends the engine, and the server exits with code 0."""
    for kind in PathKind:
        with pytest.raises(BadRequest) as caught:
            VLLM().check(kind, body(vllm_xargs={"mine": 1, name: value}), disaggregated)
        assert (caught.value.reason, caught.value.param) == ("guarded", "vllm_xargs")
    VLLM().check(PathKind.CHAT, body(vllm_xargs={"mine": 1}), disaggregated)


def test_ordinary_requests_pass() -> None:
    for kind, fields in (
        (PathKind.CHAT, {"messages": [], "tools": [], "logprobs": True, "n": 3, "stream": True}),
        (PathKind.CHAT, {"truncate_prompt_tokens": -1, "max_completion_tokens": 5}),
        (PathKind.COMPLETION, {"prompt": [[1], [2]], "echo": True, "truncate_prompt_tokens": -1}),
        (PathKind.EMBED, {"input": "x"}),
    ):
        VLLM().check(kind, body(**fields), True)


def test_serves() -> None:
    assert VLLM().serves(PathKind.CHAT, Role.PREFILL, True)
    assert not VLLM().serves(PathKind.GENERATE, Role.UNIFIED, False)
    assert not VLLM().serves(PathKind.RESPONSES, Role.DECODE, True)
    assert VLLM().serves(PathKind.RESPONSES, Role.UNIFIED, False)


def test_what_vllm_has_no_call_for(paired: Make) -> None:
    (leg,) = VLLM().handoff(paired({"prompt": "x"})).start()
    assert VLLM().abort(leg) is None
    assert VLLM().flush() is None
    assert not VLLM().needs_merge(PathKind.COMPLETION, body(echo=True, logprobs=1))
    assert VLLM().merge(PathKind.CHAT, b"p", b"d") == b"d"


def test_a_prefill_that_drains_has_not_begun(paired: Make) -> None:
    """It answers 200, with no text and this finish reason: any other endpoint may have the request."""
    told = answer(None, choices=[{"finish_reason": "abort", "text": ""}])
    step = VLLM().handoff(paired({"prompt": "x"})).on_response(LegKind.PREFILL, 200, told)
    assert isinstance(step, HandoffFailed)
    assert (type(step.error), step.error.reason) == (NoCapacity, "engine-aborted")
