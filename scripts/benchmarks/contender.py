"""One router that takes part in a benchmark, and how it is started and waited for."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from benchmarks.mock import MODEL
from benchmarks.processes import started, until

SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Contender:
    """`engine` is the dialect it routes to, `port` where it listens, `argv` what starts it."""

    name: str
    engine: str
    port: int
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)

    def answers(self) -> bool:
        """Whether it has a request answered."""
        told = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "ready?"}]}
        headers = {"content-type": "application/json", "authorization": "Bearer bench"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(told), headers)
            return connection.getresponse().status == 200
        finally:
            connection.close()

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Its process, once it answers. Raises RuntimeError with its log if it does not."""
        log = folder / f"{re.sub('[^a-z0-9]+', '-', self.name.lower())}.log"
        with started(self.argv, log, env=self.env, cwd=folder) as process:
            until(self.answers, process, log, self.name)
            time.sleep(SETTLE_S)
            yield process
