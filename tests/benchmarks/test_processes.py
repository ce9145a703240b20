"""What a benchmark starts is waited for, measured (cpu, for sim and router), and gone in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import cpu, processes
from benchmarks.cpu import Idle, Meter

SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={port}, bind='127.0.0.1')"


def test_a_process_is_waited_for_and_gone_in_the_end(tmp_path: Path) -> None:
    port, log = processes.free_port(), tmp_path / "log"
    with processes.started([sys.executable, "-c", SERVE.format(port=port)], log, cwd=tmp_path) as process:
        processes.until(lambda: processes.ask(port, "GET", "/")[0] == 200, process, log, "the server")
        assert process.pid in cpu.tree(process.pid)
        assert cpu.spent_s(process.pid) > 0
        assert cpu.rss_mib(process.pid) > 1
    assert process.returncode is not None
    assert cpu.tree(process.pid) == []
    assert cpu.spent_s(process.pid) == 0


def test_one_that_ends_before_it_is_ready_is_told_with_its_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with processes.started([sys.executable, "-c", "print('bad flag'); raise SystemExit(3)"], log) as process:
        process.wait(30)
        with pytest.raises(RuntimeError, match=r"(?s)exit status 3.*bad flag"):
            processes.until(lambda: False, process, log, "it")


def test_what_is_burnt_when_idle_is_left_out() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        try:
            assert Meter(Idle(process.pid, 0.0), 0.0, 0.0).read_s() > 0
            assert Meter(Idle(process.pid, 1e9), 0.0, 0.0).read_s() == 0
        finally:
            process.kill()
