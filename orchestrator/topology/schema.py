"""The topology in its typed, frozen and strict form: every setting a file may hold, and what it means."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from orchestrator.core.types import Role
from orchestrator.topology.router_schema import Router
from orchestrator.topology.scheduling_schema import Scheduling
from orchestrator.topology.slo_schema import SloClass, Tenant
from orchestrator.topology.strict import EngineRuntime, Findings, Strict, findings
from orchestrator.topology.values import (
    Count,
    CountOrNone,
    Duration,
    DurationOrZero,
    EngineUrl,
    Env,
    Flags,
    Gpus,
    Host,
    Name,
    NicList,
    Nics,
    Port,
    PortRange,
    Text,
    ZmqUrl,
)


class Model(Strict):
    """What is served."""

    path: Text | None = Field(
        None,
        description="What engines load: a folder (`./`, `../`, `/` or `~` in front make it one) or a hub id; "
        "required as soon as pdctl launches an engine.",
    )
    served_name: Text | None = Field(
        None, description="The `model` that clients ask for. Default: `path`, or a folder's last part."
    )
    revision: Text | None = Field(None, description="The hub revision; the same for every instance.")
    vocab_size: Count | None = Field(
        None,
        description="Tokens in its vocabulary, `vocab_size` of its `config.json`. Default: read from there "
        "where `path` is a folder on this machine.",
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.path is None and self.served_name is None:
            raise findings([(("path",), "is required, or `served_name` where every engine is external")])
        return self


class Node(Strict):
    """A host with its GPUs and NICs."""

    name: Name = Field(description="What pools and `ps` call it.")
    address: Host = Field("127.0.0.1", description="Where the other nodes reach it; engines listen on it.")
    gpus: Gpus = Field((), description="How many GPUs it has, or the list of indices pdctl may use.")
    nics: NicList = Field(
        Nics(),
        description="RDMA devices: a list for all instances (`[mlx5_0, mlx5_1]`), or a mapping from GPU "
        "index to the device or devices near it (`{0: mlx5_0, 1: mlx5_1}`).",
    )
    fabric: Text | None = Field(
        None,
        description="A file that says what the host has, as `pdctl doctor --json` wrote it there; `gpus` and "
        "`nics` follow from it unless given.",
    )
    nics_per_gpu: Count | None = Field(
        None,
        description="NICs that each GPU uses, the nearest ones of `fabric`. Default: its even share of them.",
    )
    rack: Name | None = Field(
        None,
        description="What it shares power or a switch with; instances of a pool are spread over racks, the "
        "ranks of one instance kept in one.",
    )
    ports: PortRange = Field(
        default="20000-29999",
        validate_default=True,
        description="The range that every port of its engines comes from; outside the ephemeral range.",
    )
    env: Env = Field(default_factory=dict, description="Environment of every engine on this node.")
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of its endpoints; `node` and `rack` are added by themselves.",
    )


class Pin(Strict):
    """Where one instance of a pool runs."""

    node: Name | None = Field(None, description="The node.")
    nodes: tuple[Name, ...] | None = Field(
        None, min_length=2, description="Of an instance on several nodes: all of them, rank 0's first."
    )
    gpus: Gpus | None = Field(
        None, description="Its GPUs by index, as many as the instance needs on a node; the same on each."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.node is None) == (self.nodes is None):
            raise findings([(("node",), "give `node`, or `nodes` of an instance on several, and not both")])
        if self.nodes is not None and len(set(self.nodes)) < len(self.nodes):
            raise findings([(("nodes",), "names a node twice")])
        return self

    @property
    def span(self) -> tuple[str, ...]:
        """The nodes, rank 0's first."""
        return self.nodes if self.nodes is not None else (self.node or "",)


class External(Strict):
    """An engine that runs already; pdctl routes to it and leaves its process alone."""

    url: EngineUrl = Field(description="Its root, `http://HOST:PORT`.")
    bootstrap_port: Port | None = Field(
        None, description="Where a prefill engine's bootstrap server listens, if its hand-off needs one."
    )
    kv_events_url: ZmqUrl | None = Field(
        None, description="Where it publishes KV events, `tcp://HOST:PORT`. Default: as it says itself."
    )
    kv_replay_url: ZmqUrl | None = Field(
        None, description="Where they are replayed. Default: nowhere, if `kv_events_url` is written."
    )


class Pool(Strict):
    """Instances of one role that share a launch profile."""

    role: Role = Field(description="What its instances do for a request.")
    engine: Text = Field(description="The adapter: a registered name, `./file.py:Class`, or `module:Class`.")
    profile: Text | None = Field(
        None,
        description="The launch profile: a known name or `./file.yaml`. Default: `default`, if there is one.",
    )
    instances: CountOrNone = Field(1, description="How many instances.")
    tp: Count = Field(1, description="Tensor-parallel size.")
    pp: Count = Field(1, description="Pipeline-parallel size.")
    dp: Count = Field(1, description="Data-parallel size.")
    ep: Count = Field(1, description="Expert-parallel size.")
    gpus: CountOrNone | None = Field(
        None,
        description="GPUs per instance. Default: tp x pp x dp, or 0 where the profile has `gpus: false`.",
    )
    nnodes: Count | None = Field(
        None,
        description="Nodes that each instance spans, with equal shares of its GPUs. Default: as few as have "
        "GPUs enough for it.",
    )
    nodes: tuple[Name, ...] | None = Field(
        None, min_length=1, description="Nodes it may use, in order of preference. Default: all."
    )
    placement: Literal["spread", "pack"] = Field(
        "spread",
        description="`spread`: instances on different racks and nodes as far as there is room, near those "
        "they hand over to; `pack`: on the first of `nodes` with room.",
    )
    pin: tuple[Pin, ...] | None = Field(
        None, min_length=1, description="Node and GPUs of each instance, in order, instead of `nodes`."
    )
    may_prefill: bool = Field(
        False,
        description="Whether decode instances may also compute prompts themselves, where that is predicted "
        "better than a hand-off; for engines whose decode instances can.",
    )
    prompt_tokens: Count = Field(
        4096, description="Tokens of a typical prompt, for the costs that `check` estimates."
    )
    kv_events: bool = Field(
        False,
        description="Whether its engines publish what their KV caches hold, and the router goes by that; see "
        "kv-events.md. External engines must publish by themselves.",
    )
    transfer: Text | None = Field(
        None,
        description="KV transfer backend or connector, as the engine names it; of encoders, how embeddings "
        "travel. Default: the adapter's.",
    )
    flags: Flags = Field(
        default_factory=dict,
        description="Extra engine flags by name. `true`: bare flag; `false` or `null`: left out, even if the "
        "profile sets it; a list: one word per item; a mapping: JSON, merged with the profile's.",
    )
    env: Env = Field(
        default_factory=dict, description="Extra environment; `null` removes a variable the profile sets."
    )
    runtime: EngineRuntime | None = Field(
        None, description="Where the engine is installed. Default: beside pdctl."
    )
    external: tuple[External, ...] | None = Field(
        None, min_length=1, description="Engines already running, instead of `instances`."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the adapter itself; see the engine's page."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of its endpoints, for policies.")
    ready_timeout: Duration | None = Field(
        None, description="How long an instance may take to get ready. Default: the profile's or adapter's."
    )
    drain_timeout: DurationOrZero | None = Field(
        None, description="How long a stop waits after TERM before KILL. Default: the profile's, else 30s."
    )
    max_restarts: CountOrNone | None = Field(
        None, description="Restarts in a row before giving up. Default: the profile's, else 5."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = _pin_findings(self) + _external_findings(self)
        if self.kv_events and self.role is Role.ENCODE:
            found.append((("kv_events",), "is for pools with a KV cache; encoders have none"))
        if self.may_prefill and self.role is not Role.DECODE:
            found.append((("may_prefill",), f"is for decode pools; this one's role is {self.role.value}"))
        if found:
            raise findings(found)
        return self

    @property
    def size(self) -> int:
        """How many instances the pool has, external ones included."""
        return len(self.external) if self.external else self.instances


def _pin_findings(pool: Pool) -> Findings:
    if pool.pin is None:
        return []
    found: Findings = []
    if pool.nodes is not None:
        found.append((("nodes",), "is ignored beside `pin`; give one of them"))
    if len(pool.pin) != pool.instances:
        found.append((("pin",), f"has {len(pool.pin)} entries for {pool.instances} instances"))
    spans = {len(pin.span) for pin in pool.pin}
    if pool.nnodes is not None:
        spans.add(pool.nnodes)
    if len(spans) > 1:
        counts = " and ".join(map(str, sorted(spans)))
        found.append((("pin",), f"puts instances on {counts} nodes; all of a pool span equally many"))
    return found


_LAUNCH_ONLY = (
    *("instances", "nodes", "nnodes", "placement", "pin", "profile", "flags", "env", "runtime", "gpus"),
    "max_restarts",
)


def _external_findings(pool: Pool) -> Findings:
    if pool.external is None:
        return []
    given = [name for name in _LAUNCH_ONLY if name in pool.model_fields_set]
    unread: Findings = [
        (("external", index, "kv_events_url"), "is not read without `kv_events: true` in the pool")
        for index, one in enumerate(pool.external)
        if one.kv_events_url is not None and not pool.kv_events
    ]
    return unread + [
        ((name,), "has no effect on external engines, which pdctl does not launch") for name in given
    ]


class Ray(Strict):
    """The Ray cluster that engines are started through."""

    address: Text = Field(
        "auto", description="Its head, `HOST:PORT`. `auto`: the cluster that this host is part of."
    )


class Silence(Strict):
    """A lint rule that is wrong here."""

    reason: Text = Field(description="Why; `pdctl check` shows it with what is not told.")
    pools: tuple[Name, ...] | None = Field(
        None, min_length=1, description="The pools it is silenced for. Default: wherever it speaks."
    )


class Topology(Strict):
    """A deployment: one model, its engines, and the router in front of them."""

    name: Name = Field(description="Names the deployment, its state directory and its log lines.")
    model: Model = Field(description="What is served.")
    nodes: tuple[Node, ...] = Field(
        (),
        min_length=1,
        description="Hosts with their GPUs and NICs. Default: this machine as `local`, without GPUs.",
    )
    pools: dict[Name, Pool] = Field(min_length=1, description="Instances by role; the name is yours.")
    router: Router = Field(default_factory=Router, description="The endpoint in front of the engines.")
    scheduling: Scheduling = Field(
        default_factory=Scheduling, description="How the router chooses endpoints."
    )
    slo_classes: dict[Name, SloClass] = Field(
        default_factory=dict,
        description="Promises by name, beside those that are shipped: `realtime`, `interactive`, `batch`.",
    )
    tenants: dict[Name, Tenant] = Field(default_factory=dict, description="Groups of clients by name.")
    launcher: Literal["local", "ray"] = Field(
        "local",
        description="Who starts engines: `local`, pdctl on its own host (`--node` where there are more), or "
        "`ray`, one pdctl for all nodes through a Ray cluster.",
    )
    ray: Ray = Field(default_factory=Ray, description="The cluster of `launcher: ray`.")
    silence: dict[Name, Silence] = Field(
        default_factory=dict,
        description="Lint rules that are wrong here, by name (rules.md), each with the reason.",
    )
    state_dir: Text | None = Field(
        None, description="Plan, database, sockets and logs. Default: `$XDG_STATE_HOME/pdctl/NAME`."
    )
    seed: int | None = Field(
        None, strict=True, ge=0, lt=2**63, description="Keys the block hashes. Default: made from `name`."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "ray" in self.model_fields_set and self.launcher != "ray":
            raise findings([(("ray",), "is not read without `launcher: ray`")])
        return self

    @property
    def hosts(self) -> tuple[Node, ...]:
        """The nodes, or the one there is by default."""
        return self.nodes or (Node(name="local"),)

    @property
    def served_name(self) -> str:
        """The name that clients ask for."""
        path = self.model.path or ""
        is_folder = path.startswith((".", "/", "~"))
        return self.model.served_name or (path.rstrip("/").rpartition("/")[2] if is_folder else path)
