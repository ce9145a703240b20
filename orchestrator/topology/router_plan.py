"""The router's part of the plan: pdctl's own, or an existing one launched over the same engines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from orchestrator.core.address import http_url, is_loopback, is_wildcard, split_host_port
from orchestrator.engines.base import HttpCall, Probes, Word
from orchestrator.engines.routers import KINDS, Behind, Front
from orchestrator.errors import Problem
from orchestrator.policy.profiles import mode_of
from orchestrator.topology import rules
from orchestrator.topology.inputs import Inputs
from orchestrator.topology.load import Folder
from orchestrator.topology.plan import (
    Credentials,
    Decisions,
    InstancePlan,
    KvIndexing,
    Limits,
    RouterPlan,
    Timeouts,
    Tls,
)
from orchestrator.topology.schema import Node, Topology
from orchestrator.topology.settings import as_settings
from orchestrator.topology.slo import class_data, resolved, tenant_data, tiers
from orchestrator.topology.words import marked, marked_env, run_by

ROLE = "role"
TAKE_OVER = "--take-over"
"""The word by which a new router follows the one that serves, in its stead and without a gap."""
READY_TIMEOUT_S = 60.0
"""A router starts in a second; the rest of a minute is for a slow disk."""
FOREIGN_READY_TIMEOUT_S = 600.0
"""The other routers are ready only once their engines are, which load models meanwhile."""


def plan_router(inputs: Inputs, instances: Sequence[InstancePlan]) -> tuple[RouterPlan | None, list[Problem]]:
    """The router's plan (None for `kind: none`), and why there is none."""
    kind = inputs.topology.router.kind
    if kind == "none":
        return None, []
    plan = _common(inputs)
    if kind == "pdctl":
        words = (inputs.python, "-P", "-m", "orchestrator.router", "--state", inputs.state_dir, TAKE_OVER)
        plan = replace(
            plan,
            argv=tuple(Word(word, ROLE) for word in words),
            probes=Probes(
                ready=(HttpCall("GET", "/ready"),),
                live=HttpCall("GET", "/health"),
                ready_timeout_s=READY_TIMEOUT_S,
            ),
            **_settings(inputs),
        )
        return replace(plan, digest=_digest(plan)), []
    behind = [_behind(inputs, instance) for instance in instances]
    reasons = KINDS[kind].refuses(behind)
    if any(tenant.keys for tenant in inputs.topology.tenants.values()):
        reasons.append("it knows no tenants")
    if reasons:
        place = ("router", "kind")
        return None, [
            inputs.source.problem(place, f"{kind}: {why}", rule=rules.ROUTER_KIND) for why in reasons
        ]
    plan = replace(
        plan,
        argv=_foreign_argv(inputs, behind, plan),
        probes=KINDS[kind].probes(FOREIGN_READY_TIMEOUT_S),
    )
    return replace(plan, digest=_digest(plan)), []


def _common(inputs: Inputs) -> RouterPlan:
    router = inputs.topology.router
    host, port = split_host_port(router.listen)
    admin_host, admin_port = router.admin_address
    keys = router.credentials.keys
    env = {
        name: Word(value, f"topology {inputs.source.origin(('router', 'env', name))}")
        for name, value in router.env.items()
        if value is not None
    }
    node = router_node(inputs.topology)
    tenant_keys = [key.get_secret_value() for t in inputs.topology.tenants.values() for key in t.keys]
    return RouterPlan(
        kind=router.kind,
        host=host,
        port=port,
        admin_host=admin_host,
        admin_port=admin_port,
        url=http_url(_reachable(host), port, secure=router.tls is not None),
        admin_url=http_url(_reachable(admin_host), admin_port),
        argv=(),
        env=marked_env(env, inputs.secrets),
        probes=Probes(ready=(), live=HttpCall("GET", "/health")),
        credentials=Credentials(
            client_keys=tuple(dict.fromkeys([*keys.client, *tenant_keys])),
            engine_key=keys.engine,
            admin_key=keys.admin,
        ),
        drain_s=router.drain_timeout,
        max_restarts=router.max_restarts,
        node=node.name,
        remote_admin_url=_from_elsewhere(node, admin_host, admin_port),
    )


def router_node(topology: Topology) -> Node:
    """The node that the router runs on."""
    hosts = topology.hosts
    return next((n for n in hosts if n.name == topology.router.node), hosts[0])


def _from_elsewhere(node: Node, host: str, port: int) -> str:
    """Where other nodes reach a listener of `node`'s; empty if they cannot."""
    if is_wildcard(host):
        return http_url(node.address, port)
    return "" if is_loopback(host) and not is_loopback(node.address) else http_url(host, port)


def tls_files(topology: Topology, folder: Folder) -> Tls | None:
    """The files of `router.tls`, by absolute path; None where the router speaks no TLS."""
    tls, at = topology.router.tls, folder.absolute
    if tls is None:
        return None
    return Tls(at(tls.certificate), at(tls.key), None if tls.client_ca is None else at(tls.client_ca))


def _reachable(host: str) -> str:
    """Where this machine reaches a listener bound to `host`."""
    if is_wildcard(host):
        return "::1" if ":" in host else "127.0.0.1"
    return host


def _settings(inputs: Inputs) -> dict[str, Any]:
    topology, router = inputs.topology, inputs.topology.router
    limits, timeouts = router.limits, router.timeouts
    return {
        "limits": Limits(
            max_body_bytes=limits.max_body,
            max_header_bytes=limits.max_header,
            max_json_depth=limits.max_json_depth,
            max_inflight=limits.max_inflight,
            max_inflight_per_key=limits.max_inflight_per_key,
            max_queue=limits.max_queue,
            header_timeout_s=limits.header_timeout,
            body_timeout_s=limits.body_timeout,
        ),
        "timeouts": Timeouts(
            connect_s=timeouts.connect,
            queue_s=timeouts.queue_s,
            prefill_s=timeouts.prefill,
            first_token_s=timeouts.first_token,
            inter_token_s=timeouts.inter_token,
            total_s=timeouts.total,
            hang_s=timeouts.hang,
            stall_s=timeouts.stall,
        ),
        "tls": tls_files(inputs.topology, inputs.folder),
        "scheduling": inputs.scheduling,
        "pass_headers": router.pass_headers,
        "continuation": router.continuation,
        "canaries": router.canaries,
        "workers": router.workers,
        **_choosing(topology, timeouts.queue_s),
    }


def _choosing(topology: Topology, queue_s: float) -> dict[str, Any]:
    """How requests get their class, what that promises, and what predicts and records it."""
    scheduling, decisions = topology.scheduling, topology.scheduling.decisions
    return {
        "default_class": scheduling.default_class,
        "slo_classes": {
            name: class_data(slo, queue_s, topology.router.continuation)
            for name, slo in resolved(topology).items()
        },
        "tenants": {name: tenant_data(tenant) for name, tenant in topology.tenants.items()},
        "service_tiers": tiers(topology),
        "priorities": tuple(span.model_dump() for span in scheduling.priorities),
        "predictor": dict(scheduling.predictor),
        "kv_index": KvIndexing(scheduling.kv_index.tokens_within, scheduling.kv_index.max_error),
        "decisions": Decisions(
            record=decisions.record,
            sample=decisions.sample,
            keep_bytes=decisions.keep,
            hashes=decisions.hashes,
            headers=decisions.headers,
        ),
    }


def _behind(inputs: Inputs, instance: InstancePlan) -> Behind:
    part = next(p for p in inputs.parts if p.name == instance.pool)
    return Behind(
        role=instance.role.value,
        engine=part.dialect,
        url=instance.url,
        bootstrap_port=instance.facts.get("bootstrap_port", instance.ports.get("bootstrap")),
        transfer=part.transfer,
    )


def _foreign_argv(inputs: Inputs, behind: Sequence[Behind], plan: RouterPlan) -> tuple[Word, ...]:
    router = inputs.topology.router
    flags = as_settings(
        router.flags,
        lambda name: f"topology {inputs.source.origin(('router', 'flags', name))}",
        flags=True,
    )
    front = Front(plan.host, plan.port, plan.admin_host, plan.admin_port)
    words = KINDS[router.kind].argv(behind, front, flags, router.credentials.keys)
    return marked(run_by(inputs, router.runtime, ("router",), words), inputs.secrets)


def _digest(plan: RouterPlan) -> str:
    """A SHA-256 over what a running router cannot take up by a reload: its process, listeners, limits and
    scheduling mode."""
    what = {
        "argv": [word.text for word in plan.argv],
        "env": {name: word.text for name, word in plan.env.items()},
        "listen": [plan.host, plan.port, plan.admin_host, plan.admin_port],
        "limits": asdict(plan.limits),
        "connect_s": plan.timeouts.connect_s,
        "mode": mode_of(plan.scheduling),
        "tls": None if plan.tls is None else asdict(plan.tls),
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
