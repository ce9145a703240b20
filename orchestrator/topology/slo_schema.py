"""The parts of a topology that are about promises: SLO classes, and the tenants that use them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from orchestrator.core.duration import DURATION_PATTERN, parse_duration
from orchestrator.core.slo import Target
from orchestrator.plugins import nearest
from orchestrator.topology.strict import Findings, Strict, findings
from orchestrator.topology.values import Count, Duration, DurationOrZero, Name, Secret

QUANTILE_PATTERN = r"^p([5-9][0-9](\.[0-9])?)$"
"""`p50` to `p99.9`."""
PER_COLD_PREFILL = "per_cold_prefill"

_QUANTILES = ("p50", "p90", "p95", "p99", "p99.9")


def parse_target(value: object) -> Target:
    """A duration, or a mapping of one quantile to it and what a cold prefill adds.

    Raises a finding at the key that is wrong.
    """
    if isinstance(value, Target):
        return value
    if not isinstance(value, dict):
        return Target(_positive((), value))
    found: Findings = []
    quantiles = [key for key in value if re.fullmatch(QUANTILE_PATTERN, str(key))]
    for key in value:
        if key not in quantiles and key != PER_COLD_PREFILL:
            found.append(((key,), _unknown(str(key))))
    for key in quantiles[1:]:
        found.append(((key,), f"there is {quantiles[0]} already; a target has one quantile"))
    per_cold_prefill = value.get(PER_COLD_PREFILL, 0)
    if not isinstance(per_cold_prefill, int | float) or isinstance(per_cold_prefill, bool):
        found.append(((PER_COLD_PREFILL,), f"should be a number, not {per_cold_prefill!r}"))
    elif not 0 <= per_cold_prefill < float("inf"):
        found.append(((PER_COLD_PREFILL,), f"must be at least 0, not {per_cold_prefill!r}"))
    if not quantiles and not found:
        found.append(((), "has no quantile; write one of p50 to p99.9 with its duration, such as p99: 1.5s"))
    if found:
        raise findings(found)
    key = quantiles[0]
    return Target(
        seconds=_positive((key,), value[key]),
        quantile=float(Decimal(str(key)[1:]) / 100),
        per_cold_prefill=float(per_cold_prefill),
    )


def parse_gap(value: object) -> Target:
    """A target of the time between tokens, which a long prompt does not stretch."""
    target = parse_target(value)
    if target.per_cold_prefill:
        message = "the time between tokens does not grow with the prompt; only `ttft` and `e2e` take it"
        raise findings([((PER_COLD_PREFILL,), message)])
    return target


def _positive(place: tuple[str, ...], value: object) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise findings([(place, str(error))]) from None
    if seconds <= 0:
        raise findings([(place, "must be more than zero")])
    return seconds


def _unknown(key: str) -> str:
    close = nearest(key.lower(), [*_QUANTILES, PER_COLD_PREFILL])
    hint = f"did you mean {close!r}?" if close else f"known here: p50 to p99.9, {PER_COLD_PREFILL}"
    return f"unknown field; {hint}"


def _form(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a target, with `properties` beside its quantile."""
    duration = {"type": "string", "pattern": DURATION_PATTERN}
    mapping = {
        "type": "object",
        "minProperties": 1,
        "properties": properties,
        "patternProperties": {QUANTILE_PATTERN: duration},
        "additionalProperties": False,
    }
    return {"anyOf": [duration, mapping]}


_AS_SECONDS = PlainSerializer(lambda target: target.seconds)

SizedTarget = Annotated[
    Target,
    PlainValidator(parse_target),
    _AS_SECONDS,
    WithJsonSchema(_form({PER_COLD_PREFILL: {"type": "number", "minimum": 0}})),
]
GapTarget = Annotated[Target, PlainValidator(parse_gap), _AS_SECONDS, WithJsonSchema(_form({}))]


class LongPrompts(Strict):
    """Another class for the long prompts of a class."""

    over_tokens: Count = Field(description="Prompts of more tokens than this are of the class `use`.")
    use: Name = Field(description="The class they are of; best one with a `reserve`.")


class StageTimeouts(Strict):
    """Deadlines of the stages of a class's requests, in place of those of `router.timeouts`."""

    prefill: Duration | None = Field(None, description="For the prefill leg to answer.")
    first_token: Duration | None = Field(None, description="For the first byte of the answer.")
    inter_token: Duration | None = Field(None, description="Between two pieces of a stream.")
    total: Duration | None = Field(None, description="For the whole request.")


class SloClass(Strict):
    """What a kind of request is promised: durations that 99 % keep, or `{p95: 1.5s}`; see slo.md.

    `realtime`, `interactive` and `batch` are there without being written; a field written here replaces
    theirs."""

    ttft: SizedTarget | None = Field(
        None,
        description="Time to first token. `{p99: 1.5s, per_cold_prefill: 2}` adds twice the request's own "
        "prefill on an idle engine without cache.",
    )
    itl: GapTarget | None = Field(None, description="Each gap between two tokens.")
    tpot: GapTarget | None = Field(None, description="Mean gap between the tokens of a request.")
    e2e: SizedTarget | None = Field(
        None, description="Time to the last token; `per_cold_prefill` as with `ttft`."
    )
    priority: Literal["realtime", "interactive", "batch"] = Field(
        "interactive",
        description="Who goes first where several can still be on time; `batch` fills the others' gaps.",
    )
    pools: tuple[Name, ...] | None = Field(
        None, min_length=1, description="The only pools its requests may use. Default: any."
    )
    unattainable: Literal["reject", "queue", "best_effort"] = Field(
        "reject",
        description="What becomes of a request that can be on time no more. `reject`: 429 with Retry-After; "
        "`queue`: it waits behind all that can be; `best_effort`: it goes on in its turn.",
    )
    reserve: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of prefill time kept for it while it has requests waiting; of all classes "
        "together less than 1.",
    )
    max_wait: Duration | None = Field(
        None,
        description="Longest wait of what is not rejected before. Default: `router.timeouts.queue`, which it "
        "may not exceed.",
    )
    timeouts: StageTimeouts | None = Field(
        None,
        description="Its own deadlines of the stages: a leg past one is aborted and the request tried "
        "elsewhere, or ended. Those of `router.timeouts` are the longest. Default: these.",
    )
    continuation: bool | None = Field(
        None,
        description="A stream whose engine fails in the middle goes on at another. Default: "
        "`router.continuation`.",
    )
    slices: DurationOrZero | None = Field(
        None,
        description="Its prompts that take longer are computed in pieces of so much prefill, between which "
        "others may go; `0s`: whole. Default: `slices` of the scheduling profile.",
    )
    long_prompts: LongPrompts | None = Field(None, description="Another class for its long prompts.")


class Rate(Strict):
    """How fast a tenant may send."""

    per_second: float = Field(gt=0, description="Requests per second in the long run.")
    burst: Count | None = Field(
        None, description="Requests at once after a pause. Default: those of one second, at least 1."
    )


class Tenant(Strict):
    """A group of clients, known by their keys: which SLO classes they may use, and how much at once."""

    keys: tuple[Secret, ...] = Field((), description="Its client keys, beside those of `router.credentials`.")
    slo_class: Name | None = Field(None, description="SLO class of its requests that name none.")
    classes: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="The classes its requests may be of; one that asks for another gets the allowed one of "
        "the next lower priority. Default: with `slo_class`, those whose priority is not above its own; "
        "else any.",
    )
    max_inflight: Count | None = Field(
        None, description="Most requests it may have in the router at once (429)."
    )
    max_queued: Count | None = Field(
        None, description="Most of them that may wait there for an endpoint (429)."
    )
    rate: Rate | None = Field(None, description="How fast it may send (429).")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.slo_class is not None and self.classes is not None and self.slo_class not in self.classes:
            raise findings([(("slo_class",), f"{self.slo_class!r} is not among its `classes`")])
        return self
