"""What tokens on host memory or storage are worth: what bringing them back saves, as learned."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.frozen import record
from orchestrator.core.kvevents import Tier
from orchestrator.core.kvindex import Behind
from orchestrator.core.late.lanes import Lane
from orchestrator.core.prediction import Curve

PRIOR: Mapping[Tier, float] = {Tier.HOST: 0.05, Tier.STORAGE: 0.3}
"""Before anything is learned, a token takes such a share of what computing it does (by the launch profile),
as over PCIe at 20 GB/s, and from disks at 3 GB/s, with a model of 32 billion parameters. Assumed."""

WEIGHT = 0.2
"""Of each lesson."""

LEAST_TOKENS = 256
"""Fewer brought back tell nothing: what else differs is more."""


@record(slots=True)
class Brought:
    """What of a prompt an endpoint had to bring back from one tier when it was sent there."""

    tier: Tier
    tokens: int
    end: int
    """Tokens that it had on any tier."""


class Bringing:
    """Seconds that a token takes from each tier of each endpoint."""

    def __init__(self) -> None:
        self._token_s: dict[tuple[str, Tier], float] = {}

    def token_s(self, endpoint_id: str, tier: Tier, curve: Curve) -> float:
        """Seconds to bring a token back: learned, else by the prior."""
        learned = self._token_s.get((endpoint_id, tier))
        return PRIOR[tier] * curve.token_s if learned is None else learned

    def worth(self, lane: Lane, hits: dict[str, int], behind: Mapping[str, Behind], tokens: int) -> None:
        """Let tokens on slower tiers count in `hits` for what they save; none where computing is faster."""
        for endpoint_id, found in behind.items():
            station = lane.station(endpoint_id)
            if station is None:
                continue
            curve, end = station.curve, found.held
            hit = min(found.held, tokens - 1)
            whole_s = best_s = curve.seconds(tokens, hit)
            reach, spent_s = hit, 0.0
            for tier, count in found.slow:
                end = min(end + count, tokens - 1)
                spent_s += count * self.token_s(endpoint_id, tier, curve)
                takes_s = spent_s + curve.seconds(tokens, end)
                if takes_s < best_s:
                    best_s, reach = takes_s, end
            if reach > hit:
                saves_s = whole_s - curve.seconds(tokens, reach)
                hits[endpoint_id] = hit + int((reach - hit) * (whole_s - best_s) / saves_s)

    def brought(self, endpoint_id: str, behind: Mapping[str, Behind]) -> Brought | None:
        """What a prompt sent there will bring back, if that can teach anything."""
        found = behind.get(endpoint_id)
        if found is None or len(found.slow) != 1 or found.slow[0][1] < LEAST_TOKENS:
            return None
        tier, count = found.slow[0]
        return Brought(tier, count, found.held + count)

    def learn(self, endpoint_id: str, brought: Brought, curve: Curve, tokens: int, seconds: float) -> None:
        """A prompt was computed in `seconds`, nothing else beside it."""
        took_s = max(0.0, seconds - curve.seconds(tokens, min(brought.end, tokens - 1))) / brought.tokens
        before = self.token_s(endpoint_id, brought.tier, curve)
        self._token_s[endpoint_id, brought.tier] = before + WEIGHT * (took_s - before)

    def forget(self, endpoint_id: str) -> None:
        """It is another process, perhaps with another memory behind it."""
        for tier in PRIOR:
            self._token_s.pop((endpoint_id, tier), None)
