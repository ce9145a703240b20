"""The router's part of the topology: listeners, keys, limits and deadlines."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from orchestrator.core.address import is_loopback, is_wildcard, split_host_port
from orchestrator.engines.routers import KINDS, Keys
from orchestrator.plugins import nearest
from orchestrator.topology.strict import Findings, Runtime, Strict, findings
from orchestrator.topology.values import (
    Count,
    CountOrNone,
    Duration,
    DurationOrZero,
    Env,
    Flags,
    HeaderName,
    Listen,
    Name,
    Secret,
    Size,
    Text,
)

QUEUE_S = 600.0
"""How long a request may wait in the router unless told otherwise: what clients' own time-outs allow (the
OpenAI SDK's is 600 s)."""


class LimitsConfig(Strict):
    """Bounds on what clients send."""

    max_body: Size = Field(default="64MiB", validate_default=True, description="Largest request body (413).")
    max_header: Size = Field(
        default="64KiB", validate_default=True, description="Largest request head (431)."
    )
    max_json_depth: Count = Field(
        64, description="Most levels of nesting in a request body (400): engines' parsers recurse."
    )
    max_inflight: Count = Field(10_000, description="Most requests at once (429).")
    max_inflight_per_key: Count | None = Field(
        None, description="Most of them that may have one client key (429); tenants have limits of their own."
    )
    max_queue: Count = Field(
        10_000, description="Most of them that may wait in the router for an endpoint (429)."
    )
    header_timeout: Duration = Field(
        default="30s", validate_default=True, description="For a request's head to arrive whole."
    )
    body_timeout: Duration = Field(
        default="2m", validate_default=True, description="For a request's body to arrive whole."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "max_queue" in self.model_fields_set and self.max_queue > self.max_inflight:
            raise findings([(("max_queue",), f"is never reached: `max_inflight` is {self.max_inflight}")])
        return self


class TimeoutsConfig(Strict):
    """Deadlines of a request's stages; nothing waits without one."""

    connect: Duration = Field(default="2s", validate_default=True, description="To connect to an engine.")
    queue: Duration | None = Field(
        None,
        description="To be given an endpoint, in the router. Default: 10m, or `total` if shorter.",
    )
    prefill: Duration = Field(
        default="5m", validate_default=True, description="For the prefill leg to answer."
    )
    first_token: Duration = Field(
        default="5m", validate_default=True, description="For the first byte of the answer."
    )
    inter_token: Duration = Field(
        default="60s", validate_default=True, description="Between two pieces of a stream."
    )
    total: Duration = Field(default="1h", validate_default=True, description="For the whole request.")
    hang: Duration = Field(
        default="15s",
        validate_default=True,
        description="Silence after which an engine with overdue work is taken to hang, and its requests go "
        "elsewhere; at least ten times as long as predicted.",
    )
    stall: Duration = Field(
        default="2m",
        validate_default=True,
        description="For an engine that has work to get any of it done, or to answer a probe; one that "
        "computes prompts has at least a fifth more than `prefill`. Past it, it is given nothing and started "
        "anew.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.queue is not None and self.queue > self.total:
            raise findings([(("queue",), f"is never reached: `total` is {self.total:g} s")])
        return self

    @property
    def queue_s(self) -> float:
        """Seconds that a request may wait for its endpoint."""
        return min(QUEUE_S, self.total) if self.queue is None else self.queue


class TlsConfig(Strict):
    """TLS between clients and the router: PEM files, relative to the topology's folder; `pdctl reload` reads
    them anew."""

    certificate: Text = Field(description="The router's certificate, and those between it and the root.")
    key: Text = Field(description="Its private key, not encrypted.")
    client_ca: Text | None = Field(
        None, description="Demand of clients a certificate signed by one of these authorities."
    )


class CredentialsConfig(Strict):
    """The three keys. Write them as `${env:NAME}`."""

    client_keys: tuple[Secret, ...] = Field((), description="Client to router: `Authorization: Bearer KEY`.")
    engine_key: Secret | None = Field(
        None, description="Router to engine; launched engines are started to demand it."
    )
    admin_key: Secret | None = Field(None, description="For the admin listener.")

    @property
    def keys(self) -> Keys:
        """The keys in the clear."""
        engine, admin = self.engine_key, self.admin_key
        return Keys(
            client=tuple(key.get_secret_value() for key in self.client_keys),
            engine=engine.get_secret_value() if engine else None,
            admin=admin.get_secret_value() if admin else None,
        )


class Router(Strict):
    """The one OpenAI-compatible endpoint in front of the engines."""

    kind: Text = Field(
        "pdctl",
        description="`pdctl`, an existing router launched over the same engines, or `none`.",
        json_schema_extra={"enum": ["pdctl", *KINDS, "none"]},
    )
    listen: Listen = Field("127.0.0.1:8000", description="Where clients connect.")
    node: Name | None = Field(
        None, description="The node it runs on, which `pdctl up --node` starts it on. Default: the first."
    )
    admin: Listen | None = Field(
        None, description="Admin and metrics. Default: 127.0.0.1 and the port after `listen`'s."
    )
    auth: Literal["keys", "none"] | None = Field(
        None,
        description="`keys`: clients need one of `credentials.client_keys`; `none`: anyone may connect. "
        "Default: `keys` if there are any. Beyond loopback it must be one or the other.",
    )
    credentials: CredentialsConfig = Field(CredentialsConfig(), description="The three keys.")
    tls: TlsConfig | None = Field(None, description="Speak https with clients. Default: http.")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="Bounds on what clients send.")
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig, description="Deadlines of the stages.")
    continuation: bool = Field(
        False,
        description="A stream whose engine fails in the middle goes on at another, with what the client has "
        "of it as part of the prompt; classes may differ. Only for one choice of plain text.",
    )
    canaries: bool = Field(
        True,
        description="Ask every pair of endpoints a question with a known answer when it joins, after a "
        "restart and on suspicion, and keep apart those that answer wrongly.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that relay streams, over one more that schedules; 1: one process does all.",
    )
    pass_headers: tuple[HeaderName, ...] = Field(
        (), description="Client headers that engines get to see and policies may read."
    )
    flags: Flags = Field(default_factory=dict, description="Flags of a `kind` other than pdctl.")
    env: Env = Field(default_factory=dict, description="Environment of the router process.")
    runtime: Runtime | None = Field(None, description="Where a `kind` other than pdctl is installed.")
    drain_timeout: DurationOrZero = Field(
        default="30s", validate_default=True, description="How long a stop lets requests finish."
    )
    max_restarts: CountOrNone = Field(20, description="Restarts in a row before giving up.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        by_kind = _pdctl_findings if self.kind == "pdctl" else _foreign_findings
        found = _listen_findings(self) + by_kind(self)
        if found:
            raise findings(found)
        return self

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port of the admin listener."""
        if self.admin is not None:
            return split_host_port(self.admin)
        return "127.0.0.1", split_host_port(self.listen)[1] + 1


def _listen_findings(router: Router) -> Findings:
    found: Findings = []
    keys, (host, port) = router.credentials.client_keys, split_host_port(router.listen)
    if router.auth == "keys" and not keys:
        found.append((("auth",), "is `keys`, but credentials.client_keys has none"))
    if router.auth == "none" and keys:
        found.append((("auth",), "is `none`, but credentials.client_keys has some; drop one of them"))
    if not is_loopback(host) and router.auth is None and not keys:
        found.append(
            (
                ("listen",),
                f"{router.listen} can be reached from other machines, and no client key is demanded; "
                "give credentials.client_keys, or write `auth: none` to let anyone in",
            )
        )
    if router.admin is None and port == 65535:
        found.append((("admin",), "must be given: there is no port after `listen`'s"))
    elif router.admin_address[1] == port and _same_host(router.admin_address[0], host):
        found.append((("admin",), f"is the same as `listen`, {router.listen}"))
    return found


def _same_host(one: str, other: str) -> bool:
    return one == other or is_wildcard(one) or is_wildcard(other)


def _pdctl_findings(router: Router) -> Findings:
    return [
        ((name,), f"is for a `kind` other than pdctl ({', '.join(KINDS)})")
        for name in ("flags", "runtime")
        if name in router.model_fields_set
    ]


def _foreign_findings(router: Router) -> Findings:
    if router.kind == "none":
        return []
    if router.kind not in KINDS:
        known = ["pdctl", *KINDS, "none"]
        close = nearest(router.kind, known)
        hint = f"did you mean {close!r}?" if close else f"one of {', '.join(known)}"
        return [(("kind",), f"there is no router {router.kind!r}; {hint}")]
    found: Findings = [
        (("credentials",), why) for why in KINDS[router.kind].refuses_keys(router.credentials.keys)
    ]
    own = ("limits", "timeouts", "continuation", "canaries", "workers", "tls", "pass_headers")
    ignored = [name for name in own if name in router.model_fields_set]
    found += [((n,), f"is pdctl's own; {router.kind} takes its settings by `flags`") for n in ignored]
    return found
