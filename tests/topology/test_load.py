"""Loading: overrides, secrets from the environment, and paths relative to the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import TopologyError
from orchestrator.topology.load import Folder, load


def test_set_overrides_any_field(site, pair: str) -> None:
    plan = site.plan(
        pair,
        "pools.prefill.instances=3",
        "router.listen=127.0.0.1:9999",
        "pools.decode.flags.deep={a: [1, 2]}",
        "model.served_name=mine",
        "pools.decode.env.A='1'",
    )
    assert [i.name for i in plan.instances] == ["prefill-0", "prefill-1", "prefill-2", "decode-0"]
    assert plan.router.port == 9999
    assert '--deep {"a":[1,2]}' in site.argv(plan, "decode-0")
    assert plan.instances[0].model == "mine"
    origins = {w.text: w.origin for w in plan.instance("decode-0").argv}
    assert origins["--deep"] == "topology --set"


def test_set_reaches_into_lists(site) -> None:
    text = (
        "name: x\nmodel: {served_name: m}\npools:\n"
        "  u: {role: unified, engine: ./fake_engine.py:Fake, external: [{url: 'http://a:1'}, {url: 'http://b:1'}]}\n"
    )
    plan = site.plan(text, "pools.u.external.1.url=http://c:2", "pools.u.external.2={url: 'http://d:3'}")
    assert [i.url for i in plan.instances] == ["http://a:1", "http://c:2", "http://d:3"]
    told = site.told(text, "pools.u.external.7.url=x")
    assert told == [
        "--set pools.u.external.7.url: pools.u.external is a list of 2: '7' is not one of its indices"
    ]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("router.listen", "--set router.listen: is not of the form a.b=value"),
        ("a..b=1", "--set a..b: is not of the form a.b=value"),
        ("=1", "--set =...: is not of the form a.b=value"),
        ("name.x=1", "--set name.x: name has no settings below it: it is 'pair'"),
        ("seed=[1", "--set seed: the value is not valid YAML"),
        (
            "pools.prefill.instances=x",
            "--set pools.prefill.instances: should be a whole",
        ),
        ("pools.prefil.instances=2", "--set pools.prefil.instances: there is no pool 'prefil'"),
        ("nmae=2", "--set nmae: unknown field (did you mean 'name'?)"),
    ],
)
def test_a_bad_override_is_named(site, pair: str, override: str, expected: str) -> None:
    told = site.told(pair, override)
    assert any(line.startswith(expected) for line in told), told


def test_set_does_not_show_a_secret(site, pair: str) -> None:
    told = site.told(pair, "router.credentials.engine_key=top secret")
    assert told
    assert not any("top secret" in line for line in told)


def test_secrets_come_from_the_environment(site, pair: str) -> None:
    site.environ = {"KEY": "k-123", "TOKEN": "t-456"}
    text = pair + "router: {credentials: {client_keys: ['${env:KEY}'], engine_key: 'pre-${env:KEY}'}}\n"
    plan = site.plan(text, "pools.decode.env={HF_TOKEN: '${env:TOKEN}', PLAIN: x}")
    assert plan.router.credentials.client_keys == ("k-123",)
    assert plan.router.credentials.engine_key == "pre-k-123"
    env = plan.instance("decode-0").env
    assert (env["HF_TOKEN"].text, env["HF_TOKEN"].secret) == ("t-456", True)
    assert not env["PLAIN"].secret
    key = next(w for w in plan.instance("decode-0").argv if w.text == "pre-k-123")
    assert key.secret, "marked although the adapter forgot to"
    assert plan.warnings == ()


def test_missing_variables_are_all_named(site, pair: str) -> None:
    site.environ = {"EMPTY": ""}
    told = site.told(
        pair + "router: {credentials: {client_keys: ['${env:NOPE}', '${env:EMPTY}']}}\n",
        "pools.decode.env.A=${env:ALSO_NOT}",
    )
    assert len(told) == 3
    assert any("the environment variable NOPE is not set" in line for line in told)
    assert any("the environment variable EMPTY is empty" in line for line in told)
    assert any("the environment variable ALSO_NOT is not set" in line for line in told)


def test_a_missing_variable_hides_nothing_that_comes_after(site, pair: str) -> None:
    keys = "router: {credentials: {engine_key: '${env:NOPE}'}}\n"
    told = site.told(pair + keys, "pools.decode.gpus=1", "scheduling.default_class=x")
    assert {line.rpartition("[")[2].partition("]")[0] for line in told if "[" in line} == {
        "placement",
        "classes",
    }
    unset = (
        "t.yaml:6: router.credentials.engine_key: the environment variable NOPE is not set (export NOPE=...)"
    )
    assert unset in told
    told = site.told(pair + keys, "pools.decode.flags.mode=x")
    assert len(told) == 2, "what the adapter finds, and the variable"
    assert site.told(pair + keys) == [unset]


def test_what_an_adapter_finds_in_a_set_option_is_told_of_the_option(site, pair: str) -> None:
    (told,) = site.told(pair, "pools.decode.flags.mode=x")
    assert told.startswith("--set pools.decode.flags.mode: ")


@pytest.mark.parametrize("written", ["${KEY}", "$KEY", "${env.KEY}"])
def test_a_key_written_as_a_shell_would_is_refused(site, pair: str, written: str) -> None:
    (told,) = site.told(pair + f"router: {{credentials: {{engine_key: '{written}'}}}}\n")
    assert told.endswith(f"engine_key: {written} is not filled in: did you mean ${{env:KEY}}?")


def test_nothing_but_secrets_is_interpolated(site, pair: str) -> None:
    site.environ = {"NAME": "x"}
    told = site.told(pair + "state_dir: /var/${env:NAME}\n")
    assert told == [
        "t.yaml:6: state_dir: ${env:...} is filled in for secrets and env alone (use --set for anything else)"
    ]
    told = site.told(pair, "pools.decode.flags.x=[a, '${env:NAME}']")
    assert "pools.decode.flags.x.1: ${env:...}" in told[0]


def test_a_key_in_the_file_is_warned_of(site, pair: str) -> None:
    plan = site.plan(pair + "router: {credentials: {engine_key: abc}}\n")
    assert len(plan.warnings) == 1
    assert (
        "t.yaml:6: router.credentials.engine_key: a key is written in the file [inline-secrets]"
        in (plan.warnings[0])
    )


def test_paths_are_relative_to_the_file(site, pair: str) -> None:
    plan = site.plan(pair, "state_dir=../state")
    assert plan.state_dir == str(site.folder.parent / "state")
    assert f"--model {site.folder}/model" in site.argv(plan, "decode-0")
    assert site.plan(pair).state_dir == "/home/me/.local/state/pdctl/pair"
    site.environ = {"XDG_STATE_HOME": "/var/state"}
    assert site.plan(pair).state_dir == "/var/state/pdctl/pair"
    site.environ = {"XDG_STATE_HOME": "relative/is/ignored"}
    assert site.plan(pair).state_dir == "/home/me/.local/state/pdctl/pair"


def test_hub_ids_are_no_paths(site, pair: str) -> None:
    plan = site.plan(pair, "model.path=Qwen/Qwen3-32B")
    assert "--model Qwen/Qwen3-32B" in site.argv(plan, "decode-0")
    assert plan.instances[0].model == "Qwen/Qwen3-32B"


def test_the_folder_resolves_without_looking() -> None:
    folder = Folder(Path("/a/b"), Path("/home/me"))
    assert folder.absolute("c/../../d/./e") == "/a/d/e"
    assert folder.absolute("../../../../x") == "/x"
    assert folder.absolute("~/x") == "/home/me/x"
    assert folder.absolute("~") == "/home/me"
    assert folder.absolute("/abs") == "/abs"
    assert folder.if_path("org/name") == "org/name"
    assert folder.if_path("./org/name") == "/a/b/org/name"
    assert folder.if_path("..") == "/a"
    assert folder.program("python3") == "python3"
    assert folder.program("venv/bin/python") == "/a/b/venv/bin/python"


def test_load_gives_the_typed_form(tmp_path: Path, pair: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(pair)
    topology = load(file, environ={})
    assert topology.pools["prefill"].instances == 2
    assert topology.hosts[0].name == "local"
    with pytest.raises(TopologyError, match="no such file"):
        load(tmp_path / "none.yaml", environ={})
