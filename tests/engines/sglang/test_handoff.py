"""SGLang's hand-off: golden bytes of both legs, and what prefill's answers lead to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import orjson
import pytest

from orchestrator.core.types import LegKind, PathKind, Role
from orchestrator.engines.base import HandoffDone, HandoffFailed, HandoffRequest, Leg
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest, LegFailed

Make = Callable[..., Any]
FACTS = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998}
ID = "ab" * 16


@pytest.fixture
def paired(endpoint: Make, request_of: Make) -> Callable[..., HandoffRequest]:
    def make(body: object, kind: PathKind = PathKind.COMPLETION, **fields: Any) -> HandoffRequest:
        prefill = endpoint(Role.PREFILL, facts=FACTS | fields.pop("facts", {}))
        made: HandoffRequest = request_of(body, kind, prefill=prefill, **fields)
        return made

    return make


def body(**fields: Any) -> JsonBody:
    return JsonBody(orjson.dumps(fields))


def test_golden_chat_stream(paired: Make, bytes_of: Callable[[Leg], bytes]) -> None:
    raw = (
        b'{"model": "m", "messages": [{"role": "user", "content": "h\\u00e9 \\"x\\""}], "temperature": 0.70,'
        b' "stream": true, "stream_options": {"include_usage": true}, "seen_by_nobody": [1,  2]}'
    )
    prefill, decode = SGLang().handoff(paired(raw, PathKind.CHAT, headers=(("x-trace", "t"),))).start()
    front = b'"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":77,'
    assert bytes_of(decode) == b'{"rid":"%s-d0",%s%s' % (ID.encode(), front, raw[1:])
    assert bytes_of(prefill) == b'{"rid":"%s-p0",%s%s' % (
        ID.encode(),
        front,
        b'"model": "m", "messages": [{"role": "user", "content": "h\\u00e9 \\"x\\""}], "temperature": 0.70,'
        b' "stream": false, "seen_by_nobody": [1,  2]}',
    )
    assert (prefill.relay, prefill.stream, decode.relay, decode.stream) == (False, False, True, True)
    assert (prefill.endpoint, decode.endpoint) == ("prefill-0", "decode-0")
    assert prefill.path == decode.path == "/v1/chat/completions"
    assert decode.headers == (("content-type", "application/json"), ("x-trace", "t"))
    assert (prefill.engine_id, decode.engine_id) == (f"{ID}-p0", f"{ID}-d0")


def test_a_part_of_a_prompt_is_a_plain_request(request_of: Make, bytes_of: Callable[[Leg], bytes]) -> None:
    machine = SGLang().part(request_of({"text": "x"}, prefill=None), "tiny", [5, 6, 7], 3)
    (leg,) = machine.start()
    sampling = {"max_new_tokens": 1, "temperature": 0}
    told = {"input_ids": [5, 6, 7], "sampling_params": sampling, "rid": f"{ID}-s0.0003"}
    assert orjson.loads(bytes_of(leg)) == told
    assert (leg.kind, leg.relay, leg.path, leg.endpoint) == (LegKind.PREFILL, False, "/generate", "decode-0")
    done = orjson.dumps({"text": "a", "meta_info": {"finish_reason": {"type": "length"}, "prompt_tokens": 3}})
    assert isinstance(machine.on_response(LegKind.PREFILL, 200, done), HandoffDone)
    cut = orjson.dumps({"text": "", "meta_info": {"finish_reason": {"type": "abort"}}})
    assert isinstance(machine.on_response(LegKind.PREFILL, 200, cut), HandoffFailed)
    assert isinstance(machine.on_response(LegKind.PREFILL, 400, b"{}"), HandoffFailed)


def test_both_legs_start_at_once_for_every_generating_path(paired: Make) -> None:
    for kind in (PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE):
        assert [leg.kind for leg in SGLang().handoff(paired({"text": "x"}, kind)).start()] == [
            LegKind.PREFILL,
            LegKind.DECODE,
        ]


@pytest.mark.parametrize("field", sorted(SGLang.guarded_fields))
def test_no_guarded_field_reaches_an_engine(
    paired: Make, bytes_of: Callable[[Leg], bytes], field: str
) -> None:
    request = paired({"prompt": "x", field: "evil", "stream": True})
    for leg in SGLang().handoff(request).start():
        assert b"evil" not in bytes_of(leg)
        assert JsonBody(bytes_of(leg)).fields["bootstrap_room"] == 77


def test_case_21_a_clients_room_is_the_routers(paired: Make, bytes_of: Callable[[Leg], bytes]) -> None:
    request = paired(rb'{"prompt":"x","bootstrap\u005froom":1,"bootstrap_host":"evil"}')
    for leg in SGLang().handoff(request).start():
        fields = JsonBody(bytes_of(leg)).fields
        assert (fields["bootstrap_room"], fields["bootstrap_host"]) == (77, "10.0.0.1")


@pytest.mark.parametrize(
    "facts", [{}, {"bootstrap_host": "h"}, {"bootstrap_port": 1}, {"bootstrap_host": ""}]
)
def test_a_request_without_bootstrap_address_is_never_sent(
    endpoint: Make, request_of: Make, facts: dict[str, Any]
) -> None:
    request = request_of({"prompt": "x"}, prefill=endpoint(Role.PREFILL, facts=facts))
    with pytest.raises(LegFailed, match="bootstrap address"):
        SGLang().handoff(request).start()


def test_case_35_the_prefills_rank_is_told_to_both(paired: Make, bytes_of: Callable[[Leg], bytes]) -> None:
    prefill, decode = SGLang().handoff(paired({"prompt": "x"}, facts={"dp_size": 4}, room=77)).start()
    assert JsonBody(bytes_of(prefill)).fields["routed_dp_rank"] == 1
    assert JsonBody(bytes_of(decode)).fields["disagg_prefill_dp_rank"] == 1
    for leg in SGLang().handoff(paired({"prompt": ["x", "y"]}, facts={"dp_size": 4})).start():
        assert not JsonBody(bytes_of(leg)).fields.keys() & {"routed_dp_rank", "disagg_prefill_dp_rank"}


def test_unified_gets_the_clients_bytes(request_of: Make, bytes_of: Callable[[Leg], bytes]) -> None:
    raw = b'{ "prompt":"x", "n":2 }'
    (leg,) = SGLang().handoff(request_of(raw, prefill=None)).start()
    assert bytes_of(leg) == b'{"rid":"%s-u0", "prompt":"x", "n":2 }' % ID.encode()
    assert (leg.kind, leg.relay) == (LegKind.UNIFIED, True)
    raw = b'{"input":"x"}'
    (leg,) = SGLang().handoff(request_of(raw, PathKind.EMBED, prefill=None)).start()
    assert bytes_of(leg) == raw


@pytest.mark.parametrize("name", ["generate", "chat", "generate_batch", "completion_echo_logprobs"])
def test_prefill_answers_done(paired: Make, captured: Callable[[str], bytes], name: str) -> None:
    machine = SGLang().handoff(paired({"prompt": "x"}))
    step = machine.on_response(LegKind.PREFILL, 200, captured(f"sglang/{name}_prefill.json"))
    assert isinstance(step, HandoffDone)
    assert step.notes == machine.notes


def test_prefill_tells_its_token_counts(paired: Make, captured: Callable[[str], bytes]) -> None:
    machine = SGLang().handoff(paired({"prompt": "x"}))
    machine.on_response(LegKind.PREFILL, 200, captured("sglang/generate_prefill.json"))
    assert machine.notes == {"prompt_tokens": 7, "cached_tokens": 6}


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, b'{"error":{"message":"too long"}}', "too long"),
        (500, b'{"object":"error","message":"Prefill bootstrap failed","code":500}', "bootstrap failed"),
        (200, b"", "not JSON"),
        (200, b"[1]", "not what it should be"),
        (200, b"{}", "not what it should be"),
        (200, b'{"error":{"message":"out of memory"}}', "not what it should be"),
        (200, b'{"meta_info":{"finish_reason":{"type":"abort"}}}', "cut the request short"),
        (200, b'{"choices":[{"finish_reason":"abort"}],"usage":{}}', "cut the request short"),
    ],
)
def test_case_13_a_failed_prefill_ends_the_request(paired: Make, status: int, body: bytes, says: str) -> None:
    step = SGLang().handoff(paired({"prompt": "x"})).on_response(LegKind.PREFILL, status, body)
    assert isinstance(step, HandoffFailed)
    assert says in step.error.message
    assert step.error.http_status == (400 if status == 400 else 502)


@pytest.mark.parametrize(
    ("kind", "fields", "count"),
    [
        (PathKind.COMPLETION, {"prompt": "x"}, 1),
        (PathKind.COMPLETION, {"prompt": [1, 2, 3]}, 1),
        (PathKind.COMPLETION, {"prompt": ["a", "b", "c"]}, 3),
        (PathKind.COMPLETION, {"prompt": [[1], [2]]}, 2),
        (PathKind.GENERATE, {"text": ["a", "b"]}, 2),
        (PathKind.GENERATE, {"input_ids": [1, 2]}, 1),
        (PathKind.GENERATE, {"input_ids": [[1], [2]]}, 2),
        (PathKind.CHAT, {"messages": [{}, {}]}, 1),
    ],
)
def test_case_23_a_batch_takes_a_room_per_prompt(kind: PathKind, fields: dict[str, Any], count: int) -> None:
    assert SGLang().rooms(kind, body(**fields)) == count
    assert SGLang().split(kind, body(**fields), True) is None


def test_case_23_samples_are_split_and_batches_with_them() -> None:
    items = SGLang().split(PathKind.COMPLETION, body(prompt=["a", "b"], n=2, rid="evil"), True)
    assert items is not None
    assert [item.fields for item in items] == [{"prompt": p, "n": 1} for p in ("a", "a", "b", "b")]
    assert SGLang().split(PathKind.COMPLETION, body(prompt="a", n=2), False) is None


def test_samples_of_generate_keep_their_sampling_parameters() -> None:
    raw = b'{"text":"x","sampling_params":{"temperature":0.70,"n":2,"sampling_seed":5}}'
    items = SGLang().split(PathKind.GENERATE, JsonBody(raw), True)
    assert items is not None
    assert [item.raw for item in items] == [
        raw.replace(b'"n":2', b'"n":1'),
        raw.replace(b'"n":2', b'"n":1').replace(b":5", b":6"),
    ]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PathKind.GENERATE, {"text": "x", "sampling_params": {"beam_width": 4}}),
        (PathKind.GENERATE, {"text": ["x", "y"], "sampling_params": {"n": 2}}),
        (PathKind.GENERATE, {"text": "x", "return_logprob": True, "logprob_start_len": 0, "stream": True}),
        (PathKind.COMPLETION, {"prompt": "x", "echo": True, "logprobs": 1, "stream": True}),
        (PathKind.COMPLETION, {"prompt": "x", "n": "2"}),
        (PathKind.CHAT, {"n": 2.0}),
    ],
)
def test_what_a_pair_cannot_do_is_refused_and_a_unified_engine_may_try(
    kind: PathKind, fields: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest):
        SGLang().check(kind, body(**fields), True)
    SGLang().check(kind, body(**fields), False)


@pytest.mark.parametrize("disaggregated", [True, False])
def test_what_no_sglang_can_do_is_refused(disaggregated: bool) -> None:
    for fields in ({"prompt": "x", "best_of": 3}, {"prompt": "x", "session_params": {"id": "s"}}):
        with pytest.raises(BadRequest):
            SGLang().check(PathKind.COMPLETION, body(**fields), disaggregated)


def test_ordinary_requests_pass() -> None:
    for kind, fields in (
        (PathKind.CHAT, {"messages": [], "tools": [], "logprobs": True, "n": 3, "stream": True}),
        (PathKind.COMPLETION, {"prompt": [[1], [2]], "echo": True, "n": None}),
        (PathKind.GENERATE, {"text": "x", "return_logprob": True, "stream": True}),
        (PathKind.EMBED, {"input": "x"}),
    ):
        SGLang().check(kind, body(**fields), True)


def test_abort_is_by_the_legs_own_id(paired: Make) -> None:
    _, decode = SGLang().handoff(paired({"prompt": "x"}, item=1)).start()
    call = SGLang().abort(decode)
    assert (call.method, call.path) == ("POST", "/abort_request")
    assert orjson.loads(call.body) == {"rid": f"{ID}-d0.0001"}


def test_no_items_id_is_the_beginning_of_another(paired: Make) -> None:
    ids = [
        leg.engine_id
        for item in range(1000)
        for leg in SGLang().handoff(paired({"prompt": "x"}, item=item)).start()
    ]
    ids.sort()
    assert not any(later.startswith(earlier) for earlier, later in pairwise(ids))


def test_serves() -> None:
    for kind in (PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE, PathKind.TOKENIZE):
        assert SGLang().serves(kind, Role.DECODE, True)
    for kind in (PathKind.EMBED, PathKind.RESPONSES, PathKind.MESSAGES):
        assert not SGLang().serves(kind, Role.DECODE, True)
        assert SGLang().serves(kind, Role.UNIFIED, False)


def test_guards() -> None:
    assert {"bootstrap_room", "kv_transfer_params", "rid", "http_worker_ipc"} <= SGLang.guarded_fields
    assert {"x-data-parallel-rank", "x-override-rid", "x-request-id"} <= SGLang.guarded_headers
    assert all(name == name.lower() for name in SGLang.guarded_headers)
