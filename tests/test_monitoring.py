"""The shipped alerts and dashboard ask for series that there are, and each alert is explained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.metrictable import METRICS

ROOT = Path(__file__).resolve().parent.parent
MONITORING = ROOT / "examples" / "monitoring"
DOC = (ROOT / "docs" / "monitoring.md").read_text()
METRICS_DOC = (ROOT / "docs" / "metrics.md").read_text()
TARGET = {"job", "instance"}
"""Labels that Prometheus adds to what it scrapes."""
WORDS = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[tuple[str, str, str]]:
    """Title, expression and legend of every query of the dashboard."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def series() -> dict[str, set[str]]:
    """The labels of every series that a scrape can hold, by name."""
    found: dict[str, set[str]] = {}
    for metric in METRICS:
        labels = set(metric.labels) | TARGET
        if metric.kind == "histogram":
            found |= {f"{metric.name}_bucket": labels | {"le"}, f"{metric.name}_count": labels}
        else:
            found[metric.name] = labels
    process = re.findall(r"`(process_\w+)`", METRICS_DOC)
    return found | dict.fromkeys(process, TARGET) | {"up": TARGET}


def asked(expression: str) -> dict[str, set[str]]:
    """The labels asked of each series in an expression: in its matchers, or in any grouping."""
    known = series()
    bare = re.sub(r'"[^"]*"', '""', expression)
    grouped = {
        word for inside in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare) for word in WORDS.findall(inside)
    }
    found = {}
    for name, matchers in re.findall(r"\b([a-z_]+)(?:\{([^}]*)\})?(?=[\s\[)/<>=]|$)", bare):
        if name in known or name.startswith(("pdctl_", "process_")):
            found[name] = set(re.findall(r"(\w+)\s*[!=]", matchers)) | grouped
    return found


def kept(expression: str) -> set[str]:
    """The labels that an expression's result has."""
    grouped = re.search(r"\bby \(([^)]*)\)", expression)
    if grouped:
        return set(WORDS.findall(grouped[1]))
    known = series()
    return set.intersection(*(known[name] for name in asked(expression)))


EXPRESSIONS = [
    *((rule["alert"], rule["expr"]) for rule in alerts()),
    *((f"{title}: {legend}", expression) for title, expression, legend in panels()),
]


@pytest.mark.parametrize(("of", "expression"), EXPRESSIONS, ids=[of for of, _ in EXPRESSIONS])
def test_what_is_asked_for_is_there(of: str, expression: str) -> None:
    known = series()
    names = asked(expression)
    assert names, expression
    for name, labels in names.items():
        assert name in known, f"{of}: there is no {name}"
        assert labels <= known[name], f"{of}: {name} has no {sorted(labels - known[name])}"


@pytest.mark.parametrize(("of", "expression"), EXPRESSIONS, ids=[of for of, _ in EXPRESSIONS])
def test_values_of_labels_are_those_documented(of: str, expression: str) -> None:
    for label, value in re.findall(r'(\w+)!?=~?"([^"$]*)"', expression):
        if label in TARGET:
            continue
        for one in value.split("|"):
            assert re.search(rf"`{re.escape(one)}`|\b{re.escape(one)}\b", METRICS_DOC), f"{of}: {label}={one}"


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_and_is_explained(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert f"\n### {rule['alert']}\n" in DOC
    told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert told <= kept(rule["expr"])


def test_no_alert_is_explained_that_is_not_there() -> None:
    assert set(re.findall(r"\n### (\w+)\n", DOC)) == {rule["alert"] for rule in alerts()}


def test_a_legend_names_only_labels_that_its_query_keeps() -> None:
    for title, expression, legend in panels():
        told = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert told <= kept(expression), title
