"""Which parallel sizes a model and a pair of them can have, as far as all engines share it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.engines import rules
from orchestrator.engines.base import InstanceSpec
from orchestrator.engines.linting import Writer, one_per_pool
from orchestrator.errors import Problem


def latent(writer: Writer) -> bool | None:
    """Whether the model has multi-head latent attention (MLA), whose KV is the same on every rank; None where
    that is not known."""
    kv = writer.context.kv
    return None if kv is None else kv.latent > 0


def heads(writer: Writer) -> int | None:
    """KV heads of the model; None where that is not known, or it has none of its own (MLA)."""
    kv = writer.context.kv
    return kv.heads if kv is not None and not kv.latent and kv.heads > 0 else None


def shared_out(writer: Writer) -> Iterator[Problem]:
    """Findings for pools whose tensor parallelism the model's KV heads cannot be shared out by."""
    count = heads(writer)
    for spec in one_per_pool(writer.context.specs):
        tp = spec.shape.tp
        if count is not None and count % tp and tp % count:
            yield writer.problem(
                spec,
                rules.ILLEGAL_TP,
                f"tp {tp}: the model's {count} KV heads cannot be shared out over {tp} ranks",
                hint="a tp that divides the heads, or is a multiple of them",
                field="tp",
            )


def uneven(writer: Writer, prefill: InstanceSpec, decode: InstanceSpec, p: int, d: int) -> Problem | None:
    """The finding for a pair of tensor-parallel sizes of which neither divides the other."""
    if p % d == 0 or d % p == 0:
        return None
    return writer.problem(
        decode,
        rules.ILLEGAL_TP,
        f"tp {d} here and {p} in {prefill.pool}: neither divides the other",
        hint="sizes of which one divides the other",
        field="tp",
    )
