"""The benchmark of the KV index: what it fills is found, and its figures are of that size."""

import json

import pytest
from benchmarks import index


def test_a_small_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert index.main(["--blocks", "20000", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["blocks"] == 20_000
    assert all(value > 0 for name, value in told.items() if name.endswith("_ns"))
    assert 0 < told["bytes_per_block"] < 1000


def test_a_page_says_what_was_measured() -> None:
    page = index.report([index.measure(5_000)]).markdown()
    assert "| 5,000 |" in page
    assert "scripts/bench index --write" in page


def test_too_few_blocks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        index.main(["--blocks", "10"])
    assert "at least 500" in capsys.readouterr().err
