"""`pdctl render`: what it writes, prints and refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PDCTL = Path(sys.executable).with_name("pdctl")
EXAMPLE = Path(__file__).parents[2] / "examples" / "sglang-4p4d-8hosts.yaml"
KEYS = {"PDCTL_CLIENT_KEY": "a-client-key", "PDCTL_ADMIN_KEY": "an-admin-key"}
IMAGES = ("--image", "prefill=sglang:x", "--image", "decode=sglang:x", "--image", "router=pdctl:x")


def render(
    *words: str, file: Path = EXAMPLE, keys: dict[str, str] = KEYS
) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/home/me", "COLUMNS": "200", **keys}
    command = [PDCTL, "render", file, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("target", "count"), [("shell", 1 + 9 + 1 + 8), ("systemd", 1 + 9 + 9 + 8), ("slurm", 13)]
)
def test_files_are_written_and_named(tmp_path: Path, target: str, count: int) -> None:
    done = render("--to", target, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    written = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert len(written) == count
    assert all(str(p) in done.stderr for p in written)
    assert not any(key in p.read_text() for p in written for key in KEYS.values())


@pytest.mark.parametrize("target", ["shell", "systemd", "slurm", "kubernetes"])
def test_no_key_need_be_set_where_files_are_made(target: str) -> None:
    images = IMAGES if target == "kubernetes" else ()
    with_keys, without = (render("--to", target, *images, keys=keys) for keys in (KEYS, {}))
    assert without.returncode == 0, without.stderr
    assert without.stdout == with_keys.stdout
    assert without.stderr.count("is not set (export ") == len(KEYS)


def test_without_a_folder_they_are_printed() -> None:
    done = render("--to", "kubernetes", *IMAGES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# ---- kubernetes.yaml\n# sglang-4p4d on Kubernetes.")
    assert done.stdout.count('kind: "Deployment"') == 9


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = render("--to", "kubernetes")
    assert (done.returncode, "--image prefill=NAME:TAG" in done.stderr) == (2, True)
    done = render("--to", "kubernetes", "--image", "prefill")
    assert (done.returncode, "is not POOL=IMAGE" in done.stderr) == (2, True)
    (tmp_path / "lib.sh").write_text("mine")
    done = render("--to", "shell", "--out", str(tmp_path))
    assert (done.returncode, "[render-refused]" in done.stderr) == (3, True)
    inline = tmp_path / "t.yaml"
    text = EXAMPLE.read_text().replace("${env:PDCTL_ADMIN_KEY}", "written-in-the-file")
    inline.write_text(text.replace("  credentials:\n", "  credentials:\n    engine_key: written-here-too\n"))
    done = render("--to", "shell", file=inline)
    assert done.returncode == 2
    assert "is written in the topology" in done.stderr
