"""What inputs are made of: whole ones to begin with, and words to put into them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def texts(*folders: str) -> list[bytes]:
    return [p.read_bytes() for f in folders for p in sorted((ROOT / f).iterdir()) if p.is_file()]


_GET = b"GET /a?b HTTP/1.1\r\nHost: x\r\n"
_POST = b"POST /stream HTTP/1.1\r\nHost: x\r\n"
_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
_LENGTH = b"Content-Length: 5\r\n\r\nhello"
REQUESTS = [
    _GET + b"\r\n",
    _POST + _LENGTH,
    _POST + _CHUNKS,
    _POST + b"Expect: 100-continue\r\n" + _LENGTH,
    b"POST / HTTP/1.0\r\nConnection: keep-alive\r\n" + _LENGTH,
    _POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + _CHUNKS,
    _GET + b"\r\n" + _POST + _LENGTH,
    _POST + _CHUNKS[:-2] + b"X-T: 1\r\n\r\n" + _GET + b"\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n" + _LENGTH,
]
HTTP = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b";", b",", b"0\r\n\r\n",
    b"5\r\nhello\r\n", b"Content-Length: 5\r\n", b"content-length: 5\r\n", b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n", b"Content-Length : 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Host: y\r\n", b" folded\r\n", b"HTTP/1.1", b"HTTP/1.0",
    b"HTTP/2.0", b"GET ", b"HEAD ", b"CONNECT ", b"OPTIONS * ", b"http://x/", b"fffffff",
    b"100 Continue\r\n\r\n", b"204 No Content", b"304 Not Modified", b"101 Switching Protocols",
]  # fmt: skip
ANSWERS = [
    _OK + _LENGTH,
    _OK + _CHUNKS,
    _OK + b"\r\nto the end",
    b"HTTP/1.1 100 Continue\r\n\r\n" + _OK + _LENGTH,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 503 Busy\r\n" + _LENGTH,
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
]
_EVENT = b'data: {"id":"e","choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
STREAMS = [
    _EVENT + _EVENT.replace(b'"a"', b'"b"') + b"data: [DONE]\n\n",
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}\n\n'
    b"data: [DONE]\n\n",
    _EVENT + b'data: {"error": {"message": "m", "code": 400}}\n\n',
    (_EVENT + b"data: [DONE]\n\n").replace(b"\n", b"\r\n"),
    b'data: {"text":"a","output_ids":[1],"meta_info":{"finish_reason":{"type":"abort"},"id":"x"}}\n\n',
    b": ping\n\n" + _EVENT,
]
JSON = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\\\", b'\\"', b"\\u0061", b"\\ud800", b"null",
    b"true", b"1e999", b"-0", b"1.5", b"18446744073709551616", b"NaN", b'"a":1,', b'"n":', b'"prompt":',
    b'"messages":', b'"role":"user"', b'"content":', b'"stream":true,', b'"sampling_params":{"n":2}',
    b'"input_ids":[[1],[2]]', b"\xff", b"\xc3\xa9", b"\x00",
]  # fmt: skip
BODIES = [
    b'{"model":"m","prompt":"hello","max_tokens":5}',
    b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "n": 2, "stream": false}',
    b'{ "input_ids" : [1, 2, 3], "sampling_params": {"n": 1, "max_new_tokens": 7} }',
    b'{"prompt":["a","b"],"logprobs":1,"logit_bias":{"5":1},"top_k":3,"kv_transfer_params":{"a":"\\"}"}}',
    b'{"text":["a","b"],"image_data":["x"],"bootstrap_room":1,"p\\u0072ompt":null}',
]
SSE = [
    b"data: ", b"data:", b"\n\n", b"\r\n\r\n", b"\n", b"\r\n", b": c\n", b"event: x\n", b"[DONE]",
    b'{"error"', b'{"error": {}}', b'"finish_reason":"abort"', b'"finish_reason":{"type":"error"}',
    b'"usage":{', b'"usage":{"prompt_tokens":1}', b'"id":""', b'"delta":{"role":"assistant"}',
    b'"text":"x"', b'data: {"error":1}\n\n', b'"completion_tokens":3', b'"choices":[]',
]  # fmt: skip
