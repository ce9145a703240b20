"""round-robin: takes the best candidates in turn."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.policy import Context, RequestView, Role, Scored


class RoundRobin:
    """Takes candidates in turn, in the order of their ids; with scorers, those that tie for the best.

    It remembers whom it took last and goes on from there, so that one that joins, leaves or is filtered
    for a while disturbs nobody else's turn. Each model has its own turn.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[Role, str], str] = {}

    def pick(self, request: RequestView, scored: Sequence[Scored], context: Context) -> Scored:
        """The next after the last one taken."""
        best = max(s.total for s in scored)
        turn = (context.role, request.model)
        last = self._last.get(turn, "")
        # False sorts before True: first those after the last one, then from the beginning.
        taken = min((s for s in scored if s.total == best), key=lambda s: (s.endpoint <= last, s.endpoint))
        self._last[turn] = taken.endpoint
        return taken
