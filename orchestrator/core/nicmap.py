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

    By default a GPU gets its even share of those on its PCIe switch: one of eight where there is one beside
    each GPU, all four where a switch has four and one GPU. Otherwise it gets one, shared with others where
    there are fewer than GPUs; those with one of their own choose first. Of equally near ones the fastest come
    first: a 25 Gbit/s management port is no peer of a 400 Gbit/s one.
    """
    chosen = [gpu for gpu in fabric.gpus if gpus is None or gpu.index in gpus]
    tiers = {gpu.index: _tiers(fabric, gpu) for gpu in chosen}
    rivals = Counter(found[0].names for found in tiers.values() if found)
    used: Counter[str] = Counter()
    picks = []
    served = [gpu for gpu in chosen if tiers[gpu.index]]
    for gpu in sorted(served, key=lambda gpu: (tiers[gpu.index][0].distance, gpu.index)):
        nearest = tiers[gpu.index][0]
        share = len(nearest.names) // rivals[nearest.names] if nearest.distance <= Distance.PXB else 1
        names = _fewest_used(tiers[gpu.index], per_gpu or max(1, share), used)
        used.update(names)
        far = max(distance(gpu, nic, fabric.told) for nic in fabric.active_nics if nic.name in names)
        picks.append(Pick(gpu.index, names, far))
    return tuple(sorted(picks, key=lambda pick: pick.gpu))


@dataclass(frozen=True, slots=True)
class _Tier:
    """NICs equally far from a GPU, and equally fast."""

    distance: Distance
    names: tuple[str, ...]


def _fewest_used(tiers: Sequence[_Tier], wanted: int, used: Counter[str]) -> tuple[str, ...]:
    names: list[str] = []
    for tier in tiers:
        names += sorted(tier.names, key=lambda name: (used[name], natural(name)))[: wanted - len(names)]
        if len(names) == wanted:
            break
    return tuple(names)


def _tiers(fabric: Fabric, gpu: Gpu) -> list[_Tier]:
    """The NICs that are up in groups, nearest and then fastest first."""
    groups: dict[tuple[Distance, float], list[Nic]] = {}
    for nic in fabric.active_nics:
        key = (distance(gpu, nic, fabric.told), -(nic.rate_gbps or 0.0))
        groups.setdefault(key, []).append(nic)
    return [
        _Tier(key[0], tuple(sorted((nic.name for nic in groups[key]), key=natural))) for key in sorted(groups)
    ]
