"""The scheduler as a relay has it: calls become messages, and a new scheduler is told all anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.core.contracts import Assign, Bind, Decision, Reject, Spent
from orchestrator.core.types import End, LegEvent, LegKind, Outcome, PathKind, RequestView, Route
from orchestrator.router.workers import messages
from orchestrator.router.workers.messages import Frames, Kind
from orchestrator.router.workers.remote import LOST, RemotePairs, RemoteScheduler

A, B = "a" * 32, "b" * 32
ROUTE = Route("d0", "p0")


def view(request_id: str) -> RequestView:
    return RequestView(request_id, "m", PathKind.CHAT, 1.0, 100, 10, stream=True)


class Wire:
    """The frames that were sent, and the decisions that were delivered."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.told: list[Decision] = []
        self._cut = Frames()

    def send(self, frame: bytes) -> None:
        self.frames += self._cut.feed(frame)

    def deliver(self, decisions: Sequence[Decision]) -> None:
        self.told += decisions

    def kinds(self) -> list[int]:
        kinds = [kind for kind, _ in self.frames]
        self.frames.clear()
        return kinds


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def scheduler(wire: Wire) -> RemoteScheduler:
    made = RemoteScheduler(frozenset({"first_token", "done"}), lambda name: name == A)
    made.deliver = wire.deliver
    made.linked(wire.send)
    return made


def ended(request_id: str) -> Outcome:
    return Outcome(request_id, End.COMPLETED, 200, route=ROUTE)


async def test_a_request_from_its_submission_to_its_end(scheduler: RemoteScheduler, wire: Wire) -> None:
    assert scheduler.submit(view(A), 1.0) == ()
    scheduler.decided(Assign(A, ROUTE))
    assert wire.told == [Assign(A, ROUTE)]
    scheduler.progress(LegEvent(A, LegKind.DECODE, "d0", "first_token", 2.0), 2.0)
    scheduler.finish(ended(A), 3.0)
    scheduler.over(A)
    assert messages.submitted(wire.frames[0][1]).wants
    assert wire.kinds() == [Kind.SUBMIT, Kind.PROGRESS, Kind.FINISH, Kind.OVER]
    assert len(scheduler) == 0


async def test_a_new_scheduler_is_told_what_waits_and_what_runs(
    scheduler: RemoteScheduler, wire: Wire
) -> None:
    for name in (A, B):
        scheduler.submit(view(name), 1.0)
    scheduler.decided(Assign(A, ROUTE))
    scheduler.progress(LegEvent(A, LegKind.PREFILL, "p0", "done", 2.0), 2.0)
    scheduler.lost()
    scheduler.progress(LegEvent(A, LegKind.DECODE, "d0", "first_token", 3.0), 3.0)
    wire.kinds()
    scheduler.linked(wire.send)
    told = {messages.submitted(body).view.id: messages.submitted(body) for _, body in wire.frames}
    assert wire.kinds() == [Kind.RESUME, Kind.SUBMIT]
    assert (told[A].route, told[A].computed, told[A].begun) == (ROUTE, True, True)
    assert told[B].route is None


async def test_what_ended_meanwhile_is_not_told(scheduler: RemoteScheduler, wire: Wire) -> None:
    scheduler.submit(view(A), 1.0)
    scheduler.decided(Assign(A, ROUTE))
    scheduler.lost()
    scheduler.finish(ended(A), 2.0)
    scheduler.over(A)
    wire.kinds()
    scheduler.linked(wire.send)
    assert wire.kinds() == []


async def test_half_a_hand_off_is_given_up_with_its_scheduler(scheduler: RemoteScheduler, wire: Wire) -> None:
    for name in (A, B):
        scheduler.submit(view(name), 1.0)
        scheduler.decided(Assign(name, ROUTE, provisional=True))
    scheduler.decided(Bind(B, Route("d1", "p0")))
    wire.told.clear()
    scheduler.lost()
    assert wire.told == [Spent(A, LOST)]
    assert scheduler.rebind(view(B), 2.0) == (Spent(B, LOST),)
    scheduler.close()


async def test_a_decode_side_that_could_not_be_reached_is_named_anew(
    scheduler: RemoteScheduler, wire: Wire
) -> None:
    scheduler.submit(view(A), 1.0)
    scheduler.decided(Assign(A, ROUTE))
    assert scheduler.rebind(view(A), 2.0) == ()
    scheduler.decided(Bind(A, Route("d1", "p0")))
    assert wire.told[-1] == Bind(A, Route("d1", "p0"))
    assert wire.kinds() == [Kind.SUBMIT, Kind.REBIND]


async def test_without_a_scheduler_for_long_requests_are_refused(wire: Wire) -> None:
    scheduler = RemoteScheduler(frozenset(), lambda _: False, patience_s=0.0)
    scheduler.deliver = wire.deliver
    scheduler.linked(wire.send)
    scheduler.submit(view(A), 1.0)
    scheduler.lost()
    while not wire.told:  # noqa: ASYNC110  (a timer of the loop is waited for)
        await asyncio.sleep(0)
    refused = [*wire.told, *scheduler.submit(view(B), 2.0)]
    assert [(r.request_id, r.reason, r.http_status) for r in refused if isinstance(r, Reject)] == [
        (A, LOST, 503),
        (B, LOST, 503),
    ]
    scheduler.linked(wire.send)
    assert scheduler.submit(view(B), 3.0) == ()


def test_what_is_seen_of_pairs_is_passed_on() -> None:
    notes: list[Sequence[Any]] = []
    pairs, pair = RemotePairs(notes.append), ("p0", "d0")
    pairs.used(pair)
    pairs.failed(pair, 1.0)
    assert pairs.failing == {pair}
    pairs.well(pair)
    assert not pairs.failing
    assert notes == [("pair-used", *pair), ("pair-failed", *pair), ("pair-well", *pair)]
