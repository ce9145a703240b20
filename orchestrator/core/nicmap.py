"""Which NICs each GPU uses: the nearest ones whose link is up, shared evenly by the GPUs near them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.fabric import Distance, Fabric, Gpu, Nic, distance, natural


@dataclass(frozen=True, slots=True)
class Pick:
    """The NICs of one GPU, the nearest first; `distance` is that of the farthest of them."""

    gpu: int
    nics: tuple[str, ...]
    distance: Distance


def nic_map(
    fabric: Fabric, gpus: Sequence[int] | None = None, per_gpu: int | None = None
) -> tuple[Pick, ...]:
    """The NICs of each of `gpus` (default: all), at most `per_gpu` each. Empty where no link is up.

    By default a GPU gets its even share of the nearest ones: one of eight where there is one beside each
    GPU, all four where a switch has four and one GPU, and one NIC is shared where there are fewer than GPUs.
    Of equally near ones the fastest come first: a 25 Gbit/s management port is no peer of a 400 Gbit/s one.
    """
    chosen = [gpu for gpu in fabric.gpus if gpus is None or gpu.index in gpus]
    tiers = {gpu.index: _tiers(fabric, gpu) for gpu in chosen}
    rivals = Counter(tier[0] for tier in tiers.values() if tier)
    used: Counter[str] = Counter()
    picks = []
    for gpu in chosen:
        if not (tier := tiers[gpu.index]):
            continue
        wanted = per_gpu or max(1, len(tier[0]) // rivals[tier[0]])
        names = _fewest_used(tier, wanted, used)
        used.update(names)
        far = max(distance(gpu, nic, fabric.told) for nic in fabric.active_nics if nic.name in names)
        picks.append(Pick(gpu.index, names, far))
    return tuple(picks)


def _fewest_used(tiers: Sequence[tuple[str, ...]], wanted: int, used: Counter[str]) -> tuple[str, ...]:
    names: list[str] = []
    for tier in tiers:
        names += sorted(tier, key=lambda name: (used[name], natural(name)))[: wanted - len(names)]
        if len(names) == wanted:
            break
    return tuple(names)


def _tiers(fabric: Fabric, gpu: Gpu) -> list[tuple[str, ...]]:
    """The NICs that are up in groups, nearest and then fastest first."""
    groups: dict[tuple[Distance, float], list[Nic]] = {}
    for nic in fabric.active_nics:
        key = (distance(gpu, nic, fabric.told), -(nic.rate_gbps or 0.0))
        groups.setdefault(key, []).append(nic)
    return [
        tuple(nic.name for nic in sorted(groups[key], key=lambda nic: natural(nic.name)))
        for key in sorted(groups)
    ]
