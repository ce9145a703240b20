"""The public API for policies: contracts, the data they are given, and what parameters are made of.

A policy is one class with a `filter`, `score` or `pick` method (see the protocols `Filter`, `Scorer`,
`Picker`). If it takes parameters, its constructor takes one argument annotated with a subclass of
`Params`. docs/policies.md is the guide; `orchestrator.policy.testing` checks that a policy conforms.
"""

from pydantic import Field

from orchestrator.core.contracts import Context, Filter, Picker, PrefixReader, Scorer
from orchestrator.core.inflight import EXPECTED_OUTPUT_TOKENS, expected_kv_tokens
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
from orchestrator.policy.params import Params
from orchestrator.policy.shares import share_of_least

__all__ = [
    "EXPECTED_OUTPUT_TOKENS",
    "Context",
    "Endpoint",
    "Field",
    "Filter",
    "Inflight",
    "Load",
    "Params",
    "PathKind",
    "Picker",
    "PrefixReader",
    "RequestView",
    "Role",
    "Scored",
    "Scorer",
    "Snapshot",
    "expected_kv_tokens",
    "share_of_least",
]
