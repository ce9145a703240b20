"""`scripts/replay_tables` from its arguments to its table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests" / "data" / "traces" / "mooncake_synthetic_400.jsonl"
SCRIPT = ROOT / "scripts" / "replay_tables.py"


def tables(*arguments: str | Path) -> str:
    fixed = ["--trace", TRACE, "--processes", "1", "--prefill", "2", "--decode", "1"]
    words = [sys.executable, "-P", SCRIPT, *fixed, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_table(tmp_path: Path) -> None:
    figures = tmp_path / "rows.json"
    told = tables(
        "--first", "40", "--profiles", "least-requests;slo:candidates=4", "--predictor", "stages",
        "--error", "0.2", "--json", figures,
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads(figures.read_text())}
    assert rows.keys() == {"least-requests", "slo:candidates=4"}
    assert rows["slo:candidates=4"]["late"]
    assert 0.0 < rows["least-requests"]["c99"] <= rows["least-requests"]["c90"]
    assert rows["slo:candidates=4"]["at_2x"] > rows["least-requests"]["at_2x"]
    assert "| slo:candidates=4 |" in told
    assert "simulated" in told


def test_attainment_at_given_rates() -> None:
    header, row = tables("--first", "30", "--profiles", "slo", "--at", "0.01,1000").splitlines()
    assert header.split() == ["profile", "0.01", "1000.00"]
    kept = [float(share) for share in row.split()[1:]]
    assert kept[0] == 1.0 > kept[1]
