"""Reads the decision log: the newest records first, one by its id, and what an unknown id may have meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
"""One line of the log; docs/explain.md lists its fields."""

_IDS = re.compile(rb'"(?:client_)?request_id":"((?:[^"\\]|\\.)*)"')

LEAST_PREFIX = 4
"""Letters of an id that are enough to name it, as long as no other begins like it."""


class Log:
    """The decision log in `directory`, as it is on disk now. What is no whole line is passed over."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def newest(self) -> Iterator[Record]:
        """Every record, the last written first."""
        for lines in self._files():
            yield from filter(None, map(_parse, reversed(lines)))

    def find(self, request_id: str) -> list[Record]:
        """The records of a request by its own id or its client's, the newest first.

        Clients may use an id more than once. A beginning that no other id shares will do.
        """
        found = []
        for lines in self._files():
            wanted = request_id.encode()
            parsed = (_parse(line) for line in reversed(lines) if wanted in line)
            found += [r for r in parsed if r and request_id in (r["request_id"], r.get("client_request_id"))]
        if found:
            return found
        beginning = [known for known in self.ids() if known.startswith(request_id)]
        if len(beginning) == 1 and len(request_id) >= LEAST_PREFIX:
            return self.find(beginning[0])
        return []

    def near(self, request_id: str) -> list[str]:
        """Up to three known ids that look like one that is not."""
        known = self.ids()
        begin = sorted(one for one in known if one.startswith(request_id))
        if begin and len(request_id) >= LEAST_PREFIX:
            return begin[:3]
        alike = [one for one in known if abs(len(one) - len(request_id)) <= 2]
        return difflib.get_close_matches(request_id, alike, n=3, cutoff=0.8)

    def ids(self) -> set[str]:
        """Every id in the log, the clients' too."""
        found: set[str] = set()
        for lines in self._files():
            for line in lines:
                found.update(match.decode("utf-8", "replace") for match in _IDS.findall(line))
        return found

    def _files(self) -> Iterator[list[bytes]]:
        """The whole lines of each file, the newest file first."""
        if not self.directory.is_dir():
            return
        names = (path for path in self.directory.glob("*.jsonl") if path.stem.isdecimal())
        for path in sorted(names, reverse=True):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue  # the oldest goes at any time
            yield data.split(b"\n")[:-1]


def _parse(line: bytes) -> Record | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and "request_id" in parsed else None
