"""How a deployment stands, as plain data that goes over the control socket and out of `ps --json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from orchestrator.core.lifecycle import State
from orchestrator.launch.unit import ROUTER

UNWATCHED = "while no controller was watching"
"""Words in the last error of a unit that was found dead."""

OPERATOR = "operator"
"""Whose gate an instance's drain by a person is, in the router's words; what the controller gates and opens
around its own work is another matter."""


class Phase(StrEnum):
    """How the whole deployment stands."""

    WORKING = "working"
    """Something is being started, replaced or removed."""
    READY = "ready"
    """All that the plan wants is ready."""
    FAILED = "failed"
    """Nothing moves any more, and something did not become what the plan wants."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    UNWATCHED = "unwatched"
    """Processes may run and serve, but no controller looks after them."""


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One unit. `detail` says what it is waiting for; `failure` holds what to look at once it is FATAL
    (last log lines, a hint); `since_s` is how long it has been in its state, `uptime_s` how long its
    process has run, None without a process."""

    name: str
    pool: str
    role: str
    state: State
    url: str
    ports: Mapping[str, int]
    log: str
    pid: int | None = None
    uptime_s: float | None = None
    since_s: float = 0.0
    restarts: int = 0
    incarnation: int = 0
    exit_code: int | None = None
    last_error: str = ""
    detail: str = ""
    last_line: str = ""
    failure: tuple[str, ...] = ()
    hint: str = ""
    circuit: str | None = None
    """Its circuit breaker in the router; None where no router tells."""
    bad_pairs: tuple[str, ...] = ()
    """With whom it forms pairs that the router has found bad; itself, if it serves alone."""


class BadPair(NamedTuple):
    """A pair that the router has found bad, and why; of one that serves alone, `prefill` is empty."""

    prefill: str
    decode: str
    why: str


@dataclass(frozen=True, slots=True)
class Status:
    """The whole. `url` is where clients go; `problem` is what is wrong with no one instance;
    `external` names the engines that the router joins and nobody here launches; `bad_pairs`, and what
    instances have of the router's, are filled in by `report`."""

    phase: Phase
    name: str = ""
    url: str = ""
    controller_pid: int | None = None
    problem: str = ""
    instances: tuple[InstanceStatus, ...] = ()
    external: tuple[str, ...] = ()
    bad_pairs: tuple[BadPair, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for the wire."""
        return asdict(self)


def parse_status(data: Mapping[str, Any]) -> Status:
    """The status from `to_json`'s data. Raises KeyError, TypeError or ValueError on anything else."""
    instances = tuple(
        InstanceStatus(
            **{
                **i,
                "state": State(i["state"]),
                "failure": tuple(i["failure"]),
                "bad_pairs": tuple(i["bad_pairs"]),
            }
        )
        for i in data["instances"]
    )
    return Status(
        **{
            **data,
            "phase": Phase(data["phase"]),
            "instances": instances,
            "external": tuple(data["external"]),
            "bad_pairs": tuple(BadPair(*pair) for pair in data["bad_pairs"]),
        }
    )


def router_last(instances: Iterable[InstanceStatus]) -> tuple[InstanceStatus, ...]:
    """The engines in their order, then the router, whenever it was started."""
    return tuple(sorted(instances, key=lambda i: i.role == ROUTER))


PS_FIELDS = (
    *("name", "pool", "role", "state", "pid", "url", "ports", "uptime_s"),
    *("restarts", "incarnation", "exit_code", "last_error", "circuit", "bad_pairs"),
)
"""The fields of one object of `ps --json`, a contract with whoever parses it."""


def ps_object(status: InstanceStatus) -> dict[str, Any]:
    """One instance as `ps --json` prints it."""
    data = asdict(status)
    return {name: data[name] for name in PS_FIELDS}
