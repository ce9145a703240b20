"""What all keepers of a deployment work with: the supervisor's own times, and its hands and eyes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from orchestrator.clock import Clock
from orchestrator.core.restart import RestartPolicy
from orchestrator.launch import logs
from orchestrator.launch.base import Launcher
from orchestrator.launch.identity import Identities
from orchestrator.launch.oom import OomWatch
from orchestrator.launch.paths import StateDir
from orchestrator.launch.probe import Prober
from orchestrator.launch.routerlink import RouterLink
from orchestrator.launch.state import Store
from orchestrator.topology.plan import Plan


@dataclass(frozen=True, slots=True)
class Tuning:
    """The supervisor's own times, in seconds; what differs by engine is in the plan."""

    restart: RestartPolicy = field(default_factory=RestartPolicy)
    probe_first_s: float = 0.1
    probe_most_s: float = 1.0
    """Readiness is asked after `probe_first_s`, then at growing intervals up to `probe_most_s`."""
    door_s: float = 0.2
    """How often a router that is up is asked whether it can serve."""
    join_s: float = 30.0
    """How long the router may take to find a replaced instance that is ready."""
    advice_s: float = 5.0
    """How often the router is asked which engines hang or answer wrongly."""
    leave_s: float = 2.0
    """How long a leader's helpers may outlive it: Python's resource tracker removes shared memory then."""
    failed_leave_s: float = 5.0
    """How long an instance that missed its deadline gets between TERM and KILL."""
    housekeeping_s: float = 5.0
    """How often processes are looked up and logs are kept small."""
    log_max_bytes: int = logs.MAX_BYTES


async def _nothing() -> None:
    """What a shell without a supervisor does about a new router."""


def _same(plan: Plan, link: RouterLink) -> RouterLink:
    """How a router is reached that is always in one place."""
    return link


@dataclass(slots=True)
class Shell:
    """What all keepers work with. `secrets` are struck out of what is reported."""

    state: StateDir
    store: Store
    launcher: Launcher
    prober: Prober
    router: RouterLink
    clock: Clock
    rng: Random
    tuning: Tuning = field(default_factory=Tuning)
    secrets: frozenset[str] = frozenset()
    oom: OomWatch = field(default_factory=OomWatch)
    link: Callable[[Plan, RouterLink], RouterLink] = _same
    """How the router of a plan is reached; given how the last one was."""
    told: Identities = field(default_factory=Identities)
    check: Callable[[], None] = lambda: None
    """Raises LaunchError when this is not the controller any more; called before anything is started."""
    changed: Callable[[], None] = lambda: None
    """Called whenever something worth showing has changed."""
    router_ready: Callable[[], Awaitable[None]] = _nothing
    """Awaited whenever a new router, which knows of no earlier hint, has become ready."""
