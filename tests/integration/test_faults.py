"""`scripts/faults`: three faults of it, with each hand-off, and none that its clients need see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

FAULTS = Path(__file__).parents[2] / "scripts" / "faults"


@pytest.mark.parametrize(
    ("fleet", "only", "rows"),
    [("sglang", "decode killed", 2), ("nixl", "answers 503", 2), ("mooncake", "clients leave", 2)],
)
def test_clients_see_no_more_of_a_fault_than_they_must(fleet: str, only: str, rows: int) -> None:
    done = subprocess.run(
        [FAULTS, "--fleet", fleet, "--only", only], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if only.split()[-1] in line]
    assert len(told) == rows, done.stdout
