"""Simulated engines for tests: start real processes on free ports, and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Self


class SimProcess:
    """One running `python -m orchestrator.sim`; a context manager that kills it at the end.

    `url` is its API, `ports` its other ports by purpose (`bootstrap`, `side channel`, `control`). Raises
    RuntimeError, with what it wrote, when it exits before it listens.
    """

    def __init__(self, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.sim", *flags],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self.ports: dict[str, int] = {}
        self.url = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
                break
            purpose, _, port = line.strip().rpartition(" port ")
            self.ports[purpose] = int(port)
        if not self.url:
            self.process.wait()
            raise RuntimeError(f"the simulated engine did not start: {self.errors()}")

    @property
    def port(self) -> int:
        """The API port."""
        return int(self.url.rpartition(":")[2])

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def errors(self) -> str:
        """What it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def terminate(self) -> None:
        """SIGTERM: drain."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.alive:
            self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float = 30.0) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()


@contextlib.contextmanager
def spawn(*groups: tuple[str, ...], common: tuple[str, ...] = ()) -> Iterator[list[SimProcess]]:
    """One process for each group of flags, `common` ones added to all; all are killed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(SimProcess(*flags, *common)) for flags in groups]
