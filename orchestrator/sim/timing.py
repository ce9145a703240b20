"""How long the simulated engine's work takes: the constants of one model on one kind of hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Link:
    """How KV travels from a prefill to a decode engine.

    `bytes_per_s` is per tensor-parallel rank, `fixed_s` the cost of one hand-off however small.
    `overlaps`: each chunk's KV is pushed while the next one is computed (SGLang, Mooncake), so that only
    the last chunk's share is exposed; a pull (NIXL) starts after prefill and exposes all of it.
    """

    name: str
    bytes_per_s: float
    fixed_s: float
    overlaps: bool = True


RDMA = Link("rdma", bytes_per_s=20e9, fixed_s=0.011)
"""Fitted to measured exposed transfer of Qwen3-32B, TP2 to TP2, Mooncake over RDMA: 17, 36, 67 and 83 ms
for 1K, 4K, 16K and 32K input tokens."""

TCP = Link("tcp", bytes_per_s=1.65e9, fixed_s=0.015)
"""The same over TCP: 97, 349, 724 and 634 ms."""

LINKS = {link.name: link for link in (RDMA, TCP)}


@dataclass(frozen=True, slots=True)
class Timing:
    """The cost model of one engine; the defaults are Qwen3-32B in bf16 on two H200-class cards (TP2).

    - `prefill_token_s`, `prefill_token2_s`: `a*n + b*n*n` seconds for a prompt of n tokens; fits the
      measured colocated TTFT (261, 1052, 4860, 11274 ms for 1K, 4K, 16K, 32K) within 1.3 %.
    - `step_floor_s`: no forward pass with prefill work is shorter (launch overhead; assumed).
    - `step_fixed_s`: what such a pass takes on top of its tokens.
    - `chunk_tokens`: SGLang's default chunked prefill size on such cards.
    - `decode_base_s`, `decode_request_s`: a decode step reads the weights (65 GB over two cards, about
      12 ms with overheads) and does a little per sequence; measured steps are 12 to 15 ms.
    - `kv_token_bytes`: 2 (K and V) x 64 layers x 8 KV heads x 128 x 2 B.
    - `hbm_bytes_per_s`, `hbm_efficiency`: 3.35 TB/s a card, of which 70 % is reached when reading KV.
    """

    prefill_token_s: float = 248.7e-6
    prefill_token2_s: float = 2.898e-9
    step_floor_s: float = 0.020
    step_fixed_s: float = 0.0
    chunk_tokens: int = 8192
    decode_base_s: float = 0.012
    decode_request_s: float = 60e-6
    kv_token_bytes: int = 262_144
    ranks: int = 2
    hbm_bytes_per_s: float = 3.35e12
    hbm_efficiency: float = 0.7

    def faster(self, speed: float) -> Timing:
        """That of hardware `speed` times as fast in everything."""
        return replace(
            self,
            prefill_token_s=self.prefill_token_s / speed,
            prefill_token2_s=self.prefill_token2_s / speed,
            step_floor_s=self.step_floor_s / speed,
            step_fixed_s=self.step_fixed_s / speed,
            decode_base_s=self.decode_base_s / speed,
            decode_request_s=self.decode_request_s / speed,
            hbm_bytes_per_s=self.hbm_bytes_per_s * speed,
        )

    def prefill_s(self, start: int, end: int) -> float:
        """Seconds to compute tokens `start..end` of a prompt whose first `start` are already in the cache."""
        a, b = self.prefill_token_s, self.prefill_token2_s
        return a * (end - start) + b * (end * end - start * start)

    def cold_s(self, tokens: int) -> float:
        """Seconds for a whole prompt without cache, in one pass."""
        return max(self.step_floor_s, self.step_fixed_s + self.prefill_s(0, tokens))

    def decode_s(self, batch: int, resident_tokens: int) -> float:
        """Seconds of one decode step of `batch` sequences holding `resident_tokens` of KV together."""
        read = resident_tokens * self.kv_token_bytes
        bandwidth = self.ranks * self.hbm_bytes_per_s * self.hbm_efficiency
        return self.decode_base_s + self.decode_request_s * batch + read / bandwidth

    def wire_s(self, tokens: int, link: Link) -> float:
        """Seconds the KV of `tokens` occupies the link; every rank sends its share at once."""
        return tokens * self.kv_token_bytes / self.ranks / link.bytes_per_s


QWEN3_32B_TP2 = Timing()
