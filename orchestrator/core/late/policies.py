"""The policies of a late profile: filters that take endpoints out, scorers that add seconds to their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import isfinite
from random import Random

from orchestrator.core.choosing import OnPolicyError, failure
from orchestrator.core.contracts import Context
from orchestrator.core.frozen import record
from orchestrator.core.inflight import Ledger
from orchestrator.core.late.board import Board
from orchestrator.core.late.lanes import Lane
from orchestrator.core.late.queue import Item
from orchestrator.core.lateprofile import LateProfile, LateRole
from orchestrator.core.prediction import Predictor
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.types import Endpoint, Role


@record(slots=True, eq=False)
class Added:
    """What policies say of a request's stations: the seconds they add to the cost of those that they left.

    `parts` are the seconds of each scorer, by station; `filtered` who was taken out by what; `failed` the
    policies that were passed over.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    filtered: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Policies:
    """Asks the policies of a profile; one that fails is passed over, counted and named."""

    def __init__(
        self,
        profile: LateProfile,
        board: Board,
        ledger: Ledger,
        predictor: Predictor,
        cached: PrefixCheck,
        rng: Random,
        block_tokens: int,
        on_error: OnPolicyError,
    ) -> None:
        self._profile = profile
        self._board = board
        self._ledger = ledger
        self._predictor = predictor
        self._cached = cached
        self._rng = rng
        self._block_tokens = block_tokens
        self._on_error = on_error
        roles = (profile.prefill, profile.unified)
        self._any = any(role.filters or role.scorers for role in roles)

    def added(self, lane: Lane, item: Item, now_s: float) -> Added | None:
        """What the policies say of each station; None: there are none."""
        if not self._any:
            return None
        snapshot = self._ledger.snapshot(now_s)
        views = {e.id: e for e in snapshot.endpoints}
        added = Added()
        for role, mine in ((Role.PREFILL, self._profile.prefill), (Role.UNIFIED, self._profile.unified)):
            apart = role is Role.PREFILL
            stations = [s for s in lane.stations if s.disaggregated is apart]
            if not stations or not (mine.filters or mine.scorers):
                continue
            context = Context(
                snapshot=snapshot,
                role=role,
                now_s=now_s,
                rng=self._rng,
                prefix=self._cached.reader(item.request),
                block_tokens=self._block_tokens,
                predictor=self._predictor,
                slo=item.slo,
                first_token_by_s=item.first_token_by_s,
                wait_s=lambda endpoint_id: self._board.stations[endpoint_id].wait_s(now_s),
            )
            self._ask(mine, item, [views[s.id] for s in stations if s.id in views], context, added)
        return added

    def _ask(
        self, role: LateRole, item: Item, candidates: Sequence[Endpoint], context: Context, added: Added
    ) -> None:
        left = tuple(candidates)
        for step in role.filters:
            before = left
            try:
                left = _kept(step.policy.filter(item.request, left, context), left)
            except Exception as error:  # noqa: BLE001  a stranger's code: no fault of it may cost a request
                self.bypass(step.name, step.policy, error)
                added.failed.append(step.name)
            if len(left) < len(before):
                ids = {e.id for e in left}
                added.filtered.update((e.id, step.name) for e in before if e.id not in ids)
            if not left:
                return
        for endpoint in left:
            added.parts[endpoint.id] = {}
        for scorer in role.scorers:
            try:
                seconds = tuple(map(float, scorer.policy.score(item.request, left, context)))
                if len(seconds) != len(left) or not all(map(isfinite, seconds)):
                    raise ValueError(f"a scorer returns one finite figure for each of {len(left)} candidates")
            except Exception as error:  # noqa: BLE001  as above
                self.bypass(scorer.name, scorer.policy, error)
                added.failed.append(scorer.name)
                continue
            for endpoint, cost_s in zip(left, seconds, strict=True):
                added.parts[endpoint.id][scorer.name] = cost_s
                added.seconds[endpoint.id] = added.seconds.get(endpoint.id, 0.0) + cost_s

    def bypass(self, name: str, policy: object, error: Exception) -> None:
        """A policy failed; the decision goes on without it."""
        self._on_error(name, failure(name, policy, error))


def _kept(kept: Sequence[Endpoint], left: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """What a filter left of `left`. Raises ValueError if it kept others."""
    ids = {e.id for e in kept}
    strangers = ids.difference(e.id for e in left)
    if strangers:
        raise ValueError(f"kept {', '.join(sorted(strangers))}, which it was not given")
    return tuple(e for e in left if e.id in ids)
