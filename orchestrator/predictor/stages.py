"""The predictor that is shipped: stage by stage, learned online per instance, with conformal tails."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, log

from orchestrator.core.prediction import Accuracy, Curve, Decoded, Exposed, Served, StageAccuracy, Step
from orchestrator.core.types import Endpoint, Snapshot
from orchestrator.predictor import counters, prior
from orchestrator.predictor.books import Promises, coverage
from orchestrator.predictor.encode import Encoding
from orchestrator.predictor.handoff import ALONE, Pair, PoolPair
from orchestrator.predictor.instance import Instance
from orchestrator.predictor.lengths import Lengths
from orchestrator.predictor.pool import SPREAD_SD, Pool
from orchestrator.predictor.tail import Tail, score
from orchestrator.predictor.waiting import QUEUE_SD, Waiting

CROWDED = 0.04
"""Trust in the times of a prompt that others were computed beside: they tell of those as well, but where no
prompt is ever alone they are all there is."""

STEADY_TOKENS = 16
"""Tokens after which an answer's mean gap is as good as it gets."""

LEAST_S, LONGEST_S = 1e-6, 86_400.0
"""No first token or step takes less, or a day: whoever says so is mistaken."""

LONGEST_TOKENS, MOST_TOKENS, MOST_BATCH = 100_000_000, 1e12, 1e6
"""Nor is any prompt so long, a KV cache so large, or a batch."""

MOST_CLASSES = 64
"""Classes whose lengths are kept apart."""


class StagePredictor:
    """Predicts prefill, hand-off and decode step per instance; see docs/predictor.md.

    One event loop owns it. A curve is O(1) to read. Of more outcomes than tell anything new an even share is
    learned from (`pace`).
    """

    def __init__(self) -> None:
        self.version = 0
        self._instances: dict[str, Instance] = {}
        self._pools: dict[str, Pool] = {}
        self._waiting: dict[str, Waiting] = {}
        self._encoding: dict[str, Encoding] = {}
        self._pool_pairs: dict[tuple[str, str], PoolPair] = {}
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._lengths: dict[str | None, Lengths] = {}
        self._references: dict[str, list[Curve]] = {}

    # -- what is predicted

    def prefill(self, endpoint: Endpoint) -> Curve:
        """The median time of computing a prompt there, alone."""
        return self._instance(endpoint).curve

    def encode_s(self, model: str, media: int) -> float:
        """The median time until so many media are encoded."""
        if media <= 0:
            return 0.0
        encoding = self._encoding.get(model)
        return (_NO_ENCODING if encoding is None else encoding).seconds(media)

    def exposed(self, prefill: Endpoint, decode: Endpoint) -> Exposed:
        """The median from the end of prefill to the first token; nothing where one endpoint does both."""
        if prefill.id == decode.id:
            return ALONE
        return self._pair(prefill, decode).exposed

    def step(self, endpoint: Endpoint) -> Step:
        """The median decode step there."""
        return self._instance(endpoint).step_told

    def tail_s(self, prefill: str, predicted_s: float, quantile: float, *, queued_s: float = 0.0) -> float:
        """What to add to the median so that `quantile` of the requests make it; see `tail.Tail`."""
        instance = self._instances.get(prefill)
        if instance is None:
            return _STRANGER.seconds(predicted_s, quantile)
        if queued_s > 0.0:
            return self._waiting[instance.endpoint.model].seconds(predicted_s, queued_s, quantile)
        return instance.tail.seconds(predicted_s, quantile)

    def itl_tail_s(self, endpoint: str, predicted_s: float, quantile: float) -> float:
        """What to add to the median step so that `quantile` of the answers keep their mean gap."""
        instance = self._instances.get(endpoint)
        tail = _STRANGER if instance is None else instance.gaps
        return tail.seconds(predicted_s, quantile)

    def output_tokens(self, slo_class: str | None, limit: int, quantile: float = 0.5) -> int:
        """Tokens that a request of the class produces; of all classes together while it is unknown."""
        lengths = self._lengths.get(slo_class) or self._lengths.get(_ALL) or _NO_LENGTHS
        return max(1, min(limit, lengths.quantile(quantile)))

    def reference_s(self, model: str, tokens: int) -> float:
        """A cold prefill by the fastest launch profile of the model, else by its fastest endpoint."""
        curves = self._references.get(model)
        if not curves:
            curves = [i.curve for i in self._instances.values() if i.endpoint.model == model]
        return min(curve.seconds(tokens) for curve in curves or (prior.GENERIC,))

    # -- what is learned from

    def served(self, what: Served, now_s: float) -> None:
        """Learn from a first token; of an endpoint that has gone, or in an impossible time, it is ignored."""
        instance, decode = self._instances.get(what.prefill), self._instances.get(what.decode)
        tokens = what.prompt_tokens
        if instance is None or decode is None or not 0 < tokens < LONGEST_TOKENS:
            return
        if not LEAST_S < what.first_token_s < LONGEST_S:
            return
        cached = min(max(0, what.cached_tokens), tokens - 1)
        pair = None if decode is instance else self._pair(instance.endpoint, decode.endpoint)
        wait_s = what.wait_s if 0.0 < what.wait_s < LONGEST_S else 0.0
        trust = 1.0 if what.alone else CROWDED
        if what.media > 0:
            self._judge(instance, what, self._encoded(instance, pair, what, tokens, cached, wait_s))
            return
        ended_s = what.prefill_s
        if pair is not None and (ended_s is None or not LEAST_S < ended_s < what.first_token_s):
            instance.tally.add(tokens, cached)
            ended_s = None
        if not instance.first_tokens.takes(now_s):
            return
        if pair is not None and ended_s is not None:
            learned = _apart(instance, pair, what, ended_s, tokens, cached, wait_s, trust)
        else:
            learned = _together(instance, pair, what, tokens, cached, wait_s, trust)
        if instance.moved(tokens, cached) | (pair is not None and pair.moved(tokens)):
            self.version += 1
        self._judge(instance, what, learned)

    def _encoded(
        self, instance: Instance, pair: Pair | None, what: Served, tokens: int, cached: int, wait_s: float
    ) -> tuple[float, float]:
        """Learn the encode stage from what is left when all others are taken off; the variance of these.

        Nothing else is learned: how many tokens an image is, is a guess.
        """
        parts = (0.0, 0.0) if pair is None else pair.terms(tokens)
        terms, computing_s = instance.terms(tokens, cached, what.first_token_s)
        others_s = wait_s + computing_s + parts[0] + parts[1]
        if what.alone:
            encoding = self._encoding.setdefault(instance.endpoint.model, Encoding())
            encoding.learn(what.media, what.first_token_s - others_s)
        unsure = instance.prefill.variance([term / others_s for term in terms])
        return unsure, unsure

    def _judge(self, instance: Instance, what: Served, learned: tuple[float, float]) -> None:
        """Hold what came against what was predicted for it, at dispatch and before."""
        waited_s = what.waited_s if 0.0 <= what.waited_s < LONGEST_S else 0.0
        total_s = waited_s + what.first_token_s
        given = what.dispatched
        if given is not None:
            predicted_s = given.takes_s
            off = score(what.first_token_s, predicted_s)
            if isfinite(off):
                instance.stages["first_token"].add(predicted_s, what.first_token_s, off)
                instance.promises.count(total_s <= given.tail_s)
                instance.tail.learn(off, *learned)
        given = what.admitted
        if given is None:
            return
        predicted_s = given.takes_s
        off = score(total_s - given.waited_s, predicted_s)
        if isfinite(off):
            waiting = self._waiting[instance.endpoint.model]
            waiting.promises.count(total_s <= given.tail_s)
            queued_s = waited_s - given.waited_s
            waiting.stage.add(given.wait_s, queued_s, score(queued_s, given.wait_s))
            if given.wait_s > 0.0:
                waiting.learn(off, predicted_s, given.wait_s)

    def decoded(self, what: Decoded, now_s: float) -> None:
        """Learn from a finished answer: its length, and the mean of its gaps."""
        instance = self._instances.get(what.endpoint)
        if what.tokens < 0 or (instance is not None and not instance.answers.takes(now_s)):
            return
        for name in (what.slo_class, _ALL):
            lengths = self._lengths.get(name)
            if lengths is None:
                if len(self._lengths) >= MOST_CLASSES:
                    continue
                lengths = self._lengths[name] = Lengths()
            lengths.learn(what.tokens + 1, what.complete)
        if instance is None or what.tokens < 1:
            return
        step_s = what.seconds / what.tokens
        batch, held = max(1.0, what.batch), max(0.0, what.context_tokens)
        if LEAST_S < step_s < LONGEST_S and batch < MOST_BATCH and held < MOST_TOKENS:
            trust = min(1.0, what.tokens / STEADY_TOKENS)
            if instance.gap(batch, held, step_s, trust):
                self.version += 1

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """Take the endpoints as they are: joins, restarts, and what their counters tell."""
        instances = self._instances
        for endpoint in snapshot.endpoints:
            instance = instances.get(endpoint.id)
            if instance is None or instance.endpoint is not endpoint:
                instance = self._seen(endpoint, instance)
            load = endpoint.load
            if load is not None and load is not instance.load and counters.learn(instance, load):
                self.version += 1
        if len(snapshot.endpoints) < len(instances):
            for gone in instances.keys() - {endpoint.id for endpoint in snapshot.endpoints}:
                self._forget(gone)

    def report(self) -> tuple[Accuracy, ...]:
        """Every endpoint's and model's figures so far."""
        endpoints = (
            Accuracy(
                instance.endpoint.model,
                name,
                tuple(stage.report(which) for which, stage in instance.stages.items() if stage.outcomes),
                (
                    coverage("dispatch", instance.tail, instance.promises),
                    coverage("gap", instance.gaps, Promises()),
                ),
            )
            for name, instance in self._instances.items()
        )
        models = (
            Accuracy(
                model,
                None,
                tuple(self._before(model, waiting)),
                (coverage("admission", waiting.tail, waiting.promises),),
            )
            for model, waiting in self._waiting.items()
        )
        return (*endpoints, *models)

    def _before(self, model: str, waiting: Waiting) -> Iterator[StageAccuracy]:
        """The stages that a model's endpoints share."""
        if waiting.stage.outcomes:
            yield waiting.stage.report("queue")
        encoding = self._encoding.get(model)
        if encoding is not None:
            yield encoding.stage.report("encode")

    # -- who there is

    def _instance(self, endpoint: Endpoint) -> Instance:
        return self._instances.get(endpoint.id) or self._join(endpoint)

    def _seen(self, endpoint: Endpoint, instance: Instance | None) -> Instance:
        """Take an endpoint as it is now; one whose process or pool is another starts anew."""
        if instance is not None:
            before = instance.endpoint
            instance.endpoint = endpoint
            same = before.incarnation == endpoint.incarnation or not before.incarnation
            if same and before.pool == endpoint.pool and before.model == endpoint.model:
                return instance
            instance.endpoint = before
            self._forget(endpoint.id)
        return self._join(endpoint)

    def _join(self, endpoint: Endpoint) -> Instance:
        pool = self._pools.get(endpoint.pool)
        if pool is None:
            pool = self._pools[endpoint.pool] = Pool()
        self._waiting.setdefault(endpoint.model, Waiting())
        instance = self._instances[endpoint.id] = pool.join(endpoint)
        curve = prior.reference(endpoint)
        if curve is not None:
            curves = self._references.setdefault(endpoint.model, [])
            if curve not in curves:
                curves.append(curve)
        self.version += 1
        return instance

    def _pair(self, prefill: Endpoint, decode: Endpoint) -> Pair:
        pair = self._pairs.get((prefill.id, decode.id))
        if pair is None:
            pools = self._pool_pairs.get((prefill.pool, decode.pool))
            if pools is None:
                pools = self._pool_pairs[prefill.pool, decode.pool] = PoolPair(prefill, decode)
            pair = self._pairs[prefill.id, decode.id] = Pair(pools)
        return pair

    def _forget(self, endpoint_id: str) -> None:
        instance = self._instances.pop(endpoint_id)
        self._pools[instance.endpoint.pool].leave(endpoint_id)
        for pair in [p for p in self._pairs if endpoint_id in p]:
            del self._pairs[pair]
        self.version += 1


def _apart(
    instance: Instance, pair: Pair, what: Served, ended_s: float, tokens: int, cached: int,
    wait_s: float, trust: float,
) -> tuple[float, float]:  # fmt: skip
    """Learn from prefill and hand-off, each by its own time; the variance of both, before and after."""
    terms, computing_s = instance.terms(tokens, cached, max(ended_s - wait_s, LEAST_S))
    whole_s = wait_s + computing_s
    off = log(ended_s / whole_s)
    unsure, later = instance.prefill.learn([term / whole_s for term in terms], off, trust)
    handed_s = what.first_token_s - ended_s
    parts = pair.terms(tokens)
    handing_s = parts[0] + parts[1]
    beyond = log(handed_s / handing_s)
    pair_unsure, pair_later = pair.learn(parts, handing_s, beyond, trust, 0.0)
    if what.alone:
        instance.stages["prefill"].add(whole_s, ended_s, off)
        instance.stages["handoff"].add(handing_s, handed_s, beyond)
    part = (whole_s / (whole_s + handing_s)) ** 2
    rest = (handing_s / (whole_s + handing_s)) ** 2
    return unsure * part + pair_unsure * rest, later * part + pair_later * rest


def _together(
    instance: Instance, pair: Pair | None, what: Served, tokens: int, cached: int, wait_s: float, trust: float
) -> tuple[float, float]:
    """Learn from the time of both together: each takes the part it is less sure of."""
    parts = (0.0, 0.0) if pair is None else pair.terms(tokens)
    handing_s = parts[0] + parts[1]
    total_s = what.first_token_s
    terms, computing_s = instance.terms(tokens, cached, max(total_s - wait_s - handing_s, LEAST_S))
    whole_s = wait_s + computing_s + handing_s
    shares = [term / whole_s for term in terms]
    off = log(total_s / whole_s)
    if pair is None:
        if what.alone:
            instance.stages["prefill"].add(whole_s, total_s, off)
        return instance.prefill.learn(shares, off, trust)
    computing = instance.prefill.variance(shares)
    handing, handing_later = pair.learn(parts, whole_s, off, trust, computing)
    unsure, later = instance.prefill.learn(shares, off, trust, handing)
    return unsure + handing, later + handing_later


_ALL = "\0all"
_NO_LENGTHS = Lengths()
_NO_ENCODING = Encoding()
_STRANGER = Tail(None, SPREAD_SD, QUEUE_SD**2)
