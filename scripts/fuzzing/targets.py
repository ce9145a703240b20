"""All targets by name."""

from __future__ import annotations

from fuzzing.content import body, engine, stream, topology
from fuzzing.seeds import ANSWERS, BODIES, HTTP, JSON, REQUESTS, SSE, STREAMS, texts
from fuzzing.target import Target
from fuzzing.wire import answer, request, server

TARGETS = {
    target.name: target
    for target in (
        Target("request", request, REQUESTS, HTTP),
        Target("server", server, REQUESTS, HTTP),
        Target("answer", answer, ANSWERS, HTTP),
        Target("stream", stream, STREAMS, (*SSE, *JSON)),
        Target("engine", engine, texts("tests/data/sglang", "tests/data/vllm"), (*JSON, *SSE)),
        Target("body", body, BODIES, JSON),
        Target("topology", topology, texts("examples"), JSON),
    )
}
