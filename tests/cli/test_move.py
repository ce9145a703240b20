"""`pdctl drain`, switch and rollout as command lines: what they refuse before they ask anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.commands import app
from orchestrator.errors import LaunchError, TopologyError

RUN = CliRunner()


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(
        "name: t\nmodel: {path: m}\nstate_dir: ./state\n"
        "pools: {all: {role: unified, engine: sim, instances: 1}}\n"
    )
    return path


def test_an_instance_is_asked_for(topology: Path) -> None:
    done = RUN.invoke(app, ["drain", str(topology)])
    assert done.exit_code == 2
    assert "name the instance" in done.output


def test_the_topology_comes_first() -> None:
    done = RUN.invoke(app, ["drain", "decode-0"])
    assert isinstance(done.exception, TopologyError)


@pytest.mark.parametrize("undo", [(), ("--undo",)])
def test_nothing_runs(topology: Path, undo: tuple[str, ...]) -> None:
    done = RUN.invoke(app, ["drain", str(topology), "all-0", *undo])
    assert isinstance(done.exception, LaunchError)
    assert done.exception.reason == "no-router"


def test_a_switch_names_instance_and_role(topology: Path) -> None:
    assert "name the instance" in RUN.invoke(app, ["switch", str(topology), "--to", "decode"]).output
    assert RUN.invoke(app, ["switch", str(topology), "all-0"]).exit_code == 2
    assert RUN.invoke(app, ["switch", str(topology), "all-0", "--to", "unified"]).exit_code == 2


@pytest.mark.parametrize("words", [("switch", "all-0", "--to", "decode"), ("rollout",), ("rollout", "all")])
def test_nothing_is_changed_where_nothing_runs(topology: Path, words: tuple[str, ...]) -> None:
    command, *more = words
    done = RUN.invoke(app, [command, str(topology), *more])
    assert isinstance(done.exception, LaunchError)
    assert done.exception.reason in ("no-controller", "not-running")
