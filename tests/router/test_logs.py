"""The log lines: one per event whatever a client sends, and no secret in any."""

from __future__ import annotations

import io
import json
import logging
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.clock import FakeClock
from orchestrator.errors import TopologyError
from orchestrator.router.logs import KeyValue, Seldom, level_of, set_up


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "orchestrator.router.x", "levelname": "INFO", "msg": message})
    vars(made).update(fields)
    return made


def test_a_line_names_time_level_logger_message_and_fields() -> None:
    line = KeyValue().format(record("endpoint ready", endpoint="p0", for_s=0.25, ready=True, n=3))
    assert line.startswith("ts=")
    assert 'level=info logger=router.x msg="endpoint ready" endpoint=p0 for_s=0.25 ready=true n=3' in line


@given(st.text())
def test_one_event_is_one_line_and_reads_back(value: str) -> None:
    line = KeyValue().format(record("request", path=value, end="1"))
    assert "\n" not in line
    assert line.isprintable()
    written = line[line.index(" path=") + len(" path=") : line.rindex(" end=1")]
    assert (json.loads(written) if written.startswith('"') else written) == value


def test_what_happens_at_every_request_is_told_at_first_and_then_every_ten_seconds() -> None:
    clock = FakeClock()
    seldom = Seldom(clock)
    assert [seldom.due("a") for _ in range(5)] == [1, None, None, None, None]
    assert seldom.due("b") == 1
    clock.advance(9.9)
    assert seldom.due("a") is None
    clock.advance(0.1)
    assert [seldom.due("a"), seldom.due("a")] == [6, None]
    clock.advance(100)
    assert [seldom.due("b"), seldom.due("a")] == [1, 2]


def test_the_level_is_a_word_of_the_environment() -> None:
    assert level_of({}) == logging.INFO
    assert level_of({"PDCTL_LOG_LEVEL": "Debug"}) == logging.DEBUG
    with pytest.raises(TopologyError, match="PDCTL_LOG_LEVEL is 'loud'"):
        level_of({"PDCTL_LOG_LEVEL": "loud"})


def test_a_value_cannot_forge_a_field() -> None:
    line = KeyValue().format(record("request", path='x level=error msg="owned"'))
    assert [word for word in shlex.split(line) if word.startswith("level=")] == ["level=info"]


@pytest.mark.parametrize("field", ["path", "msg"])
def test_secrets_are_masked_wherever_they_stand(field: str) -> None:
    format_ = KeyValue(["sk-123", "sk-123456", ""])
    made = (
        record("key sk-123456 was sent", path="/x?key=sk-123456")
        if field == "msg"
        else record("m", path="sk-123")
    )
    line = format_.format(made)
    assert "sk-123" not in line
    assert "***" in line
    assert "***456" not in line


def test_an_exception_stays_on_the_line_and_is_masked() -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        set_up(["sk-123"], stream=stream)
        try:
            raise RuntimeError("refused sk-123")
        except RuntimeError:
            logging.getLogger("orchestrator.router").exception("boom")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "RuntimeError: refused ***" in lines[0]
    assert "sk-123" not in lines[0]
