"""The lint rules that SGLang's adapter adds to those that all share."""

from __future__ import annotations

from orchestrator.core.rules import WARN, Rule
from orchestrator.engines import rules as shared
from orchestrator.engines.told import Agreement

ALLOCATION_POLICY = Rule(
    "allocation-policy",
    "`disaggregation-decode-allocation-policy` differs between prefill and decode, or `prefill_complete` is "
    "asked for with something that it does not go with.",
    "Every request fails with an allocation policy mismatch, or the engine refuses to start.",
    "Give both pools the same, or leave it out.",
)
STAGING_BUFFER = Rule(
    "staging-buffer",
    "`SGLANG_DISAGG_STAGING_BUFFER` where it does not work: with MLA, without CUDA, at one side only, over a "
    "transfer other than Mooncake or NIXL, or with a chunk size that is no multiple of the page size.",
    "The engine refuses to start, or the two sides wait for each other.",
    "It is for unequal `tp` of models without MLA, in both pools; remove it everywhere else.",
)
TCP_LANE_QUEUE = Rule(
    "tcp-lane-queue",
    "Unequal `tp` over Mooncake's TCP, and `MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER` is not 65535.",
    "KV goes as a slice per token; more than 1024 in the queue fail the transfer, and shut the peer out for "
    "30 s.",
    "Leave the variable to the plan, which sets 65535: the largest value that Mooncake takes.",
)
ROLE_SWITCH = Rule(
    "role-switch",
    "`--enable-pd-role-switch` beside something that a switch of roles does not rebuild.",
    "The engine refuses to start.",
    "Remove what the finding names, or the switch.",
)
DECODE_RADIX_CACHE = Rule(
    "decode-radix-cache",
    "A prefix cache on decode that does not go with the pool's other flags, or seems to be on and is off.",
    "The engine refuses to start, or decode fetches KV that it had.",
    "`disaggregation-decode-enable-radix-cache: true` is what turns it on; remove what the finding names.",
)
KV_CHECKSUM = Rule(
    "kv-checksum",
    "`disaggregation-enable-kv-checksum` is on at one side only.",
    "One side checks what the other does not send.",
    "Set it in both pools, or in none.",
)
FAKE_TRANSFER = Rule(
    "fake-transfer",
    "A prefill pool whose transfer backend is `fake`.",
    "SGLang refuses to start a prefill server with it.",
    "Use it on decode alone, or another one.",
)
BAD_DURATION = Rule(
    "bad-duration",
    "A time-out variable of SGLang's that is not a whole number of seconds.",
    "The engine reads it as an integer and fails on anything else.",
    "Write whole seconds.",
)
ENCODER_MISMATCH = Rule(
    "encoder-mismatch",
    "Encode pools that differ in how embeddings travel or in which media are let through.",
    "Whoever asks an encoder is told one way for all of them.",
    "Give all encode pools the same `transfer` and `options.unchecked_media`.",
)
ENCODER_HAZARD = Rule(
    "encoder-hazard",
    "The deployment has encoders.",
    "An image that an encoder cannot read, or an encoder that has died, ends the engine that asked, and all "
    "requests there.",
    "The router refuses images it sees to be broken; stop or restart encoders only without traffic.",
    WARN,
)

OWN: tuple[Rule, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Rule))

AGREEMENTS: tuple[Agreement, ...] = (
    Agreement("block_size", shared.PAGE_SIZE),
    Agreement("kv_cache_dtype", shared.KV_DTYPE),
    Agreement("dtype", shared.MODEL_DTYPE),
    Agreement("revision", shared.MODEL_MISMATCH),
    Agreement("disaggregation_transfer_backend", shared.TRANSFER_MISMATCH),
    Agreement("disaggregation_decode_allocation_policy", ALLOCATION_POLICY),
    Agreement("disaggregation_enable_kv_checksum", KV_CHECKSUM),
    Agreement("version", shared.ENGINE_VERSION, WARN),
    Agreement("max_model_len", shared.CONTEXT_LENGTH),
)
"""What prefill and decode must tell alike of themselves."""
