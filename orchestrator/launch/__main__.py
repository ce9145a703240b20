"""`python -m orchestrator.launch --state DIR`: the detached controller's own process."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from orchestrator.errors import PdctlError
from orchestrator.launch.controller import serve
from orchestrator.launch.paths import StateDir


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a controller until everything is stopped; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.launch", description=__doc__)
    parser.add_argument("--state", required=True, metavar="DIR", help="the state directory")
    parser.add_argument(
        "--await-plan",
        action="store_true",
        help="wait for a plan over DIR/control.sock; without it, go on with the plan that was last asked for",
    )
    parser.add_argument(
        "--tell", type=int, metavar="FD", help="a descriptor to say there, too, why the controller ends"
    )
    given = parser.parse_args(arguments)
    state = StateDir(given.state)
    try:
        asyncio.run(serve(state, resume=not given.await_plan))
    except PdctlError as error:
        _say(error.message, given.tell)
        return error.exit_code
    except OSError as error:
        _say(str(error), given.tell)
        return 1
    return 0


def _say(why: str, tell: int | None) -> None:
    """Say why it ends to whoever listens: a log may lie on a full disk, and who started us may have left."""
    with suppress(OSError):
        print(f"pdctl controller: {why}", file=sys.stderr, flush=True)
    if tell is not None:
        with suppress(OSError):
            os.write(tell, why.encode())


if __name__ == "__main__":
    sys.exit(main())
