"""The router's log: one `key=value` line per event on standard error, secrets masked."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TextIO

from orchestrator.clock import Clock
from orchestrator.errors import Problem, TopologyError, bounded

MASK = "***"

MAX_VALUE = 4000
"""Characters of a value that are logged, after secrets are masked in all of it."""

MAX_VALUES = {"exception": 64_000}

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""What `PDCTL_LOG_LEVEL` may say; debug has a line for every request."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"=\\]+")


class KeyValue(logging.Formatter):
    """A record as `ts=... level=... msg="..." key=value ...`, in logfmt's quoting.

    The fields are those given as `extra`. A value with spaces, quotes or control characters is written
    as a JSON string, so that one event is always one line. `secrets` are masked wherever they occur.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        # The longest first, so that a key that holds another one leaves nothing behind.
        self._secrets = tuple(sorted((s for s in secrets if s), key=len, reverse=True))

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "ts": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("orchestrator."),
            "msg": record.getMessage(),
        }
        fields |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return " ".join(
            f"{k}={_value(self._mask(v), MAX_VALUES.get(k, MAX_VALUE))}" for k, v in fields.items()
        )

    def _mask(self, value: object) -> object:
        if isinstance(value, bool | int | float):
            return value
        text = str(value)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


class Seldom:
    """Lets the first of each kind through, then at most one in `period_s` seconds: what goes wrong at every
    request must not fill the log."""

    def __init__(self, clock: Clock, period_s: float = 10.0) -> None:
        self._clock = clock
        self._period_s = period_s
        self._kinds: dict[str, tuple[float, int]] = {}

    def due(self, kind: str) -> int | None:
        """How many have happened since the last that was let through, this one included; None: hold it."""
        now_s = self._clock.now_s()
        since_s, held = self._kinds.get(kind, (float("-inf"), 0))
        if now_s - since_s < self._period_s:
            self._kinds[kind] = (since_s, held + 1)
            return None
        self._kinds[kind] = (now_s, 0)
        return held + 1


def _value(value: object, most: int) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = bounded(str(value).lower() if isinstance(value, bool) else str(value), most)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else json.dumps(text)


def level_of(environ: Mapping[str, str]) -> int:
    """The level that `PDCTL_LOG_LEVEL` names; info without it. Raises TopologyError for any other word."""
    word = environ.get("PDCTL_LOG_LEVEL", "info")
    if word.lower() not in LEVELS:
        problem = Problem(f"PDCTL_LOG_LEVEL is {word!r}", hint=f"one of {', '.join(LEVELS)}")
        raise TopologyError([problem])
    return LEVELS[word.lower()]


def set_up(secrets: Iterable[str] = (), *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send every log record of this process through `KeyValue` to `stream` (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KeyValue(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # asyncio reports slow callbacks and lost exceptions at these levels; the rest is its own business.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
