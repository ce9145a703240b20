"""What has been learned of one endpoint: its prefill curve, its decode step, and how far off they are."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, log

from orchestrator.core.frozen import record
from orchestrator.core.prediction import Curve, Step
from orchestrator.core.types import Endpoint, Load
from orchestrator.predictor.books import Promises, Stage
from orchestrator.predictor.fit import Fit
from orchestrator.predictor.pace import Pace
from orchestrator.predictor.prior import Belief
from orchestrator.predictor.tail import Tail, Window, score

MOVED = 0.01
"""A curve is told anew once what was just seen would be predicted by so much otherwise: readers keep it."""

MOSTLY_FLOOR = 0.5
"""A prompt whose tokens explain less than this of its time tells of the floor or the fixed part."""

KIN = (1.0, 1.0, 1.0, 0.2)
"""The floor has little in common with the rest: a round trip, a launch and a tokenizer are in the time of a
short prompt, and say nothing of long ones. An endpoint that they made look slow would get no long prompt any
more by which to show that it is not."""

GAP_SD = 0.15
"""Before any answer: how far mean gaps are taken to vary around a sure step (logarithms)."""

STAGES = ("prefill", "handoff", "first_token", "step")


@record(slots=True)
class Tally:
    """Prompts computed, their uncached tokens, and the sum over these of what the quadratic term counts."""

    prompts: int = 0
    tokens: int = 0
    tokens2: float = 0.0

    def add(self, tokens: int, cached: int) -> None:
        """One more."""
        self.prompts += 1
        self.tokens += tokens - cached
        self.tokens2 += (tokens - cached) * (tokens + cached)


class Instance:
    """One endpoint in one life.

    `tail` is of predictions made at dispatch, `gaps` of the mean gaps of answers. `tally` sums up the prompts
    whose computing nobody timed since the counters stood at `tally_from`; `load` is what they were last read
    from (see `counters`).
    """

    __slots__ = (
        "answers", "curve", "endpoint", "first_tokens", "gaps", "load", "prefill", "promises", "stages",
        "step_fit", "step_told", "tail", "tally", "tally_from",
    )  # fmt: skip

    def __init__(
        self, endpoint: Endpoint, prefill: Belief, step: Belief, shared: Window, spread_sd: float
    ) -> None:
        self.endpoint = endpoint
        self.prefill = Fit(prefill.coefs, prefill.speed_sd, prefill.shape_sds, kin=KIN)
        self.step_fit = Fit(step.coefs, step.speed_sd, step.shape_sds)
        self.tail = Tail(shared, spread_sd, prefill.speed_sd**2 + max(prefill.shape_sds) ** 2 / 2)
        # Answers end at random, and some seconds apart: what one says of the next is in the step's fit.
        self.gaps = Tail(None, GAP_SD, step.speed_sd**2 + max(step.shape_sds) ** 2 / 2, lifts=False)
        self.first_tokens, self.answers = Pace(), Pace()
        self.stages = {name: Stage() for name in STAGES}
        self.promises = Promises()
        self.curve = self._curve()
        self.step_told = Step(*self.step_fit.coefs)
        self.load: Load | None = None
        self.tally_from: Mapping[str, float] = {}
        self.tally = Tally()

    def terms(self, tokens: int, cached: int, actual_s: float) -> tuple[tuple[float, ...], float]:
        """The terms of computing a prompt (fixed, tokens, tokens squared, floor), of which those that count.

        Either the first three or the floor alone, whichever is greater, or explains `actual_s` better where
        the tokens explain little. Their sum comes second.
        """
        fixed, token, token2, floor = self.prefill.coefs
        new = max(1, tokens - cached)
        by_token, by_token2 = token * new, token2 * new * (tokens + cached)
        grown = by_token + by_token2
        whole = fixed + grown
        if whole <= floor or (
            grown < MOSTLY_FLOOR * actual_s and abs(log(actual_s / floor)) < abs(log(actual_s / whole))
        ):
            return (0.0, 0.0, 0.0, floor), floor
        return (fixed, by_token, by_token2, 0.0), whole

    def moved(self, tokens: int, cached: int) -> bool:
        """Whether such a prompt is predicted otherwise than last told; tells the curve anew if so."""
        fixed, token, token2, floor = self.prefill.coefs
        new = tokens - cached
        now_s = max(floor, fixed + new * (token + token2 * (tokens + cached)))
        told_s = self.curve.seconds(tokens, cached)
        if abs(now_s - told_s) <= MOVED * told_s:
            return False
        self.curve = self._curve()
        return True

    def gap(self, batch: float, tokens: float, step_s: float, trust: float) -> bool:
        """Learn from the mean gap of one answer, and how far off its prediction was; whether that is news.

        Of short answers only the former: their few gaps hold the wait for a step that had begun, which is not
        the step's length.
        """
        told = self.step_told
        off = score(step_s, told.base_s + told.request_s * batch + told.token_s * tokens)
        unsure = self._step_variance(batch, tokens)
        news = self.stepped(batch, tokens, step_s, trust)
        if trust >= 1.0 and isfinite(off):
            self.gaps.learn(off, unsure, self._step_variance(batch, tokens))
        return news

    def _step_variance(self, batch: float, tokens: float) -> float:
        base, request, token = self.step_fit.coefs
        terms = (base, request * batch, token * tokens)
        whole_s = terms[0] + terms[1] + terms[2]
        return self.step_fit.variance((terms[0] / whole_s, terms[1] / whole_s, terms[2] / whole_s))

    def stepped(self, batch: float, tokens: float, step_s: float, trust: float) -> bool:
        """Learn that decode steps of so many sequences and KV tokens took `step_s`; whether that is news."""
        base, request, token = self.step_fit.coefs
        terms = (base, request * batch, token * tokens)
        whole_s = terms[0] + terms[1] + terms[2]
        off = log(step_s / whole_s)
        self.stages["step"].add(whole_s, step_s, off)
        self.step_fit.learn((terms[0] / whole_s, terms[1] / whole_s, terms[2] / whole_s), off, trust)
        base, request, token = self.step_fit.coefs
        told = self.step_told
        told_s = told.base_s + told.request_s * batch + told.token_s * tokens
        if abs(base + request * batch + token * tokens - told_s) <= MOVED * told_s:
            return False
        self.step_told = Step(base, request, token)
        return True

    def _curve(self) -> Curve:
        fixed, token, token2, floor = self.prefill.coefs
        return Curve(token, token2, fixed, floor)
