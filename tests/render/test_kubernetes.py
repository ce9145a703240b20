"""Kubernetes manifests: core kinds, held against what the API server would demand of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml

from orchestrator.errors import TopologyError
from orchestrator.render import files
from orchestrator.render.kubernetes import GPU, render
from orchestrator.topology.plan import Tls

Made = Callable[..., files.Deployment]
IMAGES = {"prefill": "sglang:v1", "decode": "sglang:v1", "router": "pdctl:v1"}
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
FIELDS = {
    "pod": {
        *(
            "hostNetwork",
            "dnsPolicy",
            "nodeSelector",
            "terminationGracePeriodSeconds",
            "containers",
            "volumes",
        ),
    },
    "container": {
        *("name", "image", "command", "args", "env", "ports", "startupProbe", "readinessProbe", "resources"),
        *("securityContext", "volumeMounts"),
    },
    "probe": {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"},
}
"""Fields of core v1 and apps/v1 that are used; any other is a mistake."""


def manifests(deployment: files.Deployment, images: dict[str, str] | None = None) -> list[dict[str, Any]]:
    (file,) = render(deployment, IMAGES if images is None else images)
    return [m for m in yaml.safe_load_all(file.text) if m]


def pods(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in found if m["kind"] == "Deployment"}


def test_files_that_a_process_reads_are_a_config_map_of_its_own(made: Made, with_files: str) -> None:
    deployment = made(with_files)
    found = manifests(deployment)
    (held,) = (m for m in found if m["kind"] == "ConfigMap" and m["metadata"]["name"].endswith("-files"))
    (pod,) = (
        p
        for p in pods(found).values()
        if any("configMap" in v and v["name"] == "files" for v in p["volumes"])
    )
    (path, text), *_ = deployment.plan.instances[0].files.items()
    name = path.rpartition("/")[2]
    assert held["data"] == {name: text}
    assert {"name": "files", "configMap": {"name": held["metadata"]["name"]}} in pod["volumes"]
    (container,) = pod["containers"]
    assert f"/etc/pdctl-files/{name}" in container["args"]
    assert {"name": "files", "mountPath": "/etc/pdctl-files"} in container["volumeMounts"]


def test_kinds_names_and_selectors_are_what_the_server_wants(made: Made) -> None:
    found = manifests(made())
    assert Counter((m["apiVersion"], m["kind"]) for m in found) == {
        ("apps/v1", "Deployment"): 4,
        ("v1", "ConfigMap"): 1,
        ("v1", "Service"): 1,
    }
    for m in found:
        assert NAME.fullmatch(m["metadata"]["name"])
        assert set(m) <= {"apiVersion", "kind", "metadata", "spec", "data"}
    labels = {}
    for m in found:
        if m["kind"] != "Deployment":
            continue
        spec = m["spec"]
        assert set(spec) == {"replicas", "strategy", "selector", "template"}
        wanted, has = spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]
        assert wanted.items() <= has.items()
        assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", v) for v in has.values())
        labels[m["metadata"]["name"]] = has
    (service,) = [m for m in found if m["kind"] == "Service"]
    assert service["spec"]["selector"].items() <= labels["two-hosts-router"].items()


def test_pods_are_pinned_to_their_nodes_with_all_they_refer_to(made: Made) -> None:
    found = pods(manifests(made()))
    assert {name: pod["nodeSelector"]["kubernetes.io/hostname"] for name, pod in found.items()} == {
        "two-hosts-prefill-0": "a",
        "two-hosts-decode-0": "b",
        "two-hosts-decode-0-rank1": "a",
        "two-hosts-router": "a",
    }
    on_node: Counter[tuple[str, int]] = Counter()
    for pod in found.values():
        assert set(pod) <= FIELDS["pod"]
        (container,) = pod["containers"]
        assert set(container) <= FIELDS["container"]
        names = [e["name"] for e in container.get("env", [])]
        assert len(set(names)) == len(names)
        volumes = {v["name"] for v in pod["volumes"]}
        assert {m["name"] for m in container["volumeMounts"]} == volumes
        ports = container.get("ports", [])
        assert len({p["name"] for p in ports}) == len(ports)
        for port in ports:
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", port["name"])
            on_node[pod["nodeSelector"]["kubernetes.io/hostname"], port["containerPort"]] += 1
        for probe in (container[n] for n in ("startupProbe", "readinessProbe") if n in container):
            assert set(probe) <= FIELDS["probe"]
            assert 0 < probe["httpGet"]["port"] < 65536
        for word in [*container["command"], *container["args"]]:
            assert isinstance(word, str)
            referred = set(re.findall(r"(?<!\$)\$\((\w+)\)", word))
            assert referred <= set(names)
    assert max(on_node.values()) == 1


def test_keys_come_from_a_secret_and_gpus_from_the_plug_in(made: Made) -> None:
    (file,) = render(made(), IMAGES)
    assert "an-engine-key" not in file.text
    assert "a-client-key" not in file.text
    found = pods(manifests(made()))
    (engine,) = found["two-hosts-prefill-0"]["containers"]
    assert engine["resources"]["limits"] == {GPU: "4"}
    by_name = {e["name"]: e for e in engine["env"]}
    assert "CUDA_VISIBLE_DEVICES" not in by_name
    assert by_name["ENGINE_KEY"]["valueFrom"]["secretKeyRef"] == {
        "name": "two-hosts-keys",
        "key": "ENGINE_KEY",
    }
    assert by_name["WORDS"]["value"] == "it's $5 $$(x)"
    assert by_name["SGLANG_HOST_IP"]["value"] == "10.0.0.1"
    assert engine["command"] == ["python3"]
    assert engine["args"][engine["args"].index("--api-key") + 1] == "$(ENGINE_KEY)"


def test_the_router_reads_the_topology_from_its_config_map(made: Made) -> None:
    deployment = made()
    found = manifests(deployment)
    (config,) = [m for m in found if m["kind"] == "ConfigMap"]
    assert config["data"]["topology.yaml"].startswith("name: two-hosts")
    (router,) = pods(found)["two-hosts-router"]["containers"]
    assert router["command"] + router["args"] == ["pdctl", "route", "/etc/pdctl/topology.yaml"]
    assert {e["name"] for e in router["env"]} == {"ENGINE_KEY", "CLIENT_KEY"}


def test_what_cannot_work_there_is_refused(made: Made) -> None:
    with pytest.raises(
        TopologyError, match=r"image holds the engine of pool decode.*--image decode=NAME:TAG"
    ):
        render(made(), {"prefill": "x", "router": "x"})
    with pytest.raises(TopologyError, match=r"the router listens on 127\.0\.0\.1"):
        render(made(*[_local()]), IMAGES)
    deployment = made()
    assert deployment.plan.router is not None
    secured = replace(deployment.plan.router, tls=Tls("/c.pem", "/k.pem"))
    deployment = replace(deployment, plan=replace(deployment.plan, router=secured))
    with pytest.raises(TopologyError, match=r"router\.tls are on no pod.*ingress"):
        render(deployment, IMAGES)


def test_long_names_stay_legal_and_apart(made: Made) -> None:
    long = "d" + "x" * 40
    text = _local().replace("name: here", f"name: {long}").replace("127.0.0.1:8000", "0.0.0.0:8000")
    text = text.replace("prefill:", "prefill-of-a-name-as-long-as-that:")
    images = IMAGES | {"prefill-of-a-name-as-long-as-that": "x"}
    names = [m["metadata"]["name"] for m in manifests(made(text), images)]
    assert all(NAME.fullmatch(name) for name in names)


def _local() -> str:
    return (
        "name: here\nmodel: {path: m}\nnodes: [{name: a, gpus: 8}]\npools:\n"
        "  prefill: {role: prefill, engine: sglang, instances: 2}\n"
        "  decode: {role: decode, engine: sglang}\n"
        "router: {listen: '127.0.0.1:8000', auth: none}\n"
    )
