"""`pdctl check`, `plan`, `schema`, `route` and what every command shares, as a user meets them.

Covers app, commands, main, show, rules and route.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.commands import ORDER, app
from orchestrator.cli.main import run
from orchestrator.cli.show import as_text
from orchestrator.topology.known import json_schema
from orchestrator.topology.plan import parse
from orchestrator.topology.planner import plan_file
from orchestrator.topology.schema import Topology

ROOT = Path(__file__).resolve().parents[2]

TOPOLOGY = """\
name: demo
model: {path: m}
pools:
  prefill: {role: prefill, engine: sim, instances: 2}
  decode: {role: decode, engine: sim}
router: {credentials: {engine_key: "the-engine-key"}}
"""

Pdctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pdctl(capsys: pytest.CaptureFixture[str]) -> Pdctl:
    """Runs pdctl in this process; exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run([str(a) for a in arguments])
        told = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), told.out, told.err

    return call


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(TOPOLOGY)
    return path


def test_check_says_ok_and_what_it_is(pdctl: Pdctl, topology: Path) -> None:
    code, out, err = pdctl("check", topology)
    assert code == 0
    assert out == "OK demo: 2 prefill (sim) + 1 decode (sim), router at http://127.0.0.1:8000\n"
    assert "warning: " in err
    assert "a key is written in the file [inline-secrets]" in err


def test_check_and_plan_say_where_a_router_for_all_interfaces_listens(pdctl: Pdctl, topology: Path) -> None:
    everywhere = ("--set", "router.listen='0.0.0.0:8000'", "--set", "router.auth=none")
    _, out, _ = pdctl("check", topology, *everywhere)
    assert out.endswith("router at http://127.0.0.1:8000, listens on 0.0.0.0:8000\n")
    _, out, _ = pdctl("plan", topology, *everywhere)
    assert "#   http://127.0.0.1:8000, listens on 0.0.0.0:8000  admin and metrics: " in out


def test_check_tells_every_problem_and_how_many(pdctl: Pdctl, topology: Path) -> None:
    topology.write_text(
        TOPOLOGY.replace("role: decode", "role: decdoe").replace("instances: 2", "instnaces: 2")
    )
    code, out, err = pdctl("check", topology)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == f"{topology}:4: pools.prefill.instnaces: unknown field (did you mean 'instances'?)"
    assert lines[1].startswith(f"{topology}:5: pools.decode.role: 'decdoe' is not one of")
    assert lines[2] == "2 problems"


@pytest.mark.parametrize("command", ["check", "plan", "route"])
def test_a_file_that_is_not_there(pdctl: Pdctl, tmp_path: Path, command: str) -> None:
    code, out, err = pdctl(command, tmp_path / "no.yaml")
    assert (code, out) == (2, "")
    assert err == f"{tmp_path}/no.yaml: no such file\n"


def test_set_is_repeatable_and_its_faults_are_named(pdctl: Pdctl, topology: Path) -> None:
    code, out, _ = pdctl("check", topology, "--set", "name=other", "--set", "pools.decode.instances=5")
    assert code == 0
    assert out.startswith("OK other: 2 prefill (sim) + 5 decode (sim)")
    code, _, err = pdctl("check", topology, "--set", "nonsense")
    assert (code, err) == (2, "--set nonsense: is not of the form a.b=value\n")


def test_plan_can_be_pasted_into_a_shell(pdctl: Pdctl, topology: Path) -> None:
    code, out, _ = pdctl(
        "plan", topology, "--set", "model.served_name=two words", "--set", "pools.decode.env={A: 'b c'}"
    )
    assert code == 0
    blocks = [b for b in out.split("\n\n") if "decode-0" in b]
    shell = """python() { printf '%s\\n' "$@"; echo "A=$A"; }\n""" + blocks[0].replace(
        sys.executable, "python"
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:3] == ["-P", "-m", "orchestrator.sim"]
    assert words[words.index("--served-model-name") + 1] == "two words"
    assert words[-1] == "A=b c"


def test_plan_shows_every_instance_with_its_ports_and_no_secret(pdctl: Pdctl, topology: Path) -> None:
    _, out, _ = pdctl("plan", topology)
    for shown in (
        "# prefill-0: prefill, sim, node local, profile sim/default",
        "http 20000, bootstrap 20001",
    ):
        assert shown in out
    assert "# router: pdctl" in out
    assert "the-engine-key" not in out
    assert "'***'" in out


def test_a_key_need_be_set_only_where_something_is_run(pdctl: Pdctl, topology: Path) -> None:
    words = (topology, "--set", "router.credentials.client_keys=['${env:NOT_SET_ANYWHERE}']")
    for command in ("check", "plan"):
        code, out, err = pdctl(command, *words)
        assert code == 0, err
        assert out
        told = "router.credentials.client_keys.0: the environment variable NOT_SET_ANYWHERE is not set"
        assert told in err
        assert err.startswith("warning: ")
    for command in (("plan", "--diff"), ("route",), ("up", "--detach")):
        code, _, err = pdctl(*command, *words)
        assert code == 2, err
        assert "the environment variable NOT_SET_ANYWHERE is not set (export NOT_SET_ANYWHERE=...)" in err


def test_plan_json_is_the_plan_with_its_secrets_masked(pdctl: Pdctl, topology: Path) -> None:
    code, out, _ = pdctl("plan", topology, "--json")
    assert code == 0
    assert "the-engine-key" not in out
    plan = parse(out.encode())
    assert [i.name for i in plan.instances] == ["prefill-0", "prefill-1", "decode-0"]
    assert plan.router is not None
    assert plan.router.credentials.engine_key == "***"


def test_explain_gives_every_word_its_origin(pdctl: Pdctl, topology: Path) -> None:
    code, out, _ = pdctl("plan", topology, "--explain", "--set", "pools.decode.flags.speed=3")
    assert code == 0
    assert any(line.split() == ["--speed", "3", "topology", "--set"] for line in out.splitlines())
    words = [line for line in out.splitlines() if line.startswith("  ")]
    assert words
    assert all(line[64:].strip() for line in words), "a word without an origin"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_origin_is_explained(example: Path) -> None:
    """What stands in the right column stands above it and in the documentation."""
    environ = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", example.read_text()), "some-secret")
    plan = plan_file(example, (), environ=environ, ask=None)
    head, *parts = "\n".join(as_text(plan, explain=True)).split("\n\n")
    meant = {line.split()[1] for line in head.splitlines() if line.startswith("#   ")}
    rows = [line for part in parts for line in part.splitlines() if line.startswith("  ")]
    used = {one.split()[0] for row in rows for one in re.split(r", | \+ ", re.split(r"  +", row.strip())[-1])}
    assert used == meant
    documented = (ROOT / "docs" / "topology.md").read_text()
    assert all(f"| `{kind}" in documented for kind in meant)


def test_json_and_explain_exclude_each_other(pdctl: Pdctl, topology: Path) -> None:
    code, _, err = pdctl("plan", topology, "--json", "--explain")
    assert code == 2
    assert "--json holds every origin already" in err


def test_schema_prints_what_is_committed(pdctl: Pdctl) -> None:
    code, out, _ = pdctl("schema")
    assert code == 0
    assert json.loads(out) == json_schema(Topology)
    assert out == (ROOT / "docs" / "topology.schema.json").read_text()
    assert pdctl("schema", "profile")[1] == (ROOT / "docs" / "launch-profile.schema.json").read_text()
    assert pdctl("schema", "--format", "markdown")[1].startswith("### Top level\n")


def test_route_wants_pdctls_own_router(pdctl: Pdctl, topology: Path) -> None:
    code, _, err = pdctl("route", topology, "--set", "router.kind=none")
    assert code == 2
    assert "router.kind: is 'none': only pdctl's own router can be run alone" in err


def test_help_lists_every_command_in_its_order(pdctl: Pdctl) -> None:
    code, out, _ = pdctl("--help")
    assert code == 0
    listed = [
        line.split()[1] for line in out.splitlines() if line.startswith("│ ") and line.split()[1] in ORDER
    ]
    assert tuple(listed) == ORDER
    assert len(app.registered_commands) == len(ORDER)


def test_version(pdctl: Pdctl) -> None:
    code, out, _ = pdctl("--version")
    assert code == 0
    assert out.startswith("pdctl 0.")


def test_bad_usage_is_two_and_names_the_command(pdctl: Pdctl) -> None:
    code, _, err = pdctl("chekc")
    assert code == 2
    assert "chekc" in err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\xff\xfe",
        b"a: [",
        b"- 1",
        b"name: [x]\nmodel: 1\npools: 3\nrouter: []\nnodes: {}\n",
        b"pools: {p: 1}\n",
    ],
)
def test_no_file_leads_to_a_traceback(tmp_path: Path, content: bytes) -> None:
    """In a process of its own, so that nothing can catch what pdctl lets through."""
    path = tmp_path / "t.yaml"
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from orchestrator.cli.main import run; run()", "check", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert str(path) in done.stderr


def test_a_reader_that_leaves_is_no_error_to_report(topology: Path) -> None:
    script = (
        f"{sys.executable} -P -c 'from orchestrator.cli.main import run; run()' plan {topology} | head -n 1"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("# demo")
    assert "Traceback" not in done.stderr


def test_rules_are_listed_and_explained(pdctl: Pdctl) -> None:
    code, listed, _ = pdctl("rules")
    assert code == 0
    assert "\npage-size " in listed
    code, one, _ = pdctl("rules", "page-size")
    assert code == 0
    assert one.startswith("page-size: error\n")
    assert "Engines that run are looked at again." in one
    assert pdctl("rules", "page-size", "--format", "markdown")[1].startswith("### page-size\n")
    code, _, err = pdctl("rules", "page-sizes")
    assert code == 2
    assert "there is no lint rule 'page-sizes' (did you mean 'page-size'?)" in err


def test_check_tells_what_is_silenced(pdctl: Pdctl, topology: Path) -> None:
    topology.write_text(TOPOLOGY + "silence: {inline-secrets: {reason: a demo}}\n")
    code, out, err = pdctl("check", topology)
    assert code == 0
    assert "[inline-secrets]" in out
    assert "silenced: a demo" in out
    assert "inline-secrets" not in err
