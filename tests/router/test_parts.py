"""Parts of prompts on their way: what cannot be sent is told as failed, and costs nobody anything.

What becomes of those that can be is in `tests/integration/test_slices.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.decisions import Slice
from orchestrator.core.types import LegEvent, LegKind, PathKind, Role, Route
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.vllm import VLLM
from orchestrator.errors import RequestError
from orchestrator.policy.testing import make_endpoint, make_request
from orchestrator.router.givenup import Orphans
from orchestrator.router.intake import Ask
from orchestrator.router.parts import STAGE, Pieces
from orchestrator.router.record import Record
from orchestrator.router.road import Road
from orchestrator.router.view import Prompt
from orchestrator.topology.plan import Timeouts
from orchestrator.wire.client import Pool
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.reader import RequestHead


class Told:
    """Everything around the slices of one request, and what it is told."""

    def __init__(self, engine: object, endpoint: Any, tokens: bytes | None) -> None:
        self.events: list[LegEvent] = []
        self.blamed: list[tuple[str, tuple[str, ...]]] = []
        self.stages: list[str] = []
        self.clock = FakeClock()
        counts: Any = SimpleNamespace(stage=lambda name, seconds: self.stages.append(name))
        nothing: Any = self.nothing
        road = Road(
            pool=Pool(), clock=self.clock, timeouts=Timeouts(), counts=counts, orphans=Orphans(counts),
            place=nothing, progress=nothing, hang_up=nothing, trouble=nothing, well=nothing,
            watch=set(), signs={}, key=None,
        )  # fmt: skip
        registry = SimpleNamespace(get=lambda name: endpoint, engine=lambda name: engine)
        self.record = Record("ab" * 16, PathKind.COMPLETION, 0.0)
        held = None if tokens is None else SimpleNamespace(of=lambda request_id: tokens)
        desk = SimpleNamespace(progress=self.events.append)
        view = make_request(id=self.record.id)
        ask = Ask(view, JsonBody(b"{}"), Prompt(b"", 1, 1, True, 1), cast(Any, None), ())
        head = RequestHead("POST", b"/v1/completions", (), False, True)
        self.pieces = Pieces(
            cast(Any, SimpleNamespace(road=road, registry=registry, desk=desk, tokens=held)),
            Exchange(cast(Any, None), head, b"", "", True),
            self.record,
            ask,
            self.blame,
        )

    def nothing(self, *what: object) -> None:
        """Nothing of it is asked for here."""

    def blame(self, error: RequestError, endpoints: tuple[str, ...]) -> None:
        self.blamed.append((error.reason, endpoints))


P0 = make_endpoint("p0", Role.PREFILL)


@pytest.mark.parametrize(
    ("engine", "endpoint", "tokens"),
    [(VLLM(), None, bytes(4096)), (VLLM(), P0, None), (VLLM(), P0, bytes(508)), (object(), P0, bytes(4096))],
    ids=["removed", "no-tokens", "too-few-tokens", "engine-cannot"],
)
async def test_what_cannot_be_sent(engine: object, endpoint: Any, tokens: bytes | None) -> None:
    told = Told(engine, endpoint, tokens)
    told.clock.advance(2.0)
    told.pieces.send(Slice(told.record.id, Route("d0", "p0"), 128, 0))
    assert told.events == [LegEvent(told.record.id, LegKind.PREFILL, "p0", "failed", told.clock.now_s())]
    assert told.blamed == [("no-slice", ())], "no endpoint is to blame"
    assert told.stages == [STAGE]
    told.pieces.stop()
