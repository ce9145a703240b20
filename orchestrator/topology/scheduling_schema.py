"""The part of a topology that is about choosing: the scheduling profile, the predictor, the decision log."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from orchestrator.topology.strict import Strict, findings
from orchestrator.topology.values import CountOrNone, DurationOrZero, Name, Size, Text


def parse_plugin(value: object) -> dict[str, Any]:
    """A reference alone or a mapping with it as `use`, as the mapping. Raises ValueError or a finding."""
    if isinstance(value, str) and value:
        return {"use": value}
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is neither the name of a plug-in nor a mapping with `use`")
    if not isinstance(value.get("use"), str) or not value["use"]:
        raise findings([(("use",), "is required: the name of the plug-in")])
    return value


PlugIn = Annotated[
    dict[str, Any],
    PlainValidator(parse_plugin),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "object", "properties": {"use": {"type": "string"}}, "required": ["use"]},
            ]
        }
    ),
]


class Priorities(Strict):
    """A range of the body field `priority`, whose direction differs between engines."""

    at_least: int | None = Field(None, strict=True, description="From this number on. Default: no bound.")
    at_most: int | None = Field(None, strict=True, description="Up to this number. Default: no bound.")
    use: Name = Field(description="The SLO class of requests with such a `priority`.")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        low, high = self.at_least, self.at_most
        if low is None and high is None:
            raise findings([((), "has neither `at_least` nor `at_most`, so that every `priority` would fit")])
        if low is not None and high is not None and low > high:
            raise findings([(("at_most",), f"is below `at_least`, {low}")])
        return self


class Decisions(Strict):
    """The decision log, which `pdctl explain` and `pdctl replay` read."""

    record: Literal["sampled", "full", "off"] = Field(
        "sampled", description="Which requests are recorded: a share of them, all, or none."
    )
    sample: float = Field(0.1, gt=0, le=1, description="The share of `sampled`.")
    keep: Size = Field(
        default="64MiB", validate_default=True, description="Disk space it may take; the oldest goes first."
    )
    hashes: CountOrNone = Field(
        1024,
        description="How many of a prompt's block hashes a record holds; `pdctl replay` needs them to tell "
        "what a cache would have held. Prompts themselves are never recorded.",
    )
    headers: Literal["on_request", "always", "never"] = Field(
        "on_request",
        description="When answers carry the `x-pdctl-*` headers that tell of their decision: if the request "
        "has `x-pdctl-explain: 1`, always or never.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "sample" in self.model_fields_set and self.record != "sampled":
            raise findings([(("sample",), f"has no effect with `record: {self.record}`")])
        return self


class KvIndex(Strict):
    """The index of what engines say their KV caches hold, where a pool has `kv_events: true`."""

    tokens_within: DurationOrZero = Field(
        default="20ms",
        validate_default=True,
        description="How long a request waits for its tokens, which an engine is asked for. Without them it "
        "is placed by the approximate index.",
    )
    max_error: float = Field(
        0.1,
        gt=0,
        le=1,
        description="The share of prompt tokens by which it may be wrong about an endpoint before it is "
        "dropped there and the approximate index takes over.",
    )


class Scheduling(Strict):
    """How the router chooses endpoints, and the SLO class of a request that does not name one."""

    profile: Text = Field("default", description="The scheduling profile in force.")
    profiles: dict[Name, dict[str, Any]] = Field(
        default_factory=dict, description="Your own profiles by name; their form is in policies.md."
    )
    default_class: Name | None = Field(
        None,
        description="SLO class of requests that nothing else gives one. Default: none; no promise.",
    )
    service_tiers: dict[Text, Name] | None = Field(
        None,
        description="SLO class by the body field `service_tier`; other values mean nothing. Default: "
        "`{flex: batch, priority: realtime}` where `slo_classes` is written, else none.",
    )
    priorities: tuple[Priorities, ...] = Field(
        (),
        description="SLO class by the body field `priority`, an integer; the first that fits counts.",
    )
    predictor: PlugIn = Field(
        default="stages",
        validate_default=True,
        description="What predicts latencies: a registered name, `./file.py:Class` or `module:Class`; or a "
        "mapping of that as `use`, and its parameters.",
    )
    decisions: Decisions = Field(default_factory=Decisions, description="The decision log.")
    kv_index: KvIndex = Field(
        default_factory=KvIndex, description="The index of what engines say their KV caches hold."
    )
