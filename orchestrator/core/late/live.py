"""A request on its way: where it is, since when, and what was predicted for it."""

from __future__ import annotations

from orchestrator.core.frozen import record
from orchestrator.core.late.bringing import Brought
from orchestrator.core.late.decodes import AVOIDED, DecodeSide
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.pricing import Pick, Price
from orchestrator.core.late.queue import Item
from orchestrator.core.prediction import Decoded, Served
from orchestrator.core.types import Choice, Outcome, Prediction, Role, Route, Scored


@record(slots=True, eq=False)
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
    shared_s: float = 0.0
    """Prefill of others that it waited for at its endpoint, by prediction."""
    prefill_s: float | None = None
    first_s: float | None = None
    hold_until_s: float | None = None
    batch: int = 0
    context: int = 0
    brought: Brought | None = None
    """What its endpoint had to bring back from a slower tier."""

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
            wait_s=self.shared_s,
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
    """Every price that a dispatch was decided by, as choices in seconds, and who was out of the question."""
    best, added, avoid = pick.best, pick.added, pick.item.request.avoid
    role = Role.PREFILL if best.station.disaggregated else Role.UNIFIED
    ranked = sorted(pick.prices, key=lambda price: price.cost_s)
    scored = tuple(Scored(p.station.id, p.cost_s, _parts(p, pick)) for p in ranked)
    runner_up = next((p.station.id for p in ranked if p is not best), None)
    priced = {p.station.id for p in ranked}
    filtered = {s.id: AVOIDED for s in pick.lane.stations if s.id in avoid and s.id not in priced}
    if added is not None:
        filtered.update((name, by) for name, by in added.filtered.items() if name not in priced)
    failed = () if added is None else tuple(dict.fromkeys(added.failed))
    first = Choice(role, best.station.id, runner_up, scored, filtered, failed, "seconds")
    return (first,) if best.side is None else (first, *explain_decode(pick.lane, pick.item, best.side))


def _parts(price: Price, pick: Pick) -> dict[str, float]:
    parts = {"wait": price.wait_s, "prefill": price.work_s, "hand-off": price.exposed_s}
    by_policies = {} if pick.added is None else pick.added.parts.get(price.station.id, {})
    told_s = sum(parts.values(), 0.0) + sum(by_policies.values(), 0.0)
    return {**parts, "others": price.cost_s - price.late_s - told_s, **by_policies, "late": price.late_s}


def explain_decode(lane: Lane, item: Item, chosen: DecodeSide) -> tuple[Choice, ...]:
    """The decode sides by their steps with the request among them, and who was out of the question."""
    needs, avoid = item.tokens + item.output_tokens, item.request.avoid
    out = dict(lane.decodes.ruled_out(needs, item.slo.step_s, avoid, item))
    out.pop(chosen.id, None)
    steps = [(side.step_s(1, needs), side.id) for side in lane.decodes.sides.values() if side.id not in out]
    scored = tuple(Scored(name, step_s, {"step": step_s}) for step_s, name in sorted(steps))
    runner_up = next((one.endpoint for one in scored if one.endpoint != chosen.id), None)
    return (Choice(Role.DECODE, chosen.id, runner_up, scored, out, unit="seconds"),)


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
