"""Prefix slices: long prompts are computed a piece at a time, so that shorter ones go in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

from orchestrator.core.decisions import Slice
from orchestrator.core.frozen import record
from orchestrator.core.inflight import Ledger
from orchestrator.core.late.board import Board
from orchestrator.core.late.pricing import Pick
from orchestrator.core.late.queue import Item
from orchestrator.core.late.station import Station
from orchestrator.core.prediction import Curve
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.slo import NO_PROMISE, Classes, SloClass
from orchestrator.core.types import LegEvent, LegKind, RequestView, Route

WHOLE = 1.3
"""A rest that takes no more than so many slices is sent whole, with the request itself."""

MAX_SLICES = 256
"""Of one request: its engine may lose what it has computed time and again, and the request must end."""


@record(slots=True, eq=False)
class Piece:
    """One slice on its way: whose, where, under which name it is accounted for, and up to which token."""

    item: Item
    station: Station
    name: str
    end: int


def end_of(curve: Curve, tokens: int, cached: int, seconds: float, block: int) -> int | None:
    """Where a slice of about `seconds` ends that begins behind `cached` tokens, at the end of a block.

    None if what it would leave is not worth another request, or a block takes longer than that.
    """
    if curve.seconds(tokens, cached) <= WHOLE * seconds or curve.token_s <= 0.0:
        return None
    budget_s = max(0.0, seconds - curve.fixed_s)
    a, b, h = curve.token_s, curve.token2_s, float(cached)
    if b > 0.0:
        # token_s * (e - h) + token2_s * (e*e - h*h) = budget_s
        end = (sqrt(a * a + 4.0 * b * (budget_s + a * h + b * h * h)) - a) / (2.0 * b)
    else:
        end = h + budget_s / a
    aligned = int(end) // block * block
    return aligned if cached < aligned < tokens else None


class Slices:
    """The slices on their way, each a prefill of its own in the books: ledger, station and prefix index."""

    def __init__(self, ledger: Ledger, cached: PrefixCheck) -> None:
        self._ledger = ledger
        self._cached = cached
        self._open: dict[str, Piece] = {}
        self.every_s = 0.0
        """Seconds of a slice for classes that do not say otherwise."""

    def __contains__(self, request_id: str) -> bool:
        """Whether a slice of this request is on its way."""
        return request_id in self._open

    def __len__(self) -> int:
        """Slices on their way."""
        return len(self._open)

    def seconds(self, request: RequestView, slo: SloClass) -> float:
        """Seconds of a slice of such a request; 0: it goes whole."""
        if not request.block_hashes or request.n != 1:
            return 0.0
        return self.every_s if slo.slices_s is None else slo.slices_s

    def may(self, request: RequestView, classes: Classes, board: Board) -> bool:
        """Whether the prompt may be computed in slices, by its length and by who is there."""
        slo = classes.get(request.slo_class or "", NO_PROMISE)
        slice_s = self.seconds(request, slo)
        if slice_s <= 0.0:
            return False
        lane = board.lane((request.model, request.path, slo.pools))
        able = [s for s in lane.stations if s.endpoint.facts.get("slices")]
        return any(s.curve.seconds(request.prompt_tokens) > WHOLE * slice_s for s in able)

    def begin(self, pick: Pick, unit: int, now_s: float) -> Slice | None:
        """Send the next slice of the request that was picked; None: it goes whole."""
        item, best = pick.item, pick.best
        station, request = best.station, item.request
        size = station.endpoint.block_size
        if not size or item.slices >= MAX_SLICES or not item.sliced_at(station):
            return None
        cached = self._known(best.cached, item, station)
        end = end_of(station.curve, item.tokens, cached, item.slice_s, size)
        if end is None:
            return None
        name = f"{request.id}/{item.slices}"
        view = part(request, name, end, self._cached.block_tokens)
        if not item.slices:
            self._cached.slicing(request)
        item.slices += 1
        route = Route(station.id) if best.side is None else Route(best.side.id, station.id)
        work_s = station.curve.seconds(end, cached)
        # The route's decode side is only asked where an engine must pair every prefill: no room is counted.
        self._ledger.start(view, Route(station.id), now_s, cached, end - cached)
        station.start(name, unit, now_s, work_s, end, cached)
        self._cached.sent(view, station.id, size)
        self._open[request.id] = Piece(item, station, name, end)
        return Slice(request.id, route, end, item.slices - 1)

    def over(self, event: LegEvent, now_s: float) -> Item | None:
        """Whose slice has just ended; None: the event is of no slice. After a failed one no more follow."""
        if event.leg is not LegKind.PREFILL or event.what not in ("done", "failed"):
            return None
        piece = self._open.get(event.request_id)
        if piece is None:
            return None
        done = event.what == "done"
        if done:
            piece.item.sliced = piece.station.id, piece.end
        else:
            piece.item.slice_s = 0.0
        self._end(piece, done, now_s)
        return piece.item

    def drop(self, request_id: str, now_s: float) -> Item | None:
        """The request is not wanted any more: whose slice was given up, None if none was on its way."""
        piece = self._open.get(request_id)
        if piece is None:
            return None
        self._end(piece, False, now_s)
        return piece.item

    def _known(self, cached: int, item: Item, station: Station) -> int:
        """Tokens that a station holds: what was sent in slices is known better than by an index of blocks of
        text, so that none is sent twice; unless that knows of a loss."""
        where, end = item.sliced
        near = end - cached <= self._cached.block_tokens and not self._cached.exact.exact(station.id)
        return max(cached, end) if where == station.id and near else cached

    def _end(self, piece: Piece, done: bool, now_s: float) -> None:
        del self._open[piece.item.request.id]
        self._ledger.finish(piece.name)
        piece.station.done(piece.name, now_s)
        self._cached.sliced(piece.name, done)


def part(request: RequestView, name: str, tokens: int, block_tokens: int) -> RequestView:
    """The first `tokens` of a request's prompt as a request of their own; `block_tokens` is what one of its
    hashes stands for, at most."""
    whole = len(request.block_hashes)
    each = block_tokens if whole * block_tokens <= request.prompt_tokens else request.prompt_tokens / whole
    chains: Mapping[int, Sequence[int]] | None = None
    if request.chains is not None:
        chains = {size: chain[: tokens // size] for size, chain in request.chains.items()}
    return replace(
        request,
        id=name,
        prompt_tokens=tokens,
        max_tokens=1,
        n=1,
        block_hashes=request.block_hashes[: int(tokens / each)],
        chains=chains,
    )
