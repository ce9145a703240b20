"""Nodes against each other, engines that cannot span them, and a router that some do not reach."""

from __future__ import annotations

TWO = """\
name: two
model: {path: org/model}
nodes:
  - {name: a, address: 10.0.0.1, gpus: 2, ports: 20000-20999}
  - {name: b, address: 10.0.0.2, gpus: 2, ports: 21000-21999}
pools:
  unified: {role: unified, engine: sglang, instances: 2}
router: {auth: none}
"""


def test_two_nodes_of_one_machine_may_not_share_gpus(site) -> None:
    told = site.told(TWO, "nodes.1.address=10.0.0.1")
    assert any(
        "nodes.1.gpus: GPUs 0, 1 of 10.0.0.1 belong to node a already, which has that address [shared-host]"
        in t
        for t in told
    ), told
    assert site.plan(TWO, "nodes.1.address=10.0.0.1", "nodes.1.gpus=[2, 3]").instances


def test_a_node_without_a_rack_is_warned_of_where_others_have_one(site) -> None:
    warned = site.plan(TWO, "nodes.0.rack=r1").warnings
    assert any("nodes.1: node b has no `rack`, others have" in w for w in warned), warned
    assert not any("[racks]" in w for w in site.plan(TWO).warnings)


def test_an_engine_that_cannot_span_nodes_is_not_spread_over_them(site, pair: str) -> None:
    nodes = "nodes=[{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]"
    told = site.told(pair, nodes, "pools.decode.nnodes=2")
    assert any(
        "pools.decode.nnodes: engine ./fake_engine.py:Fake runs an instance on one node" in t for t in told
    )


def test_a_router_that_engines_of_other_hosts_cannot_be_announced_to_is_warned_of(site, pair: str) -> None:
    hosts = pair + "nodes: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.2}]\n"
    (warning,) = site.plan(hosts).warnings
    assert "router.admin: engines run at 2 addresses, and only the router's own node reaches" in warning
    assert "(admin: 10.0.0.1:8001, and credentials.admin_key)" in warning
    site.environ = {"KEY": "an-admin-key"}
    keyed = hosts + "router: {admin: '10.0.0.1:8001', credentials: {admin_key: '${env:KEY}'}}\n"
    plan = site.plan(keyed)
    assert plan.warnings == ()
    assert plan.router is not None
    assert plan.router.remote_admin_url == "http://10.0.0.1:8001"
    wild = site.plan(keyed, "router.admin=0.0.0.0:8001", "router.node=b")
    assert wild.router.remote_admin_url == "http://10.0.0.2:8001"
    together = ("nodes.1.address=10.0.0.1", "nodes.1.ports=1024-2047")
    assert site.plan(hosts, *together).warnings == ()
    assert site.plan(hosts, "nodes.0.address=127.0.0.2", "nodes.1.address=127.0.0.1").warnings == ()
