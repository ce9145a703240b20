"""Processes of a benchmark: started in sessions of their own, waited for, and ended with all they started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
"""Left out of what is started: some clients would ask a proxy for 127.0.0.1."""

END_S = 5.0


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes to `log`, and is gone with its group when the context is left."""
    kept = {name: value for name, value in os.environ.items() if name not in PROXIES}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**kept, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """TERM to its group, KILL to what is left of it after five seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            continue


def ask(port: int, method: str, path: str, body: bytes = b"", timeout_s: float = 5.0) -> tuple[int, bytes]:
    """Status and body of a request to a port of this machine. Raises OSError and HTTPException."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def until(
    done: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str, timeout_s: float = 60.0
) -> None:
    """Wait until `done` (asked ten times a second; a connection refused is no). Raises RuntimeError, with the
    end of its log, if the process ends or time is up before."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError, HTTPException):
            if done():
                return
        time.sleep(0.1)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{what} did not get ready (exit status {process.poll()}):\n{tail}")
