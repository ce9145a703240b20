"""A request on its way: where it is, since when, and what was predicted for it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.late.decodes import DecodeSide
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.pricing import Pick, Price
from orchestrator.core.late.queue import Item
from orchestrator.core.prediction import Decoded, Served
from orchestrator.core.types import Choice, Outcome, Prediction, Role, Route, Scored


@dataclass(slots=True, eq=False)
class Live:
    """One attempt of a request, from its Assign to its `finish`.

    `hold_until_s` is set while a finished prefill waits for a decode side. `batch` is the decode batch it
    joined.
    """

    item: Item
    lane: Lane
    route: Route
    price: Price
    dispatched_s: float
    admitted: Prediction | None
    predicted: Prediction
    provisional: bool = False
    alone: bool = True
    prefill_s: float | None = None
    first_s: float | None = None
    hold_until_s: float | None = None
    batch: int = 0
    context: int = 0

    def served(self) -> Served:
        """What a predictor learns from its first token."""
        assert self.first_s is not None
        return Served(
            request_id=self.item.request.id,
            slo_class=self.item.request.slo_class,
            prefill=self.route.prefill or self.route.decode,
            decode=self.route.decode,
            prompt_tokens=self.item.tokens,
            cached_tokens=self.price.cached,
            first_token_s=self.first_s - self.dispatched_s,
            prefill_s=self.prefill_s,
            wait_s=self.price.wait_s,
            waited_s=self.dispatched_s - self.item.arrived_s,
            alone=self.alone,
            admitted=self.admitted,
            dispatched=self.predicted,
        )

    def decoded(self, outcome: Outcome, now_s: float, batch: int, complete: bool) -> Decoded | None:
        """What it learns from its end; None if that tells nothing."""
        tokens = outcome.output_tokens
        if self.first_s is None or tokens is None or tokens < 1:
            return None
        return Decoded(
            slo_class=self.item.request.slo_class,
            endpoint=self.route.decode,
            tokens=tokens - 1,
            seconds=now_s - self.first_s,
            batch=(self.batch + batch) / 2,
            context_tokens=float(self.context),
            complete=complete,
        )


def explain(pick: Pick) -> tuple[Choice, ...]:
    """Every price that a dispatch was decided by, as choices in seconds."""
    best = pick.best
    role = Role.PREFILL if best.station.disaggregated else Role.UNIFIED
    ranked = sorted(pick.prices, key=lambda price: price.cost_s)
    scored = tuple(
        Scored(
            p.station.id,
            p.cost_s,
            {"wait": p.wait_s, "prefill": p.work_s, "hand-off": p.exposed_s,
             "others": p.cost_s - p.late_s - p.wait_s - p.work_s - p.exposed_s,
             "late": p.late_s},
        )
        for p in ranked
    )  # fmt: skip
    runner_up = next((p.station.id for p in ranked if p is not best), None)
    first = Choice(role, best.station.id, runner_up, scored, unit="seconds")
    if best.side is None:
        return (first,)
    return (first, *explain_decode(best.side))


def explain_decode(side: DecodeSide) -> tuple[Choice, ...]:
    """The decode step by which a decode side was chosen."""
    step_s = side.step_s(0, 0)
    return (Choice(Role.DECODE, side.id, None, (Scored(side.id, step_s, {"step": step_s}),), unit="seconds"),)


def prediction(now_s: float, item: Item, price: Price, tail_s: float) -> Prediction:
    """What is predicted at dispatch."""
    waited_s = now_s - item.arrived_s
    median_s = waited_s + price.wait_s + price.work_s + price.exposed_s
    side = price.side
    return Prediction(
        at_s=now_s,
        waited_s=waited_s,
        wait_s=price.wait_s,
        prefill_s=price.work_s,
        handoff_s=price.exposed_s,
        tail_s=median_s + tail_s,
        quantile=item.slo.quantile,
        itl_s=0.0 if side is None else side.step_s(1, item.tokens),
        cached_tokens=price.cached,
        due_s=item.due_s,
    )
