"""What is written of results (report, charts), of the machine, and of the benchmarks there are (__main__)."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import __main__ as command
from benchmarks import charts, machine
from benchmarks.figures import Spread
from benchmarks.machine import Machine
from benchmarks.report import Report, Table

from orchestrator.analysis.svg import Axis, Line

HERE = Machine("A CPU", 2, 8.0, "6.1", "3.11", "abc+", "2026-01-01 00:00 UTC", 0.1)


def test_a_report_is_a_page_with_its_figures_and_pictures_beside_it(tmp_path: Path) -> None:
    table = Table("CPU", ("router", "us"), [("a", "1"), ("b", "2")], note="Less is better.")
    picture = charts.bars("CPU", {"a": Spread.of([1.0, 2.0])}, "us")
    report = Report("x", "X", "scripts/bench x", HERE, ["First."], [table], {"rows": [1]}, {"cpu": picture})
    page = report.write(tmp_path).read_text()
    assert "| a | 1 |" in page
    assert "| --- | ---: |" in page
    assert "First." in page
    assert HERE.line() in page
    told = json.loads((tmp_path / "x.json").read_text())
    assert told["rows"] == [1]
    assert told["machine"]["processor"] == "A CPU"
    for linked in re.findall(r"\]\(([^)]+)\)", page):
        assert (tmp_path / linked).exists()


def test_pictures_are_well_formed_and_name_what_they_show() -> None:
    bars = charts.bars("A & B", {"pdctl": Spread.of([1.0, 3.0]), "none": Spread.of([0.0])}, "us")
    lines = [Line("pdctl", [(1.0, 0.5), (2.0, 0.4)]), Line("p<q", [(1.0, 0.1)])]
    curves = charts.curves("kept", lines, Axis("rate", 0, 2), Axis("share", 0, 1), [0.9])
    for text, names in ((bars, {"pdctl", "none"}), (curves, {"pdctl", "p<q"})):
        shown = {e.text for e in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")}
        assert names <= shown


def test_the_processor_is_named_by_cpuinfo() -> None:
    assert machine.processor("processor\t: 0\nmodel name\t: Some  CPU @ 2GHz\n") == "Some CPU @ 2GHz"
    assert machine.processor("") != ""


def test_this_machine_is_described() -> None:
    told = machine.describe()
    assert told.cores >= 1
    assert told.revision in told.line()


@pytest.mark.parametrize("name", command.BENCHES)
def test_every_benchmark_can_be_run(name: str) -> None:
    assert callable(import_module(f"benchmarks.{name}").main)


def test_an_unknown_benchmark_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["rooter"]) == 2
    assert "router" in capsys.readouterr().err
    assert command.main(["--help"]) == 0
