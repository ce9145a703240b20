"""Runs the installer's commands, telling how far it is and what went wrong."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HEARTBEAT_S = 30.0
TAIL_LINES = 25


class InstallError(Exception):
    """Something the person running the installer has to act on."""


class Runner:
    """Prints progress with the elapsed time and keeps long output in log files."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._start = time.monotonic()

    def say(self, message: str) -> None:
        elapsed = time.monotonic() - self._start
        print(f"[{elapsed:6.1f} s] {message}", flush=True)

    def run(
        self,
        title: str,
        command: Sequence[str],
        *,
        advice: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run one command; on failure raise with the log's tail and the advice."""
        self.say(title)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / "install.log"
        with log.open("a", encoding="utf-8") as sink:
            sink.write(f"\n$ {' '.join(command)}\n")
            sink.flush()
            offset = log.stat().st_size
            try:
                process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=env)
            except FileNotFoundError as error:
                raise InstallError(f"{title}: {error}. {advice}") from error
            status = self._wait(title, process)
        if status != 0:
            tail = log.read_bytes()[offset:].decode(errors="replace").splitlines()
            raise InstallError(
                f"{title}: exit status {status}. {advice}\n"
                f"The last lines of {log}:\n" + "\n".join(tail[-TAIL_LINES:])
            )

    def _wait(self, title: str, process: "subprocess.Popen[bytes]") -> int:
        try:
            while True:
                try:
                    return process.wait(timeout=HEARTBEAT_S)
                except subprocess.TimeoutExpired:
                    self.say(f"{title} ... still running")
        except BaseException:
            # An interrupted installer must not leave pip writing into the venv.
            process.kill()
            process.wait()
            raise


def query(command: Sequence[str]) -> str:
    """Return what a short command prints; raise InstallError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command[:3])} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def fail(error: InstallError) -> int:
    """Print an error for a person and return the exit status that goes with it."""
    print(f"real-engines: {error}", file=sys.stderr, flush=True)
    return 1
