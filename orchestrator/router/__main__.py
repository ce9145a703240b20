"""`python -m orchestrator.router --state DIR`: the router's own process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import PdctlError, Problem, TopologyError
from orchestrator.router.running import run_router
from orchestrator.topology.plan import Plan, parse


def read_plan(path: Path) -> Plan:
    """The plan in `path`. Raises TopologyError, which shows no value of it: it holds keys."""
    try:
        return parse(path.read_bytes())
    except OSError as error:
        problem = Problem(
            f"cannot be read: {error.strerror}", file=str(path), hint="run `pdctl up` to write it"
        )
    except ValueError as error:
        # A message line ends in `[type=..., input_value=...]`.
        said = " ".join(line.partition(" [type=")[0].strip() for line in str(error).splitlines()[:3])
        hint = "was it written by another version of pdctl? run `pdctl up` again"
        problem = Problem(f"is not a plan: {said}", file=str(path), hint=hint)
    raise TopologyError([problem])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the router; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.router", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--state", type=Path, metavar="DIR", help="state directory: DIR/plan.json, DIR/router.sock"
    )
    where.add_argument("--plan", type=Path, metavar="FILE", help="a plan file; no Unix socket is made")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="follow the router that serves DIR now, if there is one: take over what it listens on, and let "
        "it finish what it has; without it, such a router is a reason not to start",
    )
    given = parser.parse_args(arguments)
    file = given.plan or given.state / "plan.json"
    socket = given.state / "router.sock" if given.state else None
    try:
        return run_router(
            read_plan(file), reread=lambda: read_plan(file), socket=socket, follow=given.take_over
        )
    except PdctlError as error:
        print(f"pdctl router: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
