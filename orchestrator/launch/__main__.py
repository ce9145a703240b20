"""`python -m orchestrator.launch --state DIR`: the detached controller's own process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

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
    given = parser.parse_args(arguments)
    state = StateDir(given.state)
    try:
        asyncio.run(serve(state, resume=not given.await_plan))
    except PdctlError as error:
        print(f"pdctl controller: {error.message}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"pdctl controller: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
