"""What became of each request of a replay, and of the engines, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.contracts import Assign
from orchestrator.core.types import End, Outcome, RequestView, Route
from orchestrator.sim.jobs import Counters
from orchestrator.sim.replay.job import LeanJob
from orchestrator.sim.replay.steps import Histogram


class Life:
    """One request. Times are virtual seconds as the client (or the router) has them, network included.

    `first_s` and `last_s` are when the client had its first and last token, `worst_gap_s` its longest gap;
    `refused` is why it got none. `sent_s` is when its (last) route was decided, `prefilled_s` when the engine
    had computed its prompt, `cached_tokens` how much of it was in a cache.
    """

    __slots__ = (
        "attempts", "cached_tokens", "decode_job", "ended_s", "fed_s", "first_s", "hashes", "last_s",
        "output_tokens", "prefill_job", "prefilled_s", "provisional", "refused", "retry_after_s", "route",
        "sent_s", "stages", "view", "worst_gap_s",
    )  # fmt: skip

    def __init__(self, view: RequestView, hashes: tuple[int, ...], output_tokens: int) -> None:
        self.view = view
        self.hashes = hashes
        self.output_tokens = output_tokens
        self.attempts = 0
        self.cached_tokens = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.ended_s: float | None = None
        self.worst_gap_s = 0.0
        self.refused = ""
        self.retry_after_s: float | None = None
        self.again()

    def again(self) -> None:
        """As if it had never been routed."""
        self.route: Route | None = None
        self.provisional = False
        self.sent_s = 0.0
        self.fed_s: float | None = None
        self.prefilled_s: float | None = None
        self.prefill_job: LeanJob | None = None
        self.decode_job: LeanJob | None = None
        self.stages: dict[str, float] = {}

    def assigned(self, assign: Assign, now_s: float) -> None:
        """It has a route."""
        self.attempts += 1
        self.route = assign.route
        self.provisional = assign.provisional
        self.sent_s = now_s
        self.stages["queue"] = now_s - self.view.arrived_s

    @property
    def ttft_s(self) -> float | None:
        """From arrival to the first token; None if there was none."""
        return None if self.first_s is None else self.first_s - self.view.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """The mean gap; 0 for a single token, None if it did not end well."""
        if self.first_s is None or self.last_s is None:
            return None
        return (self.last_s - self.first_s) / max(1, self.output_tokens - 1)

    def outcome(self, end: End, status: int, reason: str, now_s: float) -> Outcome:
        """As the router would tell the scheduler."""
        done = end is End.COMPLETED
        return Outcome(
            request_id=self.view.id,
            end=end,
            http_status=status,
            reason=reason,
            route=self.route,
            prompt_tokens=self.view.prompt_tokens if done else None,
            cached_tokens=self.cached_tokens if done else None,
            output_tokens=self.output_tokens if done else None,
            ttft_s=self.ttft_s,
            e2e_s=now_s - self.view.arrived_s,
            stages=self.stages,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A replay's raw result. `offered` counts the requests that a share is taken of; those of the trace that
    had not ended when it was `stopped` (by a person: `interrupted`) are none. `rate` is the trace's mean
    arrivals a second as replayed. `gaps` are all gaps between tokens, by engine; `queue_s` sums, by engine,
    the requests that waited there at each of the `polls`. `policy_errors` are, by name, how often a policy
    failed and was passed over, and what it said last."""

    lives: list[Life]
    offered: int
    seconds: float
    events: int
    stopped: bool
    interrupted: bool
    rate: float
    gaps: Mapping[str, Histogram]
    busy_s: Mapping[str, float]
    counters: Mapping[str, Counters]
    queue_s: Mapping[str, int]
    polls: int
    policy_errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
