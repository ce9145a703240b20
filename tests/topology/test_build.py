"""The plan: specs, words, interpreters, ports, labels, digests; a pure function of its inputs.

Covers build, inputs, layout, words, settings and plan (its JSON) through whole topologies.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.types import Role
from orchestrator.topology.plan import dump, parse

TWO_NODES = """\
name: two
model: {path: org/model, revision: abc123}
nodes:
  - name: a
    address: 10.0.0.1
    gpus: 4
    nics: {0: m0, 1: m1, 2: m2, 3: m3}
    env: {SITE: a}
    labels: {rack: r1}
  - {name: b, address: 10.0.0.2, gpus: 4, nics: [n0, n1], env: {SITE: b}, ports: 31000-31999}
pools:
  prefill: {role: prefill, engine: ./fake_engine.py:Fake, profile: gpu, instances: 2, tp: 2, nodes: [a]}
  decode: {role: decode, engine: ./fake_engine.py:Fake, profile: gpu, tp: 4, nodes: [b], labels: {tier: fast}}
router: {auth: none}
"""


@pytest.fixture
def two(site) -> str:
    site.profile("fake/gpu", "description: GPUs.\n")
    return TWO_NODES


def test_case_2_environment_is_rendered_per_node(site, two: str) -> None:
    plan = site.plan(two)
    hosts = {i.name: (i.env["FAKE_HOST"].text, i.env["SITE"].text) for i in plan.instances}
    assert hosts == {
        "prefill-0": ("10.0.0.1", "a"),
        "prefill-1": ("10.0.0.1", "a"),
        "decode-0": ("10.0.0.2", "b"),
    }
    assert "--host 10.0.0.2" in site.argv(plan, "decode-0")


def test_gpus_and_nics_follow_the_seat(site, two: str) -> None:
    plan = site.plan(two)
    assert [i.devices for i in plan.instances] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    assert plan.instance("prefill-1").env["NICS"].text == "m2,m3"
    assert plan.instance("decode-0").env["NICS"].text == "n0,n1"
    assert plan.instance("decode-0").url == "http://10.0.0.2:31200"
    assert plan.instance("decode-0").labels == {"node": "b", "tier": "fast"}
    assert plan.instance("prefill-0").labels == {"node": "a", "rack": "r1"}


def test_pins_and_their_gpus(site, two: str) -> None:
    pinned = two.replace(", nodes: [a]}", ", pin: [{node: b, gpus: [1, 3]}, {node: a}]}").replace(
        "tp: 4, nodes: [b]", "tp: 2"
    )
    plan = site.plan(pinned)
    assert [(i.node, i.devices) for i in plan.instances] == [("b", (1, 3)), ("a", (0, 1)), ("a", (2, 3))]
    told = site.told(pinned.replace("gpus: [1, 3]", "gpus: [1]"))
    assert told == ["t.yaml:12: pools.prefill.pin.0.gpus: prefill-0 takes 2 GPUs, here are 1 [pins]"]
    told = site.told(pinned.replace("[1, 3]", "[1, 9]"))
    assert "pools.prefill: prefill-0: node b has no GPU 9 [placement]" in told[0]


def test_what_does_not_fit_is_told_with_what_is_left(site, two: str) -> None:
    told = site.told(two, "pools.prefill.instances=3")
    assert told == [
        "t.yaml:12: pools.prefill: prefill-2: needs 2 GPUs on one node; a has 0 of 4 free [placement] "
        "(6 GPUs wanted, 4 there)"
    ]
    assert site.told(two, "pools.decode.tp=8")[0].endswith(
        "b has 4 of 4 free [placement] (8 GPUs wanted, 4 there)"
    )
    (told,) = site.told(two, "pools.prefill.nodes=[a, b]", "pools.prefill.tp=3", "pools.decode.tp=2")
    assert told.endswith(
        "(there are GPUs enough, but no node has room: let other pools use other `nodes`, or `pin`)"
    )
    assert site.told(two, "nodes.0.gpus=0")[0].endswith("`gpus: false` if it needs none)")


def test_a_pool_may_say_how_many_gpus_it_takes(site, two: str) -> None:
    plan = site.plan(two, "pools.decode.gpus=1", "pools.prefill.dp=2", "pools.prefill.instances=1")
    assert plan.instance("decode-0").devices == (0,)
    assert plan.instance("prefill-0").devices == (0, 1, 2, 3)


def test_the_interpreter(site, pair: str) -> None:
    plan = site.plan(
        pair
        + "  unified: {role: unified, engine: ./fake_engine.py:Fake, runtime: {command: [docker, run, i]}}\n",
        "pools.decode.runtime.python=venv/bin/python",
    )
    assert site.argv(plan, "prefill-0").startswith("/usr/bin/python3 -P -m fake.server --host")
    assert site.argv(plan, "decode-0").startswith(f"{site.folder}/venv/bin/python -m fake.server")
    assert site.argv(plan, "unified-0").startswith("docker run i python3 -m fake.server")
    assert plan.instance("decode-0").argv[0].origin == "topology --set"
    assert plan.instance("unified-0").argv[0].origin == "topology t.yaml:6"
    assert plan.instance("prefill-0").argv[0].origin == "pdctl"


def test_every_word_has_an_origin(site, two: str) -> None:
    plan = site.plan(two)
    for instance in plan.instances:
        assert all(word.origin for word in (*instance.argv, *instance.env.values()))
    assert all(word.origin for word in plan.router.argv)


def test_what_an_instance_carries(site, two: str) -> None:
    plan = site.plan(two, "pools.decode.options={dial: 3}", "pools.decode.ready_timeout=9s")
    decode, prefill = plan.instance("decode-0"), plan.instance("prefill-0")
    assert (decode.role, decode.engine, decode.model) == (Role.DECODE, "./fake_engine.py:Fake", "org/model")
    assert decode.options == {"dial": 3}
    assert decode.probes.ready_timeout_s == 9
    assert prefill.probes.ready_timeout_s == 77, "the adapter's own"
    assert prefill.facts == {"bootstrap_port": 20001}
    assert prefill.hints[0].hint == "it went boom"
    assert "--revision abc123" in site.argv(plan, "prefill-0")
    assert (plan.instance("prefill-0").disaggregated, plan.base_dir) == (True, str(site.folder))


def test_external_engines_are_joined_and_never_launched(site) -> None:
    plan = site.plan(
        "name: ext\nmodel: {served_name: m}\npools:\n"
        "  p: {role: prefill, engine: './fake_engine.py:Fake', labels: {x: y},\n"
        "      external: [{url: 'http://[2001:db8::1]:30000', bootstrap_port: 8998}]}\n"
        "  d: {role: decode, engine: './fake_engine.py:Fake', external: [{url: 'http://host:1'}, {url: 'http://host:2'}]}\n"
    )
    assert [(i.name, i.url, i.external, i.argv) for i in plan.instances] == [
        ("p-0", "http://[2001:db8::1]:30000", True, ()),
        ("d-0", "http://host:1", True, ()),
        ("d-1", "http://host:2", True, ()),
    ]
    prefill = plan.instance("p-0")
    assert prefill.facts == {"bootstrap_port": 8998}
    assert prefill.labels == {"x": "y"}
    assert prefill.node == ""


def test_versions_are_declared_or_asked(site, pair: str) -> None:
    asked = []

    def ask(words, distributions):
        asked.append((tuple(words), tuple(distributions)))
        return {"fake-engine": "1.2.3"}

    site.ask = ask
    plan = site.plan(
        pair, "pools.decode.runtime={python: venv/bin/python, version: 9.9.9}".replace("9.9.9", "'9.9.9'")
    )
    assert plan.instance("decode-0").version == "9.9.9"
    assert plan.instance("prefill-0").version == "1.2.3"
    assert plan.instance("prefill-0").env["FAKE_VERSION"].text == "1.2.3"
    assert asked == [(("/usr/bin/python3",), ("fake-engine",))]


def test_an_environment_without_the_engine_is_a_warning(site, pair: str) -> None:
    site.ask = lambda words, distributions: {}
    (one, two) = site.plan(pair).warnings
    assert one.endswith(
        "t.yaml:4: pools.prefill.runtime: there is no fake-engine in /usr/bin/python3 [engine-missing] "
        "(set pools.prefill.runtime.python, unless the plan is made for another machine)"
    )
    assert "pools.decode.runtime" in two


def test_an_environment_that_does_not_run_is_a_warning(site, pair: str) -> None:
    from orchestrator.fabric.versions import installed

    site.ask = installed
    plan = site.plan(
        pair.replace("role: decode,", "role: decode, runtime: {python: ./none/python},"),
        "pools.prefill.runtime.version='1'",
    )
    assert len(plan.warnings) == 1
    assert "t.yaml:5: pools.decode.runtime: the engine's version is unknown" in plan.warnings[0]
    assert "No such file" in plan.warnings[0]


def test_the_plan_is_a_pure_function(site, two: str) -> None:
    assert dump(site.plan(two)) == dump(site.plan(two))
    assert parse(dump(site.plan(two))) == site.plan(two)


def test_the_seed_is_the_same_for_the_same_name(site, two: str) -> None:
    assert site.plan(two).seed == site.plan(two).seed
    assert 0 <= site.plan(two).seed < 2**63
    assert site.plan(two, "seed=7").seed == 7
    assert site.plan(two, "name=other").seed != site.plan(two).seed


def digests(plan) -> dict[str, str]:
    return {i.name: i.digest for i in plan.instances} | {"router": plan.router.digest}


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("pools.decode.flags.x=1", {"decode-0"}),
        ("pools.prefill.env.X='1'", {"prefill-0", "prefill-1"}),
        ("router.listen=127.0.0.1:9000", {"router"}),
        ("router.limits.max_body=1MiB", {"router"}),
        ("scheduling.profile=random", {"router"}),
        ("scheduling.profile=slo-edf", set()),
        ("router.timeouts.total=1m", set()),
        ("pools.decode.labels.x=y", set()),
        ("pools.decode.ready_timeout=9s", set()),
        ("pools.prefill.instances=1", {"prefill-1"}),
        ("router.credentials.engine_key=abc", {"prefill-0", "prefill-1", "decode-0"}),
    ],
)
def test_digests_change_with_what_a_process_was_given(
    site, pair: str, override: str, changed: set[str]
) -> None:
    before, after = digests(site.plan(pair)), digests(site.plan(pair, override))
    assert {name for name in before if before[name] != after.get(name)} == changed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_growing_one_pool_restarts_no_other_instance(
    site, pair: str, before: int, after: int, decodes: int
) -> None:
    first = digests(site.plan(pair, f"pools.prefill.instances={before}", f"pools.decode.instances={decodes}"))
    then = digests(site.plan(pair, f"pools.prefill.instances={after}", f"pools.decode.instances={decodes}"))
    kept = set(first) & set(then)
    assert {name: first[name] for name in kept} == {name: then[name] for name in kept}


def test_case_3_ports_that_are_taken_are_refused_with_both_holders(site, pair: str) -> None:
    told = site.told(pair, "router.listen=127.0.0.1:20001", "router.admin=127.0.0.1:8001")
    assert told == [
        "t.yaml:4: pools.prefill: prefill-0: its bootstrap port 20001 is also that of router.listen [ports] "
        "(change nodes.0.ports (20000-29999))"
    ]
    assert site.plan(pair, "router.listen=127.0.0.1:20500").router.port == 20500


def test_case_3_one_bootstrap_port_per_prefill_instance(site, pair: str) -> None:
    plan = site.plan(pair, "pools.prefill.instances=4")
    bootstraps = [i.ports["bootstrap"] for i in plan.instances if i.role is Role.PREFILL]
    assert len(set(bootstraps)) == 4
    taken = [p for i in plan.instances for p in i.ports.values()] + [plan.router.port, plan.router.admin_port]
    assert len(set(taken)) == len(taken)


def test_an_empty_pool_keeps_its_place(site, pair: str) -> None:
    unified = "  unified: {role: unified, engine: ./fake_engine.py:Fake, instances: 0}\n"
    last = "  last: {role: decode, engine: ./fake_engine.py:Fake}\n"
    before = site.plan(pair + unified + last)
    after = site.plan(pair + unified + last, "pools.unified.instances=2")
    assert before.instance("last-0").digest == after.instance("last-0").digest


def test_what_an_adapter_renders_is_no_fact_of_an_external_engine(site) -> None:
    text = "name: x\nmodel: {served_name: m}\npools:\n  u: {role: unified, engine: sglang, EXTERNAL}\n"
    external = site.plan(text.replace("EXTERNAL", "external: [{url: 'http://a:1'}]"))
    launched = site.plan(text.replace("EXTERNAL", "gpus: 0"), "model.path=m", "nodes=[{name: a, gpus: 1}]")
    assert "idle_s" in launched.instances[0].facts
    assert "idle_s" not in external.instances[0].facts


def test_a_small_range_of_ports_says_what_is_needed(site, pair: str) -> None:
    told = site.told(pair + "nodes: [{name: local, ports: 30000-30003}]\n")
    assert "need 8 ports, the range 30000-30003 has 4 [ports]" in told[0]


EPD = """\
name: epd
model: {path: m, vocab_size: 9}
nodes: [{name: a, address: 10.0.0.1, gpus: 4}, {name: b, address: 10.0.0.2, gpus: 4}]
pools:
  e: {role: encode, engine: sglang, instances: 2, pin: [{node: a}, {node: b}], transfer: zmq_to_tokenizer}
  x: {role: encode, engine: sglang, external: [{url: 'http://10.0.0.9:7'}], transfer: zmq_to_tokenizer}
  p: {role: prefill, engine: sglang, instances: 2}
  d: {role: decode, engine: sglang}
  f: {role: unified, engine: ./fake_engine.py:Fake}
"""


def test_who_computes_prompts_is_told_of_every_encoder_of_its_engine(site) -> None:
    plan = site.plan(EPD)
    urls = "--encoder-urls http://10.0.0.1:20000 http://10.0.0.2:20010 http://10.0.0.9:7 "
    ports = set()
    for name in ("p-0", "p-1"):
        assert urls in site.argv(plan, name)
        assert "--encoder-transfer-backend zmq_to_tokenizer" in site.argv(plan, name)
        ports.add(f"--encoder-bootstrap-port {plan.instance(name).ports['encoder-bootstrap']} ")
        assert any(port in site.argv(plan, name) for port in ports)
    assert len(ports) == 2  # on one host, two servers would want one port
    assert not any("encoder" in site.argv(plan, name) for name in ("d-0", "f-0"))
    assert "--encoder-only" in site.argv(plan, "e-0")


def test_another_encoder_makes_another_prefill_and_nothing_else(site) -> None:
    fewer, more = site.plan(EPD, "pools.e.instances=1", "pools.e.pin=[{node: a}]"), site.plan(EPD)
    changed = {i.name for i in fewer.instances if i.digest != more.instance(i.name).digest}
    assert changed == {"p-0", "p-1"}
    text = EPD.replace("  e: {", "  e: {options: {unchecked_media: true}, ").replace("  x: {", "  # {")
    assert [i.facts.get("media") for i in site.plan(text).instances] == [
        None,
        None,
        "any",
        "any",
        "any",
        None,
    ]
