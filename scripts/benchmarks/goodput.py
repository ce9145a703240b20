"""Simulated engines behind each router in turn, a trace played live: which requests meet their targets.

Each peer has engines of its own dialect, all with the same timing, `--speed` times as fast as real ones;
what is told is in the engines' own time. Every run has fresh engines and a fresh router. Replays tell
beforehand which policies to run: of each peer the best of those whose rule one of pdctl's profiles follows,
of pdctl the default profile and the best immediate one.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from benchmarks import goodputpage, own, peers
from benchmarks.contender import Contender
from benchmarks.figures import best, crossing
from benchmarks.goodputpage import Point, Rank, judged
from benchmarks.machine import ROOT, describe
from benchmarks.mock import MODEL, Engine
from benchmarks.peers import Peer
from benchmarks.processes import free_port
from orchestrator.analysis.summary import quantile
from orchestrator.analysis.targets import parse_slo
from orchestrator.analysis.trials import Trials
from orchestrator.core.slo import SloClass
from orchestrator.errors import PdctlError
from orchestrator.policy.profiles import PROFILES, mode_of
from orchestrator.sim.replay.fleet import published
from orchestrator.sim.replay.life import Run
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.player import Client, Player, Server
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe, bare_router
from orchestrator.sim.testing import spawn
from orchestrator.sim.timing import QWEN3_32B_TP2

TRACE = ROOT / "tests" / "data" / "traces" / "mooncake_synthetic_400.jsonl"
CLASS = "live"
MULTIPLES = (0.4, 0.7, 1.0, 1.6, 2.4)
"""Of the rate that the best immediate profile keeps at 90 % in replay."""

SHORT = (0.35, 0.7, 1.4)
MAX_MODEL_LEN = 262_144
"""The public traces have prompts of more than the simulator's 40,960 tokens."""

MOST_SPEED = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """A router with one of its policies. `peer`: None is pdctl itself, and `policy` a profile of its own."""

    peer: Peer | None
    engine: str
    policy: str

    @property
    def name(self) -> str:
        """As it is told."""
        return f"{self.peer.name} {self.policy}" if self.peer else f"pdctl {self.policy} ({self.engine})"


@dataclass(frozen=True, slots=True)
class Offered:
    """What is run: the requests, what they must meet, how many engines, and how fast those are."""

    requests: Requests
    slo: SloClass
    prefill: int
    decode: int
    speed: float

    def patience_s(self) -> float:
        """How long after the last request one may still be in time, in the engines' time."""
        most = 0.0
        for entry in self.requests.trace.entries:
            cold_s = QWEN3_32B_TP2.cold_s(entry.prompt_tokens)
            bound_s = self.slo.ttft.bound_s(cold_s) if self.slo.ttft else 600.0
            gap_s = self.slo.tpot.seconds if self.slo.tpot else 0.1
            most = max(most, bound_s + entry.output_tokens * gap_s)
        return most


# -- what to run


def rank(offered: Offered) -> list[Rank]:
    """What each immediate profile keeps at 90 % in replay, best first."""
    found = []
    fleet = published(
        offered.prefill, offered.decode, dialect="sglang", block_tokens=offered.requests.block_tokens
    )
    for name, profile in PROFILES.items():
        if mode_of(profile) == "immediate":
            recipe = Recipe(profile, bare_router([offered.slo]), {"use": "stages"})
            trials = Trials(name, recipe, offered.requests, fleet, {offered.slo.name: offered.slo})
            found.append(Rank(name, trials.goodput(0.9, offered.requests.trace.rate)))
    return sorted(found, key=lambda one: -one.rate)


def setups(ranks: Sequence[Rank], count: int, wanted: Sequence[str]) -> list[Setup]:
    """pdctl's default profile over both dialects, its best immediate one, `count` policies of each peer."""
    rates = {one.profile: one.rate for one in ranks}
    found = [Setup(None, engine, "default") for engine in ("sglang", "vllm")]
    found.append(Setup(None, "sglang", ranks[0].profile))
    for peer in peers.PEERS:
        kept = {policy: rates[profile] for policy, profile in peer.policies.items()}
        found += [Setup(peer, peer.engine, policy) for policy in best(kept, kept.__getitem__, count)]
    return [one for one in found if not wanted or any(one.name.startswith(name) for name in wanted)]


# -- one live run


@contextlib.contextmanager
def engines(offered: Offered, dialect: str) -> Iterator[list[Engine]]:
    """Fresh simulated engines."""
    common = (
        "--dialect", dialect, "--served-model-name", MODEL, "--model-path", MODEL, "--speed",
        f"{offered.speed:g}", "--max-model-len", str(MAX_MODEL_LEN), "--enable-cache-report",
    )  # fmt: skip
    roles = ["prefill"] * offered.prefill + ["decode"] * offered.decode
    with spawn(*(("--role", role) for role in roles), common=common) as running:
        yield [
            Engine(role, one.port, one.ports.get("bootstrap", 0))
            for role, one in zip(roles, running, strict=True)
        ]


def contender(setup: Setup, offered: Offered, over: Sequence[Engine], folder: Path) -> Contender:
    """The router of a setup. pdctl is told the same targets as are judged, in the engines' real time."""
    if setup.peer is not None:
        return setup.peer.contender(over, setup.policy)
    port = free_port()
    path = own.topology(
        folder, "pdctl", over, port,
        engine="sim",
        options={"dialect": setup.engine, "speed": offered.speed},
        scheduling={"profile": setup.policy, "default_class": CLASS, "decisions": {"record": "full"}},
        more={"slo_classes": {CLASS: own.targets(offered.slo, offered.speed)}},
    )  # fmt: skip
    compiled = own.compiled_wheel()
    return own.contender("pdctl", path, port, setup.engine, compiled=compiled)


def live(setup: Setup, offered: Offered, rate: float) -> Point:
    """The trace at `rate` requests a second of the engines' time. Raises RuntimeError if a router fails."""
    factor = rate / offered.requests.trace.rate * offered.speed
    with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as place, engines(offered, setup.engine) as over:
        folder = Path(place)
        router = contender(setup, offered, over, folder)
        with router.running(folder):
            server = Server("127.0.0.1", router.port, MODEL, "bench")

            async def play() -> tuple[Run, Client]:
                patience_s = offered.patience_s() / offered.speed
                player = Player(offered.requests, server, rate=factor, patience_s=patience_s)
                return await player.play(), player.client

            run, client = uvloop.run(play())
    share, refused = judged(run.lives, run.offered, offered.slo, offered.speed)
    return Point(
        name=setup.name,
        engine=setup.engine,
        own=setup.peer is None,
        rate=rate,
        offered=run.offered,
        attainment=share,
        refused=refused,
        sent_late_p99_s=quantile(sorted(client.sent_late_s), 0.99),
        woke_late_p99_s=quantile(sorted(client.woke_late_s), 0.99),
        seconds=client.wall_s,
    )


# -- the whole


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="bench goodput", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--trace", type=Path, default=TRACE, help="as `pdctl replay` takes it")
    p.add_argument("--first", type=int, default=None, help="so many requests (1000; with --short 120)")
    p.add_argument("--slo", default="ttft=1.5s+2x,tpot=40ms", help="what a request must meet")
    p.add_argument("--speed", type=float, default=MOST_SPEED, help="of engines and arrivals; 10 at most")
    p.add_argument("--prefill", type=int, default=8, help="prefill engines")
    p.add_argument("--decode", type=int, default=2, help="decode engines")
    p.add_argument("--policies", type=int, default=None, help="of each peer (2; with --short 1)")
    p.add_argument("--short", action="store_true", help="120 requests, three rates, one policy of each peer")
    p.add_argument("--router", action="append", default=[], help="only this one, such as pdctl or smg")
    p.add_argument("--write", action="store_true", help="write the page under docs/benchmarks")
    args = p.parse_args(argv)
    args.first = args.first or (120 if args.short else 1000)
    args.policies = args.policies or (1 if args.short else 2)
    if not 0 < args.speed <= MOST_SPEED:
        p.error("--speed is more than 0 and 10 at most: beyond, the machine is what is measured")
    return args


def curves(
    chosen: Sequence[Setup], offered: Offered, rates: Sequence[float]
) -> tuple[list[Point], list[str]]:
    """All setups at one rate before the next: what drifts meets all. What fails is told, and left out."""
    points: list[Point] = []
    failed: dict[str, str] = {}
    for rate in rates:
        for setup in chosen:
            if setup.name in failed:
                continue
            try:
                points.append(live(setup, offered, rate))
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                failed[setup.name] = f"{setup.name} ({str(error).strip()[-300:]})".replace("\n", " ")
                print(failed[setup.name], file=sys.stderr)
            else:
                print(points[-1].line(), file=sys.stderr, flush=True)
    return points, list(failed.values())


def overload(points: Sequence[Point]) -> float | None:
    """Twice the best peer's rate at 90 %; None if no peer keeps that anywhere."""
    kept = [
        crossing(goodputpage.curve(points, name), 0.9)
        for name in dict.fromkeys(point.name for point in points if not point.own)
    ]
    found = [rate for rate in kept if rate]
    return 2 * max(found) if found else None


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 if a router did not run, 2 for a trace or targets that cannot be read."""
    args = parse(argv)
    machine = describe()
    try:
        trace = load(args.trace).first(args.first)
        slo = parse_slo(args.slo, CLASS)
    except PdctlError as error:
        print(f"bench goodput: {error}", file=sys.stderr)
        return 2
    entries = tuple(replace(one, max_tokens=one.output_tokens, slo_class=None) for one in trace.entries)
    requests = Requests(replace(trace, entries=entries), default_class=CLASS)
    offered = Offered(requests, slo, args.prefill, args.decode, args.speed)
    ranks = rank(offered)
    for one in ranks:
        print(f"replay: {one.profile} keeps {one.rate:.2f}/s at 90 %", file=sys.stderr)
    chosen = setups(ranks, args.policies, args.router)
    rates = [round(ranks[0].rate * multiple, 3) for multiple in (SHORT if args.short else MULTIPLES)]
    points, failed = curves(chosen, offered, rates)
    twice = overload(points)
    if twice is not None:
        more, again = curves(chosen, offered, [round(twice, 3)])
        points += more
        failed += again
    about = {
        "trace": trace.name, "requests": len(entries), "slo": args.slo, "speed": args.speed,
        "short": args.short, "prefill": args.prefill, "decode": args.decode, "routers": args.router,
        "compiled": own.compiled_wheel() is not None,
    }  # fmt: skip
    report = goodputpage.report(points, ranks, twice, dict.fromkeys(failed), about, machine)
    print(report.markdown())
    if args.write:
        print(f"wrote {report.write()}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
