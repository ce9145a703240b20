"""`pdctl reload` as a user meets it where nothing runs; tests/integration/test_reloading.py has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.launch.paths import StateDir
from orchestrator.topology.plan import dump
from orchestrator.topology.planner import plan_file

TOPOLOGY = """\
name: demo
model: {{path: m}}
state_dir: ./state
pools:
  prefill: {{role: prefill, engine: sim}}
  decode: {{role: decode, engine: sim}}
scheduling: {{profile: {profile}}}
"""


def reload(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        run(["reload", str(path), *options])
    return ended.value.code, capsys.readouterr().err


def write(folder: Path, profile: str) -> Path:
    path = folder / "t.yaml"
    path.write_text(TOPOLOGY.format(profile=profile))
    return path


def test_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = reload(write(tmp_path, "random"), capsys)
    assert code == 3
    assert f"nothing runs in {tmp_path}/state; `pdctl up` starts it" in err


def test_a_topology_that_is_wrong_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = reload(write(tmp_path, "randm"), capsys, "--dry-run")
    assert code == 2
    assert (
        "t.yaml:7: scheduling.profile: there is no scheduling profile 'randm' (did you mean 'random'?)" in err
    )


def test_the_router_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "random")
    state = StateDir(tmp_path / "state")
    state.create()
    state.plan.write_bytes(dump(plan_file(path, environ={})))
    code, err = reload(path, capsys)
    assert code == 3
    assert "the router does not answer at" in err
    assert err.rstrip().endswith("see `pdctl ps` [no-router]")
