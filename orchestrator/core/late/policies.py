"""The policies of a late profile: filters that take endpoints out, scorers that add seconds to their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf, isfinite
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
    """What policies say of a request's endpoints: the seconds they add to the cost of those that they left.

    `parts` are the seconds of each scorer, by endpoint; `filtered` who was taken out by what; `failed` the
    policies that were passed over. `decode` is what they say of the decode sides; None: nothing.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    filtered: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    decode: Added | None = None


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
        self._board = board
        self._ledger = ledger
        self._predictor = predictor
        self._cached = cached
        self._rng = rng
        self._block_tokens = block_tokens
        self._on_error = on_error
        self._of = {
            role: mine
            for role, mine in (
                (Role.PREFILL, profile.prefill),
                (Role.UNIFIED, profile.unified),
                (Role.DECODE, profile.decode),
            )
            if mine.filters or mine.scorers
        }

    def added(self, lane: Lane, item: Item, now_s: float) -> Added | None:
        """What the policies say of each station, and of each decode side; None: there are none."""
        if not self._of:
            return None
        added = Added(decode=self.decode(lane, item, now_s))
        for role in (Role.PREFILL, Role.UNIFIED):
            apart = role is Role.PREFILL
            names = [s.id for s in lane.stations if s.disaggregated is apart]
            if names and role in self._of:
                self._ask(role, item, names, None, now_s, added)
        return added

    def decode(self, lane: Lane, item: Item, now_s: float, prefill: Endpoint | None = None) -> Added | None:
        """What they say of each decode side; None: nothing. `prefill` is who has computed the prompt."""
        if Role.DECODE not in self._of or not lane.decodes.sides:
            return None
        added = Added()
        self._ask(Role.DECODE, item, list(lane.decodes.sides), prefill, now_s, added)
        return added

    def _wait_s(self, endpoint_id: str, now_s: float) -> float:
        station = self._board.stations.get(endpoint_id)
        return 0.0 if station is None else station.wait_s(now_s)

    def _step_limit_s(self, endpoint_id: str) -> float:
        side = self._board.sides.get(endpoint_id)
        return inf if side is None or not side.bounds else min(side.bounds.values())[0]

    def _ask(
        self,
        role: Role,
        item: Item,
        names: Sequence[str],
        prefill: Endpoint | None,
        now_s: float,
        added: Added,
    ) -> None:
        snapshot = self._ledger.snapshot(now_s)
        views = {e.id: e for e in snapshot.endpoints}
        context = Context(
            snapshot=snapshot,
            role=role,
            now_s=now_s,
            rng=self._rng,
            prefix=self._cached.reader(item.request),
            prefill=prefill,
            block_tokens=self._block_tokens,
            predictor=self._predictor,
            slo=item.slo,
            first_token_by_s=item.first_token_by_s,
            wait_s=lambda endpoint_id: self._wait_s(endpoint_id, now_s),
            step_limit_s=self._step_limit_s,
        )
        self._run(self._of[role], item, tuple(views[name] for name in names if name in views), context, added)

    def _run(
        self, role: LateRole, item: Item, left: tuple[Endpoint, ...], context: Context, added: Added
    ) -> None:
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


def leaves_nobody(lane: Lane, added: Added | None) -> bool:
    """Whether policies leave a request no endpoint, or nobody to decode for those that they leave."""
    if added is None:
        return False
    decode = added.decode
    undecoded = decode is not None and len(decode.filtered) >= len(lane.decodes.sides)
    return all(s.id in added.filtered or (undecoded and s.disaggregated) for s in lane.stations)


def left_to(added: Added | None) -> Mapping[str, float] | None:
    """The seconds that policies add to each decode side that they leave; None: they say nothing of any."""
    if added is None or added.decode is None:
        return None
    seconds = added.decode.seconds
    return {name: seconds.get(name, 0.0) for name in added.decode.parts}


def _kept(kept: Sequence[Endpoint], left: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """What a filter left of `left`. Raises ValueError if it kept others."""
    ids = {e.id for e in kept}
    strangers = ids.difference(e.id for e in left)
    if strangers:
        raise ValueError(f"kept {', '.join(sorted(strangers))}, which it was not given")
    return tuple(e for e in left if e.id in ids)
