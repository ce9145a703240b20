"""Real engines for the tests here: one deployment at a time, the reference first, then prefill and decode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import EXAMPLES, FAMILIES, ROOT
from pair import Pair, Reference, record, start

ORDER = (
    "test_up",
    "test_same_tokens",
    "test_several",
    "test_refused",
    "test_leaving",
    "test_clients",
    "test_benchmarks",
    "test_prefill_killed",
    "test_down",
)
"""Tests of one deployment in order: first what the rest builds on, at last what disturbs."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything about one deployment together: each costs a minute to start."""

    def key(item: pytest.Item) -> tuple[int, int]:
        call = getattr(item, "callspec", None)
        name = call.params.get("pair") if call is not None else None
        module = item.path.stem
        return (list(FAMILIES).index(name) if name else -1, ORDER.index(module) if module in ORDER else -1)

    items.sort(key=key)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the engines' last log lines beside a failure."""
    report = yield
    pair = getattr(item, "funcargs", {}).get("pair")
    if report.failed and isinstance(pair, Pair):
        report.sections += [(f"last lines of {name}", text) for name, text in pair.deployment.logs()]
    return report


@pytest.fixture(scope="session")
def installed() -> dict[str, Path]:
    """Where the engines and the model are. Without them the tests fail; they are never skipped."""
    script = ROOT / "scripts" / "real-engines"
    done = subprocess.run([script, "--check"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"the real engines are not installed\n{done.stdout}{done.stderr}", pytrace=False)
    lines = (line.rpartition("] ")[2].partition(": installed in ") for line in done.stdout.splitlines())
    return {part: Path(folder) for part, between, folder in lines if between}


@pytest.fixture(scope="session")
def references() -> dict[str, Reference]:
    """The unified servers' answers, by engine, as far as they were recorded."""
    return {}


@pytest.fixture(scope="session", params=EXAMPLES)
def pair(
    request: pytest.FixtureRequest,
    installed: dict[str, Path],
    references: dict[str, Reference],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """A prefill and a decode engine behind the router, with the unified server's answers to compare with."""
    name = request.param
    family = FAMILIES[name]
    if family.engine not in references:
        references[family.engine] = record(family, installed, tmp_path_factory.mktemp(family.engine))
    with start(family, installed, tmp_path_factory.mktemp(name)) as deployment:
        yield Pair(family, references[family.engine], deployment)
