"""The entry point: loads the commands only where a Ctrl-C during that is heeded."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it (128 + SIGINT)."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, a PdctlError's code, 2 for bad usage, 130 after Ctrl-C."""
    try:
        # Here and not above: it takes a second or two, in which people change their minds.
        from orchestrator.cli.commands import execute

        execute(arguments)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
