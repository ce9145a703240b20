"""Log files: emptied under a writer that keeps its descriptor, read back, followed, cleaned."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

import pytest

from orchestrator.launch.logs import (
    SEPARATOR,
    Follower,
    clean,
    follow,
    last_words,
    open_append,
    rotate,
    rotated,
    strike,
    tail,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "p1.log"


def test_a_log_is_for_its_owner_only(log: Path) -> None:
    os.close(open_append(log))
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_writer_goes_on_at_the_beginning_after_the_log_was_emptied(log: Path) -> None:
    fd = open_append(log)
    os.write(fd, b"old\n" * 10)
    assert rotate(log, max_bytes=10)
    os.write(fd, b"new\n")
    os.close(fd)
    assert log.read_bytes() == b"new\n"
    assert rotated(log, 1).read_bytes() == b"old\n" * 10


def test_small_and_missing_logs_are_left_alone(log: Path) -> None:
    assert not rotate(log, max_bytes=10)
    log.write_bytes(b"0123456789")
    assert not rotate(log, max_bytes=10)


def test_only_so_many_older_parts_are_kept(log: Path) -> None:
    for number in range(6):
        log.write_bytes(b"%d" % number * 11)
        assert rotate(log, max_bytes=10, kept=3)
    kept = {p.name: p.read_bytes()[:1] for p in log.parent.glob("p1.log.*")}
    assert kept == {"p1.log.1": b"5", "p1.log.2": b"4", "p1.log.3": b"3"}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\n", "plain"),
        ("\x1b[1;32mgreen\x1b[0m", "green"),
        ("\x1b]0;title\x07text", "text"),
        ("10%\r50%\r100%", "100%"),
        ("50%\r", "50%"),
        ("\x1b]52;c;cm0gLXJm\x07copied", "copied"),
        ("bell\x07 and back\x08", "bell and back"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_lines_are_made_harmless(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_tail_of_a_long_log(log: Path) -> None:
    log.write_text("".join(f"line {n} {'x' * 100}\n" for n in range(5000)))
    assert [line.split()[1] for line in tail(log, 3)] == ["4997", "4998", "4999"]
    assert len(tail(log, 10_000)) == 5000
    assert tail(log, 0) == []


def test_tail_of_no_log(log: Path) -> None:
    assert tail(log, 5) == []


def test_last_words_are_the_present_incarnation_s(log: Path) -> None:
    log.write_text(f"{SEPARATOR}p1 incarnation 1 ---\nold error\n{SEPARATOR}p1 incarnation 2 ---\n\nnew\n\n")
    assert last_words(log, 50) == ["new"]


def test_a_longer_secret_leaves_nothing_of_itself_behind() -> None:
    assert strike("key=abcdefgh abc", {"abc", "abcdefgh"}) == "key=*** ***"


def test_a_short_secret_is_struck_only_as_a_whole_word() -> None:
    assert strike("exited: key='x', --key=x", {"x"}) == "exited: key='***', --key=***"
    assert strike("Xlong-keyX", {"long-key"}) == "X***X"


def test_a_follower_loses_nothing_when_the_log_is_emptied(log: Path) -> None:
    fd = open_append(log)
    os.write(fd, b"one\ntwo\n")
    follower = Follower(log, 4)
    assert follower.read() == ["two"]
    os.write(fd, b"three\nfo")
    rotate(log, max_bytes=1)
    os.write(fd, b"ur\n")
    os.close(fd)
    assert follower.read() == ["three", "four"]
    assert follower.read() == []


def test_a_follower_waits_for_the_end_of_a_line(log: Path) -> None:
    follower = Follower(log, 0)
    assert follower.read() == []
    log.write_bytes(b"gr" + "ü".encode()[:1])
    assert follower.read() == []
    with log.open("ab") as file:
        file.write("ü".encode()[1:] + b"n\n")
    assert follower.read() == ["grün"]


async def test_follow_begins_with_the_last_lines_and_goes_on(log: Path) -> None:
    log.write_text("a\nb\nc\nhalf")  # noqa: ASYNC240
    other = log.with_name("p2.log")
    async with aclosing(follow([("p1", log), ("p2", other)], 3)) as lines:  # type: ignore[type-var]
        assert [await anext(lines), await anext(lines)] == [("p1", "b"), ("p1", "c")]
        other.write_text("later\n")
        with log.open("a") as file:
            file.write(" line\n")
        assert {await anext(lines), await anext(lines)} == {("p1", "half line"), ("p2", "later")}
