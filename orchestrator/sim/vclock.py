"""Virtual time over a real clock: scaled by a speed, and able to stand still."""

from __future__ import annotations

from orchestrator.clock import Clock


class VirtualClock:
    """Virtual seconds since the start: `speed` of them pass in one real second, none while held."""

    def __init__(self, clock: Clock, speed: float) -> None:
        self._clock = clock
        self.speed = speed
        self._origin_s = clock.now_s()
        self._held_at_s: float | None = None

    def now_s(self) -> float:
        """Virtual seconds since the start."""
        if self._held_at_s is not None:
            return self._held_at_s
        return (self._clock.now_s() - self._origin_s) * self.speed

    def real_s(self, virtual_s: float) -> float:
        """How long `virtual_s` lasts on the real clock."""
        return virtual_s / self.speed

    @property
    def held(self) -> bool:
        """Whether time stands still."""
        return self._held_at_s is not None

    def hold(self) -> None:
        """Let time stand still."""
        if self._held_at_s is None:
            self._held_at_s = self.now_s()

    def go(self) -> None:
        """Let it pass again, from where it stood."""
        if self._held_at_s is not None:
            self._origin_s = self._clock.now_s() - self._held_at_s / self.speed
            self._held_at_s = None
