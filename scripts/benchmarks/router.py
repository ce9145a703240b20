"""Measures the router's own CPU per request and per streamed chunk, beside a peer's in the same run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from orchestrator.wire.client import Pool, request_head

PDCTL = Path(sys.executable).with_name("pdctl")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pdctl" / "bench"
PEER = "sglang-router==0.3.2"


@dataclass(frozen=True)
class Load:
    """One kind of load: how many requests, how many at a time, how large, and how many tokens each."""

    name: str
    requests: int
    concurrency: int
    body_bytes: int
    tokens: int
    stream: bool
    unit: str


LOADS = (
    Load("1 KB", 2000, 16, 1024, 1, False, "request"),
    Load("32 KB", 1000, 16, 32768, 1, False, "request"),
    Load("64 streams", 64, 64, 1024, 500, True, "chunk"),
)


class Call:
    """A sink that counts server-sent events and resolves when the answer is whole."""

    def __init__(self, done: asyncio.Future[int]) -> None:
        self.done, self.status, self.events = done, 0, 0

    def on_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Remember the status."""
        self.status = status

    def on_body(self, data: bytes) -> None:
        """Count events."""
        self.events += data.count(b"data: ")

    def on_end(self) -> None:
        """Resolve; an answer other than 200 spoils the run."""
        if self.status == 200:
            self.done.set_result(self.events)
        else:
            self.done.set_exception(RuntimeError(f"answered {self.status}"))

    def on_failure(self, error: Exception) -> None:
        """A dropped answer spoils the run."""
        self.done.set_exception(error)


def request_body(load: Load) -> bytes:
    """A chat request of about `load.body_bytes`."""
    body: dict[str, Any] = {
        "model": "bench", "max_tokens": load.tokens, "stream": load.stream, "temperature": 0.7,
        "ignore_eos": True, "messages": [{"role": "user", "content": ""}],
    }  # fmt: skip
    text = "The quick brown fox jumps over the lazy dog. " * (load.body_bytes // 40)
    body["messages"][0]["content"] = text[: load.body_bytes - len(json.dumps(body))]
    return json.dumps(body).encode()


async def drive(load: Load, port: int) -> int:
    """Put the load on a router; the number of units it took (requests or chunks)."""
    pool = Pool(connect_timeout_s=5)
    body = request_body(load)
    headers = [("content-type", "application/json")]
    head = request_head("POST", "/v1/chat/completions", f"127.0.0.1:{port}", headers, len(body))
    left, units = load.requests, 0

    async def worker() -> None:
        nonlocal left, units
        while left > 0:
            left -= 1
            connection = await pool.acquire("127.0.0.1", port, 60.0)
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            connection.send(head, (body,), Call(done))
            events = await asyncio.wait_for(done, 120)
            units += events if load.stream else 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.concurrency):
            tasks.create_task(worker())
    pool.close()
    return units


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of every thread of a process and its children, to the nanosecond (schedstat)."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        for task in Path(f"/proc/{one.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(load: Load, port: int, process: psutil.Process) -> float:
    """CPU microseconds per unit, what the process burns when idle left out."""
    idle, waited = cpu_s(process), time.monotonic()
    time.sleep(1.0)
    idle_rate = (cpu_s(process) - idle) / (time.monotonic() - waited)
    before, started = cpu_s(process), time.monotonic()
    units = uvloop.run(drive(load, port))
    spent = cpu_s(process) - before - idle_rate * (time.monotonic() - started)
    return 1e6 * spent / units


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def peer_python() -> Path:
    """The interpreter of the environment the peer is installed in, made on first use."""
    python = CACHE / PEER / "bin" / "python"
    if not python.exists():
        print(f"installing {PEER} into {CACHE}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(CACHE / PEER)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", PEER], check=True)
    return python


def topology(folder: Path, name: str, pools: dict[str, Any], router: dict[str, Any]) -> Path:
    """Write a topology (JSON is YAML) and return its path."""
    path = folder / f"{name}.yaml"
    model = {"path": "sim/bench", "served_name": "bench"}
    whole = {
        "name": f"bench-{name}", "model": model, "pools": pools, "router": router,
        "state_dir": str(folder / f"state-{name}"),
    }  # fmt: skip
    path.write_text(json.dumps(whole))
    return path


def up(path: Path) -> list[dict[str, Any]]:
    """Bring a topology up; its processes as `pdctl ps --json` tells them."""
    subprocess.run([str(PDCTL), "up", str(path), "--detach"], check=True, stdout=sys.stderr)
    listed = subprocess.run(
        [str(PDCTL), "ps", str(path), "--json"], check=True, capture_output=True, text=True
    )
    rows: list[dict[str, Any]] = json.loads(listed.stdout)
    return rows


def start(folder: Path, peers: bool, started: list[Path]) -> dict[str, tuple[int, psutil.Process]]:
    """Start engines and routers; each router's port and process."""
    ports = {"pdctl": free_port(), "sglang-router": free_port()}
    sim = {"engine": "sim", "instances": 2, "options": {"dialect": "sglang", "speed": 2}}
    pools = {role: {"role": role, **sim} for role in ("prefill", "decode")}
    started.append(topology(folder, "pdctl", pools, {"listen": f"127.0.0.1:{ports['pdctl']}"}))
    rows = up(started[-1])
    routers = {"pdctl": next(r["pid"] for r in rows if r["role"] == "router")}
    if peers:
        external: dict[str, Any] = {}
        for role in ("prefill", "decode"):
            mine = [r for r in rows if r["role"] == role]
            urls = [
                {"url": r["url"]} | ({"bootstrap_port": r["ports"]["bootstrap"]} if role == "prefill" else {})
                for r in mine
            ]
            external[role] = {"role": role, "engine": "sglang", "external": urls}
        router = {
            "kind": "sglang-router", "listen": f"127.0.0.1:{ports['sglang-router']}",
            "runtime": {"python": str(peer_python())},
            "flags": {"policy": "round_robin", "log-level": "warn"},
        }  # fmt: skip
        started.append(topology(folder, "peer", external, router))
        routers["sglang-router"] = next(r["pid"] for r in up(started[-1]) if r["role"] == "router")
    return {name: (ports[name], psutil.Process(pid)) for name, pid in routers.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help=f"measure {PEER} beside it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    results: dict[tuple[str, str], list[float]] = {}
    started: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as folder:
        try:
            routers = start(Path(folder), arguments.peers, started)
            for port, process in routers.values():
                measure(LOADS[0], port, process)  # warm-up, not counted
            for _ in range(arguments.rounds):
                for load in LOADS:
                    for name, (port, process) in routers.items():
                        results.setdefault((name, load.name), []).append(measure(load, port, process))
        finally:
            for path in reversed(started):
                subprocess.run([str(PDCTL), "down", str(path)], check=False, stdout=sys.stderr)
    units = {load.name: load.unit for load in LOADS}
    if arguments.json:
        rows = [
            {"router": name, "load": load, "cpu_us": values, "per": units[load]}
            for (name, load), values in results.items()
        ]
        about = {"machine": platform.platform(), "cores": os.cpu_count()}
        print(json.dumps({**about, "results": rows}, indent=1))
    else:
        print("CPU microseconds of the router process, min / median / max; simulated engines")
        for (name, what), values in results.items():
            figures = f"{min(values):.0f} / {statistics.median(values):.0f} / {max(values):.0f}"
            print(f"{name:14} {what:12} {figures} per {units[what]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
