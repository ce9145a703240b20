"""The fuzzers (target, targets, wire, content, seeds) with fixed seeds, and what they have found so far."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random

import pytest
from fuzzing.__main__ import mutate
from fuzzing.target import splits
from fuzzing.targets import TARGETS
from fuzzing.wire import framed

ROOT = Path(__file__).resolve().parents[2]

INPUTS = {
    "request": 1000, "server": 500, "answer": 700, "stream": 700, "engine": 150, "body": 2000, "topology": 30,
}  # fmt: skip
"""About half a second of each."""

EVENT = b'data: {"id":"c","choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'

FOUND = [
    # An upgrade in a second request was taken for one in the first.
    (
        "request",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ),
    # What follows a request was refused in words although the connection had been said to close.
    ("server", b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    # What follows an interim answer with a framing, or an impossible status, was a body without a head.
    ("answer", b"HTTP/1.1 199 OK\r\nTransfer-Encoding: x\r\n\r\nhello"),
    ("answer", b"HTTP/1.1 050 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
    # An error after the last mark: whether that had been the last event hung on the reads.
    ("stream", EVENT + b'data: [DONE]\n\ndata: {"error":1}\n\n'),
    # Which of two kinds of line ends counted hung on the reads.
    ("stream", EVENT + EVENT.replace(b"\n\n", b"\r\n\r\n") + b"data: [DONE]\r\n\r\n"),
    # An odd number of line ends: no event was found in what was left of it.
    ("stream", b": x\n\n\n"),
    ("stream", EVENT + b'\ndata: {"error": {"message": "m", "code": 400}}\n\n'),
    # Only the first thing that looked like an error was looked at.
    ("stream", EVENT + b': data: {"error"\n\ndata: {"error": {"code": 400}}\n\n'),
    # Half of an event was passed on where its error stood on its second line.
    ("stream", EVENT + b'event: error\ndata: {"error": {"code": 400}}\n\n'),
    # A stream that went on elsewhere was read as if all of it were JSON, usage and all.
    ("stream", EVENT + EVENT + b"data: {,}\n\n"),
    ("stream", EVENT + EVENT + b'data: {"choices":[],"usage":{}}\n\n'),
    (
        "stream",
        EVENT + EVENT + b'data: {"choices":[],"usage":{"prompt_tokens":"a","completion_tokens":1}}\n\n',
    ),
    ("stream", EVENT + b'data: {"choices":[{"text":[1]}]}\n\n' + EVENT),
]


@pytest.mark.parametrize("name", TARGETS)
async def test_mutated_inputs(name: str) -> None:
    target = TARGETS[name]
    for data in target.seeds:
        target.check(data)
    for seed in range(INPUTS[name]):
        target.check(mutate(Random(seed), target.seeds, target.words))


@pytest.mark.parametrize(("name", "data"), FOUND)
async def test_what_was_found(name: str, data: bytes) -> None:
    TARGETS[name].check(data)


async def test_a_head_of_a_status_without_a_body_is_not_kept() -> None:
    """It was, with a length of none, and gave the next one with that head, and a length, a body."""
    head = b"HTTP/1.1 304 Not Modified\r\nContent-Length: %d\r\n\r\n"
    for data in (head % 0, head % 4 + b"GET ", head % 0):
        TARGETS["answer"].check(data)


@pytest.mark.parametrize("data", [b"", b"a", b"abc" * 100])
def test_reads_bring_all_bytes(data: bytes) -> None:
    assert all(b"".join(pieces) == data for pieces in splits(data))


def test_what_is_taken_otherwise_than_the_standard_says_is_a_finding() -> None:
    """The reading by RFC 9112 is one of its own."""
    whole = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
    assert framed(whole) == b"hi"
    assert framed(whole.replace(b"Transfer-Encoding: chunked", b"Content-Length: 3")) == b"2\r\n"
    with pytest.raises(AssertionError):
        framed(whole.replace(b"2\r\n", b"1\r\n"))


def test_the_command() -> None:
    words = ["request", "--blind", "--seconds", "0.2"]
    done = subprocess.run(
        [ROOT / "scripts" / "fuzz", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no finding" in done.stdout
