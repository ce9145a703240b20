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
from orchestrator.sim.server import Instance


async def _run(options: SimOptions) -> None:
    instance = Instance(options, SystemClock())
    await instance.run(lambda line: print(line, flush=True))


def main(argv: Sequence[str]) -> int:
    """Run; 0 after a stop in good order, 1 when a port is taken, 2 for options that cannot work, 130 when
    interrupted before it listens."""
    options = parse(argv, os.environ)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(options))
    except (BadFault, ValueError) as error:
        print(f"orchestrator.sim: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"orchestrator.sim: cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
