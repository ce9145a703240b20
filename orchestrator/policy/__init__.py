"""The public API for policies: contracts, the data they are given, and what parameters are made of.

A policy is one class with a `filter`, `score`, `key` or `pick` method (see the protocols `Filter`,
`Scorer`, `Order` and `Picker`). If it takes parameters, its constructor takes one argument annotated with
a subclass of `Params`. docs/policies.md is the guide; `orchestrator.policy.testing` checks that a policy
conforms.
"""

from pydantic import Field

from orchestrator.core.contracts import (
    Context,
    DeferringOrder,
    Filter,
    Order,
    Picker,
    PrefixReader,
    Scorer,
    Waiting,
)
from orchestrator.core.inflight import EXPECTED_OUTPUT_TOKENS, expected_kv_tokens
from orchestrator.core.prediction import Curve, Exposed, Predictor, Step
from orchestrator.core.slo import Priority, SloClass, Target, Unattainable
from orchestrator.core.types import (
    Endpoint,
    Inflight,
    Load,
    PathKind,
    RequestView,
    Role,
    Scored,
    Snapshot,
)
from orchestrator.policy.estimates import (
    FirstToken,
    cached_tokens,
    first_tokens,
    kv_tokens,
    left_s,
    output_tokens,
    projected_kv_tokens,
    quantile_of,
    step_s,
)
from orchestrator.policy.params import Duration, DurationOrZero, Params
from orchestrator.policy.rendezvous import hashed, preferred
from orchestrator.policy.shares import share_of_least

__all__ = [
    "EXPECTED_OUTPUT_TOKENS",
    "Context",
    "Curve",
    "DeferringOrder",
    "Duration",
    "DurationOrZero",
    "Endpoint",
    "Exposed",
    "Field",
    "Filter",
    "FirstToken",
    "Inflight",
    "Load",
    "Order",
    "Params",
    "PathKind",
    "Picker",
    "Predictor",
    "PrefixReader",
    "Priority",
    "RequestView",
    "Role",
    "Scored",
    "Scorer",
    "SloClass",
    "Snapshot",
    "Step",
    "Target",
    "Unattainable",
    "Waiting",
    "cached_tokens",
    "expected_kv_tokens",
    "first_tokens",
    "hashed",
    "kv_tokens",
    "left_s",
    "output_tokens",
    "preferred",
    "projected_kv_tokens",
    "quantile_of",
    "share_of_least",
    "step_s",
]
