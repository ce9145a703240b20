"""The plan as pure data: every process of a deployment, its words, ports and probes, with their origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, LogHint, Probes, Word

LOCAL = "local"
RAY = "ray"
"""What `launcher` may be."""


@dataclass(frozen=True, slots=True)
class FollowerPlan:
    """A further process of an instance that spans several nodes: the one of node rank `rank`.

    No request is ever sent to it: process 0, which its `InstancePlan` describes, is the endpoint, and ends
    it. Fields mean the same as there; `ports` are only those that it opens itself, on `address`, and `url` is
    empty where it answers no HTTP.
    """

    name: str
    rank: int
    node: str
    address: str
    url: str
    argv: tuple[Word, ...]
    env: Mapping[str, Word]
    ports: Mapping[str, int]
    probes: Probes
    devices: tuple[int, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True, slots=True)
class OtherRole:
    """What an instance is after a switch of roles: `call` makes it so, `back` undoes it."""

    role: Role
    call: HttpCall
    back: HttpCall
    probes: Probes
    facts: Mapping[str, Any] = field(default_factory=dict)
    expects: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One engine instance: what is run where, and how the rest of pdctl reaches it.

    `engine` is the adapter reference as written in the topology. `argv` is the whole command line.
    `external` instances are joined by the router and never launched (`argv` is empty). `digest` is a
    SHA-256 over all that would make a running process differ; equal digests need no restart.
    `drain_s` is how long a stop waits after TERM before KILL, `ready_timeout_s` is in `probes`.
    Of an instance on several nodes this is its process 0, and `followers` are the others.
    """

    name: str
    pool: str
    role: Role
    engine: str
    model: str
    node: str
    url: str
    argv: tuple[Word, ...]
    env: Mapping[str, Word]
    ports: Mapping[str, int]
    probes: Probes
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    hints: tuple[LogHint, ...] = ()
    cwd: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that are written before it starts, by absolute path, with their text."""
    version: str | None = None
    profile: str | None = None
    tried: bool = True
    """Whether anybody has run its launch profile yet."""
    external: bool = False
    disaggregated: bool = True
    max_restarts: int = 5
    drain_s: float = 30.0
    digest: str = ""
    expects: Mapping[str, Any] = field(default_factory=dict)
    """What it will tell of itself if it is what was planned, by the names of its facts."""
    wrapped: bool = False
    """Whether it is started by a program of the user's, such as a container's: its processes may be
    anybody's children then."""
    silenced: tuple[str, ...] = ()
    """Names of the lint rules that the topology silences for it."""
    followers: tuple[FollowerPlan, ...] = ()
    other: OtherRole | None = None
    """The role that its process can take on while it runs, if there is one."""
    no_other: str = ""
    """Why there is none."""
    switched: bool = False
    """Whether its process has taken on the other role; a new process is in the topology's again."""

    def in_other_role(self) -> InstancePlan:
        """The instance after a switch of roles. `other` must be there."""
        other = self.other
        if other is None:
            raise ValueError(f"{self.name} has no other role")
        return replace(
            self,
            role=other.role,
            probes=other.probes,
            facts=other.facts,
            expects=other.expects,
            other=OtherRole(self.role, other.back, other.call, self.probes, self.facts, self.expects),
            switched=not self.switched,
        )

    def as_running(self, running: InstancePlan | None) -> InstancePlan:
        """The instance in the role that the process of `running` has, if it is the same process."""
        same = running is not None and running.digest == self.digest and running.switched
        return self.in_other_role() if same and self.other is not None and not self.switched else self

    @property
    def processes(self) -> tuple[InstancePlan | FollowerPlan, ...]:
        """What is run: process 0, which is the instance itself, then the others."""
        return (self, *self.followers)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds the router enforces on what clients send."""

    max_body_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    max_json_depth: int = 64
    max_inflight: int = 10_000
    max_inflight_per_key: int | None = None
    max_queue: int = 10_000
    header_timeout_s: float = 30.0
    body_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of a request's stages, in seconds; nothing waits without one."""

    connect_s: float = 2.0
    queue_s: float = 600.0
    prefill_s: float = 300.0
    first_token_s: float = 300.0
    inter_token_s: float = 60.0
    total_s: float = 3600.0
    hang_s: float = 15.0
    stall_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """The three keys: client to router, router to engine, admin. Empty: none demanded or sent."""

    client_keys: tuple[str, ...] = ()
    engine_key: str | None = None
    admin_key: str | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """The files by which the router speaks TLS with clients: PEM, absolute paths on the router's host.

    `client_ca`: clients must show a certificate that one of these authorities has signed.
    """

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decision log: `record` is `sampled` (a share of `sample`), `full` or `off`.

    `keep_bytes` bounds the disk space it takes, `hashes` how many of a prompt's block hashes a record holds.
    `headers`: when answers tell of their decision, `on_request`, `always` or `never`.
    """

    record: str = "sampled"
    sample: float = 0.1
    keep_bytes: int = 64 * 1024 * 1024
    hashes: int = 1024
    headers: str = "on_request"


@dataclass(frozen=True, slots=True)
class KvIndexing:
    """The index by KV events: how many seconds a request waits for its tokens, and how wrong it may be."""

    tokens_within_s: float = 0.02
    max_error: float = 0.1


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """The router as one more process of the plan, and all it is configured with.

    `scheduling` is the chosen scheduling profile as plain data, validated when the plan was made; so are
    `predictor` (`use` and the parameters), `slo_classes` and `tenants` by name, and `priorities`, which
    `topology.slo` reads. `slo_classes` holds the shipped ones too; `service_tiers` are classes by tier.
    For a `kind` other than `pdctl`, only argv, env, url and probes matter. `node` is where it runs;
    `remote_admin_url` is where the other nodes reach its admin listener, empty if they cannot.
    """

    kind: str
    host: str
    port: int
    admin_host: str
    admin_port: int
    url: str
    admin_url: str
    argv: tuple[Word, ...]
    env: Mapping[str, Word]
    probes: Probes
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    credentials: Credentials = Credentials()
    tls: Tls | None = None
    scheduling: Mapping[str, Any] = field(default_factory=dict)
    pass_headers: tuple[str, ...] = ()
    continuation: bool = False
    canaries: bool = False
    workers: int = 1
    default_class: str | None = None
    slo_classes: Mapping[str, Any] = field(default_factory=dict)
    tenants: Mapping[str, Any] = field(default_factory=dict)
    service_tiers: Mapping[str, str] = field(default_factory=dict)
    priorities: tuple[Mapping[str, Any], ...] = ()
    predictor: Mapping[str, Any] = field(default_factory=lambda: {"use": "stages"})
    decisions: Decisions = Decisions()
    kv_index: KvIndexing = KvIndexing()
    drain_s: float = 30.0
    cwd: str | None = None
    max_restarts: int = 20
    digest: str = ""
    node: str = ""
    remote_admin_url: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole deployment; a pure function of topology, profiles and lockfile, equal on every host.

    `seed` keys the block hashes, so that every process hashes alike. `base_dir` is the topology's
    folder, against which file references of plug-ins resolve. `node` is the one whose processes are run here,
    None for all of them: this and `state_dir` alone differ from host to host.
    """

    name: str
    file: str
    base_dir: str
    state_dir: str
    seed: int
    instances: tuple[InstancePlan, ...]
    router: RouterPlan | None = None
    warnings: tuple[str, ...] = ()
    silenced: tuple[str, ...] = ()
    """Findings that the topology silences, each with its reason."""
    node: str | None = None
    launcher: str = LOCAL
    """Who starts the engines: `local` here, `ray` on the nodes of the Ray cluster at `ray_address`."""
    ray_address: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files that it was made from, by path."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that something is run on, whichever it is run by."""
        names = [p.node for i in self.instances if not i.external for p in i.processes]
        names += [self.router.node] if self.router is not None and self.router.argv else []
        return tuple(dict.fromkeys(names))

    def instance(self, name: str) -> InstancePlan:
        """The instance called `name`; raises KeyError."""
        for instance in self.instances:
            if instance.name == name:
                return instance
        raise KeyError(name)


_ADAPTER: TypeAdapter[Plan] = TypeAdapter(Plan)


def dump(plan: Plan) -> bytes:
    """The plan as JSON, secrets included: for `plan.json` (mode 0600) and the control socket only."""
    return _ADAPTER.dump_json(plan, indent=1)


def parse(data: bytes) -> Plan:
    """A plan from `dump`'s JSON. Raises pydantic's ValidationError (a ValueError) on anything else."""
    return _ADAPTER.validate_json(data)
