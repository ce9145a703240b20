"""What can still be said of a unit that is found dead, when no controller saw it end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from orchestrator.launch import logs
from orchestrator.launch.ending import exit_code
from orchestrator.launch.failure import SEARCHED_LINES, Failure, exit_text, explain
from orchestrator.launch.oom import Oom, OomWatch
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import boot_id
from orchestrator.launch.state import Record
from orchestrator.launch.status import UNWATCHED
from orchestrator.launch.unit import Unit


def found_dead(
    state: StateDir, record: Record, unit: Unit | None, secrets: Iterable[str], oom: OomWatch
) -> tuple[Failure, int | None]:
    """How the process of `record` ended, as far as its log, the kernel and (if `unit` tells of the same
    process) its adapter know; and its exit code, if that can be known."""
    path = state.log(record.name)
    identity = record.identity(boot_id())
    code = exit_code(identity, None) if identity is not None else None
    text = exit_text(code) if code is not None else "ended"
    text += f" {UNWATCHED}"
    if record.pid is not None and identity is None:
        text += ", and this machine has been started anew since"
    elif (last := _last_output(path)) is not None:
        text += f", after its last word at {last}"
    # The kernel's count tells of the last seconds alone, its log of all that it still holds.
    proven = identity is not None and oom.verdict([identity.pid], identity.ticks) is Oom.PROVEN
    lines = logs.last_words(path, SEARCHED_LINES)
    hints = unit.hints if unit is not None and unit.digest == record.digest else ()
    known = Oom.PROVEN if proven else Oom.UNKNOWN
    return explain(text, code, lines, hints, secrets, exited=True, oom=known), code


def _last_output(path: os.PathLike[str]) -> str | None:
    """When a log was last written to."""
    try:
        at_s = os.stat(path).st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


def going_on(record: Record | None) -> dict[str, Any]:
    """What of `record` the next life goes on telling: it begins because the last one ended unseen."""
    if record is None or UNWATCHED not in record.last_error:
        return {}
    return {"last_error": record.last_error, "exit_code": record.exit_code}
