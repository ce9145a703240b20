"""`scripts/bench NAME ARGUMENTS`: runs one benchmark, or `all` that there are, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

BENCHES = {
    "router": "CPU per request and chunk, added latency, throughput and memory, beside the peers",
    "goodput": "requests served within their targets, live, behind each router in turn",
    "guard": "whether CPU per request and chunk has grown, beside a raw relay",
    "decide": "what the late scheduler takes for a decision, by endpoints and queue",
    "index": "memory and time of the index of KV caches, up to 10 million blocks",
    "replay": "how fast a replay is, and how far its goodput is from a live run's",
    "sim": "what simulated engines cost themselves",
    "streams": "worker processes: 10,000 slow streams, and CPU over one process",
}
"""By name, which is also the module's: what is measured."""

PAGELESS = ("guard", "sim")
"""Those that only print; `all` has the others write their pages."""


def usage() -> str:
    """The benchmarks there are."""
    width = max(map(len, BENCHES))
    lines = [f"  {name:{width}}  {what}" for name, what in BENCHES.items()]
    return "\n".join(["usage: scripts/bench NAME [--help] ...", *lines, f"  {'all':{width}}  each of them"])


def run(name: str, argv: Sequence[str]) -> int:
    """One benchmark's exit status."""
    return int(import_module(f"benchmarks.{name}").main(argv))


def main(argv: Sequence[str]) -> int:
    """The first exit status that is not 0; `all` goes on after one."""
    name, *rest = argv or ("--help",)
    if name == "all" and not rest:
        return max([run(each, () if each in PAGELESS else ("--write",)) for each in BENCHES])
    if name in BENCHES:
        return run(name, rest)
    print(usage(), file=sys.stderr)
    return 0 if name in ("--help", "-h") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
