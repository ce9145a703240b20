"""Heads that are kept: which messages they are taken from, and how many there may be."""

from __future__ import annotations

import pytest

from orchestrator.wire.heads import MAX_DIGITS, MAX_HEADS, MAX_KEPT_BYTES, Heads, whole

POST = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length"])
@pytest.mark.parametrize("size", [0, 5, 100])
def test_one_whole_message(name: bytes, size: int) -> None:
    found = whole(POST + name + b": %d\r\nA: b\r\n\r\n" % size + b"a" * size)
    assert found is not None
    (before, after), body = found
    assert before == POST + name + b": "
    assert after == b"\r\nA: b\r\n\r\n"
    assert body == len(before) + len(str(size)) + len(after)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        POST,
        POST + b"\r\n",
        POST + b"Content-Length: 5\r\n\r\nhell",
        POST + b"Content-Length: 5\r\n\r\nhello!",
        POST + b"Content-Length: +5\r\n\r\nhello",
        POST + b"Content-Length: 5 \r\n\r\nhello",
        POST + b"Content-Length:5\r\n\r\nhello",
        POST + b"Content-Length: \r\n\r\n",
        POST + b"Content-Length: " + b"0" * MAX_DIGITS + b"5\r\n\r\nhello",
        POST + b"X-Content-Length: 5\r\n\r\nhello",
        POST + b"A: Content-Length: 5\r\n\r\nhello",
        POST + b"X: " + b"a" * MAX_KEPT_BYTES + b"\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_anything_else_is_left_to_the_parser(raw: bytes) -> None:
    assert whole(raw) is None


def test_where_the_length_stands_is_part_of_the_key() -> None:
    """A name of which a header's digits were cut must not pass for one of which another's were."""
    heads: Heads[str] = Heads()
    first = whole(POST + b"Content-Length: 5\r\nA: 7\r\n\r\nhello")
    other = whole(POST + b"A: 5\r\nContent-Length: 7\r\n\r\nhello!!")
    assert first is not None
    assert other is not None
    heads.keep(first[0], "first")
    assert heads.get(other[0]) is None
    again = whole(POST + b"Content-Length: 3\r\nA: 7\r\n\r\nhel")
    assert again is not None
    assert heads.get(again[0]) == "first"


def test_there_are_never_too_many() -> None:
    heads: Heads[int] = Heads()
    for number in range(2 * MAX_HEADS + 1):
        heads.keep((b"%d" % number, b""), number)
        assert len(heads) <= MAX_HEADS
        assert heads.get((b"%d" % number, b"")) == number
