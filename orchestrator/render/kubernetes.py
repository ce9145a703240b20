"""Kubernetes: a Deployment of one pod for each process, pinned to its node and on the host's network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.address import is_loopback
from orchestrator.errors import Problem, TopologyError
from orchestrator.render.files import FILES, ROUTER, Deployment, File, Process, Var
from orchestrator.render.scripts import KILL_MARGIN_S, about
from orchestrator.topology.model import CONFIG

GPU = "nvidia.com/gpu"
"""The resource that NVIDIA's device plug-in offers."""
PERIOD_S = 10
TOPOLOGY = "/etc/pdctl"
"""Where the router's pod finds the topology."""
OWN_FILES = "/etc/pdctl-files"
"""Where a pod finds the files that its process is given."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
MAX_NAME = 63


def render(deployment: Deployment, images: Mapping[str, str]) -> list[File]:
    """One file of manifests. `images` are container images by pool, the router's under `router`.

    Raises TopologyError for a pool without an image, and for nodes on loopback.
    """
    processes = deployment.processes()
    _refuse(deployment, processes, images)
    parts = [_head(deployment)]
    if any(p.name == ROUTER for p in processes):
        parts.append(
            _manifest(_config_map(deployment), "What the router reads; engines have it in their words.")
        )
    for process in processes:
        note = "\n".join(about(deployment, process))
        if process.files:
            parts.append(_manifest(_own_files(deployment, process), f"Files that {process.name} reads."))
        parts.append(_manifest(_deployment(deployment, process, images[process.pool]), note))
        if process.name == ROUTER:
            parts.append(
                _manifest(_service(deployment, process), "Where clients within the cluster connect.")
            )
    return [File("kubernetes.yaml", "---\n".join(parts))]


def _refuse(deployment: Deployment, processes: list[Process], images: Mapping[str, str]) -> None:
    problems = [
        Problem(f"which container image holds the engine of pool {pool}?", hint=f"--image {pool}=NAME:TAG")
        for pool in dict.fromkeys(p.pool for p in processes)
        if pool not in images
    ]
    problems += [
        Problem(
            f"node {node} has the address {address}, which pods of other nodes cannot reach",
            hint="its own IP",
        )
        for node, address in deployment.addresses.items()
        if len(deployment.addresses) > 1 and is_loopback(address)
    ]
    router = deployment.plan.router
    if router is not None and is_loopback(router.host):
        hint = f"--set router.listen=0.0.0.0:{router.port}, with client keys"
        problems.append(
            Problem(f"the router listens on {router.host}, which no pod and no probe reaches", hint=hint)
        )
    if router is not None and router.tls is not None:
        hint = "end TLS at an ingress, with `--set router.tls=null`"
        problems.append(Problem("the files of router.tls are on no pod", hint=hint))
    if problems:
        raise TopologyError(problems)


def _head(deployment: Deployment) -> str:
    plan = deployment.plan
    lines = [
        f"# {plan.name} on Kubernetes. Written by `pdctl render` from {plan.file}.",
        "#",
        "# Pods are on the host's network and pinned to the node of that name (kubernetes.io/hostname), so",
        "# that addresses, ports and NICs are the plan's. GPUs are the device plug-in's: where instances",
        "# share a node, it need not give each the ones that the plan has beside its NICs.",
        "# No process has a livenessProbe: a long prefill or a compilation makes health answers slow, and an",
        "# exit alone proves that an engine is dead.",
    ]
    if deployment.secrets:
        literals = " ".join(f'--from-literal={name}="${name}"' for name in deployment.secrets)
        lines += [
            "# Keys are in a Secret that you make:",
            f"#   kubectl create secret generic {_secret(plan.name)} {literals}",
        ]
    return "\n".join(lines) + "\n"


def _manifest(manifest: Mapping[str, Any], note: str) -> str:
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    return comment + "\n".join(_yaml(manifest, 0)) + "\n"


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """Mappings and lists in block style, scalars as JSON, which YAML reads alike."""
    pad = "  " * depth
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield f"{pad}{key}:"
            yield from _yaml(item, depth + 1)
        elif isinstance(item, list) and item:
            yield f"{pad}{key}:"
            for element in item:
                yield from _item(element, depth)
        else:
            yield f"{pad}{key}: {json.dumps(item)}"


def _item(element: Any, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if not isinstance(element, Mapping):
        yield f"{pad}- {json.dumps(element)}"
        return
    lines = list(_yaml(element, depth + 1))
    yield f"{pad}- {lines[0].lstrip()}"
    yield from lines[1:]


def _dns(deployment: Deployment, process: Process) -> str:
    name, _, rank = process.name.partition(".")
    whole = f"{deployment.plan.name}-{name}" + (f"-rank{rank}" if rank else "")
    if len(whole) <= MAX_NAME:
        return whole
    return f"{whole[: MAX_NAME - 9].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _secret(name: str) -> str:
    return f"{name[: MAX_NAME - 5].rstrip('-')}-keys"


def _labels(deployment: Deployment, process: Process) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": _dns(deployment, process),
        "app.kubernetes.io/part-of": deployment.plan.name,
        "app.kubernetes.io/component": process.role,
    }


def _meta(deployment: Deployment, process: Process) -> dict[str, Any]:
    return {"name": _dns(deployment, process), "labels": _labels(deployment, process)}


def _config_map(deployment: Deployment) -> dict[str, Any]:
    plan = deployment.plan
    data = {key: path.read_text() for key, path in _files(deployment).items()}
    name = f"{plan.name[: MAX_NAME - 9].rstrip('-')}-topology"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def _own_files(deployment: Deployment, process: Process) -> dict[str, Any]:
    """What a process reads at `OWN_FILES`."""
    meta = {"name": f"{_dns(deployment, process)}-files", "labels": _labels(deployment, process)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(process.files)}


def _files(deployment: Deployment) -> dict[str, Path]:
    """The topology and what it refers to in its folder, by key of the ConfigMap."""
    base = Path(deployment.plan.base_dir)
    found = {}
    for index, source in enumerate(deployment.plan.sources):
        path = Path(source)
        if path.is_relative_to(base) and path.suffix in (".yaml", ".yml", ".py", ".json"):
            if path == Path(deployment.plan.file):
                found["topology.yaml"] = path
            else:
                found[f"file-{index}{path.suffix}"] = path
    return found


def _deployment(deployment: Deployment, process: Process, image: str) -> dict[str, Any]:
    labels = _labels(deployment, process)
    pod = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": {"kubernetes.io/hostname": process.node},
        "terminationGracePeriodSeconds": int(process.drain_s) + KILL_MARGIN_S,
        "containers": [_container(deployment, process, image)],
        "volumes": _volumes(deployment, process),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(deployment, process),
        "spec": {
            "replicas": 1,
            # The old pod has the ports until it is gone.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app.kubernetes.io/name": labels["app.kubernetes.io/name"]}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _container(deployment: Deployment, process: Process, image: str) -> dict[str, Any]:
    words = _router_words(deployment) if process.name == ROUTER else _engine_words(deployment, process)
    made: dict[str, Any] = {"name": process.role, "image": image, "command": words[:1], "args": words[1:]}
    env = [*_keys(deployment, process), *_variables(deployment, process)]
    if env:
        made["env"] = env
    ports = [
        {"name": p[:15].rstrip("-"), "containerPort": n, "protocol": "TCP"}
        for p, n in process.ports.items()
        if n
    ]
    if ports:
        made["ports"] = ports
    made |= _probes(process)
    if process.devices:
        made["resources"] = {"limits": {GPU: str(len(process.devices))}}
        # RDMA devices and locked memory; with an RDMA device plug-in, ask for its resource instead.
        made["securityContext"] = {"privileged": True}
    made["volumeMounts"] = [{"name": v["name"], "mountPath": m} for v, m in _mounted(deployment, process)]
    if not made["volumeMounts"]:
        del made["volumeMounts"]
    return made


def _engine_words(deployment: Deployment, process: Process) -> list[str]:
    """The command line, run by the image's Python instead of this host's."""
    words = [_word(deployment, word) for word in process.words]
    first = next((n for n, word in enumerate(words) if word in ("-m", "-P")), 0)
    return ["python3", *words[first:]] if first else words


def _router_words(deployment: Deployment) -> list[str]:
    words = ["pdctl", "route", f"{TOPOLOGY}/topology.yaml"]
    for override in deployment.overrides:
        words += ["--set", override]
    return words


def _word(deployment: Deployment, pieces: tuple[Any, ...]) -> str:
    """`$(NAME)` is filled in by Kubernetes; addresses are the plan's, and a literal `$(` is doubled."""
    known = {v: deployment.addresses[n] for n, v in deployment.address_variables().items()}
    known[FILES] = OWN_FILES
    parts = []
    for piece in pieces:
        if not isinstance(piece, Var):
            parts.append(piece.replace("$(", "$$("))
        else:
            parts.append(known.get(piece.name) or f"$({piece.name})")
    return "".join(parts)


def _keys(deployment: Deployment, process: Process) -> Iterator[dict[str, Any]]:
    for name in deployment.secrets:
        if name in process.variables:
            source = {"name": _secret(deployment.plan.name), "key": name}
            yield {"name": name, "valueFrom": {"secretKeyRef": source}}


def _variables(deployment: Deployment, process: Process) -> Iterator[dict[str, Any]]:
    for name, pieces in process.env.items():
        own = pieces == (Var(name),)
        # The device plug-in says which GPUs the container sees.
        if name != VISIBLE and not own:
            yield {"name": name, "value": _word(deployment, pieces)}


def _probes(process: Process) -> dict[str, Any]:
    calls = [c for c in process.ready if c.method == "GET"]
    if not calls or "http" not in process.ports:
        return {}

    def probe(index: int, **more: Any) -> dict[str, Any]:
        call = calls[index]
        get = {"path": call.path, "port": call.port or process.ports["http"]}
        return {
            "httpGet": get,
            "periodSeconds": PERIOD_S,
            "timeoutSeconds": max(1, round(call.timeout_s)),
            **more,
        }

    failures = max(1, -(-int(process.ready_timeout_s) // PERIOD_S))
    return {
        "startupProbe": probe(0, failureThreshold=failures),
        "readinessProbe": probe(-1, failureThreshold=3),
    }


def _mounted(deployment: Deployment, process: Process) -> Iterator[tuple[dict[str, Any], str]]:
    """Each volume with where it is mounted."""
    if process.name == ROUTER:
        base = Path(deployment.plan.base_dir)
        items = [
            {"key": key, "path": key if key == "topology.yaml" else str(path.relative_to(base))}
            for key, path in _files(deployment).items()
        ]
        name = f"{deployment.plan.name[: MAX_NAME - 9].rstrip('-')}-topology"
        yield {"name": "topology", "configMap": {"name": name, "items": items}}, TOPOLOGY
        return
    # What the ranks of an engine exchange within a pod; the default of 64 MiB ends them.
    yield {"name": "shm", "emptyDir": {"medium": "Memory"}}, "/dev/shm"
    if process.files:
        yield {"name": "files", "configMap": {"name": f"{_dns(deployment, process)}-files"}}, OWN_FILES
    for source in deployment.plan.sources:
        if Path(source).name == CONFIG:
            folder = str(Path(source).parent)
            yield {"name": "model", "hostPath": {"path": folder, "type": "Directory"}}, folder


def _volumes(deployment: Deployment, process: Process) -> list[dict[str, Any]]:
    return [volume for volume, _ in _mounted(deployment, process)]


def _service(deployment: Deployment, process: Process) -> dict[str, Any]:
    labels = _labels(deployment, process)
    ports = [{"name": n, "port": p, "targetPort": p} for n, p in process.ports.items() if n == "http"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(deployment, process),
        "spec": {
            "selector": {"app.kubernetes.io/name": labels["app.kubernetes.io/name"]},
            "ports": ports,
        },
    }
