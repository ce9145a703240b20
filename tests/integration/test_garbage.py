"""An engine that answers nonsense: the client is told that it failed, in JSON, and nothing else suffers."""

from __future__ import annotations

import json
from itertools import product

import pytest
from asking import COMPLETION, limited
from line import Line

pytestmark = pytest.mark.integration

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


GARBAGE = {
    "nothing": b"",
    "noise": bytes(range(256)) * 8,
    "another protocol": b"220 mail.example ESMTP ready\r\n",
    "a head without end": OK + b"X-Padding: " + b"a" * 1_000_000,
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "a body cut short": OK + b'Content-Length: 1000\r\n\r\n{"id":',
    "no JSON": OK + b"Content-Length: 5\r\n\r\nhello",
    "another JSON": OK + b"Content-Length: 4\r\n\r\n[42]",
    "an error with 200": OK + b'Content-Length: 38\r\n\r\n{"error":{"message":"x","code":"500"}}',
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a redirection": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "a switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    "no chunk": SSE + b"zz\r\n",
    "an empty stream": SSE + b"0\r\n\r\n",
    "a stream of nonsense": SSE + chunk(b"data: nonsense\n\n") + b"0\r\n\r\n",
    "an event cut short": SSE + chunk(b'data: {"choices":[{"index":0,"text":"a') + b"0\r\n\r\n",
    "a stream cut off": SSE + chunk(b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'),
}


REASONS = {
    *("connection-dropped", "bad-answer", "stream-truncated", "leg-failed"),
    *("bad-handoff-params", "prefill-aborted"),
    "connect-failed",  # it closes behind what it says: the last attempt may find that
}


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_garbage_is_a_failure(line: Line, side: str) -> None:
    recorder = line.prefill if side == "prefill" else line.decode
    request = limited(COMPLETION, {"prompt": "hello"}, 8)
    wrong = {}
    for name, stream in product(GARBAGE, (False, True)):
        recorder.instead[COMPLETION] = GARBAGE[name]
        answer = line.post(COMPLETION, {**request, "stream": stream})
        begun = side == "decode" and name == "a stream cut off"
        last = answer.text.rpartition("data: ")[2] if begun else answer.text
        code = json.loads(last)["error"]["code"] if last.startswith('{"error"') else None
        if code not in REASONS or answer.status_code != (200 if begun else 502):
            wrong[name, stream] = answer.status_code, answer.text
    recorder.instead.clear()
    assert not wrong
    line.deployment.serves()
    line.deployment.at_rest()
    ours, theirs = line.post(COMPLETION, request), line.unified.post(COMPLETION, json=request)
    assert ours.json()["choices"] == theirs.json()["choices"]
