"""How fast replays are, in requests per second of one core, and how far one is from the same traffic live."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import replay_live

from benchmarks.machine import ROOT, describe
from benchmarks.report import Report, Table
from orchestrator.cli.app import load_plan, show_error
from orchestrator.cli.replay import trials_of
from orchestrator.core.late import pump
from orchestrator.errors import PdctlError
from orchestrator.sim.replay.loading import load

TOPOLOGY = ROOT / "examples" / "replay.yaml"
TRACE = ROOT / "tests" / "data" / "traces" / "mooncake_synthetic_400.jsonl"
"""Eight prefill and two decode instances; the first requests of a public trace."""

PROFILES = ("slo", "round-robin")
ROUNDS = 3
LATENCY_S = 0.005
WITHIN = 10.0
"""Per cent by which live and simulated goodput may differ."""


def speed(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Simulated requests per second of CPU time of each profile, in its fastest round."""
    plan = load_plan(args.topology, args.set, ask_versions=False)
    assert plan.router is not None
    trace = load(args.trace)
    if args.first is not None:
        trace = trace.first(args.first)
    factor = replay_live.factor_of(args.rate, trace)
    found = []
    for one in trials_of(plan, plan.router, trace, ",".join(PROFILES), None, LATENCY_S, 0.0, 0):
        spent = []
        for _ in range(ROUNDS):
            began = time.process_time()
            run = one.run(factor)
            spent.append(time.process_time() - began)
        requests = len(run.lives)
        told = {"profile": one.name, "requests": requests, "rate": run.rate, "events": run.events}
        found.append({**told, "requests_per_s": requests / min(spent), "cpu_s": spent})
    return found


def live(args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """The trace over HTTP and replayed: exit status (1: too far apart), and all figures."""
    with tempfile.TemporaryDirectory(prefix="pdctl-bench-") as folder:
        told = Path(folder) / "told.json"
        words = [str(args.topology), "--trace", str(args.trace), "--rate", args.rate, "--json", str(told)]
        words += ["--first", str(args.first)] if args.first else []
        words += [word for setting in args.set or () for word in ("--set", setting)]
        status = replay_live.main([*words, "--speed", f"{args.speed:g}", "--within", f"{WITHIN:g}"])
        return status, json.loads(told.read_text()) if told.exists() else {}


def goodput(told: dict[str, Any]) -> tuple[float, float]:
    """Requests per second that kept their targets, live and on the mean of the replays."""
    replays = [run["attainment"] * run["rate"] for run in told["replays"]]
    return told["live"]["attainment"] * told["live"]["rate"], sum(replays) / len(replays)


def report(args: argparse.Namespace, speeds: Sequence[dict[str, Any]], told: dict[str, Any]) -> Report:
    """The page."""
    kind = "compiled" if pump.__file__.endswith(".so") else "interpreted"
    rows = [
        (s["profile"], f"{s['requests']:,}", f"{s['rate']:.2f}/s", f"{s['requests_per_s']:,.0f}")
        for s in speeds
    ]
    columns = ("profile", "requests", "rate simulated", "requests per second of CPU")
    tables = [Table("Speed", columns, rows, "The fastest of three rounds, one core.")]
    if told:
        each = goodput(told)
        shares = (
            told["live"]["attainment"],
            sum(r["attainment"] for r in told["replays"]) / len(told["replays"]),
        )
        cells = [
            ("kept, of the offered", f"{shares[0]:.1%}", f"{shares[1]:.1%}", f"{_apart(*shares):+.1f} %"),
            ("goodput, requests/s", f"{each[0]:.3f}", f"{each[1]:.3f}", f"{_apart(*each):+.1f} %"),
        ]
        note = (
            "The same topology, profile, predictor and trace over HTTP, on simulated engines that are "
            f"{args.speed:g} times as fast, and replayed five times."
        )
        tables.append(Table("Live and replayed", ("", "live", "replay", "live to replay"), cells, note))
    return Report(
        f"replay-{kind}",
        "Replay",
        "scripts/bench replay --write",
        describe(),
        (f"{args.topology.name}, {args.trace.name}, {kind}. Engines are simulated in both.",),
        tables,
        {"speed": list(speeds), "live": {k: v for k, v in told.items() if k != "requests"}},
    )


def _apart(one: float, other: float) -> float:
    return 100.0 * (one - other) / other if other else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 where live and simulated goodput are more than 10 % apart."""
    p = argparse.ArgumentParser(
        prog="bench replay", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("--topology", type=Path, default=TOPOLOGY, help="its engines are simulated")
    p.add_argument("--trace", type=Path, default=TRACE, help="as `pdctl replay` takes it")
    p.add_argument("--first", type=int, default=None, help="only so many requests")
    p.add_argument("--rate", default="2.5", help="of the run, x2 or requests a second")
    p.add_argument("--speed", type=float, default=5.0, help="of the live run's engines; 10 at most")
    p.add_argument("--set", action="append", metavar="A.B=VALUE", help="one field of the topology")
    p.add_argument("--no-live", action="store_true", help="only how fast replays are")
    p.add_argument("--write", action="store_true", help="write the page under docs/benchmarks")
    args = p.parse_args(argv)
    try:
        speeds = speed(args)
    except PdctlError as error:
        show_error(error)
        return 2
    for s in speeds:
        print(
            f"{s['profile']}: {s['requests_per_s']:,.0f} simulated requests/s of CPU time "
            f"({s['requests']} at {s['rate']:.2f}/s, {s['events']:,} events)"
        )
    status, told = (0, {}) if args.no_live else live(args)
    if told:
        ours, theirs = goodput(told)
        print(f"goodput: live {ours:.3f}/s, replay {theirs:.3f}/s, {_apart(ours, theirs):+.1f} %")
        status = 0 if abs(_apart(ours, theirs)) <= WITHIN else 1
    if args.write and status in (0, 1):
        print(f"wrote {report(args, speeds, told).write()}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
