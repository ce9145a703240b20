"""The endpoints that may be given one request, role by role."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.frozen import frozen
from orchestrator.core.types import Endpoint


@frozen(frozen=True, slots=True)
class Fleet:
    """The endpoints that may be given a request: ready, of its model, serving its path.

    `single` are those that answer it alone; `prefill` and `decode` answer it together.
    """

    prefill: tuple[Endpoint, ...] = ()
    decode: tuple[Endpoint, ...] = ()
    single: tuple[Endpoint, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether there is any route at all."""
        return bool(self.single or (self.prefill and self.decode))

    def limited(self) -> Fleet:
        """The fleet but for prefill endpoints that every decode one is kept from, and those that have all
        they may have for now; of these the last of a role stays."""
        prefill = tuple(p for p in self.prefill if any(d.id not in p.shuns for d in self.decode))
        decode, single = (
            tuple(e for e in role if e.cap is None or e.requests < e.cap) or role
            for role in (self.decode, self.single)
        )
        return Fleet(prefill, decode, single)

    def without(self, avoid: Sequence[str]) -> Fleet:
        """The fleet but for endpoints to avoid; where a route needs one of them all the same, it stays."""
        roles = (self.prefill, self.decode, self.single)
        others = [tuple(e for e in role if e.id not in avoid) for role in roles]
        if Fleet(*others).usable:
            return Fleet(*others)
        return Fleet(*(left or role for left, role in zip(others, roles, strict=True)))
