"""`scripts/replay_live`: a trace played over HTTP beside its replay; nothing is left, also after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deployment import GUARD_S, Deployment, eventually, sim

from orchestrator.launch.process import MARK, Table, environment

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "data" / "traces" / "mooncake_synthetic_400.jsonl"
SMALL = ("--set", "pools.prefill.instances=2", "--set", "pools.decode.instances=1")


def words(*more: str | Path) -> list[str | Path]:
    script = ROOT / "scripts" / "replay_live"
    return [script, ROOT / "examples" / "replay.yaml", "--trace", TRACE, *SMALL, "--speed", "10", *more]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace's short prompts, one of which repeats a long beginning; few, and soon done with."""
    file = tmp_path_factory.mktemp("trace") / "short.jsonl"
    lines = [line for line in TRACE.read_text().splitlines() if json.loads(line)["input_length"] <= 8192]
    file.write_text("\n".join(lines[:60]))
    return file


def surroundings(folder: Path) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PDCTL_")}
    return {"env": {**env, "TMPDIR": str(folder)}, "cwd": folder, "text": True, "stdin": subprocess.DEVNULL}


def run(folder: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*more), capture_output=True, timeout=2 * GUARD_S, check=False, **surroundings(folder)
    )


def left(folder: Path) -> list[str]:
    """Marks of processes that were started with this temporary folder."""
    found = [environment(pid) for pid in Table.take().stats]
    return [env.get(MARK, "?") for env in found if env.get("TMPDIR") == str(folder)]


def test_live_and_replay_side_by_side(tmp_path: Path, short: Path) -> None:
    told = tmp_path / "told.json"
    done = run(tmp_path, "--trace", short, "--rate", "x2", "--slo", "ttft=60s+3x", "--json", told)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("simulated engines, 10 times as fast")
    assert "live: TTFT <= 6.00 s + 3 x own cold prefill" in done.stdout
    report = json.loads(told.read_text())
    assert report["simulated"] is True
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert figures["answered"]["live"] + figures["refused"]["live"] == 60
    assert figures["TTFT mean"]["live"] > 0
    # What the two say of time depends on this machine; what is cached where does not.
    cached = report["cached"]
    assert cached["requests"] == figures["answered"]["live"]
    assert cached["exact"] == cached["requests"], "prompts are cut the same by all"
    assert cached["reported_tokens"] == figures["tokens found cached"]["live"]
    lives = report["requests"]
    assert [one["prompt_tokens"] for one in lives["live"]] == [
        one["prompt_tokens"] for one in lives["replay"]
    ]
    assert left(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_whoever_ends_it_finds_nothing_left(tmp_path: Path, how: signal.Signals) -> None:
    state = tmp_path / "state"
    process = subprocess.Popen(
        words("--state", state),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **surroundings(tmp_path),
    )
    try:
        # The trace lasts for minutes: when the first decision is on disk it has only begun.
        eventually(lambda: list(state.glob("decisions/*.jsonl")))
        process.send_signal(how)
        _, stderr = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert left(tmp_path) == []


def test_a_deployment_that_runs_already(tmp_path: Path, short: Path) -> None:
    pools = {"prefill": sim("prefill", instances=2), "decode": sim("decode")}
    with Deployment(tmp_path / "d", pools, scheduling={"decisions": {"record": "full"}}) as deployment:
        deployment.up()
        script: list[str | Path] = [
            ROOT / "scripts" / "replay_live",
            deployment.file,
            "--url",
            deployment.url,
        ]
        more: list[str | Path] = ["--trace", short, "--first", "20", "--rate", "x2", "--speed", "10"]
        done = subprocess.run(
            [*script, *more], capture_output=True, timeout=GUARD_S, check=False, **surroundings(tmp_path)
        )
        assert done.returncode == 0, done.stderr
        assert "answered" in done.stdout
        assert deployment.ps()["router"]["state"] == "ready", "left as it was"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--rate", "fast"), "--rate fast is neither like x2 nor like 3.5"),
        (("--set", "router.kind=none"), "a live run needs pdctl's own router"),
        (("--set", "pools.prefill.instances=0"), "none for prefill to hand off"),
        (("--slo", "soon"), "is no target"),
        (("--speed", "50"), "--speed is more than 0 and 10 at most"),
        (("--trace", "/nowhere"), "/nowhere"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, *more)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
