"""What an instance is told of others and of its node: encoders, NICs, and how its transfer travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Encoders:
    """The encode instances of a deployment, as told to the instances they work for.

    `urls` are in the plan's order, those of external pools included. `transfer` is how embeddings travel, as
    the encode pool names it (None: the adapter's default), `options` are that pool's.
    """

    urls: tuple[str, ...]
    transfer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Near:
    """The NICs of one GPU by name, and where both are on the PCI bus, as far as that is known.

    `gpu_pci` is empty for GPUs of another vendor than NVIDIA: who asks for it can use no others.
    """

    names: tuple[str, ...]
    gpu_pci: str = ""
    pci: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Carriage:
    """How a KV transfer travels: `by` is `rdma` (alone), `tcp` (alone), or `either`, as the host has it.

    `tcp` names the transfer that does the same over TCP.
    """

    by: str
    tcp: str | None = None
