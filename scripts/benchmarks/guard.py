"""Fails when pdctl's CPU per request or chunk, as a ratio to a raw relay's in the same run, has grown.

The relay runs on the same interpreter, event loop and machine, over the same engines, and takes turns with
pdctl; each side's least of the rounds counts, so that load from elsewhere, which only ever adds, mostly
cancels. What is left is the noise that `NOISE` states; a ratio fails only well outside it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import mock, own
from benchmarks.contender import Contender
from benchmarks.cpu import Idle
from benchmarks.figures import Spread, digits, in_turn
from benchmarks.machine import ROOT
from benchmarks.mock import Load
from benchmarks.processes import free_port
from benchmarks.router import Started, take

REQUEST, CHUNK = Load("request", 400, 8, 1024), Load("chunk", 32, 32, 1024, tokens=60)
EXPECTED: Mapping[str, float] = {"request": 27.0, "chunk": 1.7}
"""Ratios to the relay, in PD mode with everything on, interpreted, on a quiet machine."""

NOISE = 0.55
"""How far above that ratios were at most, in four runs on two cores with a load average of 10 to 17: 31 to 41
per request, 2.2 to 2.6 per chunk, of a revision that cost somewhat more. Among themselves they were within
17 % of their median."""

ALLOWED = 1.8
"""How many times as much as expected is still let pass."""

ROUNDS = 5
MOST_S = 50.0
"""No further round begins after so long: on a machine busy with other things there are fewer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one load costs pdctl and the relay, in CPU microseconds."""

    load: str
    ours_us: float
    relay_us: float

    @property
    def ratio(self) -> float:
        """pdctl's to the relay's."""
        return self.ours_us / self.relay_us

    @property
    def most(self) -> float:
        """What it must not be above."""
        return EXPECTED[self.load] * ALLOWED

    def line(self) -> str:
        """For people."""
        said = "within" if self.ratio <= self.most else "ABOVE"
        return (
            f"CPU per {self.load}: {digits(self.ours_us)} us, relay {digits(self.relay_us)} us: "
            f"{digits(self.ratio)} times as much, {said} {digits(self.most)} "
            f"(expected {EXPECTED[self.load]:g})"
        )


def verdicts(taken: Mapping[tuple[str, str], Sequence[float]]) -> list[Verdict]:
    """From CPU microseconds by router (`pdctl`, `relay`) and load."""
    return [
        Verdict(load, Spread.of(taken["pdctl", load]).low, Spread.of(taken["relay", load]).low)
        for load in EXPECTED
    ]


def measure(folder: Path, rounds: int) -> list[Verdict]:
    """pdctl and the relay in turn. Raises RuntimeError if requests fail."""
    taken: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        engines = stack.enter_context(mock.engines(folder, "sglang", ("prefill", "decode")))
        port, relay_port = free_port(), free_port()
        ours = own.contender(
            "pdctl", own.topology(folder, "pdctl", engines, port, engine="sglang"), port, "sglang"
        )
        words = (sys.executable, "-P", "-m", "benchmarks.relay", str(relay_port), str(engines[-1].port))
        relay = Contender("relay", "sglang", relay_port, words, {"PYTHONPATH": str(ROOT / "scripts")})
        up = []
        for each in (ours, relay):
            process = stack.enter_context(each.running(folder))
            mock.put(REQUEST, each.port, folder)
            up.append(Started(each.name, each.port, Idle.of(process.pid)))
        began_s = time.monotonic()
        for number, router in in_turn(up, rounds):
            if number and time.monotonic() - began_s > MOST_S:
                break
            for load in (REQUEST, CHUNK):
                sample = take("PD", number, router, load, folder)
                if sample.failed:
                    raise RuntimeError(f"{router.name}: {sample.failed} of {load.requests} requests failed")
                taken.setdefault((router.name, load.name), []).append(sample.cpu_us)
    return verdicts(taken)


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if a ratio is above what it may be."""
    p = argparse.ArgumentParser(
        prog="bench guard", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=ROUNDS)
    args = p.parse_args(argv)
    if args.rounds < 1:
        p.error("--rounds: at least one")
    with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as folder:
        found = measure(Path(folder), args.rounds)
    for verdict in found:
        print(verdict.line())
    return 1 if any(verdict.ratio > verdict.most for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
