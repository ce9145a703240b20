"""What is known so far of one request, filled in along its life, and the Outcome it becomes."""

from __future__ import annotations

from orchestrator.core.types import End, Outcome, PathKind, Route
from orchestrator.errors import RequestError
from orchestrator.router.stream import NO_USAGE, Usage

CLIENT_LEFT = 499
"""The status logged for a client that left before it had one (nginx's convention)."""


class Record:
    """One request's facts. Times are seconds on the router's monotonic clock, stages seconds by name.

    `status` is what the client was or would have been told; `ended_s` when it had everything, though a
    leg may answer later.
    """

    __slots__ = (
        "arrived_s", "attempts", "client_id", "end", "ended_s", "first_s", "id", "kind", "message", "model",
        "reason", "route", "stages", "status", "submitted", "tenant", "usage",
    )  # fmt: skip

    def __init__(self, request_id: str, kind: PathKind, arrived_s: float) -> None:
        self.id = request_id
        self.kind = kind
        self.arrived_s = arrived_s
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

    def again(self) -> None:
        """A failed attempt is over and another begins: as if the first had not been."""
        self.route, self.status, self.end, self.reason, self.message = None, 200, End.COMPLETED, "", ""
        self.stages = {}

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
