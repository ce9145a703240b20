"""An engine on several nodes, as real processes: who serves, who waits for whom, and who goes with whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from portshare import free_ports

from orchestrator.sim.testing import SimProcess

GUARD_S = 20.0


class Pair:
    """Process 0 and process 1 of one engine."""

    def __init__(self, dialect: str) -> None:
        self.port = free_ports(2)
        flags = ("--dialect", dialect, "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{self.port}")
        command = [sys.executable, "-P", "-m", "orchestrator.sim", *flags, "--node-rank", "1"]
        self.follower = subprocess.Popen([*command, "--port", str(self.port + 1)], stderr=subprocess.DEVNULL)
        self.head = SimProcess(*flags)

    def health(self, path: str = "/health") -> int | None:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port + 1}{path}", trust_env=False).status_code
        except httpx.TransportError:
            return None

    def close(self) -> None:
        for process in (self.head.process, self.follower):
            process.kill()
            process.wait()


@pytest.fixture(params=["sglang", "vllm"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    yield made
    made.close()


def test_only_process_0_serves(pair: Pair, request: pytest.FixtureRequest) -> None:
    answer = httpx.post(
        f"{pair.head.url}/v1/completions",
        json={"model": "sim", "prompt": "x", "max_tokens": 2},
        trust_env=False,
    )
    assert answer.status_code == 200
    if "sglang" in request.node.name:
        until(lambda: pair.health() == 200)
        assert pair.health("/ready") == 404
    else:
        assert pair.health() is None


def test_process_0_ends_the_other_as_it_ends(pair: Pair, request: pytest.FixtureRequest) -> None:
    if "sglang" in request.node.name:
        pair.follower.send_signal(signal.SIGTERM)
        assert httpx.get(f"{pair.head.url}/ping", trust_env=False).status_code == 200
    pair.head.process.send_signal(signal.SIGTERM)
    assert pair.head.process.wait(GUARD_S) == 0
    assert pair.follower.wait(GUARD_S) == 0


def test_when_one_is_lost_the_other_dies(pair: Pair) -> None:
    os.kill(pair.follower.pid, signal.SIGKILL)
    assert pair.head.process.wait(GUARD_S) == 1


def test_when_process_0_is_lost_the_other_dies(pair: Pair) -> None:
    os.kill(pair.head.process.pid, signal.SIGKILL)
    assert pair.follower.wait(GUARD_S) == 1


def until(holds: Any) -> None:
    give_up_s = time.monotonic() + GUARD_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)
