"""Traces from files: Mooncake's JSONL, Azure's CSV, and pdctl's own decision log (see `recorded`)."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator.errors import Problem, TraceError
from orchestrator.sim.replay.recorded import Bad, DecisionLog, number_of, tokens_of
from orchestrator.sim.replay.trace import Entry, Trace

MOONCAKE_BLOCK_TOKENS = 512
"""What one `hash_ids` entry of a Mooncake trace stands for."""

MOST_PROBLEMS = 20
"""Findings shown of one file: the rest is most likely the same."""

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "at": ("timestamp", "time", "arrival_time", "arrival", "arrived_at"),
    "prompt": ("contexttokens", "context_tokens", "input_length", "input_tokens", "num_prefill_tokens",
               "prompt_tokens", "request_tokens", "request tokens"),
    "output": ("generatedtokens", "generated_tokens", "output_length", "output_tokens", "num_decode_tokens",
               "completion_tokens", "response_tokens", "response tokens"),
}  # fmt: skip


def load(path: Path) -> Trace:
    """The trace in `path`, its format told by its content. Raises TraceError with what is wrong where."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.read(4096).lstrip()
            file.seek(0)
            if start.startswith("{"):
                return _from_lines(path, file)
            return _from_csv(path, file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise TraceError([Problem(f"cannot be read: {why}", file=str(path))]) from error


class _Findings:
    """What is wrong with a file, line by line."""

    def __init__(self, path: Path) -> None:
        self._file = str(path)
        self._found: list[Problem] = []

    def add(self, line: int, message: str, field: str | None = None, hint: str | None = None) -> None:
        self._found.append(Problem(message, file=self._file, line=line, field=field, hint=hint))
        if len(self._found) == MOST_PROBLEMS:
            self.settle()

    def settle(self) -> None:
        if self._found:
            raise TraceError(self._found)


def _from_lines(path: Path, lines: Iterable[str]) -> Trace:
    findings = _Findings(path)
    entries: list[Entry] = []
    log = DecisionLog()
    blocks: set[int] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            if not isinstance(told, dict):
                raise Bad("", "is no JSON object")
            if "timestamp" in told or "input_length" in told:
                entry, block = _mooncake(told), MOONCAKE_BLOCK_TOKENS
            elif (decided := log.entry(told)) is not None:
                entry, block = decided
            else:
                continue
        except Bad as bad:
            findings.add(number, bad.message, bad.field)
            continue
        except ValueError as error:
            findings.add(number, f"is no JSON: {error}")
            continue
        entries.append(entry)
        if entry.ids:
            blocks.add(block)
    findings.settle()
    if len(blocks) > 1:
        told_blocks = " and ".join(map(str, sorted(blocks)))
        raise TraceError([Problem(f"has blocks of {told_blocks} tokens: they cannot be compared", str(path))])
    return _trace(path, log.completed(entries), blocks.pop() if blocks else None, log.notes)


def _mooncake(told: Mapping[str, Any]) -> Entry:
    ids = told.get("hash_ids", [])
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise Bad("hash_ids", "is no list of whole numbers")
    return Entry(
        at_s=number_of(told, "timestamp") / 1e3,
        prompt_tokens=tokens_of(told, "input_length"),
        output_tokens=tokens_of(told, "output_length"),
        ids=tuple(ids),
    )


def _from_csv(path: Path, lines: Iterator[str]) -> Trace:
    findings = _Findings(path)
    reader = csv.reader(lines)
    header = next(reader, None)
    if not header:
        raise TraceError([Problem("is empty", str(path))])
    at = _places(findings, header)
    moments: list[float] = []
    entries: list[Entry] = []
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        cells = {name: row[place].strip() if place < len(row) else "" for name, place in at.items()}
        moment = _moment(cells["at"])
        if moment is None:
            findings.add(
                reader.line_num, f"is neither a number of seconds nor a time: {cells['at']!r}", "time"
            )
        counts = []
        for name in ("prompt", "output"):
            count = _count(cells[name])
            if count is None:
                findings.add(reader.line_num, f"is no count of tokens: {cells[name]!r}", header[at[name]])
            counts.append(count or 0)
        moments.append(moment or 0.0)
        entries.append(Entry(moment or 0.0, counts[0], counts[1]))
    findings.settle()
    return _trace(path, entries, None)


def _places(findings: _Findings, header: list[str]) -> Mapping[str, int]:
    names = [name.strip().lower() for name in header]
    at = {}
    for wanted, known in _COLUMNS.items():
        found = [place for place, name in enumerate(names) if name in known]
        if len(found) == 1:
            at[wanted] = found[0]
            continue
        what = {"at": "time of arrival", "prompt": "prompt tokens", "output": "output tokens"}[wanted]
        how = "several columns" if found else "no column"
        hint = f"name it {known[0]!r}; there are: {', '.join(header)}"
        findings.add(1, f"{how} for the {what}", hint=hint)
    findings.settle()
    return at


def _moment(cell: str) -> float | None:
    """Seconds from a number or a date and time; fractions may have any number of digits."""
    try:
        value = float(cell)
    except ValueError:
        pass
    else:
        return value if math.isfinite(value) else None
    head, dot, rest = cell.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        whole = datetime.fromisoformat(head + zone if dot else cell)
    except ValueError:
        return None
    # Times without a zone are of one clock, of whose summer time nothing is known: taken as UTC.
    seconds = (whole.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    offset = whole.utcoffset()
    fraction = float(f"0.{digits}") if digits else 0.0
    return seconds - (offset.total_seconds() if offset else 0.0) + fraction


def _count(cell: str) -> int | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value >= 0 and value == int(value) else None


def _trace(path: Path, entries: list[Entry], block_tokens: int | None, before: Sequence[str] = ()) -> Trace:
    """In order of arrival, from zero on. What has no prompt or no output was no request: it is left out."""
    usable = [e for e in entries if e.prompt_tokens > 0 and e.output_tokens > 0]
    if not usable:
        raise TraceError([Problem("holds no request with a prompt and an output", str(path))])
    notes = list(before)
    if len(usable) < len(entries):
        notes.append(f"{len(entries) - len(usable)} requests left out: no prompt or no output")
    if any(a.at_s > b.at_s for a, b in pairwise(usable)):
        usable.sort(key=lambda e: e.at_s)
        notes.append("sorted by time of arrival")
    start = usable[0].at_s
    return Trace(
        path.stem, tuple(replace(e, at_s=e.at_s - start) for e in usable), block_tokens, tuple(notes)
    )
