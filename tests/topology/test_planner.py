"""From a file to a plan: adapters, nodes and scheduling profiles it refers to, each fault at its line.

Covers planner and adapters.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import TopologyError
from orchestrator.topology.planner import plan_file


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("slang", "pools.decode.engine: no plug-in named 'slang' in pdctl.engines (did you mean "),
        ("./none.py:X", "pools.decode.engine: './none.py:X': cannot read "),
        ("./fake_engine.py:Fke", "defines no 'Fke' (did you mean 'Fake'?)"),
        ("./fake_engine.py:NotAnEngine", "is not an engine adapter: it has no roles, idle_s"),
        ("./fake_engine.py:Broken", "'./fake_engine.py:Broken' does not start: RuntimeError: no licence"),
        ("no.such.module:X", "there is no module"),
    ],
)
def test_engines_that_do_not_resolve(site, pair: str, engine: str, expected: str) -> None:
    told = site.told(
        pair.replace("role: decode, engine: ./fake_engine.py:Fake", f"role: decode, engine: {engine}")
    )
    assert len(told) == 1
    assert told[0].startswith("t.yaml:5: pools.decode.engine: ")
    assert expected in told[0]


def test_a_plug_in_with_a_fault_is_told_at_the_fault(site, pair: str) -> None:
    (site.folder / "bad.py").write_text("x = 1\n\n1 / 0\n")
    told = site.told(pair, "pools.decode.engine=./bad.py:X")
    assert told == ["bad.py:3: './bad.py:X' does not load: ZeroDivisionError: division by zero"]


def test_a_role_that_the_engine_has_not(site, pair: str) -> None:
    told = site.told(pair.replace("role: decode", "role: encode"))
    assert told == [
        "t.yaml:5: pools.decode.role: engine ./fake_engine.py:Fake has no role 'encode' here; "
        "it has prefill, decode, unified"
    ]


@pytest.mark.parametrize("engine", ["vllm", "sim, options: {dialect: vllm}"])
def test_encoders_of_vllm_are_refused_with_the_reason(site, pair: str, engine: str) -> None:
    site.profile("sim/default", "description: Sim.\ngpus: false\n")
    text = pair.replace("decode, engine: ./fake_engine.py:Fake", f"encode, engine: {engine}")
    (told,) = site.told(text)
    assert "has no role 'encode' here; it has prefill, decode, unified (not supported yet: a vLLM" in told


def test_options_that_an_adapter_refuses(site, pair: str) -> None:
    text = pair.replace(
        "decode, engine: ./fake_engine.py:Fake", "decode, engine: sim,\n    options: {dialect: trt}"
    )
    told = site.told(text)
    assert told == [
        "t.yaml:6: pools.decode.options.dialect: a simulated engine speaks sglang or vllm, not 'trt'"
    ]


def test_nodes_that_do_not_exist(site, pair: str) -> None:
    text = pair.replace("role: decode,", "role: decode, nodes: [east, noth],").replace(
        "instances: 2", "instances: 1, pin: [{node: wset}]"
    )
    told = site.told(text + "nodes: [{name: north}, {name: east}, {name: west}, {name: east}]\n")
    assert told == [
        "t.yaml:4: pools.prefill.pin.0.node: there is no node 'wset' (did you mean 'west'?)",
        "t.yaml:5: pools.decode.nodes.1: there is no node 'noth' (did you mean 'north'?)",
        "t.yaml:6: nodes.3.name: 'east' is the name of another node already",
    ]
    assert "there is no node 'a' (known: local)" in site.told(pair, "pools.decode.nodes=[a]")[0]


def test_scheduling_profiles_are_checked_whole(site, pair: str) -> None:
    told = site.told(
        pair
        + "scheduling:\n"
        + "  profile: mine\n"
        + "  profiles:\n"
        + "    mine:\n"
        + "      decode:\n"
        + "        scorers:\n"
        + "          - {use: token-laod, weight: 1}\n"
        + "          - use: token-load\n"
        + "            weight: -1\n"
        + "    unused:\n"
        + "      prefil: {}\n"
    )
    assert [line.partition(": ")[0] for line in told] == ["t.yaml:12", "t.yaml:14", "t.yaml:16"]
    assert "scheduling.profiles.mine.decode.scorers.0.use: no plug-in named 'token-laod'" in told[0]
    assert "did you mean 'token-load'?" in told[0]
    assert "scheduling.profiles.mine.decode.scorers.1.weight: a weight is a positive number" in told[1]
    assert "scheduling.profiles.unused.prefil: unknown field 'prefil' (did you mean 'prefill'?)" in told[2]


def test_a_policy_from_a_file_beside_the_topology(site, pair: str) -> None:
    (site.folder / "mine.py").write_text(
        "class First:\n    def pick(self, request, scored, context):\n        return scored[0]\n"
    )
    own = "scheduling: {profile: own, profiles: {own: {decode: {picker: './mine.py:First'}}}}\n"
    assert site.plan(pair + own).router.scheduling["decode"]["picker"] == "./mine.py:First"


def test_unknown_profiles_name_ones_own_and_the_shipped(site, pair: str) -> None:
    told = site.told(pair + "scheduling: {profile: zzz, profiles: {own: {}}}\n")
    assert "there is no scheduling profile 'zzz' (known: own, default, " in told[0]


def test_a_node_has_its_own_state_directory_and_nothing_else_differs(site, pair: str) -> None:
    text = pair + "nodes: [{name: a}, {name: b, address: 127.0.0.2}]\nrouter: {kind: none}\n"
    site.file.write_text(text)
    whole, a, b = (
        plan_file(site.file, environ={"HOME": "/home/me"}, roots=[site.folder / "profiles"], node=node)
        for node in (None, "a", "b")
    )
    assert a.state_dir == f"{whole.state_dir}@a"
    assert (whole.node, a.node, b.node) == (None, "a", "b")
    assert replace(a, node=None, state_dir=whole.state_dir) == whole
    assert replace(b, node=None, state_dir=whole.state_dir) == whole
    assert set(whole.nodes) == {"a", "b"}


def test_a_node_that_there_is_not_is_refused_with_those_there_are(site, pair: str) -> None:
    site.file.write_text(pair)
    with pytest.raises(TopologyError, match=r"there is no node 'a' \(known: local\)"):
        plan_file(site.file, environ={"HOME": "/home/me"}, roots=[site.folder / "profiles"], node="a")
