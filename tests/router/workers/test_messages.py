"""Messages between relays and the scheduler: what goes in comes out, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.contracts import Assign, Bind, Decision, Poll, Reject, Slice, Spent
from orchestrator.core.types import (
    Choice,
    End,
    LegEvent,
    LegKind,
    Outcome,
    PathKind,
    Prediction,
    RequestView,
    Role,
    Route,
    Scored,
)
from orchestrator.router.workers import messages
from orchestrator.router.workers.messages import BadFrame, Frames, Kind, Submitted

ID = "00112233445566778899aabbccddeeff"
words = st.text(max_size=12)
maybe = st.none() | words
seconds = st.floats(0, 1e9)
counts = st.integers(0, 2**31)
routes = st.builds(Route, words, maybe, maybe)
requests = st.builds(
    RequestView,
    id=st.integers(0, 2**128 - 1).map(lambda n: f"{n:032x}"),
    model=words,
    path=st.sampled_from(PathKind),
    arrived_s=seconds,
    prompt_tokens=counts,
    max_tokens=counts,
    stream=st.booleans(),
    n=st.integers(1, 128),
    slo_class=maybe,
    tenant=maybe,
    block_hashes=st.lists(st.integers(0, 2**64 - 1), max_size=8).map(tuple),
    headers=st.dictionaries(words, words, max_size=2),
    deadline_s=st.none() | seconds,
    avoid=st.lists(words, max_size=2).map(tuple),
    parts=st.booleans(),
    media=counts,
)
predictions = st.none() | st.builds(
    Prediction,
    *[seconds] * 8,
    cached_tokens=counts,
    due_s=st.none() | seconds,
    itl_tail_s=seconds,
    encode_s=seconds,
)
choices = st.lists(
    st.builds(
        Choice,
        st.sampled_from(Role),
        words,
        maybe,
        st.lists(st.builds(Scored, words, seconds, st.dictionaries(words, seconds, max_size=2))).map(tuple),
        st.dictionaries(words, words, max_size=2),
        st.lists(words, max_size=2).map(tuple),
        st.sampled_from(("share", "seconds")),
    ),
    max_size=2,
).map(tuple)
decisions: st.SearchStrategy[Decision] = st.one_of(
    st.builds(
        Assign, st.just(ID), routes, choices, st.booleans(), predictions, st.none(), admitted=predictions
    ),
    st.builds(Reject, st.just(ID), words, words, counts, st.none() | seconds, predictions),
    st.builds(Bind, st.just(ID), routes, st.none(), choices),
    st.builds(Spent, st.just(ID), words),
    st.builds(Slice, st.just(ID), routes, counts, counts),
)
outcomes = st.builds(
    Outcome,
    request_id=st.just(ID),
    end=st.sampled_from(End),
    http_status=counts,
    reason=words,
    route=st.none() | routes,
    prompt_tokens=counts,
    cached_tokens=counts,
    output_tokens=counts,
    ttft_s=st.none() | seconds,
    e2e_s=st.none() | seconds,
    stages=st.dictionaries(words, seconds, max_size=3),
)


def body(frame: bytes, kind: Kind) -> bytes:
    ((told, body),) = Frames().feed(frame)
    assert told == kind
    return body


@given(requests, st.booleans(), st.none() | routes, st.booleans(), st.booleans())
def test_a_request(view: RequestView, wants: bool, route: Route | None, computed: bool, begun: bool) -> None:
    asked = Submitted(view, wants, route, computed, begun)
    assert messages.submitted(body(messages.submit(Kind.RESUME, asked), Kind.RESUME)) == asked


@given(decisions)
def test_a_decision(decision: Decision) -> None:
    assert messages.decided(body(messages.decision(decision), Kind.DECISION)) == decision


@given(outcomes)
def test_an_outcome(outcome: Outcome) -> None:
    assert messages.finished(body(messages.finish(outcome), Kind.FINISH)) == outcome


@pytest.mark.parametrize("leg", LegKind)
@pytest.mark.parametrize("what", ["sent", "first_token", "done", "failed"])
def test_progress(leg: LegKind, what: str) -> None:
    event = LegEvent(ID, leg, "decode-0", what, 12.5, 7)
    assert messages.progressed(body(messages.progress(event), Kind.PROGRESS)) == event


def test_which_request() -> None:
    assert messages.request_id_of(body(messages.id_frame(Kind.OVER, ID), Kind.OVER)) == ID


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), max_size=20))
def test_frames_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(messages.frame(Kind.COUNTS, one) for one in bodies)
    frames, found = Frames(), []
    for cut in [*cuts, len(data)]:
        found += frames.feed(data[:cut])
        data = data[cut:]
    assert found == [(Kind.COUNTS, one) for one in bodies]


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(BadFrame):
        Frames().feed(b"GET / HTTP/1.1\r\n\r\n"[:5].replace(b"GET ", b"\xff\xff\xff\xff"))
    with pytest.raises(BadFrame):
        messages.decided(bytes.fromhex(ID) + b'["maybe"]')
    with pytest.raises(TypeError):
        messages.decision(Poll("decode-0"))
