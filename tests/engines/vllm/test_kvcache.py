"""Where vLLM tells of its KV cache, by its own account, and what /tokenize is asked."""

import orjson
import pytest

from orchestrator.core.types import PathKind, Role
from orchestrator.engines.vllm import VLLM

OWN = {
    "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558", "topic": "kv@p1",
}  # fmt: skip


def test_it_is_asked_where_it_publishes_if_that_is_wanted():
    assert "kv-events" not in VLLM().discover(Role.PREFILL, {})
    assert VLLM().discover(Role.PREFILL, {"kv_events": True})["kv-events"].path == "/kv_event_sources"


def test_its_answer_names_the_source():
    learned = VLLM().learn("kv-events", 200, orjson.dumps({"0": OWN}))
    source = VLLM().kv_source("10.0.0.1", {**learned, "block_size": 16})
    assert not isinstance(source, str)
    assert (source.events, source.replay) == ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558")
    assert (source.topic, source.block_tokens) == ("kv@p1", 16)


def test_the_topology_s_word_goes_first():
    known = {"kv_events": [OWN], "kv_events_url": "tcp://h:1"}
    source = VLLM().kv_source("10.0.0.1", known)
    assert not isinstance(source, str)
    assert (source.events, source.replay) == ("tcp://h:1", None)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({}, "publishes none"),
        ({"0": OWN, "1": OWN}, "DP ranks"),
        ({"0": OWN | {"endpoint": "ipc:///x"}}, "not published over TCP"),
        ({"0": OWN | {"publisher": "null"}}, "not published"),
    ],
)
def test_why_there_is_none(told, why):
    learned = VLLM().learn("kv-events", 200, orjson.dumps(told))
    assert why in str(VLLM().kv_source("h", learned))


def test_an_older_version_without_the_route_still_joins():
    assert VLLM().learn("kv-events", 404, b"") == {}
    assert "publishes none" in str(VLLM().kv_source("h", {"kv_events": True}))


def test_tokenize_gets_what_the_template_gets():
    fields = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [], "max_tokens": 5,
        "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    call = VLLM().tokenize(PathKind.CHAT, fields)
    assert call is not None
    assert (call.method, call.path) == ("POST", "/tokenize")
    assert orjson.loads(call.body) == {k: fields[k] for k in fields if k != "max_tokens"}
    call = VLLM().tokenize(PathKind.COMPLETION, {"model": "m", "prompt": "hi", "add_special_tokens": False})
    assert call is not None
    assert orjson.loads(call.body) == {"model": "m", "prompt": "hi", "add_special_tokens": False}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PathKind.CHAT, {"messages": [], "documents": [1]}),
        (PathKind.CHAT, {"messages": [], "cache_salt": "s"}),
        (PathKind.COMPLETION, {"prompt": ["a", "b"]}),
        (PathKind.COMPLETION, {}),
        (PathKind.EMBED, {"input": "x"}),
    ],
)
def test_what_it_would_tokenize_otherwise_is_not_asked(kind, fields):
    assert VLLM().tokenize(kind, fields) is None
