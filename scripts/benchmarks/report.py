"""The results of one benchmark, and how they are written down: JSON, Markdown and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, Machine

FOLDER = ROOT / "docs" / "benchmarks"
"""Where results are committed."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading; the first column names the row. `note` stands above it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """As a section."""
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines += [_row(self.columns), _row(["---", *("---:" for _ in self.columns[1:])])]
        return "\n".join([*lines, *map(_row, self.rows), ""])


@dataclass(frozen=True, slots=True)
class Report:
    """`name` is that of its files, `command` what repeats it; `data` holds every figure that was taken.

    `pictures` are SVG texts by the ends of their names; `notes` are paragraphs, on top.
    """

    name: str
    title: str
    command: str
    machine: Machine
    notes: Sequence[str]
    tables: Sequence[Table]
    data: Mapping[str, Any]
    pictures: Mapping[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        """The page."""
        lines = [
            f"# {self.title}", "",
            f"Repeat it with `{self.command}`. All figures: [{self.name}.json]({self.name}.json).", "",
            self.machine.line(), "",
        ]  # fmt: skip
        for note in self.notes:
            lines += [note, ""]
        for table in self.tables:
            lines.append(table.markdown())
        for picture in self.pictures:
            lines += [f"![{picture}]({self.name}-{picture}.svg)", ""]
        return "\n".join(lines)

    def json(self) -> str:
        """Every figure, with the machine."""
        told = {"v": 1, "command": self.command, "machine": self.machine.data(), **self.data}
        return json.dumps(told, indent=1) + "\n"

    def write(self, folder: Path = FOLDER) -> Path:
        """Write the files; the page's path."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(self.json())
        for picture, text in self.pictures.items():
            (folder / f"{self.name}-{picture}.svg").write_text(text)
        page = folder / f"{self.name}.md"
        page.write_text(self.markdown().rstrip() + "\n")
        return page


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
