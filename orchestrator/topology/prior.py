"""What a launch profile knows of an engine's speed before it has served anything: a predictor's prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from orchestrator.topology.strict import Findings, Strict, findings
from orchestrator.topology.values import Count, Duration, DurationOrZero, Text

ANY_TRANSFER = "default"
"""The entry of `exposed` for a transfer that has none of its own."""


class Measured(Strict):
    """What the figures were measured with; they are used for nothing else."""

    model: Text = Field(description="The model, by the last part of its name; case does not matter.")
    tp: Count = Field(1, description="Tensor-parallel size.")


class PrefillPrior(Strict):
    """Computing n tokens, h cached: `max(floor, fixed + token * (n - h) + token2 * (n^2 - h^2))`."""

    token: Duration = Field(description="For each token, such as `248.7us`.")
    token2: DurationOrZero = Field(
        default="0s",
        validate_default=True,
        description="For each token squared, such as `2.898ns`: attention to the tokens before it.",
    )
    fixed: DurationOrZero = Field(default="0s", validate_default=True, description="However short it is.")
    floor: DurationOrZero = Field(
        default="0s", validate_default=True, description="No prefill takes less: one pass over the weights."
    )


class ExposedPrior(Strict):
    """From the end of prefill to the first token, for a prompt of n tokens: `fixed + token * n`."""

    fixed: DurationOrZero = Field(
        default="0s", validate_default=True, description="However short the prompt is: handshake, first step."
    )
    token: DurationOrZero = Field(
        default="0s", validate_default=True, description="For each token: its KV bytes by the bandwidth."
    )
    overlaps: bool = Field(
        False,
        description="Whether KV is sent while the next chunk is computed, so that only the last one "
        "(`chunk_tokens`) is waited for.",
    )


class StepPrior(Strict):
    """A decode step of a batch: `base + request * sequences + token * KV tokens of all of them`."""

    base: Duration = Field(description="However small the batch is: one pass over the weights.")
    request: DurationOrZero = Field(default="0s", validate_default=True, description="For each sequence.")
    token: DurationOrZero = Field(
        default="0s", validate_default=True, description="For each token of KV that attention reads."
    )


class Prior(Strict):
    """The engine's speed as far as it is known; what the predictor starts from before it has learned.

    Class targets with `per_cold_prefill` are reckoned by it. It replaces that of the profile this one
    extends, as a whole."""

    measured: Measured | None = Field(
        None, description="What it holds for. Default: whatever the profile is used for."
    )
    prefill: PrefillPrior = Field(description="Computing a prompt.")
    exposed: dict[Text, ExposedPrior] = Field(
        default_factory=dict,
        description="The hand-off, by KV transfer backend or connector; `default` is for all others.",
    )
    step: StepPrior | None = Field(None, description="A decode step.")
    chunk_tokens: Count | None = Field(
        None, description="Tokens that one prefill pass takes at most; a longer prompt takes several."
    )
    efficient_chunk_tokens: Count = Field(
        512,
        description="Tokens that use a pass well; shorter prompts are sent together, up to so many.",
    )

    @model_validator(mode="after")
    def _chunked(self) -> Self:
        found: Findings = [
            (
                ("exposed", name, "overlaps"),
                "needs `chunk_tokens`: only the last chunk is waited for",
            )
            for name, exposed in self.exposed.items()
            if exposed.overlaps and self.chunk_tokens is None
        ]
        chunk = self.chunk_tokens
        if chunk is not None and self.efficient_chunk_tokens > chunk:
            message = f"is less than efficient_chunk_tokens, {self.efficient_chunk_tokens}"
            found.append((("chunk_tokens",), message))
        if found:
            raise findings(found)
        return self

    def holds_for(self, model: str, tp: int) -> bool:
        """Whether the figures are of this model (a name or a path) at this size."""
        of = self.measured
        return of is None or (_last_part(of.model) == _last_part(model) and of.tp == tp)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def as_fact(prior: Prior, transfers: Sequence[str], speed: float = 1.0) -> Mapping[str, Any]:
    """The prior as an endpoint's fact: plain numbers in seconds, those of `exposed` for the first of
    `transfers` that it knows. `speed` is how many times as fast the instance is.

    `prefill`, `exposed` and `step` have the fields of `core.prediction`'s Curve, Exposed and Step; what is
    not known is left out. `unit_tokens` is `efficient_chunk_tokens`.
    """
    curve, step = prior.prefill, prior.step
    fact: dict[str, Any] = {
        "prefill": {
            "token_s": curve.token / speed,
            "token2_s": curve.token2 / speed,
            "fixed_s": curve.fixed / speed,
            "floor_s": curve.floor / speed,
        },
        "unit_tokens": prior.efficient_chunk_tokens,
    }
    exposed = next((prior.exposed[n] for n in (*transfers, ANY_TRANSFER) if n in prior.exposed), None)
    if exposed is not None:
        fact["exposed"] = {
            "fixed_s": exposed.fixed / speed,
            "token_s": exposed.token / speed,
            "cap_tokens": prior.chunk_tokens if exposed.overlaps else None,
        }
    if step is not None:
        fact["step"] = {
            "base_s": step.base / speed,
            "request_s": step.request / speed,
            "token_s": step.token / speed,
        }
    return fact
