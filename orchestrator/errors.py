"""The whole exception tree: what can go wrong, its slug, and the exit code or HTTP status it becomes.

    PdctlError
    ├── TopologyError        exit 2   schema, unknown plug-in or profile, placement, lint
    │   ├── PluginError      a reference to a plug-in leads nowhere, or what it names does not load
    │   ├── ParamError       a scheduling profile, or a policy's parameters, are not what they must be
    │   └── TraceError       a trace to replay is not what it must be
    ├── LaunchError          exit 3   ready timeout, retries spent, port taken, controller unreachable
    ├── PolicyError          never leaves the scheduler: it fails open and is counted
    ├── IllegalTransition    an event that an instance's lifecycle has no place for in its state
    ├── AccountingError      the router told the scheduler of work that it never began, or ended twice
    └── RequestError         HTTP
        ├── BadRequest       400  malformed, or something the engine cannot do
        ├── Unauthorized     401  missing or wrong client key
        ├── NotServed        404  unknown model or path
        ├── WrongMethod      405  the path takes another method
        ├── TooLarge         413  body over the limit
        ├── Overloaded       429  SLO not reachable or queue full; carries retry_after_s
        ├── LegFailed        502  an engine's leg failed
        ├── NoCapacity       503  no endpoint could ever take it now
        └── StageDeadline    504  a stage ran past its deadline

`reason` is a slug: metric label, log field, `x-pdctl-reason` header, `error.code` of the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

MAX_MESSAGE = 2000
MAX_PARAM = 200
"""Characters of a request error's message, and of the name of a field, that are told."""


def bounded(text: str, most: int) -> str:
    """`text`, or its beginning and how much more there was."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more)"


class PdctlError(Exception):
    """Root of every error pdctl raises on purpose.

    `reason` is a slug of lower-case words joined by hyphens; each class has a default one.
    """

    default_reason: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a user's file: where it is, what it is, and how to mend it.

    `file` and `line` are None where no file is to blame (a `--set` override, say); `field` is the
    dotted path in the file (`pools.prefill.instances`); `rule` names the lint rule, if one spoke.
    `severity` is `error` (refused) or `warn` (said, and gone on).
    """

    message: str
    file: str | None = None
    line: int | None = None
    field: str | None = None
    hint: str | None = None
    rule: str | None = None
    severity: str = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file and self.line else self.file or ""
        # `--set a.b` has named the field already.
        field = None if self.field and where.endswith(f" {self.field}") else self.field
        parts = [p for p in (where, field) if p]
        text = f"{': '.join(parts)}: {self.message}" if parts else self.message
        if self.rule:
            text += f" [{self.rule}]"
        return f"{text} ({self.hint})" if self.hint else text


class TopologyError(PdctlError):
    """The topology cannot be loaded, checked or planned; `problems` holds every finding at once."""

    default_reason = "bad-topology"
    exit_code = 2

    def __init__(self, problems: Sequence[Problem], *, reason: str | None = None) -> None:
        super().__init__("\n".join(str(p) for p in problems), reason=reason)
        self.problems = tuple(problems)


class PluginError(TopologyError):
    """A plug-in reference names nothing that exists, or something that does not load."""

    default_reason = "bad-plugin"


class ParamError(TopologyError):
    """A scheduling profile or a policy's parameters are refused; all findings at once.

    `paths[i]` says where `problems[i]` lies, from the top of what was given down to the field
    (`("prefill", "scorers", 0, "weight")`), so that a loader can add the file and line.
    """

    default_reason = "bad-params"

    def __init__(self, findings: Sequence[tuple[tuple[str | int, ...], Problem]]) -> None:
        super().__init__([problem for _, problem in findings])
        self.paths = tuple(path for path, _ in findings)


class TraceError(TopologyError):
    """A trace of requests cannot be read; `problems` names file and line."""

    default_reason = "bad-trace"


class LaunchError(PdctlError):
    """Something pdctl started, or has to reach, did not come up or did not obey."""

    default_reason = "launch-failed"
    exit_code = 3


class PolicyError(PdctlError):
    """A policy raised, stalled or returned nonsense; the scheduler falls back and counts it.

    `policy` is its name in the scheduling profile.
    """

    default_reason = "policy-failed"

    def __init__(self, message: str, *, policy: str = "", reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.policy = policy


class IllegalTransition(PdctlError):
    """An event came in a state that has no transition for it: a fault of the supervisor, not of an engine."""

    default_reason = "illegal-transition"


class AccountingError(PdctlError):
    """Work was ended that is not in flight, or begun twice: a fault of the caller, never of a client."""

    default_reason = "bad-accounting"


class RequestError(PdctlError):
    """A request that the router itself answers with an error.

    `retry_after_s` becomes the Retry-After header; `param` names the offending request field.
    """

    default_reason = "request-failed"
    http_status: ClassVar[int] = 500
    error_type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        # Both may hold what a client or an engine wrote, and go into answers and logs.
        super().__init__(bounded(message, MAX_MESSAGE), reason=reason)
        self.param = None if param is None else bounded(param, MAX_PARAM)
        self.retry_after_s = retry_after_s


class BadRequest(RequestError):
    """The request is malformed, or asks for what no engine behind the router can do."""

    default_reason = "bad-request"
    http_status = 400
    error_type = "invalid_request_error"


class Unauthorized(RequestError):
    """The client's key is missing or wrong."""

    default_reason = "unauthorized"
    http_status = 401
    error_type = "authentication_error"


class NotServed(RequestError):
    """No such model or path here."""

    default_reason = "not-found"
    http_status = 404
    error_type = "not_found_error"


class WrongMethod(RequestError):
    """The path is served for the methods of `allow` (the Allow header), not for this one."""

    default_reason = "wrong-method"
    http_status = 405
    error_type = "invalid_request_error"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class TooLarge(RequestError):
    """The body is over the router's limit."""

    default_reason = "too-large"
    http_status = 413
    error_type = "invalid_request_error"


class Overloaded(RequestError):
    """The fleet cannot keep this request's promise now, or its queue is full."""

    default_reason = "overloaded"
    http_status = 429
    error_type = "rate_limit_error"


class LegFailed(RequestError):
    """An engine refused, failed or dropped its leg of a request."""

    default_reason = "leg-failed"
    http_status = 502


class NoCapacity(RequestError):
    """No endpoint that could serve the request is ready."""

    default_reason = "no-capacity"
    http_status = 503


class StageDeadline(RequestError):
    """A stage of the request ran past its deadline."""

    default_reason = "deadline"
    http_status = 504
