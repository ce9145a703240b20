"""The contract of an engine adapter and the plain data it exchanges; no I/O anywhere in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from orchestrator.core.transfer import KvShape
from orchestrator.core.types import Endpoint, LegKind, Load, PathKind, Role
from orchestrator.engines.calls import HttpCall as HttpCall
from orchestrator.engines.capabilities import Capabilities
from orchestrator.engines.legs import HandoffDone as HandoffDone
from orchestrator.engines.legs import HandoffFailed as HandoffFailed
from orchestrator.engines.legs import HandoffRequest as HandoffRequest
from orchestrator.engines.legs import HandoffStep as HandoffStep
from orchestrator.engines.legs import Leg as Leg
from orchestrator.engines.wiring import Carriage as Carriage
from orchestrator.engines.wiring import Encoders as Encoders
from orchestrator.engines.wiring import Near as Near
from orchestrator.engines.words import Command as Command
from orchestrator.engines.words import FlagValue as FlagValue
from orchestrator.engines.words import PortNeed as PortNeed
from orchestrator.engines.words import Setting as Setting
from orchestrator.engines.words import Shape as Shape
from orchestrator.engines.words import Word as Word
from orchestrator.errors import Problem, RequestError

if TYPE_CHECKING:
    from orchestrator.engines.splice import JsonBody

STARTED_AS = "started_as"
"""The fact of an instance whose role can be switched that tells the one its process was started in."""

NO_FACTS: Mapping[str, Any] = MappingProxyType({})
"""For callers of `Engine.check` that know nothing of an endpoint."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """All that an adapter needs to render one instance; pure data made by the planner.

    `address` is what peers reach the instance at, `bind` what it listens on. `ports` maps the purposes
    of `Engine.ports` to the first port of each run. `transfer` is the KV transfer backend or connector
    as the topology names it (None: the adapter's default). `flags` and `env` are the merged settings of
    launch profile and topology (topology last); the adapter adds its own beneath them. `devices` are the
    GPU indices on the node, `nics` the RDMA devices of all of them. `key` is the API key the engine must
    demand, if any. `options` carries adapter-specific pool settings (the `sim` dialect, its speed, ...).
    """

    name: str
    pool: str
    role: Role
    index: int
    model_path: str
    served_name: str
    address: str
    bind: str
    ports: Mapping[str, int]
    shape: Shape = field(default_factory=Shape)
    transfer: str | None = None
    flags: Mapping[str, Setting] = field(default_factory=dict)
    env: Mapping[str, Setting] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    nics: tuple[str, ...] = ()
    version: str | None = None
    key: str | None = None
    disaggregated: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    """The model's revision on the hub, where the topology names one; the same for every instance."""
    vocab_size: int | None = None
    """Tokens in the model's vocabulary, if they are known."""
    drain_s: float = 30.0
    """How long a stop waits after TERM before KILL."""
    near: tuple[Near, ...] = ()
    """The NICs of each of `devices`, in their order; empty where all share `nics`, or none are known."""
    interface: str | None = None
    """The network interface of `address`, where KV goes over TCP because a node has no RDMA to use."""
    node: str = ""
    node_nics: Mapping[str, str] = field(default_factory=dict)
    """Every RDMA device of the node by name, with the state of its link; empty where that is not known."""
    folder: str = ""
    """Where files made for this instance are put before it starts."""
    encoders: Encoders | None = None
    """Who encodes images for the deployment, if anybody does; None for an encode instance itself."""
    table: Capabilities | None = None
    """The flags and variables that its version knows, where the topology brings them."""
    patience_s: float = 300.0
    """Longest that the router waits for a leg of a hand-off."""
    rank: int = 0
    """Which of the instance's `shape.nnodes` processes this is: one runs on each node it spans. `address`,
    `bind`, `devices`, `nics` and `env` are those of the process's own node, and so are `ports`, but for those
    that only the first one opens."""
    head_address: str | None = None
    """Where process 0 of the instance is reached, which is the endpoint; None where this is the only one."""
    kv_events: bool = False
    """Whether it should publish what its KV cache holds."""


@dataclass(frozen=True, slots=True)
class Probes:
    """How to tell that an instance may be given work (`ready`, all must answer 200) and that it lives."""

    ready: tuple[HttpCall, ...]
    live: HttpCall
    ready_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class NotYet:
    """A discovery call was answered, but the engine is not ready to be joined; why."""

    why: str


class Handoff(Protocol):
    """One request's hand-off as a machine without I/O: told what came back, it says which legs start.

    `notes` is what the finished legs told so far, under `prompt_tokens` and `cached_tokens` where they did.
    """

    @property
    def notes(self) -> Mapping[str, Any]:
        """See above; grows with every `on_response`."""
        ...

    def start(self) -> tuple[Leg, ...]:
        """The legs to start at once."""
        ...

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """A non-relayed leg has answered whole; the legs to start now, or the end."""
        ...


class LateHandoff(Handoff, Protocol):
    """A hand-off whose decode side may be chosen when prefill has answered.

    What `Engine.handoff` makes where the prefill endpoint's facts say `late_decode`.
    """

    def bind(self, decode: Endpoint) -> None:
        """Decode goes to this endpoint, not to the one of the request; told before prefill's answer."""
        ...


@dataclass(frozen=True, slots=True)
class LogHint:
    """A regular expression found in a dying engine's log, and what to tell the operator."""

    pattern: str
    hint: str


@dataclass(frozen=True, slots=True)
class LintContext:
    """What an adapter's lint sees: every instance of the topology that it renders, before launch."""

    specs: tuple[InstanceSpec, ...]
    origins: Mapping[str, tuple[str | None, int | None]] = field(default_factory=dict)
    """Pool name to (file, line) of its declaration, for the findings."""
    kv: KvShape | None = None
    """What the model's KV takes, where that is known."""
    connect_s: float = 2.0
    """How long the router tries to connect to an engine."""


class Engine(Protocol):
    """An engine adapter: everything pdctl knows of one engine, in one place, as pure functions.

    A new engine is one class with these members; `engine: ./trtllm.py:Engine` in a topology uses it.
    """

    name: ClassVar[str]
    roles: ClassVar[frozenset[Role]]
    # Optional: `switch(spec, to: Role) -> HttpCall | str`, the call that changes a running instance's role,
    # answered 200 once that is done, or why there is none. Where there is one, its facts have STARTED_AS.
    # Optional: `spans_nodes: ClassVar[bool]`, whether an instance may run on several nodes (default: no);
    # `command` and `probes` are then asked for the process of each, by `InstanceSpec.rank`.
    idle_s: ClassVar[float]
    """Seconds a kept connection to the engine may lie idle before reuse is unsafe (its own keep-alive
    time-out less a margin)."""
    guarded_fields: ClassVar[frozenset[str]]
    """Top-level body fields that clients may not send to this engine. Every leg that `handoff` makes
    leaves them out; the router drops them where it forwards a body without a hand-off."""
    guarded_headers: ClassVar[frozenset[str]]
    """Lower-case header names that clients may not send to this engine."""
    hints: ClassVar[tuple[LogHint, ...]]

    def bind(self, options: Mapping[str, Any]) -> Engine:
        """The adapter for the instances of a pool with these `options`.

        Itself, unless the options choose the protocol (`sim` with its `dialect`). Whoever resolves an
        adapter binds it before anything else.
        """
        ...

    def ports(self, role: Role, shape: Shape, transfer: str | None) -> tuple[PortNeed, ...]:
        """Every port the instance derives or opens, `http` first."""
        ...

    def command(self, spec: InstanceSpec) -> Command:
        """Arguments after the interpreter and the environment to add."""
        ...

    def probes(self, spec: InstanceSpec) -> Probes:
        """Readiness and liveness."""
        ...

    def facts(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """What is known of the endpoint before it is asked (`bootstrap_host`, `bootstrap_port`, ...).

        `idle_s`, where given, is that endpoint's own figure in place of `Engine.idle_s`: the adapter
        rendered its keep-alive time-out.
        """
        ...

    def discover(self, role: Role, facts: Mapping[str, Any]) -> Mapping[str, HttpCall]:
        """Calls by name to perform at join and at each incarnation."""
        ...

    def learn(self, name: str, status: int, body: bytes) -> Mapping[str, Any] | NotYet:
        """Facts from the answer to one discovery call (`incarnation`, `block_size`, `max_model_len`,
        `kv_total_tokens`, ... under these names where the engine tells them)."""
        ...

    def load_call(self) -> HttpCall:
        """The call whose answer `load` reads; never made of an encode endpoint, which gets no work from the
        router."""
        ...

    def load(self, body: bytes, facts: Mapping[str, Any], at_s: float) -> Load:
        """The engine's own account of its load. Raises ValueError when the body is not what it should be.

        `Load.incarnation` or `Load.progress`, where it tells them, say that a process was replaced."""
        ...

    def flush(self) -> HttpCall | None:
        """The call that empties the engine's prefix cache; None if it has none.

        Performed by the router's `/flush_cache`; an answer other than 200, or a JSON body with
        `"success": false`, is reported as a failure.
        """
        ...

    def serves(self, kind: PathKind, role: Role, disaggregated: bool) -> bool:
        """Whether an endpoint in `role` answers this kind of request."""
        ...

    def check(
        self, kind: PathKind, body: JsonBody, disaggregated: bool, facts: Mapping[str, Any] = NO_FACTS
    ) -> None:
        """Raise BadRequest for what the engine cannot do, or would die of, saying why.

        `facts` are those of an endpoint that may get the request, `vocab_size` among them if it is known.
        """
        ...

    def split(self, kind: PathKind, body: JsonBody, disaggregated: bool) -> Sequence[JsonBody] | None:
        """The single requests this one must be fanned out into, or None if it goes as it is.

        In the order of the choices of the whole answer: all samples of the first prompt, then of the
        second. Raises BadRequest when they are too many.
        """
        ...

    def rooms(self, kind: PathKind, body: JsonBody) -> int:
        """How many consecutive rooms one hand-off of this (unsplit) body uses: `room`, `room + 1`, ..."""
        ...

    def needs_merge(self, kind: PathKind, body: JsonBody) -> bool:
        """Whether the relayed answer of a disaggregated request lacks what only the prefill leg told.

        The router then holds the relayed answer (never a stream: `check` refused those), and gives the
        client what `merge` makes of both.
        """
        ...

    def merge(self, kind: PathKind, prefill_body: bytes, decode_body: bytes) -> bytes:
        """The client's answer, from the 200 bodies of both legs. Raises LegFailed when they do not fit."""
        ...

    def handoff(self, request: HandoffRequest) -> Handoff:
        """The machine for one request (or one part of a split one)."""
        ...

    def abort(self, leg: Leg) -> HttpCall | None:
        """The call that ends a leg beside closing its connection; None if closing is all there is."""
        ...

    def map_error(self, status: int, body: bytes) -> RequestError:
        """What the client is told for an engine's error answer (status >= 400, or an error event)."""
        ...

    def lint(self, context: LintContext) -> Sequence[Problem]:
        """Findings about this engine's instances against each other."""
        ...
