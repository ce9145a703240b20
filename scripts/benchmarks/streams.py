"""What worker processes hold and cost: 10,000 slow streams, and CPU beside one process in turn."""

from __future__ import annotations

import argparse
import contextlib
import resource
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import mock, own
from benchmarks.cpu import Idle, rss_mib
from benchmarks.machine import Machine, describe
from benchmarks.mock import Load
from benchmarks.processes import free_port
from benchmarks.report import Report, Table

SECOND_US = 1_000_000
COST = (Load("requests", 1500, 16, 1024), Load("chunks", 64, 64, 1024, tokens=300))
WARM_UP = Load("warm", 300, 16, 1024)
FORMS = (1, 2)
"""Numbers of workers that are put beside each other; 1 is one process that does all."""


@dataclass(frozen=True, slots=True)
class Held:
    """Streams that were all open at once. `kb_each` is memory beyond the idle router's, by stream."""

    workers: int
    streams: int
    failed: int
    events: int
    seconds: float
    kb_each: float
    cpu_us_per_event: float
    client_cpu_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of all of the router's processes, by request or chunk."""

    workers: int
    round: int
    load: str
    cpu_us: float
    failed: int


@contextlib.contextmanager
def router(
    folder: Path, roles: tuple[str, ...], tick_us: int, workers: int, scheduling: Mapping[str, Any]
) -> Iterator[tuple[int, int]]:
    """pdctl before mock engines: its port and pid."""
    with mock.engines(folder, "sglang", roles, tick_us) as engines:
        port = free_port()
        more = {"limits": {"max_inflight": 50_000}, "workers": workers}
        name = f"pdctl-{workers}-{roles[0]}"
        path = own.topology(
            folder, name, engines, port, engine="sglang", scheduling=scheduling, router_more=more
        )
        with own.contender(f"pdctl {workers} {roles[0]}", path, port, "sglang").running(folder) as process:
            yield port, process.pid


def hold(folder: Path, workers: int, streams: int, seconds: int) -> Held:
    """That many streams at an event a second each, begun within some seconds, each that long."""
    with router(folder, ("unified", "unified"), SECOND_US, workers, {}) as (port, pid):
        mock.put(WARM_UP, port, folder)
        idle, before = Idle.of(pid), rss_mib(pid)
        meter = idle.meter()
        load = Load("streams", streams, streams, 1024, tokens=seconds, rate=streams / 15)
        seen = mock.put(load, port, folder, timeout_s=seconds + 120)
        # Freed memory stays with the process: what it has now is what it took at its fullest.
        grown = (rss_mib(pid) - before) * 1024
        used_s = meter.read_s()
    per_event = 1e6 * used_s / max(1, seen.chunks)
    each = grown / streams
    return Held(workers, streams, seen.failed, seen.chunks, seen.seconds, each, per_event, seen.own_cpu_s)


def costs(folder: Path, rounds: int) -> list[Cost]:
    """Each load on each form in turn, all forms up."""
    found = []
    with contextlib.ExitStack() as stack:
        up = []
        for workers in FORMS:
            up_one = router(folder, ("prefill", "decode"), mock.TICK_US, workers, own.EVERYTHING)
            port, pid = stack.enter_context(up_one)
            mock.put(WARM_UP, port, folder)
            up.append((workers, port, Idle.of(pid)))
        for load in COST:
            for number in range(rounds):
                for workers, port, idle in up if number % 2 == 0 else reversed(up):
                    meter = idle.meter()
                    seen = mock.put(load, port, folder)
                    units = seen.chunks if load.tokens else seen.good
                    cost = Cost(workers, number, load.name, 1e6 * meter.read_s() / max(1, units), seen.failed)
                    print(cost, file=sys.stderr, flush=True)
                    found.append(cost)
    return found


def _cost_rows(taken: Sequence[Cost]) -> list[list[str]]:
    rows = []
    for load in COST:
        by = {
            w: statistics.median(c.cpu_us for c in taken if (c.load, c.workers) == (load.name, w))
            for w in FORMS
        }
        base = by[FORMS[0]]
        for workers in FORMS:
            all_of = [c.cpu_us for c in taken if (c.load, c.workers) == (load.name, workers)]
            rows.append(
                [
                    f"{load.name}, workers: {workers}",
                    f"{by[workers]:.0f} ({min(all_of):.0f}-{max(all_of):.0f})",
                    f"{by[workers] - base:+.0f}",
                    f"{by[workers] / base:.2f}",
                ]
            )
    return rows


def report(held: Sequence[Held], taken: Sequence[Cost], command: str, machine: Machine) -> Report:
    """The page."""
    rows = [
        [
            f"workers: {h.workers}", f"{h.streams:,}", str(h.failed), f"{h.events:,}", f"{h.seconds:.0f}",
            f"{h.kb_each:.1f}", f"{h.cpu_us_per_event:.0f}", f"{h.client_cpu_s:.1f}",
        ]
        for h in held
    ]  # fmt: skip
    columns = ("", "streams", "failed", "events", "s", "KB each", "router CPU us per event", "client CPU s")
    note = (
        "Unified mock engines that give every stream one event a second, all at the same tick; streams begin "
        "within 15 s. Memory is what all processes of the router grew by. CPU counts the streams' beginnings."
    )
    cost_note = (
        "Prefill and decode mock engines; bodies of 1 KB, concurrency 16; 64 streams of 300 chunks at 10 ms. "
        "CPU microseconds of all processes by request or chunk: median (min-max), beside one process."
    )
    tables = [
        Table("Slow streams", columns, rows, note),
        Table("CPU over one process", ("", "us", "over one", "ratio"), _cost_rows(taken), cost_note),
    ]
    data = {"held": [asdict(h) for h in held], "costs": [asdict(c) for c in taken]}
    return Report("streams", "Worker processes", command, machine, (), tables, data)


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if a stream or request failed."""
    p = argparse.ArgumentParser(prog="bench streams", description=__doc__)
    p.add_argument("--streams", type=int, default=10_000)
    p.add_argument("--seconds", type=int, default=45, help="of each stream")
    p.add_argument("--rounds", type=int, default=5, help="of the CPU comparison")
    p.add_argument("--write", action="store_true", help="write the page under docs/benchmarks")
    args = p.parse_args(argv)
    # What is started inherits it: the engines and the client hold a socket for each stream.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as folder:
        taken = costs(Path(folder), args.rounds)
    held = []
    for workers in FORMS[1:]:
        with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as folder:
            held.append(hold(Path(folder), workers, args.streams, args.seconds))
        print(held[-1], file=sys.stderr, flush=True)
    page = report(held, taken, "scripts/bench streams", machine)
    print(page.markdown())
    if args.write:
        print(f"wrote {page.write()}", file=sys.stderr)
    failed = sum(one.failed for one in held) + sum(one.failed for one in taken)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
