"""Where SGLang tells of its KV cache, by its own account, and what /tokenize is asked."""

import orjson
import pytest

from orchestrator.core.types import PathKind
from orchestrator.engines.sglang import SGLang

OWN = {
    "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 33557, "topic": "kv-events",
    "block_size": 64, "dp_size": 1, "replay_endpoint_port_base": 33558,
}  # fmt: skip


def test_its_account_names_the_source():
    source = SGLang().kv_source("10.0.0.1", {"kv_events": OWN})
    assert not isinstance(source, str)
    assert (source.events, source.replay) == ("tcp://10.0.0.1:33557", "tcp://10.0.0.1:33558")
    assert (source.topic, source.block_tokens) == ("kv-events", 64)
    source = SGLang().kv_source("h", {"kv_events": OWN, "kv_events_url": "tcp://h:1"})
    assert not isinstance(source, str)
    assert source.events == "tcp://h:1"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (True, "publishes none"),
        (OWN | {"publisher": "null"}, "publishes none"),
        (OWN | {"dp_size": 2}, "DP ranks"),
        (OWN | {"endpoint_port_base": None}, "not published over TCP"),
    ],
)
def test_why_there_is_none(told, why):
    assert why in str(SGLang().kv_source("h", {"kv_events": told}))


def test_tokenize_gets_what_the_template_gets():
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [], "temperature": 0}
    call = SGLang().tokenize(PathKind.CHAT, fields)
    assert call is not None
    assert orjson.loads(call.body) == {k: fields[k] for k in fields if k != "temperature"}
    for kind, name in ((PathKind.COMPLETION, "prompt"), (PathKind.GENERATE, "text")):
        call = SGLang().tokenize(kind, {name: "hi"})
        assert call is not None
        assert orjson.loads(call.body) == {"prompt": "hi"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PathKind.CHAT, {"messages": [], "extra_key": "tenant"}),
        (PathKind.GENERATE, {"text": "a", "image_data": ["x"]}),
        (PathKind.GENERATE, {"text": ["a", "b"]}),
        (PathKind.EMBED, {"input": "x"}),
    ],
)
def test_what_it_would_tokenize_otherwise_is_not_asked(kind, fields):
    assert SGLang().tokenize(kind, fields) is None
