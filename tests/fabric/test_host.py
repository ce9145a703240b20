"""This very host, and what the driver adds to what the bus shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.core.fabric import Gpu
from orchestrator.fabric import host
from orchestrator.fabric.nvidia import Seen


def refuse(command: Sequence[str]) -> str:
    raise OSError(f"{command[0]}: not here")


def test_this_host_is_read_whatever_it_lacks() -> None:
    found = host.read(run=refuse)
    assert found.host
    assert (found.cpus or 0) >= 1
    assert (found.open_files or 0) > 0
    assert found.memlock_bytes is not None
    assert [g.index for g in found.gpus] == list(range(len(found.gpus)))


def test_a_copy_tells_nothing_of_this_host(tmp_path: Path) -> None:
    found = host.read(tmp_path, run=refuse)
    assert (found.memlock_bytes, found.open_files, found.cpus, found.notes) == (None, None, None, ())


def test_the_drivers_numbers_and_sizes_go_over_the_bus() -> None:
    bus = (Gpu(0, "0000:01:00.0", "nvidia", "", numa=0), Gpu(1, "0000:02:00.0", "nvidia", "", numa=1))
    seen = [Seen(0, "0000:02:00.0", "L4", 24)]
    assert host.merged(bus, seen) == (Gpu(0, "0000:02:00.0", "nvidia", "L4", 24, numa=1),)
    assert host.merged(bus, []) == bus
    assert host.merged((), seen) == (Gpu(0, "0000:02:00.0", "nvidia", "L4", 24),)


def test_a_command_that_fails_says_so() -> None:
    with pytest.raises(OSError, match="exit code 3: no driver"):
        host.run([sys.executable, "-c", "print('no driver'); raise SystemExit(3)"])
    assert host.run([sys.executable, "-c", "print('fine')"]) == "fine\n"
    with pytest.raises(OSError):
        host.run(["/no/such/command"])
