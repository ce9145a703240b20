"""`scripts/quickstart`, as whoever has just cloned the project runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from deployment import GUARD_S
from portshare import free_ports

from orchestrator.launch.process import MARK, Table, environment

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def inheriting(folder: Path) -> dict[int, str]:
    """Processes that were started with this temporary folder: engines, router and controller inherit it."""
    found = {pid: environment(pid) for pid in Table.take().stats}
    return {pid: env.get(MARK, "?") for pid, env in found.items() if env.get("TMPDIR") == str(folder)}


def test_it_streams_a_completion_and_leaves_nothing(tmp_path: Path) -> None:
    port = free_ports(2)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")}
    done = subprocess.run(
        [ROOT / "scripts" / "quickstart", "--port", str(port)],
        env={**env, "TMPDIR": str(tmp_path), "COLUMNS": "120"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"http://127.0.0.1:{port}" in done.stdout
    told = re.search(
        r"^< (.+)\n\n(\d+) pieces, the first after (\d+) ms, all after (\d+) ms$", done.stdout, re.M
    )
    assert told, done.stdout
    assert len(told[1]) > 100
    assert int(told[2]) > 10, "in pieces, not at once"
    assert int(told[3]) < int(told[4])
    shown = [line.split()[:4] for line in done.stdout.splitlines() if "READY" in line]
    assert [row[0] for row in shown] == ["prefill-0", "prefill-1", "decode-0", "decode-1", "router"]
    assert "Sent to prefill-" in done.stdout, "where it went"
    assert "all stopped" in done.stderr
    assert inheriting(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == [], "nothing in the temporary folder"
    commands = [shlex.split(line[2:]) for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert [words[1] for words in commands if words[0] != "curl"] == ["up", "ps", "explain", "down"]
    settings = [words[words.index("--set") :] for words in commands if words[0] != "curl"]
    assert settings[0] == settings[1] == settings[2] == settings[3], "each can be typed again"
    assert any(f"state_dir={tmp_path}" in word for word in settings[0])
    (curl,) = (words for words in commands if words[0] == "curl")
    assert json.loads(curl[-1])["stream"] is True
