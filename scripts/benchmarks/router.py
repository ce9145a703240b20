"""Routers in turn over the same mock engines: CPU per request and chunk, latency, throughput, memory."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import mock, own, peers, routerpage
from benchmarks.contender import Contender
from benchmarks.cpu import Idle, rss_mib
from benchmarks.figures import in_turn
from benchmarks.machine import describe
from benchmarks.mock import Engine, Load
from benchmarks.processes import free_port
from benchmarks.routerpage import DIRECT, MODES, Memory, Sample

LOADS = (
    Load("1 KB", 2000, 16, 1024),
    Load("32 KB", 1000, 16, 32 * 1024),
    Load("1 MB", 60, 4, 1024 * 1024),
    Load("64 streams", 64, 64, 1024, tokens=500),
    Load("one at a time", 300, 1, 1024),
    Load("50 a second", 100, 8, 1024, rate=50.0),
)
ROLES = {"regular": ("unified",) * 2, "PD": ("prefill", "prefill", "decode", "decode")}
POLICY = "round_robin"
"""Of the peers: the cheapest they have."""

IDLE_S = 2.0
WARM_UP = Load("warm-up", 300, 16, 1024)


@dataclass(frozen=True, slots=True)
class Started:
    """A router that runs, and what it burns when idle. Without a process: the engine itself."""

    name: str
    port: int
    idle: Idle | None


def line_up(
    engines: dict[str, Sequence[Engine]], folder: Path, wanted: Sequence[str]
) -> tuple[list[Contender], list[str]]:
    """Every router that takes part, and why those that are missing are."""
    found: list[Contender] = []
    missing = []
    wheel = own.compiled_wheel()
    forms = [("pdctl (sglang)", "sglang", False), ("pdctl (vllm)", "vllm", False)]
    if wheel is not None:
        forms.append(("pdctl compiled (sglang)", "sglang", True))
    else:
        missing.append("pdctl compiled (scripts/compiled makes it)")
    for number, (form, engine, compiled) in enumerate(forms):
        port = free_port()
        path = own.topology(folder, f"pdctl-{number}", engines[engine], port, engine=engine)
        found.append(own.contender(form, path, port, engine, compiled=wheel if compiled else None))
    for peer in peers.PEERS:
        if not wanted or peer.name in wanted:
            try:
                found.append(peer.contender(engines[peer.engine], POLICY))
            except subprocess.CalledProcessError as error:
                missing.append(f"{peer.spec} (not installed: {error})")
    proxy = peers.nginx(engines["sglang"], "sglang", folder)
    if proxy is None:
        missing.append("nginx (not installed; Debian: nginx-light)")
    else:
        found.append(proxy)
    return [each for each in found if not wanted or each.name in wanted], missing


@contextlib.contextmanager
def running(
    contenders: Sequence[Contender], direct: Engine, folder: Path
) -> Iterator[tuple[list[Started], list[str]]]:
    """All of them up and warm, and why others are not."""
    with contextlib.ExitStack() as stack:
        processes = []
        missing = []
        for each in contenders:
            try:
                processes.append((each, stack.enter_context(each.running(folder))))
            except RuntimeError as error:
                missing.append(str(error).replace("\n", " ")[:300])
        up = [Started(DIRECT, direct.port, None)]
        for each, _ in processes:
            mock.put(WARM_UP, each.port, folder)
        for each, process in processes:
            up.append(Started(each.name, each.port, Idle.of(process.pid, IDLE_S)))
        yield up, missing


def take(mode: str, number: int, router: Started, load: Load, folder: Path) -> Sample:
    """One load put on one router."""
    meter = router.idle.meter() if router.idle else None
    seen = mock.put(load, router.port, folder)
    units = seen.chunks if load.tokens else seen.good
    cpu_s = meter.read_s() if meter else 0.0
    return Sample(
        mode=mode,
        round=number,
        router=router.name,
        load=load.name,
        cpu_us=1e6 * cpu_s / max(1, units),
        p50_ms=seen.latency_ms["p50"],
        p99_ms=seen.latency_ms["p99"],
        per_s=seen.good / seen.seconds,
        failed=seen.failed,
    )


def measure(
    mode: str, rounds: int, loads: Sequence[Load], wanted: Sequence[str], folder: Path
) -> tuple[list[Sample], list[Memory], list[str]]:
    """A mode's rounds: each load on each router in turn. What failed to start is told, and left out."""
    samples = []
    with contextlib.ExitStack() as stack:
        engines: dict[str, Sequence[Engine]] = {
            engine: stack.enter_context(mock.engines(folder, engine, ROLES[mode]))
            for engine in ("sglang", "vllm")
        }
        contenders, missing = line_up(engines, folder, wanted)
        up, failed = stack.enter_context(running(contenders, engines["sglang"][-1], folder))
        for load in loads:
            for number, router in in_turn(up, rounds):
                sample = take(mode, number, router, load, folder)
                print(sample.line(), file=sys.stderr, flush=True)
                samples.append(sample)
        memory = [Memory(mode, each.name, rss_mib(each.idle.pid)) for each in up if each.idle]
    return samples, memory, [*missing, *failed]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="bench router", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--rounds", type=int, default=3, help="of each load on each router")
    p.add_argument("--mode", choices=MODES, action="append", help="only this one; may be repeated")
    p.add_argument("--load", choices=[load.name for load in LOADS], action="append", help="only this one")
    p.add_argument("--router", action="append", default=[], help="only this one, such as pdctl or smg")
    p.add_argument("--write", action="store_true", help="write the page under docs/benchmarks")
    args = p.parse_args(argv)
    if args.rounds < 1:
        p.error("--rounds: at least one")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if requests failed, which would make the figures lies."""
    args = parse(argv)
    machine = describe()
    samples: list[Sample] = []
    memory: list[Memory] = []
    missing: list[str] = []
    loads = [load for load in LOADS if not args.load or load.name in args.load]
    for mode in args.mode or MODES:
        with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as folder:
            taken = measure(mode, args.rounds, loads, args.router, Path(folder))
        samples += taken[0]
        memory += taken[1]
        missing += taken[2]
    report = routerpage.report(
        samples, memory, list(dict.fromkeys(missing)), machine, list(map(asdict, loads))
    )
    print(report.markdown())
    if args.write:
        print(f"wrote {report.write()}", file=sys.stderr)
    return 1 if any(sample.failed for sample in samples) else 0


if __name__ == "__main__":
    sys.exit(main())
