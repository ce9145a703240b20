"""The lockfile: every process with words, versions and digests, the files behind it (sources), no secret."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from orchestrator.topology.lockfile import FILE, SCHEMA, dump, locked, parse

UNIFIED = """\
name: two
model: {path: ./model}
nodes:
  - {name: a, address: 10.0.0.1, gpus: 8}
  - {name: b, address: 10.0.0.2, gpus: 8}
pools:
  prefill: {role: unified, engine: sglang, tp: 16}
  other: {role: unified, engine: ./fake_engine.py:Fake}
router: {auth: none, credentials: {engine_key: "${env:KEY}"}}
"""


def test_it_holds_what_is_run_and_comes_back_from_disk(site) -> None:
    site.environ = {"KEY": "a-long-engine-key"}
    lock = locked(site.plan(UNIFIED), 86_400.0)
    assert lock.written == "1970-01-02T00:00:00+00:00"
    assert list(lock.processes) == ["prefill-0", "prefill-0.1", "other-0", "router"]
    head, follower = lock.processes["prefill-0"], lock.processes["prefill-0.1"]
    assert (head.node, follower.node, follower.instance) == ("a", "b", "prefill-0")
    assert "--nnodes" in head.argv
    assert head.devices == tuple(range(8))
    again = parse(dump(lock))
    assert again.processes == lock.processes
    assert (again.plan_sha256, again.sources) == (lock.plan_sha256, lock.sources)


def test_it_holds_no_secret_and_tells_that_one_changed(site) -> None:
    site.environ = {"KEY": "a-long-engine-key"}
    before = locked(site.plan(UNIFIED))
    assert b"a-long-engine-key" not in dump(before)
    site.environ = {"KEY": "another-engine-key"}
    after = locked(site.plan(UNIFIED))
    assert before.processes["prefill-0"].argv == after.processes["prefill-0"].argv
    assert before.processes["prefill-0"].digest != after.processes["prefill-0"].digest
    assert before.router == after.router
    assert before.router_sha256 != after.router_sha256


def test_on_a_node_only_what_runs_there(site) -> None:
    site.environ = {"KEY": "a-long-engine-key"}
    plan = site.plan(UNIFIED, "router.node=b")
    assert list(locked(replace(plan, node="b")).processes) == ["prefill-0.1", "router"]


def test_the_files_behind_a_plan_are_hashed(site) -> None:
    """Topology, profiles, plug-ins and the model's description (sources)."""
    site.environ = {"KEY": "a-long-engine-key"}
    (site.folder / "model").mkdir()
    (site.folder / "model" / "config.json").write_text("{}")
    sources = site.plan(UNIFIED).sources
    names = {path.replace(f"{site.folder}/", "") for path in sources}
    assert names == {"t.yaml", "fake_engine.py", "profiles/fake/default.yaml", "model/config.json"}
    assert sources[str(site.folder / "model" / "config.json")] == hashlib.sha256(b"{}").hexdigest()
    assert site.plan(UNIFIED).sources == sources
    assert site.plan(UNIFIED + "# more\n").sources[str(site.file)] != sources[str(site.file)]


def test_another_schema_is_refused(site) -> None:
    site.environ = {"KEY": "a-long-engine-key"}
    lock = locked(site.plan(UNIFIED))
    with pytest.raises(ValueError):
        parse(dump(replace(lock, schema=SCHEMA + 1)))
    with pytest.raises(ValueError):
        parse(b"not json")


CHAT = """\
name: chat
model: {path: org/model}
state_dir: ./state
nodes:
  - {name: a, address: 127.0.0.1, gpus: 8}
pools:
  decode: {role: decode, engine: sglang, instances: 2, tp: 2}
  prefill: {role: prefill, engine: sglang, tp: 2}
"""
ABOVE = CHAT.replace("pools:\n", "pools:\n  early: {role: unified, engine: sglang, instances: 2}\n")


def launched(site, plan) -> None:
    (site.folder / "state").mkdir(exist_ok=True)
    (site.folder / "state" / FILE).write_bytes(dump(locked(plan)))


def digests(plan) -> dict[str, str]:
    return {i.name: i.digest for i in plan.instances}


def test_what_was_launched_stays_where_it_is_when_others_come(site) -> None:
    before, moved = digests(site.plan(CHAT)), digests(site.plan(ABOVE))
    assert all(moved[name] != digest for name, digest in before.items()), "without a lockfile all would move"
    launched(site, site.plan(CHAT))
    plan = site.plan(ABOVE)
    assert {name: digests(plan)[name] for name in before} == before
    assert sorted(i.devices for i in plan.instances) == [(0, 1), (2, 3), (4, 5), (6,), (7,)]
    launched(site, plan)
    assert digests(site.plan(ABOVE)) == digests(plan)
    assert digests(site.plan(CHAT)) == before


def test_what_is_asked_for_otherwise_now_is_placed_anew(site) -> None:
    launched(site, site.plan(ABOVE))
    plan = site.plan(ABOVE, "pools.prefill.tp=1", "nodes.0.ports=25000-25999")
    assert all(25000 <= port <= 25999 for i in plan.instances for port in i.ports.values())
    pinned = site.plan(ABOVE, "pools.prefill.pin=[{node: a, gpus: [0, 1]}]")
    assert pinned.instance("prefill-0").devices == (0, 1)


@pytest.mark.parametrize("spoilt", [b"", b"{}", b'{"schema": 2}'])
def test_a_lockfile_that_cannot_be_read_holds_nothing(site, spoilt: bytes) -> None:
    (site.folder / "state").mkdir()
    (site.folder / "state" / FILE).write_bytes(spoilt)
    assert site.plan(CHAT).instance("decode-0").devices == (0, 1)


def test_one_of_a_single_node_or_of_another_deployment_holds_nothing(site) -> None:
    """Other nodes have another lockfile, and all have to make the same plan."""
    plan = site.plan(ABOVE)
    for other in (replace(plan, node="a"), replace(plan, name="other")):
        launched(site, other)
        assert digests(site.plan(CHAT)) == digests(site.plan(CHAT, "state_dir=./nowhere"))
    launched(site, plan)
    assert digests(site.plan(CHAT)) != digests(site.plan(CHAT, "state_dir=./nowhere"))
