"""Units made from plans: what is launched, with which keys, and which names are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import LogHint
from orchestrator.errors import LaunchError
from orchestrator.launch.testing import instance, plan, router, word
from orchestrator.launch.unit import ROUTER, secrets_of, units_of
from orchestrator.topology.plan import Credentials, FollowerPlan, Tls

KEYS = Credentials(client_keys=("ck1", "ck2"), engine_key="ek", admin_key="ak")
P = instance("p0", Role.PREFILL, 9000, ["engine", "--api-key", "x"])
R = router(8000, 8001, ["router"], credentials=KEYS)


def test_every_process_is_a_unit_the_router_last_external_ones_left_out(tmp_path: Path) -> None:
    outside = replace(P, name="d0", external=True, argv=())
    assert list(units_of(plan(tmp_path, P, outside, router=R))) == ["p0", ROUTER]
    assert list(units_of(plan(tmp_path, P))) == ["p0"]


def test_a_further_process_of_an_instance_is_a_unit_of_its_node(tmp_path: Path) -> None:
    follower = FollowerPlan(
        name="p0.1", rank=1, node="b", address="10.0.0.2", url="", env={}, ports={"events": 9005},
        argv=(word("engine"), word("k", secret=True)), probes=P.probes, digest="f",
    )  # fmt: skip
    there = plan(tmp_path, replace(P, node="a", followers=(follower,)), router=replace(R, node="b"))
    assert list(units_of(there)) == ["p0", "p0.1", ROUTER]
    unit = units_of(there)["p0.1"]
    assert (unit.follows, unit.instance, unit.host, unit.digest) == ("p0", "p0", "10.0.0.2", "f")
    assert unit.keys == {0: "ek"}
    assert list(units_of(replace(there, node="a"))) == ["p0"]
    assert list(units_of(replace(there, node="b"))) == ["p0.1", ROUTER]
    assert list(units_of(replace(there, node="c"))) == []
    assert "k" in secrets_of(there)


def test_the_router_is_up_when_it_answers_and_serves_when_it_says_so(tmp_path: Path) -> None:
    unit = units_of(plan(tmp_path, router=R))[ROUTER]
    assert [c.path for c in unit.probes.ready] == ["/health"]
    assert [c.path for c in unit.serving] == ["/ready"]
    assert unit.is_router
    assert unit.ports == {"http": 8000, "admin": 8001}


def test_each_probe_gets_the_key_of_who_answers_it(tmp_path: Path) -> None:
    units = units_of(plan(tmp_path, P, router=R))
    assert units["p0"].keys == {0: "ek"}
    assert units[ROUTER].keys == {0: "ck1", 8001: "ak"}


def test_without_credentials_there_are_no_keys(tmp_path: Path) -> None:
    units = units_of(plan(tmp_path, P, router=replace(R, credentials=Credentials())))
    assert units["p0"].keys is None
    assert units[ROUTER].keys is None


@pytest.mark.parametrize("name", ["router", "a/b", "../x", "", "-a", "a b"])
def test_names_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LaunchError, match="cannot be called"):
        units_of(plan(tmp_path, replace(P, name=name), router=R))


def test_a_name_used_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="'p0'"):
        units_of(plan(tmp_path, P, P))


def test_a_hint_that_is_no_pattern_is_the_adapter_s_fault(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="p0: the log hint '\\(' of its engine adapter"):
        units_of(plan(tmp_path, replace(P, hints=(LogHint("(", "x"),))))


def test_a_plan_without_digests_is_told_apart_by_what_is_run(tmp_path: Path) -> None:
    first = units_of(plan(tmp_path, P))["p0"].digest
    assert first == units_of(plan(tmp_path, replace(P, drain_s=1.0, max_restarts=9)))["p0"].digest
    assert first != units_of(plan(tmp_path, replace(P, env={"A": word("1")})))["p0"].digest
    assert units_of(plan(tmp_path, replace(P, digest="d")))["p0"].digest == "d"


def test_every_secret_is_known(tmp_path: Path) -> None:
    secret = replace(P, argv=(word("engine"), word("sk-1", secret=True)), env={"T": word("tok", secret=True)})
    assert secrets_of(plan(tmp_path, secret, router=R)) == {"ck1", "ck2", "ek", "ak", "sk-1", "tok"}


@pytest.mark.parametrize(("ca", "asked"), [(None, ""), ("ca.pem", "http://127.0.0.1:8001")])
def test_a_router_that_wants_a_certificate_is_probed_where_it_wants_none(
    tmp_path: Path, ca: str | None, asked: str
) -> None:
    router = replace(R, url="https://127.0.0.1:8000", tls=Tls("c.pem", "k.pem", ca))
    unit = units_of(plan(tmp_path, router=router))[ROUTER]
    assert unit.asked_at == asked
    assert unit.host == "127.0.0.1"
