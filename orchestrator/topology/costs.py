"""What a link costs the requests of a pool, in words, for findings."""

from __future__ import annotations

from orchestrator.core.transfer import (
    RDMA,
    REFERENCE_CHUNK_TOKENS,
    REFERENCE_TOKEN_BYTES,
    TCP,
    Link,
    exposed_s,
    reference_ttft_s,
)
from orchestrator.topology.inputs import Inputs, Part


def _wait_s(inputs: Inputs, part: Part, link: Link, share: float = 1.0) -> float:
    prior = part.profile.prior
    chunk = (prior.chunk_tokens if prior is not None else None) or REFERENCE_CHUNK_TOKENS
    return exposed_s(
        link, part.pool.prompt_tokens, token_bytes=_token_bytes(inputs, part), chunk_tokens=chunk, share=share
    )


def _token_bytes(inputs: Inputs, part: Part) -> int:
    return REFERENCE_TOKEN_BYTES if inputs.kv is None else inputs.kv.rank_bytes(part.pool.tp)


def against(inputs: Inputs, part: Part, share: float) -> str:
    """What a part of the bandwidth costs, against all of it."""
    tokens = part.pool.prompt_tokens
    worse, usual = (_wait_s(inputs, part, RDMA, s) * 1000 for s in (share, 1.0))
    return (
        f"a prompt of {tokens} tokens waits about {worse:.0f} ms for its KV, not {usual:.0f} ms"
        f" (estimated{_basis(inputs, part)})"
    )


def tcp_cost(inputs: Inputs, part: Part) -> str:
    """What TCP costs, against RDMA, and as a share of the time to the first token where that is known."""
    tokens = part.pool.prompt_tokens
    tcp, rdma = (_wait_s(inputs, part, link) for link in (TCP, RDMA))
    added = ""
    if inputs.kv is None:
        added = f", {tcp / reference_ttft_s(tokens):.0%} on top of its TTFT,"
    return (
        f"a prompt of {tokens} tokens waits about {tcp * 1000:.0f} ms for its KV{added} and "
        f"{rdma * 1000:.0f} ms over RDMA (estimated{_basis(inputs, part)})"
    )


def _basis(inputs: Inputs, part: Part) -> str:
    if inputs.kv is None:
        return " for a model like Qwen3-32B at tp 2"
    return f" for {_token_bytes(inputs, part) / 1024:g} KiB of KV a token and rank"
