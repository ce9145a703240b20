"""`frozen`: the dataclass decorator of immutable data that every request makes several of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as frozen
else:
    from dataclasses import dataclass

    def frozen(*, frozen: bool, slots: bool):
        """`dataclass(frozen=True, slots=True)`, frozen to the type checker alone.

        At run time a frozen dataclass sets each field through a call of `object.__setattr__`, and is made
        five times slower (14 fields: 1.4 us against 0.27 us): a tenth of what a request cost the router.
        """
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["frozen"]
