"""What moving KV costs: the part of a transfer that a request waits for, by link, prompt and chunk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A way for KV to travel: seconds however little it is, and bytes per second of one rank."""

    name: str
    fixed_s: float
    bytes_per_s: float


RDMA = Link("RDMA", fixed_s=0.011, bytes_per_s=20e9)
TCP = Link("TCP", fixed_s=0.015, bytes_per_s=1.65e9)
"""Fitted to TTFT measured with and without hand-off, SGLang 0.5.22 with Mooncake, Qwen3-32B at TP2: exposed
17, 36, 67 and 83 ms over RDMA and 97, 349, 724 and 634 ms over TCP, for 1K, 4K, 16K and 32K tokens."""

CROSS_NUMA_SHARE = 24.0 / 48.9
"""Of a NIC's bandwidth that is left to a GPU on another NUMA node: Mooncake's GPU-to-GPU writes over one NIC,
24 GB/s against 48.9 GB/s."""

REFERENCE_TOKEN_BYTES = 128 * 1024
"""KV of one token on one rank of the model that the links were measured with (Qwen3-32B, bf16, TP2)."""

REFERENCE_CHUNK_TOKENS = 8192
"""Tokens of a prefill pass there; what earlier passes made has been sent while the last one is computed."""

PREFILL_TOKEN_S = 248.7e-6
PREFILL_TOKEN2_S = 2.898e-9
"""Colocated TTFT of the same measurement: 261, 1052, 4860 and 11274 ms, within 1.5 %."""


def exposed_s(
    link: Link,
    tokens: int,
    *,
    token_bytes: float = REFERENCE_TOKEN_BYTES,
    chunk_tokens: int = REFERENCE_CHUNK_TOKENS,
    share: float = 1.0,
) -> float:
    """Seconds that a prompt of `tokens` waits for its KV, when it has been computed.

    `token_bytes` is what each rank sends for a token; `share` is how much of the link's bandwidth it has.
    """
    return link.fixed_s + min(tokens, chunk_tokens) * token_bytes / (link.bytes_per_s * share)


def reference_ttft_s(tokens: int) -> float:
    """Seconds to the first token without a hand-off, of the model that the links were measured with."""
    return PREFILL_TOKEN_S * tokens + PREFILL_TOKEN2_S * tokens * tokens
