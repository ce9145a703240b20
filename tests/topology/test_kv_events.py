"""`kv_events` in a topology: what each engine is told, on which ports, and what the router knows of it."""

from pathlib import Path

import pytest

from orchestrator.errors import TopologyError
from orchestrator.topology.planner import plan_file

HEAD = "name: t\nmodel: {path: org/m}\nnodes: [{name: local, gpus: 8}]\n"


def plan(folder: Path, pools: str, more: str = ""):
    file = folder / "topology.yaml"
    file.write_text(f"{HEAD}{more}pools:\n{pools}\n")
    return plan_file(file, environ={"HOME": str(folder)})


def words(instance):
    return [word.text for word in instance.argv]


@pytest.mark.parametrize(
    ("engine", "config"),
    [
        ("sglang", '"publisher":"zmq"'),
        ("vllm", '"enable_kv_cache_events":true'),
    ],
)
def test_engines_are_told_to_publish_on_their_ports(tmp_path: Path, engine: str, config: str) -> None:
    pools = "  p: {role: prefill, engine: ENGINE, kv_events: on}\n  d: {role: decode, engine: ENGINE}"
    made = plan(tmp_path, pools.replace("ENGINE", engine))
    prefill, decode = made.instances
    told = words(prefill)[words(prefill).index("--kv-events-config") + 1]
    port = prefill.ports["kv-events"]
    assert config in told
    assert f'"endpoint":"tcp://*:{port}"' in told
    assert f'"replay_endpoint":"tcp://*:{port + 1}"' in told
    assert prefill.facts["kv_events"] is True
    assert "--kv-events-config" not in words(decode)
    assert "kv_events" not in decode.facts


def test_what_is_written_in_flags_goes_over_ours(tmp_path: Path) -> None:
    flags = "flags: {kv-events-config: {buffer_steps: 7}}"
    made = plan(tmp_path, f"  u: {{role: unified, engine: vllm, kv_events: true, {flags}}}")
    told = words(made.instances[0])
    assert '"buffer_steps":7' in told[told.index("--kv-events-config") + 1]
    assert '"enable_kv_cache_events":true' in told[told.index("--kv-events-config") + 1]


def test_an_external_engine_s_addresses_may_be_written(tmp_path: Path) -> None:
    one = "{url: 'http://h:1', kv_events_url: 'tcp://h:5557', kv_replay_url: 'tcp://h:5558'}"
    made = plan(
        tmp_path,
        f"  u: {{role: unified, engine: vllm, kv_events: true, external: [{one}, {{url: 'http://h:2'}}]}}",
    )
    first, second = (i.facts for i in made.instances)
    assert (first["kv_events_url"], first["kv_replay_url"]) == ("tcp://h:5557", "tcp://h:5558")
    assert second["kv_events"] is True
    assert "kv_events_url" not in second


def test_the_index_s_settings_reach_the_router(tmp_path: Path) -> None:
    made = plan(
        tmp_path,
        "  u: {role: unified, engine: vllm}",
        "scheduling: {kv_index: {tokens_within: 5ms, max_error: 0.2}}\n",
    )
    assert made.router is not None
    assert (made.router.kv_index.tokens_within_s, made.router.kv_index.max_error) == (0.005, 0.2)


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ("{role: encode, engine: sglang, kv_events: true}", "encoders have none"),
        ("{role: unified, engine: vllm, kv_events: often}", "kv_events"),
        (
            "{role: unified, engine: vllm, external: [{url: 'http://h:1', kv_events_url: 'tcp://h:2'}]}",
            "is not read without `kv_events: true`",
        ),
        (
            "{role: unified, engine: vllm, kv_events: true, "
            "external: [{url: 'http://h:1', kv_events_url: 'udp://h:2'}]}",
            "tcp://HOST:PORT",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, pool: str, said: str) -> None:
    with pytest.raises(TopologyError) as error:
        plan(tmp_path, f"  u: {pool}")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("pool", "warned"),
    [
        ("engine: sglang", "blocks of 1 token"),
        ("engine: sglang, flags: {page-size: 64}", ""),
        ("engine: vllm", ""),
        ("engine: vllm, dp: 2", "each rank has a cache"),
        ("engine: sglang, external: [{url: 'http://h:1'}]", ""),
    ],
)
def test_caches_that_cannot_be_indexed_are_warned_of(tmp_path: Path, pool: str, warned: str) -> None:
    made = plan(tmp_path, f"  u: {{role: unified, kv_events: true, {pool}}}")
    found = [warning for warning in made.warnings if "[kv-events]" in warning]
    assert len(found) == bool(warned)
    assert all(warned in warning for warning in found)
