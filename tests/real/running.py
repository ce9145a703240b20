"""One example topology run by `pdctl` as a user runs it: up, ps, down, and what its processes left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from orchestrator.launch.paths import StateDir

ROOT = Path(__file__).resolve().parents[2]
PDCTL = Path(sys.executable).with_name("pdctl")

GUARD_S = 120.0
"""How long a test waits for what must happen; reached only when it does not."""
UP = "10m"
"""How long `pdctl up` may take: a busy machine without a GPU needs minutes."""

PORTS = 100
"""Ports of one deployment in a row: all but the last two are the engines', those are the router's."""
FIRST, LAST = 20_000, 29_900
"""Where they are looked for: outside the range from which the kernel takes ports by itself."""

LOG_LINES = 20


@dataclass(frozen=True)
class Ended:
    """A `pdctl` command that ended, and how long it took."""

    code: int
    out: str
    err: str
    took_s: float


def free_ports(count: int = PORTS) -> int:
    """The first of `count` ports in a row that nobody listens on now."""
    while True:
        first = random.randrange(FIRST, LAST)
        try:
            for port in range(first, first + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first


def eventually(
    holds: Callable[[], object], what: str, within_s: float = GUARD_S, every_s: float = 0.1
) -> None:
    """Wait until `holds`, asking `every_s`; fail with `what` when it does not."""
    give_up_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_s, f"{what}: not within {within_s:g} s"
        time.sleep(every_s)


class Deployment:
    """An example with ports and a state directory of its own, so that it disturbs nobody."""

    def __init__(self, example: Path, folder: Path, settings: Sequence[str] = ()) -> None:
        first = free_ports()
        self.state = StateDir(folder / "state")
        self.url = f"http://127.0.0.1:{first + PORTS - 2}"
        self.admin = f"http://127.0.0.1:{first + PORTS - 1}"
        own = (
            f"nodes=[{{name: local, ports: {first}-{first + PORTS - 3}}}]",
            f"router.listen=127.0.0.1:{first + PORTS - 2}",
            f"state_dir={self.state.root}",
        )
        self._words = [str(example), *(word for s in (*own, *settings) for word in ("--set", s))]

    def pdctl(self, command: str, *words: str, within_s: float = GUARD_S) -> Ended:
        """Run `pdctl COMMAND TOPOLOGY WORDS` from the checkout."""
        start_s = time.monotonic()
        done = subprocess.run(
            [PDCTL, command, *self._words, *words],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("PDCTL_")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - start_s)

    def up(self) -> Ended:
        """`pdctl up --detach`; on one that is up already, nothing should happen."""
        return self.pdctl("up", "--detach", "--timeout", UP, within_s=700.0)

    def down(self) -> Ended:
        """`pdctl down`."""
        return self.pdctl("down")

    def ps(self) -> dict[str, dict[str, Any]]:
        """`pdctl ps --json` by instance."""
        done = self.pdctl("ps", "--json")
        assert done.code == 0, done.err
        return {one["name"]: one for one in json.loads(done.out)}

    def marked(self) -> dict[int, str]:
        """The processes that bear this deployment's marker in their environment, with their markers."""
        wanted = f"PDCTL_INSTANCE={self.state.id}/".encode()
        found = {}
        for pid, environment in _environments():
            for item in environment.split(b"\0"):
                if item.startswith(wanted):
                    found[pid] = item.decode()
        return found

    def processes(self) -> list[psutil.Process]:
        """Those that bear the marker and all that stem from them: an engine's rank may overwrite its
        environment with a title."""
        found: dict[int, psutil.Process] = {}
        for pid in self.marked():
            try:
                parent = psutil.Process(pid)
                found |= {p.pid: p for p in (parent, *parent.children(recursive=True))}
            except psutil.NoSuchProcess:
                continue
        return list(found.values())

    def kill(self) -> None:
        """What is left of a deployment that `down` could not stop."""
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def logs(self) -> Iterator[tuple[str, str]]:
        """Each log's name and last lines, without those of answered probes."""
        for path in sorted(self.state.logs.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            telling = [line for line in lines if not ("GET /" in line and " 200" in line)]
            yield path.stem, "\n".join(telling[-LOG_LINES:])

    def told(self, what: str, ended: Ended) -> str:
        """What to show of a command that should have succeeded."""
        logs = "\n".join(f"--- {name}\n{text}" for name, text in self.logs())
        return f"{what}: exit code {ended.code} after {ended.took_s:.0f} s\n{ended.err}\n{logs}"


def living(processes: Sequence[psutil.Process]) -> list[str]:
    """Those that still run, zombies left out, as one line each."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except psutil.NoSuchProcess:
            continue
    return found


def _environments() -> Iterator[tuple[int, bytes]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                yield int(name), Path(f"/proc/{name}/environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
