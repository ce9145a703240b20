"""What moving KV costs: the part of a transfer that a request waits for, by link, prompt and chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """A way for KV to travel: seconds however little it is, and bytes per second of one rank."""

    name: str
    fixed_s: float
    bytes_per_s: float


RDMA = Link("RDMA", fixed_s=0.011, bytes_per_s=20e9)
TCP = Link("TCP", fixed_s=0.015, bytes_per_s=1.65e9)
"""Fitted to TTFT measured with and without a hand-off (docs/fabric.md), Qwen3-32B at TP2: exposed 17, 36, 67
and 83 ms over RDMA and 97, 349, 724 and 634 ms over TCP, for 1K, 4K, 16K and 32K tokens."""

CROSS_NUMA_SHARE = 24.0 / 48.9
"""Of a NIC's bandwidth that is left to a GPU on another NUMA node: GPU-to-GPU writes over one NIC, 24 GB/s
against 48.9 GB/s."""

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


@dataclass(frozen=True, slots=True)
class KvShape:
    """A model's KV per token: `layers` with `heads` KV heads of `head_dim` elements, twice (keys and values).

    With `latent` set (multi-head latent attention) each layer has one latent of so many elements instead,
    the same on every rank. `element_bytes` is of the KV's type.
    """

    layers: int
    heads: int = 0
    head_dim: int = 0
    latent: int = 0
    element_bytes: int = 2

    def rank_bytes(self, tp: int) -> int:
        """Bytes of one token on each of `tp` ranks; heads fewer than ranks are held several times."""
        if self.latent:
            return self.layers * self.latent * self.element_bytes
        return 2 * self.layers * max(1, self.heads // tp) * self.head_dim * self.element_bytes


_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def kv_shape(config: Mapping[str, Any]) -> KvShape | None:
    """The KV of the model that `config` (its config.json) describes.

    None where it does not say, and for models whose layers differ (linear attention, sliding windows, ...):
    their state is not one size per token, and is never scaled from the layers that are.
    """
    text = config.get("text_config")
    told: Mapping[str, Any] = {**config, **text} if isinstance(text, Mapping) else config
    if len(set(map(str, told.get("layer_types") or ()))) > 1 or told.get("linear_num_key_heads"):
        return None
    kind = str(told.get("dtype") or told.get("torch_dtype") or "bfloat16")
    size = _ELEMENT_BYTES.get(kind.removeprefix("torch."), 2)
    layers = _positive(told, "num_hidden_layers")
    latent, rope = _positive(told, "kv_lora_rank"), _positive(told, "qk_rope_head_dim")
    if layers and latent and rope:
        return KvShape(layers, latent=latent + rope, element_bytes=size)
    queries = _positive(told, "num_attention_heads")
    heads = _positive(told, "num_key_value_heads") or queries
    width = _positive(told, "hidden_size")
    dim = _positive(told, "head_dim") or (width // queries if width and queries else None)
    if not (layers and heads and dim):
        return None
    return KvShape(layers, heads, dim, element_bytes=size)


def _positive(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and value > 0 else None
