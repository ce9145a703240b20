"""The lint rules that SGLang's adapter adds to those that all share."""

from __future__ import annotations

from orchestrator.core.rules import WARN, Rule

ALLOCATION_POLICY = Rule(
    "allocation-policy",
    "`disaggregation-decode-allocation-policy` differs between prefill and decode.",
    "Every request fails with an allocation policy mismatch.",
    "Give both pools the same, or leave it out.",
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
