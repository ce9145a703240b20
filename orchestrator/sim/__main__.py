"""`python -m orchestrator.sim`: run one simulated engine until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import uvloop

from orchestrator.clock import SystemClock
from orchestrator.sim.faults import BadFault
from orchestrator.sim.options import SimOptions, parse
from orchestrator.sim.ranks import follow
from orchestrator.sim.server import Instance


def _say(line: str) -> None:
    print(line, flush=True)


async def _run(options: SimOptions) -> int:
    if options.node_rank:
        return await follow(options, _say)
    await Instance(options, SystemClock()).run(_say)
    return 0


def main(argv: Sequence[str]) -> int:
    """Run; 0 after a stop in good order, 1 when a port is taken or process 0 is lost, 2 for options that
    cannot work, 130 when interrupted before it listens."""
    options = parse(argv, os.environ)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(options))
    except (BadFault, ValueError) as error:
        print(f"orchestrator.sim: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"orchestrator.sim: cannot listen: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
