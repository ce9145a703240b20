"""A small fleet in virtual time whose engines know what a predictor is not told, and the queue before it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import exp, log
from random import Random
from statistics import median

from orchestrator.core.prediction import Predictor, Served
from orchestrator.core.types import Endpoint, Prediction, Role, Snapshot

PRIOR = {
    "prefill": {"token_s": 160e-6, "token2_s": 2e-9},
    "exposed": {"fixed_s": 0.02, "token_s": 4e-6, "cap_tokens": 4096},
}
"""What the launch profile says of the engines below: a rough fit of other hardware, without a floor."""


@dataclass(frozen=True)
class Hardware:
    """An engine's time as layers and chunks make it; of another form than what the predictor fits."""

    layers: int = 48
    chunk: int = 4096
    weights_s: float = 0.35e-3
    """Reading one layer's weights: no pass is shorter."""
    token_s: float = 2.6e-6
    """One token through one layer."""
    attend_s: float = 0.9e-10
    """One token against one before it, in one layer."""
    launch_s: float = 30e-6
    step_floor_s: float = 0.020
    link_s: float = 5e-6
    """A token's KV on the wire."""

    def prefill_s(self, tokens: int, cached: int) -> float:
        """Chunk after chunk, each no shorter than the floor."""
        total_s, at = 0.0, cached
        while at < tokens:
            n = min(self.chunk, tokens - at)
            layer_s = max(self.weights_s, n * self.token_s) + n * (at + n / 2) * self.attend_s + self.launch_s
            total_s += max(self.step_floor_s, self.layers * layer_s)
            at += n
        return total_s

    def handoff_s(self, tokens: int) -> float:
        """The last chunk on the wire, a handshake, and the first step."""
        return 0.011 + 0.014 + self.link_s * ((tokens - 1) % self.chunk + 1)


@dataclass
class Job:
    """One request, and what was predicted for it when."""

    name: str
    arrived_s: float
    tokens: int
    cached: int
    admitted: Prediction | None = None
    dispatched: Prediction | None = None


@dataclass
class Engine:
    """One endpoint: how fast it is, and until when it computes."""

    endpoint: Endpoint
    speed: float
    decode: Endpoint
    busy: bool = False
    predicted_free_s: float = 0.0
    outcomes: int = 0


@dataclass
class Horizon:
    """Whether each prediction of one horizon held, and how far off its median was, early and late apart."""

    early: list[bool] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def coverage(self, which: str = "late") -> float:
        """The share that held."""
        held: list[bool] = getattr(self, which)
        return sum(held) / len(held)


@dataclass
class Result:
    """What a run showed, by horizon; `versions` is how often the predictor said its curves had changed."""

    admission: Horizon = field(default_factory=Horizon)
    dispatch: Horizon = field(default_factory=Horizon)
    waited: int = 0
    versions: int = 0


class Fleet:
    """`pairs` prefill engines before two decode ones, and `alone` unified engines, with late binding.

    Requests wait in arrival order; the first goes to the free endpoint that is predicted to be fastest.
    `drift` multiplies every engine's times from half-way on. `settled` is how many outcomes make an
    endpoint's later ones count as late. `timed`: the end of prefill is seen; else only the first token is.
    `told_after_s` is how long after the first token the predictor is told of it, on average.
    """

    def __init__(
        self, predictor: Predictor, rng: Random, *, pairs: int = 6, alone: int = 2, noise: float = 0.1,
        drift: float = 1.3, timed: bool = True, settled: int = 200, quantile: float = 0.99,
        prior: dict[str, dict[str, float]] | None = None, shortest: bool = False, typical: int = 1500,
        told_after_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.predictor, self.rng = predictor, rng
        self.noise, self.drift, self.timed = noise, drift, timed
        self.settled, self.quantile, self.shortest, self.typical = settled, quantile, shortest, typical
        self.told_after_s = told_after_s
        self.hardware = Hardware()
        facts = {"prior": PRIOR if prior is None else prior}

        def endpoint(name: str, role: Role) -> Endpoint:
            return Endpoint(name, str(role), role, "any", "m", f"http://{name}", True, facts=facts)

        decodes = [endpoint(f"d{i}", Role.DECODE) for i in range(2)]
        prefills = [endpoint(f"p{i}", Role.PREFILL) for i in range(pairs)]
        unified = [endpoint(f"u{i}", Role.UNIFIED) for i in range(alone)]
        speeds = [0.7 + 0.8 * i / max(1, pairs + alone - 1) for i in range(pairs + alone)]
        rng.shuffle(speeds)
        self.engines = [
            Engine(e, s, decodes[i % 2] if e.role is Role.PREFILL else e)
            for i, (e, s) in enumerate(zip(prefills + unified, speeds, strict=True))
        ]
        self.endpoints = (*prefills, *decodes, *unified)

    def jobs(self, count: int, load: float) -> list[Job]:
        """Poisson arrivals of mixed prompts, half of them with a prefix in the cache."""
        rng, at_s, made = self.rng, 0.0, []
        for i in range(count):
            tokens = int(min(60_000, max(16, rng.lognormvariate(log(self.typical), 1.2))))
            cached = int(tokens * rng.random() * 0.9) // 64 * 64 if rng.random() < 0.5 else 0
            made.append(Job(str(i), 0.0, tokens, cached))
        mean_s = sum(self.hardware.prefill_s(j.tokens, j.cached) for j in made) / count
        rate = load * sum(1 / e.speed for e in self.engines) / mean_s
        for job in made:
            at_s += rng.expovariate(rate)
            job.arrived_s = at_s
        return made

    def run(self, count: int, load: float = 0.65) -> Result:
        """Serve `count` requests."""
        self.predictor.observe(Snapshot(0.0, self.endpoints), 0.0)
        result, queue = Result(), deque[Job]()
        jobs = self.jobs(count, load)
        half_s = jobs[count // 2].arrived_s
        events: list[tuple[float, int, Callable[[float], None]]] = []
        seq = 0

        def later(at_s: float, call: Callable[[float], None]) -> None:
            nonlocal seq
            seq += 1
            heapq.heappush(events, (at_s, seq, call))

        def arrive(job: Job) -> Callable[[float], None]:
            def call(now_s: float) -> None:
                job.admitted = self._admission(job, list(queue), now_s)
                queue.append(job)
                pump(now_s)

            return call

        def pump(now_s: float) -> None:
            while queue:
                free = [e for e in self.engines if not e.busy]
                if not free:
                    return
                job = (
                    min(queue, key=lambda j: self._median(self.engines[0], j)[0])
                    if self.shortest
                    else queue[0]
                )
                queue.remove(job)
                engine = min(free, key=lambda e: sum(self._median(e, job)))
                start(engine, job, now_s)

        def start(engine: Engine, job: Job, now_s: float) -> None:
            engine.busy = True
            prefill_s, _ = self._median(engine, job)
            job.dispatched = self._prediction(engine, job, now_s, 0.0)
            engine.predicted_free_s = now_s + prefill_s
            drift = self.drift if now_s >= half_s else 1.0
            true_s = engine.speed * drift * self.hardware.prefill_s(job.tokens, job.cached)
            takes_s = true_s * exp(self.rng.gauss(0.0, self.noise))
            hand_s = true_hand_s = 0.0
            if engine.endpoint.role is Role.PREFILL:
                true_hand_s = drift * self.hardware.handoff_s(job.tokens)
                hand_s = true_hand_s * exp(self.rng.gauss(0.0, self.noise))
            result.waited += now_s > job.arrived_s

            def computed(at_s: float) -> None:
                engine.busy = False
                pump(at_s)

            def first(at_s: float) -> None:
                self._judge(result, engine, job, at_s, now_s, true_s + true_hand_s)
                later(at_s + self.rng.random() * 2 * self.told_after_s, partial(told, at_s))

            def told(first_s: float, at_s: float) -> None:
                self.predictor.served(
                    Served(
                        job.name, None, engine.endpoint.id, engine.decode.id, job.tokens, job.cached,
                        first_s - now_s, takes_s if self.timed and hand_s else None,
                        waited_s=now_s - job.arrived_s, admitted=job.admitted, dispatched=job.dispatched,
                    ),
                    at_s,
                )  # fmt: skip

            later(now_s + takes_s + hand_s, first)
            later(now_s + takes_s, computed)

        for job in jobs:
            later(job.arrived_s, arrive(job))
        while events:
            at_s, _, call = heapq.heappop(events)
            call(at_s)
        result.versions = self.predictor.version
        return result

    def _median(self, engine: Engine, job: Job) -> tuple[float, float]:
        curve = self.predictor.prefill(engine.endpoint)
        exposed = self.predictor.exposed(engine.endpoint, engine.decode)
        return curve.seconds(job.tokens, job.cached), exposed.seconds(job.tokens)

    def _prediction(self, engine: Engine, job: Job, now_s: float, wait_s: float) -> Prediction:
        prefill_s, handoff_s = self._median(engine, job)
        waited_s = now_s - job.arrived_s
        rest_s = wait_s + prefill_s + handoff_s
        tail_s = self.predictor.tail_s(engine.endpoint.id, rest_s, self.quantile, queued_s=wait_s)
        return Prediction(
            now_s, waited_s, wait_s, prefill_s, handoff_s, waited_s + rest_s + tail_s, self.quantile, 0.0
        )

    def _admission(self, job: Job, ahead: list[Job], now_s: float) -> Prediction:
        """Play out who goes where, with what is predicted of each."""
        free = [
            (0.0 if not e.busy else max(0.0, e.predicted_free_s - now_s) or 0.05, i)
            for i, e in enumerate(self.engines)
        ]
        if self.shortest:
            mine = self._median(self.engines[0], job)[0]
            ahead = [j for j in ahead if self._median(self.engines[0], j)[0] <= mine]
        heapq.heapify(free)
        for other in ahead:
            at_s, i = free[0]
            heapq.heapreplace(free, (at_s + self._median(self.engines[i], other)[0], i))
        wait_s = free[0][0]
        same = [i for at_s, i in free if at_s == wait_s]
        best = min(same, key=lambda i: sum(self._median(self.engines[i], job)))
        return self._prediction(self.engines[best], job, now_s, wait_s)

    def _judge(
        self, result: Result, engine: Engine, job: Job, at_s: float, sent_s: float, true_s: float
    ) -> None:
        engine.outcomes += 1
        late = engine.outcomes > self.settled
        total_s = at_s - job.arrived_s
        for horizon, said in ((result.admission, job.admitted), (result.dispatch, job.dispatched)):
            assert said is not None
            (horizon.late if late else horizon.early).append(total_s <= said.tail_s)
            if late:
                horizon.errors.append(abs((said.ttft_s - said.waited_s) / (total_s - said.waited_s) - 1))
                horizon.noise.append(abs(true_s / (at_s - sent_s) - 1))


def middle(errors: list[float]) -> float:
    """The median."""
    return median(errors)
