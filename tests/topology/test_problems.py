"""Strictness: every misfit is refused with file, line, field and the nearest known name, all at once.

Covers schema, router_schema, strict, values and problems through what a user sees.
"""

from __future__ import annotations

import pytest

ONE = "name: one\nmodel: {path: m}\npools:\n  p:\n    role: unified\n    engine: ./fake_engine.py:Fake\n"


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("    instnaces: 2\n", "t.yaml:7: pools.p.instnaces: unknown field (did you mean 'instances'?)"),
        ("    replicas: 2\n", "t.yaml:7: pools.p.replicas: unknown field (did you mean 'instances'?)"),
        ("    tensor_parallel_size: 2\n", "unknown field (did you mean 'tp'?)"),
        ("    listen: 0.0.0.0:1\n", "pools.p.listen: unknown field ('listen' belongs in router)"),
        ("    zzz: 1\n", "unknown field (known here: role, engine, profile, instances, "),
        ("    instances: two\n", "pools.p.instances: should be a whole number, not the text 'two'"),
        ("    instances: '2'\n", "pools.p.instances: should be a whole number, not the text '2'"),
        ("    instances: true\n", "pools.p.instances: should be a whole number, not true"),
        ("    instances: 1.5\n", "pools.p.instances: should be a whole number, not 1.5"),
        ("    instances: -1\n", "pools.p.instances: must be at least 0, not -1"),
        ("    instances:\n", "pools.p.instances: has no value; it should be a whole number"),
        ("    tp: 0\n", "pools.p.tp: must be at least 1, not 0"),
        ("    profile: 7\n", 'pools.p.profile: should be text, not 7 (quote it: "7")'),
        ("    profile: ''\n", "pools.p.profile: must not be empty"),
        (
            "    nodes: local\n",
            "pools.p.nodes: should be a list, not the text 'local' (write it as [one, two])",
        ),
        ("    flags: [a]\n", "pools.p.flags: should be a mapping, not a list"),
        ("    flags: {--a b: 1}\n", "pools.p.flags: '--a b' is not the name of a flag"),
        ("    flags: {a-b: 1, a_b: 2}\n", "pools.p.flags: 'a_b' and 'a-b' are the same flag"),
        ('    flags: {a: "x\\0"}\n', "pools.p.flags.a: a command line cannot hold a NUL character"),
        ("    env: {A-B: 1}\n", "pools.p.env.A-B: 'A-B' is not the name of an environment variable"),
        ("    env: {A: true}\n", "pools.p.env.A: True is not text; programs differ in what means yes"),
        ("    env: {A: [1]}\n", "pools.p.env.A: [1] is not text"),
        (
            "    ready_timeout: 30\n",
            "pools.p.ready_timeout: 30 is not a duration; write a number with its unit",
        ),
        ("    ready_timeout: 5 minutes\n", "'5 minutes' is not a duration"),
        ("    ready_timeout: 0s\n", "pools.p.ready_timeout: must be more than zero"),
        ("    runtime: {python: a, command: [b]}\n", "pools.p.runtime.command: give `python` or `command`"),
        ("    runtime: {command: []}\n", "pools.p.runtime.command: must not be empty"),
        ("    pin: [{node: local}, {node: local}]\n", "pools.p.pin: has 2 entries for 1 instances"),
        ("    pin: [{node: local}]\n    nodes: [local]\n", "pools.p.nodes: is ignored beside `pin`"),
        ("    external: []\n", "pools.p.external: must not be empty"),
        ("    external: [{url: 'https://a:1'}]\n", "pools.p.external.0.url: 'https://a:1': only http://"),
        (
            "    external: [{url: 'http://a:1', bootstrap_port: 0}]\n",
            "pools.p.external.0.bootstrap_port: must be at least 1, not 0",
        ),
        (
            "    external: [{url: 'http://a:1'}]\n    flags: {a: 1}\n",
            "pools.p.flags: has no effect on external engines",
        ),
        ("  Bad_Name: {role: unified, engine: x}\n", "pools.Bad_Name: 'Bad_Name' is not a name: lower-case"),
        ("router: {kind: pdclt}\n", "router.kind: there is no router 'pdclt'; did you mean 'pdctl'?"),
        ("router: {kind: nginx}\n", "there is no router 'nginx'; one of pdctl, "),
        ("router: {listen: 8000}\n", "router.listen: 8000 is a port alone; write HOST:PORT"),
        ("router: {listen: '::1:8000'}\n", "write an IPv6 address in brackets, [::1]:8000"),
        ("router: {admin: 127.0.0.1:8000}\n", "router.admin: is the same as `listen`"),
        ("router: {listen: 127.0.0.1:65535}\n", "router.admin: must be given"),
        ("router: {flags: {policy: random}}\n", "router.flags: is for a `kind` other than pdctl"),
        ("router: {limits: {max_body: 64}}\n", "router.limits.max_body: 64 is not a size"),
        ("router: {limits: {max_body: 0B}}\n", "router.limits.max_body: must be more than zero"),
        ("router: {auth: keys}\n", "router.auth: is `keys`, but credentials.client_keys has none"),
        ("router: {auth: off}\n", "router.auth: 'off' is not one of keys, none"),
        (
            "router: {pass_headers: ['a b']}\n",
            "router.pass_headers.0: 'a b' is not the name of an HTTP header",
        ),
        (
            "router: {credentials: {client_keys: [7]}}\n",
            "credentials.client_keys.0: should be text (quote it)",
        ),
        ("router: {credentials: {engine_key: 'a b'}}\n", "engine_key: a key must be printable ASCII"),
        ("router:\n", "router: has no value; it should be a mapping of settings"),
        ("nodes: []\n", "nodes: must not be empty"),
        ("nodes: [{name: a, gpus: many}]\n", "nodes.0.gpus: 'many' is neither a number of GPUs nor a list"),
        ("nodes: [{name: a, gpus: [1, 1]}]\n", "[1, 1] is neither a number of GPUs nor a list of different"),
        ("nodes: [{name: a, ports: 1-2-3}]\n", "nodes.0.ports: '1-2-3' is not a range of ports"),
        ("nodes: [{name: a, ports: 300-20}]\n", "the range 300-20 ends before it begins"),
        ("nodes: [{name: a, ports: 1-70000}]\n", "port 70000 is not between 1 and 65535"),
        ("nodes: [{name: a, nics: {x: y}}]\n", "nodes.0.nics: {'x': 'y'} is neither a list of devices"),
        ("nodes: [{name: a, nics: ['../x']}]\n", "'../x' is not the name of a network device"),
        ("nodes: [{name: a, address: 'http://x'}]\n", "nodes.0.address: 'http://x' is not a host name"),
        ("slo_classes: {fast: {ttft: 1}}\n", "slo_classes.fast.ttft: 1 is not a duration"),
        ("slo_classes: {fast: {attainment: 0.9}}\n", "slo_classes.fast.attainment: unknown field"),
        ("slo_classes: {fast: {ttft: {p999: 1s}}}\n", "ttft.p999: unknown field; did you mean 'p99.9'?"),
        ("slo_classes: {fast: {ttft: {p40: 1s}}}\n", "fast.ttft.p40: unknown field; did you mean 'p90'?"),
        ("slo_classes: {fast: {ttft: {max: 1s}}}\n", "known here: p50 to p99.9, per_cold_prefill"),
        ("slo_classes: {fast: {ttft: {per_cold: 1}}}\n", "did you mean 'per_cold_prefill'?"),
        ("slo_classes: {fast: {ttft: {p99: 0s}}}\n", "slo_classes.fast.ttft.p99: must be more than zero"),
        ("slo_classes: {fast: {ttft: {p99: 1}}}\n", "slo_classes.fast.ttft.p99: 1 is not a duration"),
        ("slo_classes: {fast: {ttft: {p99: 1s, p50: 1s}}}\n", "ttft.p50: there is p99 already"),
        ("slo_classes: {fast: {ttft: {}}}\n", "slo_classes.fast.ttft: has no quantile; write one of p50"),
        (
            "slo_classes: {fast: {ttft: {p99: 1s, per_cold_prefill: -1}}}\n",
            "slo_classes.fast.ttft.per_cold_prefill: must be at least 0, not -1",
        ),
        (
            "slo_classes: {fast: {e2e: {p99: 1s, per_cold_prefill: yes}}}\n",
            "slo_classes.fast.e2e.per_cold_prefill: should be a number, not 'yes'",
        ),
        (
            "slo_classes: {fast: {itl: {p99: 40ms, per_cold_prefill: 1}}}\n",
            "slo_classes.fast.itl.per_cold_prefill: the time between tokens does not grow with the prompt",
        ),
        ("slo_classes: {fast: {reserve: 1}}\n", "slo_classes.fast.reserve: must be less than 1, not 1"),
        ("slo_classes: {fast: {unattainable: rejekt}}\n", "(did you mean 'reject'?)"),
        ("slo_classes: {fast: {pools: []}}\n", "slo_classes.fast.pools: must not be empty"),
        ("slo_classes: {fast: {long_prompts: {use: x}}}\n", "long_prompts.over_tokens: is required"),
        ("tenants: {a: {rate: 3}}\n", "tenants.a.rate: should be a mapping of settings"),
        ("tenants: {a: {rate: {per_second: 0}}}\n", "tenants.a.rate.per_second: must be more than 0"),
        ("tenants: {a: {max_queue: 3}}\n", "(did you mean 'max_queued'?)"),
        ("tenants: {a: {slo_class: b, classes: [c]}}\n", "a.slo_class: 'b' is not among its `classes`"),
        ("router: {limits: {max_queue: 20000}}\n", "max_queue: is never reached: `max_inflight` is 10000"),
        ("router: {timeouts: {queue: 2h}}\n", "router.timeouts.queue: is never reached: `total` is 3600 s"),
        ("scheduling: {predictor: 3}\n", "scheduling.predictor: 3 is neither the name of a plug-in nor"),
        ("scheduling: {predictor: {name: x}}\n", "scheduling.predictor.use: is required: the name"),
        ("scheduling: {priorities: [{use: batch}]}\n", "priorities.0: has neither `at_least` nor `at_most`"),
        (
            "scheduling: {priorities: [{at_least: 3, at_most: 2, use: batch}]}\n",
            "scheduling.priorities.0.at_most: is below `at_least`, 3",
        ),
        ("scheduling: {decisions: {record: all}}\n", "'all' is not one of sampled, full, off"),
        ("scheduling: {decisions: {sample: 0}}\n", "decisions.sample: must be more than 0, not 0"),
        (
            "scheduling: {decisions: {record: full, sample: 0.5}}\n",
            "scheduling.decisions.sample: has no effect with `record: full`",
        ),
        ("slo_classes: {fast: {priority: batsh}}\n", "(did you mean 'batch'?)"),
        ("slo_classes: {none: {ttft: 1s}}\n", "slo_classes.none: 'none' is what requests without a class"),
        ("seed: -1\n", "seed: must be at least 0, not -1"),
    ],
)
def test_a_misfit_is_told_at_its_place(site, extra: str, expected: str) -> None:
    told = site.told(ONE + extra)
    assert any(expected in line for line in told), told


def test_every_finding_of_a_file_at_once_in_its_order(site) -> None:
    told = site.told(
        "nmae: x\n"
        "name: Bad Name\n"
        "model: {}\n"
        "pools:\n"
        "  a: {role: prefil, engine: sim, instances: x}\n"
        "  b: {role: unified, engine: simm}\n"
        "  c: {role: unified, engine: sim, profile: nowhere}\n"
        "router:\n"
        "  listen: 0.0.0.0:80\n"
        "  credentials: {client_keys: ['${env:NOT_THERE}']}\n"
        "scheduling: {profile: defualt}\n"
    )
    assert [line.partition(": ")[0] for line in told] == [
        f"t.yaml:{n}" for n in (1, 2, 3, 5, 5, 6, 7, 10, 11)
    ]
    assert told[0] == "t.yaml:1: nmae: unknown field (did you mean 'name'?)"
    assert (
        "role: 'prefil' is not one of encode, prefill, decode, unified (did you mean 'prefill'?)" in told[3]
    )
    assert "pools.b.engine: no plug-in named 'simm' in pdctl.engines (did you mean 'sim'?)" in told[5]
    assert "there is no launch profile 'sim/nowhere'" in told[6]
    assert "the environment variable NOT_THERE is not set" in told[7]
    assert "there is no scheduling profile 'defualt' (did you mean 'default'?)" in told[8]


def test_what_is_missing_is_told_at_its_parent(site) -> None:
    told = site.told("name: x\nmodel: {path: m}\npools:\n  a:\n    role: unified\n")
    assert told == ["t.yaml:4: pools.a.engine: is required"]


def test_empty_files_and_missing_ones(site) -> None:
    assert site.told("") == ["t.yaml: is empty"]
    assert site.told("- x\n") == ["t.yaml:1: must be a mapping of settings, not a list"]
    assert [line.split(": ", 1)[1] for line in site.told("x-only: 1\n")] == [
        "name: is required",
        "model: is required",
        "pools: is required",
    ]


def test_a_key_is_never_repeated_in_a_finding(site) -> None:
    told = site.told(ONE + "router: {credentials: {engine_key: [sekrit], client_keys: 'sekrit'}}\n")
    assert told
    assert not any("sekrit" in line for line in told)


def test_top_level_extensions_hold_anchors(site) -> None:
    plan = site.plan("x-env: &e {A: '1'}\n" + ONE + "    env: *e\n")
    assert plan.instances[0].env["A"].text == "1"


@pytest.mark.parametrize("listen", ["0.0.0.0:8000", "'[::]:8000'", "10.0.0.1:8000", "example.org:8000"])
def test_no_open_door_unless_it_is_written(site, listen: str) -> None:
    told = site.told(ONE + f"router: {{listen: {listen}}}\n")
    assert len(told) == 1
    assert "can be reached from other machines, and no client key is demanded" in told[0]
    assert site.plan(ONE + f"router: {{listen: {listen}, auth: none}}\n").router is not None
    keys = "credentials: {client_keys: [abc]}"
    assert site.plan(ONE + f"router: {{listen: {listen}, {keys}}}\n").router.credentials.client_keys == (
        "abc",
    )


def test_auth_none_beside_keys_is_a_contradiction(site) -> None:
    told = site.told(ONE + "router: {auth: none, credentials: {client_keys: [abc]}}\n")
    assert "router.auth: is `none`, but credentials.client_keys has some" in told[0]


def test_a_port_alone_is_told_the_whole_form(site, pair: str) -> None:
    assert site.told(pair + "router: {listen: 28200}\n") == [
        "t.yaml:6: router.listen: 28200 is a port alone; write HOST:PORT, such as 127.0.0.1:28200"
    ]


def test_a_pool_that_only_set_speaks_of_is_told_the_nearest(site, pair: str) -> None:
    assert site.told(pair, "pools.decoder.instances=4", "pools.decoder.tp=2") == [
        "--set pools.decoder.instances: there is no pool 'decoder' in the file (did you mean 'decode'?)"
    ]
    whole = ("pools.more.role=decode", "pools.more.engine='./fake_engine.py:Fake'")
    assert site.plan(pair, *whole).instance("more-0").pool == "more"
