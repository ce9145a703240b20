"""Merging the answers of a split request: indices, usage, and any interleaving of the parts' events."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from datapath import DONE, completion, event, usage_event
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.types import PathKind
from orchestrator.errors import LegFailed
from orchestrator.router.merge import Events, bodies, total
from orchestrator.router.stream import Usage


def parsed(events: bytes) -> list[Any]:
    return [orjson.loads(part.removeprefix(b"data: ")) for part in events.split(b"\n\n") if part]


def test_bodies_keep_what_is_not_theirs_to_change() -> None:
    parts = [completion("a", extra={"x": [1, None]}), completion("b", extra=2)]
    merged = orjson.loads(bodies(PathKind.COMPLETION, parts, samples=1))
    assert merged["extra"] == {"x": [1, None]}
    assert merged["id"] == "c"
    assert [(c["index"], c["text"], c["finish_reason"]) for c in merged["choices"]] == [
        (0, "a", "stop"),
        (1, "b", "stop"),
    ]
    assert merged["usage"] == {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


def test_a_prompt_counts_once_for_all_its_samples() -> None:
    parts = [completion("a")] * 6
    merged = orjson.loads(bodies(PathKind.COMPLETION, parts, samples=3))
    assert merged["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}


def test_details_of_usage_are_summed_within() -> None:
    def part(cached: int | None, reasoning: int) -> bytes:
        details = None if cached is None else {"cached_tokens": cached}
        usage = {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        return orjson.dumps({"choices": [], "usage": usage})

    merged = orjson.loads(bodies(PathKind.CHAT, [part(None, 1), part(3, 2), part(4, 3)], samples=1))
    assert merged["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert merged["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}


def test_no_usage_is_made_up() -> None:
    parts = [completion("a"), b'{"choices":[],"usage":null}']
    assert orjson.loads(bodies(PathKind.CHAT, parts, samples=1))["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
    }


def test_bodies_of_generate_calls_are_listed_untouched() -> None:
    assert bodies(PathKind.GENERATE, [b'{"a": 1.50}', b"{}"], samples=1) == b'[{"a": 1.50},{}]'


@pytest.mark.parametrize("part", [b"", b"[1]", b'"x"', b'{"usage":{}}', b'{"choices":1}'])
def test_what_is_no_answer_is_refused(part: bytes) -> None:
    with pytest.raises(LegFailed) as caught:
        bodies(PathKind.CHAT, [completion("a"), part], samples=1)
    assert caught.value.reason == "bad-answer"


@given(order=st.permutations([0, 0, 0, 1, 1, 2]), together=st.booleans())
def test_any_interleaving_gives_each_item_its_own(order: list[int], together: bool) -> None:
    events = Events(PathKind.COMPLETION, items=3, samples=1)
    sent: list[list[str]] = [[], [], []]
    out = b""
    for number, item in enumerate(order):
        sent[item].append(str(number))
        data = event(str(number), id=f"id{item}")
        last = order.count(item) == len(sent[item])
        if last and together:
            data += usage_event(1, 2) + DONE
        out += events.take(item, data)
        if last and not together:
            assert events.take(item, usage_event(1, 2)) == b""
            assert events.take(item, DONE) == b""
    got: list[list[str]] = [[], [], []]
    for one in parsed(out):
        [choice] = one["choices"]
        got[choice["index"]].append(choice["text"])
        assert one["id"] == f"id{order[0]}"
    assert got == sent
    [rest] = parsed(events.rest())
    assert rest["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    assert rest["choices"] == []


def test_usage_waits_for_every_item() -> None:
    events = Events(PathKind.COMPLETION, items=2, samples=1)
    events.take(0, usage_event())
    assert events.rest() == b""


def test_events_of_generate_calls_carry_their_item() -> None:
    events = Events(PathKind.GENERATE, items=2, samples=1)
    [one] = parsed(events.take(1, b'data: {"text":"a","meta_info":{}}\n\n' + DONE))
    assert one == {"text": "a", "meta_info": {}, "index": 1}
    assert events.rest() == b""


def test_what_is_no_data_is_left_out() -> None:
    events = Events(PathKind.CHAT, items=1, samples=1)
    assert events.take(0, b": ping\n\nevent: x\nid: 7\n\n") == b""


def test_events_that_are_none_are_refused() -> None:
    with pytest.raises(LegFailed):
        Events(PathKind.CHAT, items=1, samples=1).take(0, b"data: nonsense\n\n")


def test_total_usage() -> None:
    assert total([Usage(5, 2, 1), Usage(5, 3, 1), Usage(7, 4, 2), Usage(7, 1, 2)], 2) == Usage(12, 10, 3)
    assert total([Usage(5, 2, None), Usage(5, None, 1)], 1) == Usage(10, None, None)
