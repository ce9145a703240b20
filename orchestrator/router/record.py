"""What is known so far of one request, filled in along its life, and the Outcome it becomes."""

from __future__ import annotations

from typing import Protocol

from orchestrator.core.contracts import Assign, Bind, Reject
from orchestrator.core.slo import SloClass
from orchestrator.core.types import End, Outcome, PathKind, RequestView, Route
from orchestrator.errors import RequestError
from orchestrator.router.stream import NO_USAGE, Usage
from orchestrator.topology.plan import Timeouts

CLIENT_LEFT = 499
"""The status logged for a client that left before it had one (nginx's convention)."""

BLAMELESS = frozenset({"internal", "engine-hung", "connect-failed", "total-deadline", "handoff-expired"})
"""Reasons of failures that are nobody's, or that the registry has found by itself."""

FULL = "engine-queue-full"
"""The one reason with a 4xx that speaks of the engine: one that always is full is given a rest too."""


class Record:
    """One request's facts. Times are seconds on the router's monotonic clock, stages seconds by name.

    Until the first token the stages of a stream add up to its TTFT, and until its end to the whole: each is
    the time from the mark before it, `since_s` (see `mark`). `view`, `assign`, `bind` and `reject` are what
    was decided about and how; `tries` the attempts that failed: route, reason, and when after its arrival.
    `clamped_from` is the SLO class it asked for and may not use; `explains`: its answer tells of its
    decision. `timeouts` are its deadlines, where its class has some of its own. `status` is what the client
    was or would have been told; `ended_s` when it had everything, though a leg may answer later.
    """

    __slots__ = (
        "arrived_s", "assign", "attempts", "bind", "clamped_from", "client_id", "end", "ended_s", "explains",
        "first_s", "id", "kind", "message", "model", "reason", "reject", "route", "since_s", "stages",
        "status", "submitted", "tenant", "timeouts", "tries", "usage", "view",
    )  # fmt: skip

    def __init__(self, request_id: str, kind: PathKind, arrived_s: float) -> None:
        self.id = request_id
        self.kind = kind
        self.arrived_s = self.since_s = arrived_s
        self.client_id: bytes | None = None
        self.model = ""
        self.tenant: str | None = None
        self.route: Route | None = None
        self.submitted = False
        self.attempts = 0
        self.first_s: float | None = None
        self.ended_s: float | None = None
        self.status = 200
        self.end = End.COMPLETED
        self.reason = ""
        self.message = ""
        self.usage: Usage = NO_USAGE
        self.stages: dict[str, float] = {}
        self.view: RequestView | None = None
        self.assign: Assign | None = None
        self.bind: Bind | None = None
        self.reject: Reject | None = None
        self.timeouts: Timeouts | None = None
        self.clamped_from: str | None = None
        self.explains = False
        self.tries: tuple[tuple[Route | None, str, float], ...] = ()

    def mark(self, stage: str, now_s: float) -> float:
        """All since the last mark was `stage`; how long that was."""
        lasted_s = now_s - self.since_s
        self.since_s = now_s
        self.stages[stage] = self.stages.get(stage, 0.0) + lasted_s
        return lasted_s

    def again(self, now_s: float) -> None:
        """A failed attempt is over and another begins: as if the first had not been, but for its time."""
        self.tries = (*self.tries, (self.route, self.reason, now_s - self.arrived_s))
        self.route, self.status, self.end, self.reason, self.message = None, 200, End.COMPLETED, "", ""
        self.assign = self.bind = None
        self.stages = {"retry": now_s - self.arrived_s}
        self.since_s = now_s

    def failed(self, error: RequestError, begun: bool) -> None:
        """The request ended with `error`; `begun`: after the client had been sent the status line."""
        self.reason, self.message = error.reason, error.message
        if begun:
            self.end = End.BROKEN
            return
        self.status = error.http_status
        refused = error.http_status < 500 or self.route is None
        self.end = End.REFUSED if refused else End.FAILED

    def cancelled(self, begun: bool) -> None:
        """The client left."""
        self.end, self.reason = End.CANCELLED, "client-left"
        if not begun:
            self.status = CLIENT_LEFT

    def outcome(self, now_s: float) -> Outcome:
        """The request as it stands, for whoever accounts for it."""
        usage = self.usage
        return Outcome(
            request_id=self.id,
            end=self.end,
            http_status=self.status,
            reason=self.reason,
            route=self.route,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            output_tokens=usage.completion,
            ttft_s=None if self.first_s is None else self.first_s - self.arrived_s,
            e2e_s=(self.ended_s or now_s) - self.arrived_s,
            stages=self.stages,
        )

    def fields(self, outcome: Outcome) -> dict[str, object]:
        """The request as fields of a log line."""
        route = outcome.route
        return {
            "request_id": self.id,
            "client_request_id": "" if self.client_id is None else self.client_id.decode("latin-1"),
            "path": str(self.kind),
            "model": self.model,
            "status": outcome.http_status,
            "reason": outcome.reason,
            "why": self.message,
            "prefill": (route.prefill or "") if route else "",
            "decode": route.decode if route else "",
            "attempts": self.attempts,
            "e2e_s": outcome.e2e_s,
        }


class Recorder(Protocol):
    """What keeps requests that have ended; `DecisionLog` is one."""

    def ended(self, record: Record, outcome: Outcome, slo: SloClass | None) -> None:
        """A request is over. `slo` is its class, if it has one."""
        ...
