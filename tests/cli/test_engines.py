"""`pdctl engines`: tables from the package, and an engine that is asked in its own environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import run

Pdctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pdctl(capsys: pytest.CaptureFixture[str]) -> Pdctl:
    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def test_show_tells_one_name(pdctl: Pdctl) -> None:
    assert pdctl("engines", "show", "sglang", "--disaggregation_mode")[1] == (
        "--disaggregation-mode: text, default null, one of null prefill decode\n"
    )
    assert pdctl("engines", "show", "sglang", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT")[1] == (
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT, default 300\n"
    )
    assert "it became a lease" in pdctl("engines", "show", "vllm", "VLLM_NIXL_ABORT_REQUEST_TIMEOUT")[1]
    assert "bootstrap server" in pdctl("engines", "show", "sglang", "disaggregation-decode-tp")[1]
    code, _, err = pdctl("engines", "show", "vllm", "max-num-seq")
    assert code == 2
    assert "did you mean '--max-num-seqs'?" in err


def test_show_tells_all_and_of_which_version(pdctl: Pdctl) -> None:
    code, out, err = pdctl("engines", "show", "vllm", "--version", "0.40.1")
    assert code == 0
    assert out.count("\n") > 700
    assert err == "warning: vllm 0.40.1 is unknown; this is 0.32.0\n"


def test_an_adapter_without_tables_says_so(pdctl: Pdctl) -> None:
    code, _, err = pdctl("engines", "inspect", "sim")
    assert code == 2
    assert "does not say how its engine is asked" in err


def test_inspect_says_what_is_wrong_with_the_environment(pdctl: Pdctl, tmp_path: Path) -> None:
    code, _, err = pdctl("engines", "inspect", "sglang", "--python", tmp_path / "python")
    assert code == 3
    assert "No such file" in err
    assert "[inspect-failed]" in err


ENGINE = """
from orchestrator.engines.capabilities import Recipe
from orchestrator.engines.vllm import VLLM
class Engine(VLLM):
    recipe = Recipe(("pytest",), "pdctl_tiny:add", "pdctl_tiny:variables", ())
"""


def test_inspect_prints_or_writes_a_table(pdctl: Pdctl, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENGINE)
    (tmp_path / "pdctl_tiny.py").write_text("def add(parser): parser.add_argument('--x')\nvariables = {}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {__import__("sys").executable} "$@"\n')
    python.chmod(0o755)
    engine = f"{tmp_path}/mine.py:Engine"
    code, out, _ = pdctl("engines", "inspect", engine, "--python", python)
    assert code == 0
    assert '"x": {"kind":"text","default":null}' in out
    table = tmp_path / "table.json"
    code, told, _ = pdctl("engines", "inspect", engine, "--python", python, "--write", table)
    assert code == 0
    assert "1 flags, 0 variables" in told
    assert table.read_text() == out
    code, _, err = pdctl("engines", "inspect", engine, "--python", python, "--write", tmp_path / "no" / "t")
    assert code == 3
    assert "cannot be written" in err
