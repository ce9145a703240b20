"""What the scheduler says (its decisions), and what a policy is told: what waits, and the circumstances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import inf
from random import Random
from typing import Any, Protocol

from orchestrator.core.frozen import frozen, record
from orchestrator.core.prediction import Predictor
from orchestrator.core.slo import SloClass
from orchestrator.core.types import Choice, Endpoint, Prediction, RequestView, Role, Route, Snapshot


@frozen(frozen=True, slots=True)
class Assign:
    """The scheduler's yes: `route` for the request, and why (one Choice per role).

    `provisional`: the route's decode side is only a guess yet. The prefill leg starts at once, and when it is
    done the `Bind` that names the decode side follows, at once or later (or a `Spent`).
    `predicted` is of this moment, `admitted` what was predicted when the request was queued.
    `explain` makes `why` where that costs too much to be made for every request; asked once at most, before
    the scheduler is called again.
    """

    request_id: str
    route: Route
    why: tuple[Choice, ...] = ()
    provisional: bool = False
    predicted: Prediction | None = None
    explain: Callable[[], tuple[Choice, ...]] | None = None
    admitted: Prediction | None = None


@frozen(frozen=True, slots=True)
class Reject:
    """The scheduler's no: a reason slug, the HTTP status it becomes (429 or 503), and when to retry.

    `explain` tells what there was to choose from, as `Assign.explain` does.
    """

    request_id: str
    reason: str
    message: str
    http_status: int = 429
    retry_after_s: float | None = None
    predicted: Prediction | None = None
    explain: Callable[[], tuple[Choice, ...]] | None = None
    why: tuple[Choice, ...] = ()


@frozen(frozen=True, slots=True)
class Bind:
    """The decode side of a request whose Assign was provisional: its prefill is done, decode may start."""

    request_id: str
    route: Route
    explain: Callable[[], tuple[Choice, ...]] | None = None
    why: tuple[Choice, ...] = ()


@frozen(frozen=True, slots=True)
class Spent:
    """No decode side took a finished prefill in time, and its KV will not be kept any longer.

    The shell drops the hand-off, ends the attempt with `finish`, and submits the request again.
    """

    request_id: str
    reason: str = "handoff-expired"


@frozen(frozen=True, slots=True)
class Poll:
    """Read this endpoint's load at once and `observe` it: a prefill there should be over by now."""

    endpoint: str
    request_id: str = ""
    """Always empty: it is for no request."""


@frozen(frozen=True, slots=True)
class Slice:
    """Have the first `tokens` of the prompt computed at the prefill (or only) end of `route`, and kept there.

    The request goes on waiting: when the shell has told of the PREFILL leg there that it is `done`, or
    `failed`, another Slice follows, or the Assign or Reject. `number` counts the request's slices from 0. The
    decode end of the route is for engines that compute nothing for themselves alone.
    """

    request_id: str
    route: Route
    tokens: int
    number: int


Decision = Assign | Reject | Bind | Spent | Poll | Slice


@record(slots=True, eq=False)
class Waiting:
    """A request in the router's queue, equal to itself alone. Times are on the router's monotonic clock.

    `work_s` is its least remaining uncached prefill over the endpoints that may compute it, refreshed when
    cache contents change. `first_token_by_s` is its deadline (inf: none), `latest_start_s` when its prefill
    must start at the latest to make it.
    """

    request: RequestView
    arrived_s: float
    work_s: float
    first_token_by_s: float
    latest_start_s: float


class PrefixReader(Protocol):
    """What a policy may ask the prefix index."""

    def cached_blocks(self, endpoint_id: str, block_hashes: Sequence[int]) -> int:
        """How many leading blocks of the prompt `endpoint_id` is believed to hold."""
        ...


def _no_wait(endpoint_id: str) -> float:
    return 0.0


def _no_limit(endpoint_id: str) -> float:
    return inf


@frozen(frozen=True, slots=True)
class Context:
    """What a policy is given beside the request and the candidates.

    `prefill` is the prefill endpoint already chosen when the decode side is being decided.
    `block_tokens` is the number of tokens one block hash stands for.
    """

    snapshot: Snapshot
    role: Role
    now_s: float
    rng: Random
    prefix: PrefixReader
    prefill: Endpoint | None = None
    block_tokens: int = 128
    extra: Mapping[str, object] = field(default_factory=dict)
    predictor: Predictor | None = None
    """None where the router runs without one."""
    slo: SloClass | None = None
    """The request's class, if it has one."""
    first_token_by_s: float = inf
    """When its first token is due."""
    wait_s: Callable[[str], float] = _no_wait
    """Predicted seconds until the endpoint has computed the prompts it was given."""
    step_limit_s: Callable[[str], float] = _no_limit
    """The strictest gap promised to a request that the endpoint decodes now; inf: none."""
    shared: dict[Any, Any] = field(default_factory=dict)
    """What the policies of one role's decision leave for each other, so that nothing is worked out twice."""

    @property
    def unix_s(self) -> float:
        """The time of day: seconds since the Unix epoch (in a replay, since the trace began)."""
        return self.snapshot.unix_s + (self.now_s - self.snapshot.at_s)
