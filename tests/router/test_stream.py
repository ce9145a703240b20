"""Reading streams: whole events, the first judged, the end and the usage known, however bytes are split."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from datapath import DONE, event, usage_event
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.types import PathKind
from orchestrator.router.stream import Stream, Usage, is_error, last_int, unfinished, unfit, usage


def data(body: Any) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)


def chat(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


ROLE = chat({"role": "assistant", "content": "", "reasoning_content": None})
HELLO = chat({"content": "hello"})
ERROR = (
    b'data: {"error": {"object": "error", "message": "no room", "type": "x", "param": null, "code": 400}}\n\n'
)
ABORTED = data({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]})
META_ABORT = data(
    {"text": "", "output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "m"}}}
)

STREAMS = {
    "chat": ROLE + HELLO + chat({}, "stop") + usage_event() + DONE,
    "completion": event("a") + event("b") + DONE,
    "comments first": b": ping\n\n" + ROLE + b": ping\n\n" + HELLO + DONE,
    "nothing generated": ROLE + chat({}, "stop") + DONE,
    "cut": ROLE + HELLO,
    "cut within an event": ROLE + HELLO + HELLO[:20],
    "cut at the role": ROLE,
    "error first": ERROR + DONE,
    "error after the role": ROLE + ERROR + DONE,
    "error in the middle": ROLE + HELLO + ERROR + DONE,
    "abort first": ROLE + ABORTED + DONE,
    "abort in the middle": event("a") + ABORTED + DONE,
    "abort of a generate call": META_ABORT + DONE,
    "generate": data({"text": "a", "output_ids": [1], "meta_info": {"finish_reason": None}}) + DONE,
    "line ends of two bytes": (ROLE + HELLO + DONE).replace(b"\n", b"\r\n"),
    "line ends of both kinds": ROLE + HELLO.replace(b"\n", b"\r\n") + b"\r\n" + HELLO + DONE,
    "an odd number of line ends": ROLE + b"\n" + HELLO + b"\n\n\n" + HELLO + DONE,
    "nothing but line ends": b"\n\n\n",
    "an error on the second line": ROLE + HELLO + b"event: error\n" + ERROR + DONE,
    "an error after one that is none": ROLE + HELLO + b': data: {"error"\n\n' + ERROR + DONE,
    "not JSON": b"data: hello\n\n" + DONE,
    "another JSON": ROLE + b"data: [1]\n\n" + DONE,
    "only the mark": DONE,
    "named events": b'event: message_start\ndata: {"type":"x"}\n\nevent: message_stop\ndata: {}\n\n',
    "text that looks like an error": event('data: {"error": 1}\n\n') + DONE,
    "empty": b"",
}


def feed(pieces: list[bytes]) -> tuple[bytes, Stream]:
    stream = Stream()
    out = b""
    for piece in pieces:
        passed = stream.feed(piece)
        assert passed.endswith((b"\n\n", b"\r\n\r\n")) or not passed, "a part of an event was passed on"
        assert stream.begun or not passed
        out += passed
    return out, stream


def facts(out: bytes, stream: Stream) -> tuple[Any, ...]:
    refused = None if stream.refused is None else str(stream.refused)
    return out, stream.begun, stream.done, stream.engine_error, refused, stream.usage(), stream.ended_badly()


@given(name=st.sampled_from(sorted(STREAMS)), cuts=st.lists(st.integers(0, 2000), max_size=40))
def test_any_split_is_read_the_same(name: str, cuts: list[int]) -> None:
    raw = STREAMS[name]
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    assert facts(*feed([raw[a:b] for a, b in pairwise(places)])) == facts(*feed([raw]))


@pytest.mark.parametrize("name", STREAMS)
def test_byte_by_byte_is_read_the_same(name: str) -> None:
    raw = STREAMS[name]
    assert facts(*feed([raw[i : i + 1] for i in range(len(raw))])) == facts(*feed([raw]))


@pytest.mark.parametrize(
    "name",
    [
        "chat",
        "completion",
        "comments first",
        "nothing generated",
        "abort in the middle",
        "generate",
        "line ends of two bytes",
        "only the mark",
        "text that looks like an error",
    ],
)
def test_good_streams_pass_untouched(name: str) -> None:
    out, stream = feed([STREAMS[name]])
    assert out == STREAMS[name]
    assert stream.done
    assert not stream.failed
    assert stream.ended_badly() is (name == "abort in the middle")


def test_streams_without_the_mark_pass_too() -> None:
    out, stream = feed([STREAMS["named events"]])
    assert out == STREAMS["named events"]
    assert stream.begun
    assert not stream.done


def test_a_cut_stream_is_not_done() -> None:
    for name in ("cut", "cut within an event"):
        out, stream = feed([STREAMS[name]])
        assert out == ROLE + HELLO
        assert stream.begun
        assert not stream.done


def test_nothing_passes_before_something_is_generated() -> None:
    stream = Stream()
    assert stream.feed(ROLE) == b""
    assert not stream.begun
    assert stream.feed(b": ping\n\n") == b""
    assert stream.feed(HELLO) == ROLE + b": ping\n\n" + HELLO
    assert stream.begun


def test_a_token_without_text_is_something() -> None:
    stream = Stream()
    empty = chat({"content": ""})
    assert stream.feed(ROLE + empty) == ROLE + empty


@pytest.mark.parametrize("name", ["error first", "error after the role"])
def test_an_error_before_anything_leaves_the_stream_unbegun(name: str) -> None:
    out, stream = feed([STREAMS[name]])
    assert out == b""
    assert not stream.begun
    assert stream.engine_error is not None
    assert stream.engine_error.status == 400
    assert orjson.loads(stream.engine_error.body)["error"]["message"] == "no room"


@pytest.mark.parametrize("name", ["an error on the second line", "an error after one that is none"])
def test_no_part_of_an_error_event_passes(name: str) -> None:
    out, stream = feed([STREAMS[name]])
    assert stream.engine_error is not None
    assert stream.engine_error.status == 400
    assert out.startswith(ROLE + HELLO)
    assert b"event: error" not in out
    assert b'data: {"error":' not in out


def test_an_error_in_the_middle_ends_what_passes() -> None:
    out, stream = feed([STREAMS["error in the middle"]])
    assert out == ROLE + HELLO
    assert stream.engine_error is not None
    assert orjson.loads(stream.engine_error.body)["error"]["code"] == 400
    assert not stream.done


@pytest.mark.parametrize(
    ("code", "status"), [(b"429", 429), (b"null", 500), (b'"x"', 500), (b"200", 500), (b"true", 500)]
)
def test_the_status_of_an_error_event(code: bytes, status: int) -> None:
    stream = Stream()
    stream.feed(b'data: {"error": {"message": "m", "code": %b}}\n\n' % code)
    assert stream.engine_error is not None
    assert stream.engine_error.status == status


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("abort first", 503, "engine-aborted"),
        ("abort of a generate call", 503, "engine-aborted"),
        ("not JSON", 502, "bad-answer"),
        ("another JSON", 502, "bad-answer"),
    ],
)
def test_an_abort_or_nonsense_before_anything_is_an_error(name: str, status: int, reason: str) -> None:
    out, stream = feed([STREAMS[name]])
    assert out == b""
    assert stream.refused is not None
    assert stream.refused.http_status == status
    assert stream.refused.reason == reason


def test_an_event_without_end_is_refused() -> None:
    stream = Stream()
    piece = b"data: " + b"a" * (4 * 1024 * 1024)
    for _ in range(5):
        assert stream.feed(piece) == b""
    assert stream.refused is not None
    assert stream.refused.reason == "bad-answer"


def test_endless_nothing_is_refused() -> None:
    stream = Stream()
    piece = (b": " + b"a" * 1000 + b"\n\n") * 4000
    for _ in range(5):
        assert stream.feed(piece) == b""
    assert stream.refused is not None


def test_usage_of_a_stream() -> None:
    _, stream = feed([event("a"), event("b"), usage_event(11, 22), DONE])
    assert stream.usage() == Usage(11, 22, None)


def test_events_are_counted_where_no_usage_came() -> None:
    _, stream = feed([event("a"), event("b"), event("c"), DONE])
    assert stream.usage() == Usage(None, 3, None)


def test_usage_of_bodies() -> None:
    openai = (
        b'{"choices":[{"text":"\\"prompt_tokens\\":99"}],"usage":{"prompt_tokens":13,"total_tokens":14,'
        b'"completion_tokens": 1,"prompt_tokens_details":{"cached_tokens":12}},"metadata":{}}'
    )
    assert usage(openai) == Usage(13, 1, 12)
    generate = (
        b'{"text":"x","meta_info":{"prompt_tokens":7,"completion_tokens":6,"cached_tokens":6,"id":"x"}}'
    )
    assert usage(generate) == Usage(7, 6, 6)
    assert usage(b'{"usage":null}') == Usage(None, None, None)
    assert last_int(b'"n":null', b"n") is None
    assert last_int(b'"n":-1', b"n") is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"choices":[{"text":"","finish_reason":"abort"}]}', "engine-aborted"),
        (
            b'{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"error"}]}',
            "engine-error",
        ),
        (b'{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"m"}}}', "engine-aborted"),
        (b'[{"text":"","meta_info":{"finish_reason":{"type":"abort"}}}]', "engine-aborted"),
    ],
)
def test_failures_hidden_in_whole_answers(body: bytes, reason: str) -> None:
    error = unfinished(body)
    assert error is not None
    assert error.reason == reason


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"text":"partial","finish_reason":"abort"}]}',
        b'{"choices":[{"text":"say \\"abort\\"","finish_reason":"stop"}]}',
        b'{"choices":[{"text":"","finish_reason":"abort"},{"text":"x","finish_reason":"stop"}]}',
        b'{"choices":[],"note":"abort"}',
        b'not json "abort"',
        b'["abort"]',
        b'{"object":"list","error":null,"x":"error"}',
    ],
)
def test_whole_answers_that_hide_nothing(body: bytes) -> None:
    assert unfinished(body) is None


@pytest.mark.parametrize(
    ("kind", "status", "body", "fits"),
    [
        (PathKind.CHAT, 200, b'{"choices":[]}', True),
        (PathKind.CHAT, 200, b' {"choices":[]}', True),
        (PathKind.GENERATE, 200, b'[{"text":"a"}]', True),
        (PathKind.COMPLETION, 200, b'[{"text":"a"}]', False),
        (PathKind.COMPLETION, 200, b"hello", False),
        (PathKind.COMPLETION, 200, b"", False),
        (PathKind.COMPLETION, 204, b"", False),
        (PathKind.COMPLETION, 302, b"{}", False),
        (PathKind.CHAT, 200, b'{"choices":[{"text":"","finish_reason":"error"}]}', False),
    ],
)
def test_what_can_be_a_clients_answer(kind: PathKind, status: int, body: bytes, fits: bool) -> None:
    error = unfit(kind, status, body)
    assert (error is None) is fits
    assert error is None or error.http_status == 502


def test_an_error_is_known_by_its_body_too() -> None:
    assert is_error(500, b"")
    assert is_error(200, b'{"error":{"message":"x"}}')
    assert is_error(200, b'{"error": {"message":"x"}}')
    assert not is_error(200, b'{"error":null,"id":"resp_1"}')
    assert not is_error(200, b'{"choices":[{"text":"{\\"error\\":{"}]}')
