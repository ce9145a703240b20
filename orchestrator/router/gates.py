"""Who keeps new work from which endpoint, remembered in a file beyond the life of the router."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

OPERATOR = "operator"
"""A person, by `pdctl drain` or the admin app."""
CONTROLLER = "controller"
"""The supervisor, around a stop, a restart or a change of roles."""
HOLDERS = (OPERATOR, CONTROLLER)


class GateFile:
    """The gates as they were last: `{endpoint: [holder, ...]}`. Without a path nothing is remembered."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written: dict[str, list[str]] | None = None

    def load(self) -> dict[str, set[str]]:
        """What was remembered; nothing, and a line in the log, where that cannot be read."""
        if self._path is None:
            return {}
        try:
            told = json.loads(self._path.read_bytes())
            return {str(name): {h for h in holders if h in HOLDERS} for name, holders in told.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            log.warning("gates are forgotten", extra={"file": str(self._path), "why": str(error)})
            return {}

    def save(self, gates: Mapping[str, Collection[str]]) -> None:
        """Remember `gates`; where that fails they hold all the same, until the router is started anew."""
        told = {name: sorted(holders) for name, holders in gates.items() if holders}
        if self._path is None or told == self._written:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(json.dumps(told))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("gates cannot be remembered", extra={"file": str(self._path), "why": str(error)})
        else:
            self._written = told
