"""Classes and tenants from the file through the plan to the core; also slo_schema and scheduling_schema."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.classes import Chosen
from orchestrator.core.slo import Priority, SloClass, Target, Unattainable
from orchestrator.core.tenants import Rate, TenantLimits
from orchestrator.topology.plan import Decisions, dump, parse
from orchestrator.topology.slo import (
    SHIPPED,
    class_rules,
    slo_class,
    slo_classes,
    stage_timeouts,
    tenant_limits,
)

DOC = Path(__file__).resolve().parents[2] / "docs" / "slo.md"


def classes_of(site, pair: str, text: str = "") -> dict[str, SloClass]:
    return slo_classes(site.plan(pair + text).router)


def test_the_shipped_classes_are_there_without_being_written(site, pair: str) -> None:
    assert classes_of(site, pair) == {
        "realtime": SloClass(
            "realtime", ttft=Target(0.5, 0.99, 1.0), itl=Target(0.04), priority=Priority.REALTIME
        ),
        "interactive": SloClass("interactive", ttft=Target(1.5, 0.99, 2.0), tpot=Target(0.04)),
        "batch": SloClass(
            "batch",
            e2e=Target(900.0, 0.95),
            priority=Priority.BATCH,
            unattainable=Unattainable.QUEUE,
        ),
    }


def test_they_are_overridden_field_by_field(site, pair: str) -> None:
    made = classes_of(
        site, pair, "slo_classes: {interactive: {ttft: 2s, tpot: null}, batch: {reserve: 0.1}}\n"
    )
    assert made["interactive"] == SloClass("interactive", ttft=Target(2.0))
    assert made["batch"].e2e == Target(900.0, 0.95)
    assert made["batch"].reserve == 0.1
    assert made["batch"].unattainable is Unattainable.QUEUE
    assert made["realtime"].ttft == Target(0.5, 0.99, 1.0)


def test_every_field_arrives(site, pair: str) -> None:
    made = classes_of(
        site,
        pair,
        "slo_classes:\n"
        "  own:\n"
        "    ttft: {p99.9: 1.5s, per_cold_prefill: 2}\n"
        "    itl: {p50: 40ms}\n"
        "    tpot: 30ms\n"
        "    e2e: {p90: 1m}\n"
        "    priority: realtime\n"
        "    pools: [prefill, decode, prefill]\n"
        "    unattainable: best_effort\n"
        "    reserve: 0.25\n"
        "    max_wait: 9s\n",
    )
    assert made["own"] == SloClass(
        "own",
        ttft=Target(1.5, 0.999, 2.0),
        itl=Target(0.04, 0.5),
        tpot=Target(0.03),
        e2e=Target(60.0, 0.9),
        priority=Priority.REALTIME,
        unattainable=Unattainable.BEST_EFFORT,
        pools=frozenset({"prefill", "decode"}),
        reserve=0.25,
        max_wait_s=9.0,
    )


def test_case_19_deadlines_of_a_class_stand_in_for_the_routers(site, pair: str) -> None:
    text = "slo_classes: {a: {timeouts: {prefill: 9s, inter_token: 2s}}, b: {timeouts: {}}}\n"
    router = site.plan(pair + text).router
    assert stage_timeouts(router) == {"a": replace(router.timeouts, prefill_s=9.0, inter_token_s=2.0)}


def test_the_plan_carries_them_through_its_file(site, pair: str) -> None:
    plan = site.plan(
        pair
        + "slo_classes:\n"
        + "  a: {ttft: {p99: 1s, per_cold_prefill: 1}, long_prompts: {over_tokens: 9, use: batch}}\n"
        + "tenants: {t: {classes: [a], rate: {per_second: 0.5}}}\n"
        + "scheduling: {priorities: [{at_least: 1, use: a}]}\n"
    )
    router = parse(dump(plan)).router
    assert router is not None
    assert slo_classes(router) == slo_classes(plan.router)
    rules = class_rules(router)
    assert rules.choose("a", {}, None, 10) == Chosen("batch")
    assert rules.choose(None, {"priority": 1}, None, 1) == Chosen("a")
    assert rules.choose("realtime", {}, "t", 1) == Chosen("a", "realtime")


def test_the_longest_wait_is_the_routers_unless_written(site, pair: str) -> None:
    text = "slo_classes: {a: {max_wait: 5s}}\nrouter: {timeouts: {queue: 20s}}\n"
    made = classes_of(site, pair, text)
    assert (made["a"].max_wait_s, made["batch"].max_wait_s) == (5.0, 20.0)


@pytest.mark.parametrize(
    ("timeouts", "queue_s"),
    [("{}", 600.0), ("{total: 90s}", 90.0), ("{queue: 1s}", 1.0), ("{total: 2h}", 600.0)],
)
def test_the_queue_has_a_deadline_within_the_whole(site, pair: str, timeouts: str, queue_s: float) -> None:
    plan = site.plan(pair + f"router: {{timeouts: {timeouts}}}\n")
    assert plan.router.timeouts.queue_s == queue_s


def test_a_plan_written_by_hand_may_leave_everything_out() -> None:
    assert slo_class("gold", {}) == SloClass("gold")


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("", {}),
        ("slo_classes: {}\n", {"flex": "batch", "priority": "realtime"}),
        ("slo_classes: {}\nscheduling: {service_tiers: {}}\n", {}),
        ("scheduling: {service_tiers: {scale: interactive}}\n", {"scale": "interactive"}),
    ],
)
def test_service_tiers_mean_something_where_classes_are_written(
    site, pair: str, text: str, tiers: dict[str, str]
) -> None:
    router = site.plan(pair + text).router
    assert router.service_tiers == tiers
    assert class_rules(router).idle == (not tiers)


def test_limits_of_tenants(site, pair: str) -> None:
    plan = site.plan(
        pair
        + "tenants:\n"
        + "  a: {max_inflight: 3, max_queued: 2, rate: {per_second: 2.5}}\n"
        + "  b: {rate: {per_second: 0.1, burst: 7}}\n"
        + "  c: {slo_class: batch}\n"
    )
    assert tenant_limits(plan.router) == {
        "a": TenantLimits(3, 2, Rate(2.5, 2)),
        "b": TenantLimits(rate=Rate(0.1, 7)),
        "c": TenantLimits(),
    }
    assert class_rules(plan.router).choose("realtime", {}, "c", 1) == Chosen("batch", "realtime")


def test_a_rate_below_one_a_second_still_lets_one_through(site, pair: str) -> None:
    plan = site.plan(pair + "tenants: {a: {rate: {per_second: 0.01}}}\n")
    assert tenant_limits(plan.router)["a"].rate == Rate(0.01, 1)


def test_the_decision_log_and_the_predictor(site, pair: str) -> None:
    router = site.plan(pair).router
    assert router.decisions == Decisions()
    assert router.predictor == {"use": "stages"}
    text = "scheduling: {decisions: {record: full, keep: 1GiB}}\n"
    assert site.plan(pair + text).router.decisions == Decisions("full", keep_bytes=1 << 30)
    text = "scheduling: {decisions: {record: off}}\n"
    assert site.plan(pair + text).router.decisions.record == "off"


OWN_PREDICTOR = """\
from typing import Annotated
from pydantic import Field
from orchestrator.policy import Params

class P(Params):
    halflife: Annotated[int, Field(ge=1)] = 3

class Own:
    def __init__(self, params: P) -> None: ...
"""


def test_a_predictor_of_ones_own_is_looked_up_and_its_parameters_checked(site, pair: str) -> None:
    (site.folder / "own.py").write_text(OWN_PREDICTOR)
    text = "scheduling:\n  predictor: {use: './own.py:Own', halflife: 7}\n"
    assert site.plan(pair + text).router.predictor == {"use": "./own.py:Own", "halflife": 7}
    assert site.plan(pair + "scheduling: {predictor: './own.py:Own'}\n").router.predictor == {
        "use": "./own.py:Own"
    }
    told = site.told(pair + text.replace("7", "0"))
    assert len(told) == 1
    assert "t.yaml:7: scheduling.predictor.halflife: ./own.py:Own: " in told[0]
    told = site.told(pair + text.replace("halflife", "halflive"))
    assert "has no parameter 'halflive' (did you mean 'halflife'?)" in told[0]
    told = site.told(pair + text.replace(":Own", ":Onw"))
    assert "t.yaml:7: scheduling.predictor.use: " in told[0]
    assert "did you mean 'Own'?" in told[0]
    told = site.told(pair + "scheduling: {predictor: stagse}\n")
    assert told[0].startswith("t.yaml:6: scheduling.predictor: no plug-in named 'stagse' in pdctl.predictors")


def test_the_docs_tell_the_shipped_numbers() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| `(\w+)` \|$", DOC.read_text(), re.MULTILINE)
    told = {name: (priority, targets, unattainable) for name, priority, targets, unattainable in rows}
    assert set(told) == set(SHIPPED)
    for name, slo in SHIPPED.items():
        priority, targets, unattainable = told[name]
        assert (priority, unattainable) == (slo.priority, slo.unattainable)
        given = {field: getattr(slo, field) for field in ("ttft", "itl", "tpot", "e2e")}
        written = [f"`{field}: {_shown(target)}`" for field, target in given.items() if target is not None]
        assert targets == ", ".join(written)


def _shown(target: Target) -> str:
    unit, size_s = next(u for u in (("m", 60.0), ("s", 1.0), ("ms", 0.001)) if target.seconds >= u[1])
    text = f"{target.seconds / size_s:g}{unit}"
    cold = f", per_cold_prefill: {target.per_cold_prefill:g}" if target.per_cold_prefill else ""
    return f"{{p{target.quantile * 100:g}: {text}{cold}}}"
