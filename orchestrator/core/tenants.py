"""What tenants may have in the router at once, and how fast they may send: one tenant's burst is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from orchestrator.core.admission import MAX_RETRY_S, MIN_RETRY_S, Drain
from orchestrator.core.contracts import Reject
from orchestrator.core.frozen import frozen, record


@frozen(frozen=True, slots=True)
class Rate:
    """`per_second` requests in the long run, and up to `burst` at once after a pause."""

    per_second: float
    burst: int = 1


@frozen(frozen=True, slots=True)
class TenantLimits:
    """Bounds of one tenant; None: none.

    `max_inflight` counts its requests in the router, `max_queued` those of them that wait for an endpoint.
    """

    max_inflight: int | None = None
    max_queued: int | None = None
    rate: Rate | None = None

    @property
    def none(self) -> bool:
        """True where nothing is bounded."""
        return self.max_inflight is None and self.max_queued is None and self.rate is None


@record(slots=True)
class _Bucket:
    """A token bucket that is full at the start; times are on the caller's clock."""

    rate: Rate
    tokens: float
    at_s: float
    promised_s: float = float("-inf")

    def take(self, now_s: float) -> float | None:
        """None, and one token less; or how long until the refused request should come back.

        Those refused are told successive moments: told the same one, they would all come back at once.
        """
        gained = max(0.0, now_s - self.at_s) * self.rate.per_second
        self.tokens, self.at_s = min(float(self.rate.burst), self.tokens + gained), max(now_s, self.at_s)
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            return None
        gap_s = 1.0 / self.rate.per_second
        next_s = now_s + (1.0 - self.tokens) * gap_s
        self.promised_s = min(max(next_s, self.promised_s + gap_s), now_s + MAX_RETRY_S)
        return max(MIN_RETRY_S, self.promised_s - now_s)


@record(slots=True)
class _Tenant:
    limits: TenantLimits
    bucket: _Bucket | None = None
    inflight: int = 0
    queued: int = 0
    leaving: Drain = field(default_factory=Drain)
    """When one of its requests ends next."""
    moving: Drain = field(default_factory=Drain)
    """When one of its waiting requests gets its endpoint next."""


@record(slots=True)
class _Held:
    tenant: _Tenant
    since_s: float
    queued: bool = True


class Tenants:
    """Counts what each tenant with limits has in the router, and refuses what is too much.

    Whoever submits a request to the scheduler calls `submit` before, `assigned` when it has its route, and
    `finished` however it ends. Each is harmless for a request that is not held, and `submit` for one that is.
    """

    def __init__(self, limits: Mapping[str, TenantLimits]) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._held: dict[str, _Held] = {}
        self.replace(limits)

    @property
    def held(self) -> int:
        """Requests that are counted."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """No tenant has limits: nothing needs to be asked."""
        return not self._tenants

    def replace(self, limits: Mapping[str, TenantLimits]) -> None:
        """Go by other limits from now on; what is in the router stays counted."""
        known = self._tenants
        self._tenants = {}
        for name, bounds in limits.items():
            if not bounds.none:
                tenant = self._tenants[name] = known.get(name) or _Tenant(bounds)
                if tenant.limits.rate != bounds.rate:
                    tenant.bucket = None
                tenant.limits = bounds

    def submit(self, request_id: str, tenant: str | None, now_s: float) -> Reject | None:
        """Count the request as waiting; or why it is refused (`tenant-rate`, `-inflight` or `-queue`)."""
        if tenant is None or request_id in self._held:
            return None
        state = self._tenants.get(tenant)
        if state is None:
            return None
        refused = _over(request_id, tenant, state, now_s)
        if refused is not None:
            return refused
        self._held[request_id] = _Held(state, now_s)
        state.inflight += 1
        state.queued += 1
        return None

    def assigned(self, request_id: str, now_s: float) -> None:
        """The request waits no longer."""
        held = self._held.get(request_id)
        if held is not None and held.queued:
            held.queued = False
            held.tenant.queued -= 1
            held.tenant.moving.finished(now_s - held.since_s)

    def finished(self, request_id: str, now_s: float) -> None:
        """The request is over."""
        held = self._held.pop(request_id, None)
        if held is None:
            return
        if held.queued:
            held.tenant.queued -= 1
        held.tenant.inflight -= 1
        held.tenant.leaving.finished(now_s - held.since_s)


class TenantsElsewhere(Tenants):
    """For a process that does not count them itself: `over` is told of each request that is over."""

    def __init__(self, over: Callable[[str], None]) -> None:
        super().__init__({})
        self._told = over

    def replace(self, limits: Mapping[str, TenantLimits]) -> None:
        """Nothing: they hold where requests are counted."""

    def finished(self, request_id: str, now_s: float) -> None:
        """The request is over."""
        self._told(request_id)


def _over(request_id: str, name: str, state: _Tenant, now_s: float) -> Reject | None:
    """Why one request more is too much. The rate comes last: what is refused uses none of it up."""
    limits = state.limits
    if limits.max_inflight is not None and state.inflight >= limits.max_inflight:
        message = f"tenant {name} has {state.inflight} requests under way, the most it may have"
        return _reject(request_id, "tenant-inflight", message, state.leaving, state.inflight, now_s)
    if limits.max_queued is not None and state.queued >= limits.max_queued:
        message = f"tenant {name} has {state.queued} requests waiting, the most it may have"
        return _reject(request_id, "tenant-queue", message, state.moving, state.queued, now_s)
    if limits.rate is not None:
        if state.bucket is None:
            state.bucket = _Bucket(limits.rate, float(limits.rate.burst), now_s)
        retry_after_s = state.bucket.take(now_s)
        if retry_after_s is not None:
            message = f"tenant {name} may send {limits.rate.per_second:g} requests per second"
            return Reject(request_id, "tenant-rate", message, retry_after_s=retry_after_s)
    return None


def _reject(request_id: str, reason: str, message: str, drain: Drain, places: int, now_s: float) -> Reject:
    return Reject(request_id, reason, message, retry_after_s=drain.retry_after_s(now_s, places))
