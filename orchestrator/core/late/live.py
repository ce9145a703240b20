"""A request on its way: where it is, since when, and what was predicted for it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.frozen import record
from orchestrator.core.late.bringing import Brought
from orchestrator.core.late.decodes import AVOIDED, DecodeSide
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.policies import Added
from orchestrator.core.late.pricing import Pick, Price
from orchestrator.core.late.queue import Item
from orchestrator.core.prediction import Decoded, Predictor, Served
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
            media=self.item.request.media,
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
    best, added, item = pick.best, pick.added, pick.item
    avoid = item.request.avoid
    role = Role.PREFILL if best.station.disaggregated else Role.UNIFIED
    ranked = sorted(pick.prices, key=lambda price: price.cost_s)
    scored = tuple(Scored(p.station.id, p.cost_s, _parts(item, p, added)) for p in ranked)
    runner_up = next((p.station.id for p in ranked if p is not best), None)
    priced = {p.station.id for p in ranked}
    filtered = {s.id: AVOIDED for s in pick.lane.stations if s.id in avoid and s.id not in priced}
    if added is not None:
        filtered.update((name, by) for name, by in added.filtered.items() if name not in priced)
    failed = () if added is None else tuple(dict.fromkeys(added.failed))
    first = Choice(role, best.station.id, runner_up, scored, filtered, failed, "seconds")
    return (first,) if best.side is None else (first, *explain_decode(pick.lane, pick.item, best.side, added))


def explain_refusal(
    lane: Lane, item: Item, prices: Sequence[Price], added: Added | None
) -> tuple[Choice, ...]:
    """What the endpoints would have cost a request that gets none, and who was out of the question."""
    apart = lane.stations[0].disaggregated if lane.stations else True
    if not prices and lane.decodes.sides:
        needs, request = item.tokens + item.output_tokens, item.request
        out = dict(lane.decodes.ruled_out(needs, item.slo.gap, request.avoid, item, request.n))
        return (Choice(Role.DECODE, "", None, (), out, unit="seconds"),)
    ranked = sorted(prices, key=lambda price: price.cost_s)
    scored = tuple(Scored(p.station.id, p.cost_s, _parts(item, p, added)) for p in ranked)
    filtered = {} if added is None else dict(added.filtered)
    failed = () if added is None else tuple(dict.fromkeys(added.failed))
    role = Role.PREFILL if apart else Role.UNIFIED
    return (Choice(role, "", None, scored, filtered, failed, "seconds"),)


def _parts(item: Item, price: Price, added: Added | None) -> dict[str, float]:
    encode_s = item.encode_s
    parts = {"wait": price.wait_s, "prefill": price.work_s - encode_s, "hand-off": price.exposed_s}
    if encode_s > 0.0:
        parts["encode"] = encode_s
    by_policies = {} if added is None else added.parts.get(price.station.id, {})
    told_s = sum(parts.values(), 0.0) + sum(by_policies.values(), 0.0)
    return {**parts, "others": price.cost_s - price.late_s - told_s, **by_policies, "late": price.late_s}


def explain_decode(
    lane: Lane, item: Item, chosen: DecodeSide, added: Added | None = None
) -> tuple[Choice, ...]:
    """The decode sides by their steps with the request among them, and who was out of the question."""
    needs, avoid = item.tokens + item.output_tokens, item.request.avoid
    out = dict(lane.decodes.ruled_out(needs, item.slo.gap, avoid, item, item.request.n))
    said = None if added is None else added.decode
    if said is not None:
        out.update(said.filtered)
    out.pop(chosen.id, None)
    scored = []
    for side in lane.decodes.sides.values():
        if side.id not in out:
            parts = {"step": side.step_s(item.request.n, needs)}
            parts |= {} if said is None else said.parts.get(side.id, {})
            scored.append(Scored(side.id, sum(parts.values(), 0.0), parts))
    scored.sort(key=lambda one: one.total)
    runner_up = next((one.endpoint for one in scored if one.endpoint != chosen.id), None)
    failed = () if said is None else tuple(dict.fromkeys(said.failed))
    return (Choice(Role.DECODE, chosen.id, runner_up, tuple(scored), out, failed, "seconds"),)


def prediction(now_s: float, item: Item, price: Price, tail_s: float, predictor: Predictor) -> Prediction:
    """What is predicted at dispatch; `tail_s` is that of what is to come."""
    side, quantile = price.side, item.slo.quantile
    itl_s = 0.0 if side is None else side.step_s(item.request.n, item.tokens)
    gap_tail_s = 0.0 if side is None else predictor.itl_tail_s(side.id, itl_s, quantile)
    waited_s = now_s - item.arrived_s
    median_s = waited_s + price.wait_s + price.work_s + price.exposed_s
    return Prediction(
        at_s=now_s,
        waited_s=waited_s,
        wait_s=price.wait_s,
        encode_s=item.encode_s,
        prefill_s=price.work_s - item.encode_s,
        handoff_s=price.exposed_s,
        tail_s=median_s + tail_s,
        quantile=item.slo.quantile,
        itl_s=itl_s,
        itl_tail_s=itl_s + gap_tail_s,
        cached_tokens=price.cached,
        due_s=item.due_s,
    )
