"""What is predicted for requests that are bound at once, and what the predictor learns from them."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from orchestrator.core.frozen import record
from orchestrator.core.late.station import Station, slots_of
from orchestrator.core.prediction import Decoded, Predictor, Served
from orchestrator.core.slo import NO_PROMISE, Classes, SloClass
from orchestrator.core.types import End, Endpoint, Outcome, Prediction, RequestView, Role, Route, Snapshot


@record(slots=True, eq=False)
class _Attempt:
    """One attempt of a request, from its route to its end."""

    request: RequestView
    route: Route
    station: Station
    predicted: Prediction
    dispatched_s: float
    alone: bool = True
    prefill_s: float | None = None
    first_s: float | None = None
    batch: int = 0
    context: int = 0


@record(slots=True)
class Promise:
    """What a request's class promises it, worked out once."""

    slo: SloClass | None
    first_token_by_s: float


NOTHING_PROMISED = Promise(None, inf)


class NoOutlook:
    """Stands in for an Outlook where nothing is predicted."""

    predictor: ClassVar[None] = None

    def __init__(self) -> None:
        self.classes: Classes = {}

    def promise(self, request: RequestView, now_s: float) -> Promise:
        """None."""
        return NOTHING_PROMISED

    def wait_s(self, endpoint_id: str) -> float:
        """None that is known."""
        return 0.0

    def step_limit_s(self, endpoint_id: str) -> float:
        """None."""
        return inf

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Nothing is kept."""

    def sent(
        self, request: RequestView, route: Route, cached: int, promise: Promise, endpoints: Snapshot
    ) -> Prediction | None:
        """Nothing is predicted."""
        return None

    def rebound(self, request_id: str, route: Route, promise: Promise) -> None:
        """Nothing is kept."""

    def computed(self, request_id: str, now_s: float, *, first_token: bool) -> None:
        """Nothing is kept."""

    def finished(self, outcome: Outcome, now_s: float) -> None:
        """Nothing is learned."""


class Outlook:
    """Keeps the predictor in step with an immediate scheduler.

    How long each endpoint will compute what it was given is what its waits are made of: requests queue in
    the engine, in the order they were sent.
    """

    def __init__(self, predictor: Predictor, classes: Classes) -> None:
        self.predictor = predictor
        self.classes = classes
        self._stations: dict[str, Station] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._bounds: dict[str, dict[str, float]] = {}
        self._version = -1
        self._now_s = 0.0

    def promise(self, request: RequestView, now_s: float) -> Promise:
        """The class of a request, and when its first token is due; `wait_s` is of `now_s` from here on."""
        self._now_s = now_s
        slo = self.classes.get(request.slo_class or "")
        if slo is None:
            return NOTHING_PROMISED
        tokens = max(1, request.prompt_tokens)
        cold_s = self.predictor.reference_s(request.model, tokens)
        decode_s = 0.0
        if slo.e2e is not None:
            steps = (self.predictor.step(s.endpoint).base_s for s in self._decoding(request.model))
            tokens_out = self.predictor.output_tokens(request.slo_class, request.max_tokens)
            decode_s = tokens_out * min(steps, default=0.0)
        return Promise(slo, slo.first_token_by_s(request.arrived_s, cold_s, decode_s))

    def wait_s(self, endpoint_id: str) -> float:
        """Seconds until the endpoint has computed what it was given."""
        station = self._stations.get(endpoint_id)
        return 0.0 if station is None else station.wait_s(self._now_s)

    def step_limit_s(self, endpoint_id: str) -> float:
        """The strictest gap promised to a request that decodes there; inf: none."""
        bounds = self._bounds.get(endpoint_id)
        return min(bounds.values()) if bounds else inf

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Take the endpoints as they are now."""
        self.predictor.observe(snapshot, now_s)
        for gone in self._stations.keys() - {e.id for e in snapshot.endpoints}:
            del self._stations[gone]
        for endpoint in snapshot.endpoints:
            if endpoint.role is not Role.ENCODE:
                self._update(endpoint)
        self._version = self.predictor.version

    def sent(
        self, request: RequestView, route: Route, cached: int, promise: Promise, endpoints: Snapshot
    ) -> Prediction | None:
        """A request has its route; what is predicted for it."""
        station = self._stations.get(route.prefill or route.decode)
        decode = self._stations.get(route.decode)
        if station is None or decode is None:
            return None
        self._refresh()
        slo, now_s = promise.slo or NO_PROMISE, self._now_s
        tokens = max(1, request.prompt_tokens)
        work_s = station.curve.seconds(tokens, min(cached, tokens - 1))
        wait_s = station.wait_s(now_s)
        predictor = self.predictor
        handoff_s = predictor.exposed(station.endpoint, decode.endpoint).seconds(tokens)
        encode_s = predictor.encode_s(request.model, request.media) if request.media else 0.0
        takes_s = wait_s + encode_s + work_s + handoff_s
        waited_s = now_s - request.arrived_s
        tail_s = predictor.tail_s(station.id, takes_s, slo.quantile, queued_s=wait_s)
        at = next((e for e in endpoints.endpoints if e.id == route.decode), decode.endpoint)
        by_s = promise.first_token_by_s
        itl_s = predictor.step(at).seconds(at.requests + request.n, at.kv_used_tokens + tokens)
        predicted = Prediction(
            at_s=now_s,
            waited_s=waited_s,
            wait_s=wait_s,
            encode_s=encode_s,
            prefill_s=work_s,
            handoff_s=handoff_s,
            tail_s=waited_s + takes_s + tail_s,
            quantile=slo.quantile,
            itl_s=itl_s,
            itl_tail_s=itl_s + predictor.itl_tail_s(at.id, itl_s, slo.quantile),
            cached_tokens=cached,
            due_s=None if by_s == inf else by_s - request.arrived_s,
        )
        attempt = _Attempt(request, route, station, predicted, now_s, batch=at.requests + request.n)
        attempt.context = at.kv_used_tokens + tokens
        self._attempts[request.id] = attempt
        station.start(request.id, station.unit(), now_s, encode_s + work_s, tokens, cached)
        if slo.step_s < inf:
            self._bounds.setdefault(route.decode, {})[request.id] = slo.step_s
        return predicted

    def rebound(self, request_id: str, route: Route, promise: Promise) -> None:
        """Another decode side has been named."""
        attempt = self._attempts.get(request_id)
        if attempt is None:
            return
        bounds = self._bounds.get(attempt.route.decode)
        if bounds is not None:
            bounds.pop(request_id, None)
        attempt.route = route
        if promise.slo is not None and promise.slo.step_s < inf:
            self._bounds.setdefault(route.decode, {})[request_id] = promise.slo.step_s

    def computed(self, request_id: str, now_s: float, *, first_token: bool) -> None:
        """The prompt is computed, as the prefill side's answer or the first token tells."""
        attempt = self._attempts.get(request_id)
        if attempt is None:
            return
        running = attempt.station.done(request_id, now_s)
        if running is not None:
            attempt.alone = running.alone
            if not first_token:
                attempt.prefill_s = now_s - attempt.dispatched_s
        if first_token and attempt.first_s is None:
            attempt.first_s = now_s
            # Not at its end, when the engine tells what it had cached: what is learned late is learned of a
            # machine that may have changed since.
            self.predictor.served(_served(attempt), now_s)

    def finished(self, outcome: Outcome, now_s: float) -> None:
        """The request is over: release what it held, and learn from it."""
        attempt = self._attempts.pop(outcome.request_id, None)
        if attempt is None:
            return
        attempt.station.done(outcome.request_id, now_s)
        bounds = self._bounds.get(attempt.route.decode)
        if bounds is not None:
            bounds.pop(outcome.request_id, None)
        tokens = outcome.output_tokens
        if attempt.first_s is not None and tokens is not None and tokens >= 1:
            self.predictor.decoded(
                Decoded(
                    slo_class=attempt.request.slo_class,
                    endpoint=attempt.route.decode,
                    tokens=tokens - 1,
                    seconds=now_s - attempt.first_s,
                    batch=float(attempt.batch),
                    context_tokens=float(attempt.context),
                    complete=outcome.end is End.COMPLETED,
                ),
                now_s,
            )

    def _refresh(self) -> None:
        """Take the curves anew, if something was learned."""
        if self._version != self.predictor.version:
            self._version = self.predictor.version
            for station in self._stations.values():
                station.curve = self.predictor.prefill(station.endpoint)

    def _update(self, endpoint: Endpoint) -> None:
        station = self._stations.get(endpoint.id)
        curve = self.predictor.prefill(endpoint)
        if station is None:
            apart = endpoint.role is Role.PREFILL
            station = self._stations[endpoint.id] = Station(endpoint, curve, apart)
        elif station.endpoint.incarnation != endpoint.incarnation:
            station.clear()
        station.endpoint, station.curve, station.slots = endpoint, curve, slots_of(endpoint)
        load = endpoint.load
        if load is not None and load.prefilling is not None:
            station.foreign_s = max(0, load.prefilling - len(station.running)) * station.mean_work_s

    def _decoding(self, model: str) -> list[Station]:
        return [
            s
            for s in self._stations.values()
            if s.endpoint.model == model and s.endpoint.role is not Role.PREFILL
        ]


def _served(attempt: _Attempt) -> Served:
    """What a predictor learns from its first token.

    One that had to wait in the engine was predicted for as one that is queued; its dispatch tells nothing.
    """
    assert attempt.first_s is not None
    predicted = attempt.predicted
    return Served(
        request_id=attempt.request.id,
        slo_class=attempt.request.slo_class,
        prefill=attempt.station.id,
        decode=attempt.route.decode,
        prompt_tokens=max(1, attempt.request.prompt_tokens),
        cached_tokens=predicted.cached_tokens,
        first_token_s=attempt.first_s - attempt.dispatched_s,
        prefill_s=attempt.prefill_s,
        wait_s=predicted.wait_s,
        waited_s=predicted.waited_s,
        alone=attempt.alone,
        media=attempt.request.media,
        admitted=predicted,
        dispatched=None if predicted.wait_s > 0.0 else predicted,
    )
