"""The lint rules that vLLM's adapter adds to those that all share."""

from __future__ import annotations

from orchestrator.core.rules import WARN, Rule
from orchestrator.engines import rules as shared
from orchestrator.engines.told import Agreement

COMPATIBILITY_HASH = Rule(
    "compatibility-hash",
    "Prefill and decode differ in something that NIXL's compatibility hash covers: attention backend, "
    "speculative decoding, the KV cache manager.",
    "The engines refuse the hand-shake, and decode fails or recomputes every prompt.",
    "Give both pools the same.",
)
DRAIN_BELOW_LEASE = Rule(
    "drain-below-lease",
    "A prefill's `--shutdown-timeout` is below the lease on its KV.",
    "Stopping a prefill can take KV away that decode was promised.",
    "Raise `drain_timeout`, or shorten `kv_lease_duration`.",
    WARN,
)
SHORT_LEASE = Rule(
    "short-lease",
    "The lease on a prefill's KV is no longer than decode may take to come for it.",
    "The KV is given to another prompt before decode reads it: answers come from the wrong KV.",
    "Raise `kv_lease_duration`, or shorten `router.timeouts.connect`.",
)
HANDSHAKE_UNCHECKED = Rule(
    "handshake-unchecked",
    "`enforce_handshake_compat: false`.",
    "Sides that do not fit exchange KV all the same, and answer from it.",
    "Remove it, once both sides are equal.",
    WARN,
)
FAILS_ON_LOST_KV = Rule(
    "fails-on-lost-kv",
    "`kv_load_failure_policy` of a decode pool is `fail`.",
    "A prefill that goes away fails its requests on decode.",
    "`recompute`, the default here, costs a prefill and answers right.",
    WARN,
)

OWN: tuple[Rule, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Rule))

AGREEMENTS: tuple[Agreement, ...] = (
    Agreement("block_size", shared.PAGE_SIZE),
    Agreement("kv_cache_dtype", shared.KV_DTYPE),
    Agreement("root", shared.MODEL_MISMATCH, transfer="nixl"),
    Agreement("version", shared.ENGINE_VERSION, transfer="nixl"),
    Agreement("max_model_len", shared.CONTEXT_LENGTH),
)
"""What prefill and decode must tell alike of themselves."""
