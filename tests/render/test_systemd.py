"""systemd units: complete, in order, and sound by systemd's own check where it is installed."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from orchestrator.render import files
from orchestrator.render.systemd import render

Made = Callable[..., files.Deployment]


def parsed(text: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text)
    return found


def test_a_unit_for_each_process_of_each_node(made: Made) -> None:
    found = {f.path: f.text for f in render(made()) if f.path.startswith("systemd/")}
    assert set(found) == {
        "systemd/a/pdctl-two-hosts-prefill-0.service",
        "systemd/a/pdctl-two-hosts-decode-0.1.service",
        "systemd/a/pdctl-two-hosts-router.service",
        "systemd/a/pdctl-two-hosts.target",
        "systemd/b/pdctl-two-hosts-decode-0.service",
        "systemd/b/pdctl-two-hosts.target",
    }
    engine = parsed(found["systemd/a/pdctl-two-hosts-prefill-0.service"])
    assert engine["Service"]["KillMode"] == "mixed"
    assert int(engine["Service"]["TimeoutStopSec"]) > 60
    assert engine["Unit"]["Before"] == "pdctl-two-hosts-router.service"
    assert engine["Service"]["ExecStart"].endswith("/run/prefill-0.sh")
    assert "Before" not in parsed(found["systemd/a/pdctl-two-hosts-router.service"])["Unit"]
    follower = found["systemd/a/pdctl-two-hosts-decode-0.1.service"]
    assert "Before=pdctl-two-hosts-decode-0.service" in follower


def test_systemd_finds_nothing_wrong_with_them(made: Made, tmp_path: Path) -> None:
    """Any output counts: unknown keys and bad values are told with exit code 0. Without systemd, only that
    every line is a section, a comment or a setting."""
    files.write(render(made()), tmp_path / "out")
    for folder in (tmp_path / "out" / "systemd").iterdir():
        units = sorted(folder.iterdir())
        assert units
        for unit in units:
            lines = unit.read_text().splitlines()
            assert all(not line or line[0] in "#[" or "=" in line for line in lines), unit
        analyze = shutil.which("systemd-analyze")
        if analyze:
            done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout + done.stderr) == (0, "")
