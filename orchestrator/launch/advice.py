"""What the supervisor does about instances of which the router sees that no work is done, or done wrong."""

from __future__ import annotations

import logging

from orchestrator.core.lifecycle import State
from orchestrator.launch.fleet import Fleet
from orchestrator.launch.keeper import Keeper
from orchestrator.launch.routerlink import Sick

log = logging.getLogger(__name__)


class Advice:
    """Heeds what the router says of the units of a fleet; of instances of others, the router itself keeps
    work away.

    One that hangs has failed. One with bad pairs has failed too, but such are started anew one at a time,
    for it may be the other side's fault, and only while tries are left: it is not given up after that, since
    what is between the two may be broken, and the router tries them again by itself.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._left: dict[str, str] = {}

    def heed(self, sick: Sick, *, settled: bool) -> None:
        """Start anew who should be; of those with bad pairs, one, if all else is `settled`."""
        for name, why in sick.hung.items():
            keeper = self._fleet.keepers.get(name)
            if keeper is not None:
                keeper.fail(f"hung: {why}")
        left: dict[str, str] = {}
        for name, why in sick.mispaired.items():
            keeper = self._fleet.keepers.get(name)
            if keeper is None or keeper.state is not State.READY or name in sick.hung:
                continue
            if keeper.life.spent(self._fleet.shell.clock.now_s()):
                left[name] = f"{why}; it is not started anew again for it, the router keeps them apart"
            elif settled:
                settled = False
                log.warning("%s: started anew: %s", name, why)
                keeper.fail(why)
        self._tell(left)

    def _tell(self, left: dict[str, str]) -> None:
        """Show of each instance that is left as it is why that is so."""
        for name in left.keys() - self._left.keys():
            log.warning("%s: %s", name, left[name])
        for name in left.keys() | self._left.keys():
            keeper = self._fleet.keepers.get(name)
            if keeper is not None:
                self._show(keeper, left.get(name, ""), self._left.get(name, ""))
        self._left = left

    def _show(self, keeper: Keeper, text: str, before: str) -> None:
        if keeper.state is State.READY and keeper.detail in ("", before) and keeper.detail != text:
            keeper.detail = text
            self._fleet.pulse()
