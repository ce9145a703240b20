"""What no client may tell any engine: what can end one, hang it, or name another client's request."""

from __future__ import annotations

FIELDS = frozenset(
    {
        # SGLang's hand-off: a missing host ends decode, a live room given twice ends prefill.
        "bootstrap_host", "bootstrap_port", "bootstrap_room",
        # vLLM's: half of these ends decode, another prompt's give wrong tokens and stay in its cache.
        "kv_transfer_params", "ec_transfer_params",
        # Which rank serves: one that the room does not stand for hangs both sides.
        "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank",
        # Identity: the router's ids are what it aborts by, and SGLang aborts by the beginning of one.
        "rid", "request_id",
    }
)  # fmt: skip

HEADERS = frozenset(
    {
        "x-request-id",
        "x-data-parallel-rank",
        # vLLM: wins over the body, and lets a client overtake others under --scheduling-policy priority.
        "x-vllm-priority",
    }
)
