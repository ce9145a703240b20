"""For each scheduling profile on a trace: c90, c99, attainment at twice the best immediate profile's c90."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.analysis.targets import parse_slo
from orchestrator.analysis.trials import Trials
from orchestrator.policy.profiles import PROFILES
from orchestrator.sim.replay.fleet import published
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe, bare_router
from orchestrator.sim.timing import LINKS

_requests: dict[tuple[str, int, float | None], Requests] = {}


@dataclass(slots=True)
class Row:
    """One profile's line of the table. Rates are requests a second; `lates` is attainment at 2x the best."""

    name: str
    late: bool
    c90: float = 0.0
    c99: float = 0.0
    at_2x: float | None = None
    at: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def profile_of(text: str) -> tuple[str, Mapping[str, Any]]:
    """A name, or a name with late settings: `slo:others=0.5,candidates=32`."""
    name, _, settings = text.partition(":")
    profile = dict(PROFILES[name])
    if settings:
        given = dict(part.split("=", 1) for part in settings.split(","))
        profile["late"] = {**profile.get("late", {}), **{k: json.loads(v) for k, v in given.items()}}
    return text, profile


def trials(args: argparse.Namespace, text: str, error: float) -> Trials:
    """The trials of one profile; a process reads each trace once."""
    key = (args.trace, args.first, args.spread)
    slo = parse_slo(args.slo)
    if key not in _requests:
        trace = load(Path(args.trace)).first(args.first)
        if args.spread:
            trace = trace.spread(args.spread)
        _requests[key] = Requests(trace, default_class=slo.name)
    requests = _requests[key]
    fleet = published(
        args.prefill,
        args.decode,
        dialect=args.dialect,
        link=LINKS[args.link],
        block_tokens=requests.block_tokens,
        noise=args.noise,
        slowdowns=[float(s) for s in args.slowdowns.split(",")] if args.slowdowns else (),
        speeds=[float(s) for s in args.speeds.split(",")] if args.speeds else (),
    )
    recipe = Recipe(
        profile_of(text)[1], bare_router([slo]), {"use": args.predictor}, error=error, seed=args.seed
    )
    return Trials(text, recipe, requests, fleet, {slo.name: slo}, seed=args.seed)


def goodput(job: tuple[argparse.Namespace, str]) -> Row:
    """c90 and c99 of one profile."""
    args, text = job
    began = time.monotonic()
    late = profile_of(text)[1].get("mode") == "late"
    one = trials(args, text, args.error if late else 0.0)
    row = Row(text, late)
    row.c90 = one.goodput(0.90, args.start or one.requests.trace.rate)
    row.c99 = one.goodput(0.99, row.c90 / 1.5 or 0.1)
    row.seconds = time.monotonic() - began
    return row


def attained(job: tuple[argparse.Namespace, str, float]) -> float:
    """Attainment of one profile at one rate."""
    args, text, rate = job
    late = profile_of(text)[1].get("mode") == "late"
    return trials(args, text, args.error if late else 0.0).attainment(rate)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--trace", required=True, help="a trace file")
    p.add_argument("--first", type=int, default=4000, help="how many of its requests")
    p.add_argument(
        "--spread", type=float, default=None, help="spread arrivals inside quanta of so many seconds"
    )
    p.add_argument("--profiles", default="all", help="names, `late`, `immediate`, `all`; NAME:key=value,... "
                   "changes late settings; separated by ;")  # fmt: skip
    p.add_argument("--slo", default="ttft=1.5s+2x,tpot=40ms", help="what a request must meet")
    p.add_argument("--dialect", choices=("sglang", "vllm"), default="sglang", help="whose hand-off")
    p.add_argument("--link", choices=sorted(LINKS), default="rdma", help="what KV travels over")
    p.add_argument("--prefill", type=int, default=8, help="prefill instances")
    p.add_argument("--decode", type=int, default=2, help="decode instances")
    p.add_argument("--slowdowns", default="", help="of prefill instances in turn, told to nobody: 1,1.5,2")
    p.add_argument("--speeds", default="", help="of prefill instances in turn, told by profiles: 1,0.5")
    p.add_argument("--noise", type=float, default=0.0, help="sigma of the log-normal factor on each step")
    p.add_argument(
        "--error", type=float, default=0.0, help="sigma of each request's predicted work (late only)"
    )
    p.add_argument(
        "--predictor",
        default="told",
        help="`told` knows the engines' launch profile and learns nothing; `stages` is the router's",
    )
    p.add_argument(
        "--base", type=float, default=None, help="rate whose double is overload (default: measured)"
    )
    p.add_argument("--start", type=float, default=None, help="rate at which each search for c90 begins")
    p.add_argument("--at", default="", help="instead of searching: attainment at these rates, as 2,3,4")
    p.add_argument("--processes", type=int, default=2, help="runs at once")
    p.add_argument("--seed", type=int, default=0, help="of ties, noise and errors")
    p.add_argument("--json", type=Path, default=None, help="also write the rows here")
    return p.parse_args(argv)


def chosen(text: str) -> list[str]:
    names = [n for n in PROFILES if n != "default"]
    found: list[str] = []
    for part in text.split(";"):
        group = {
            "all": names,
            "late": [n for n in names if PROFILES[n].get("mode") == "late"],
            "immediate": [n for n in names if PROFILES[n].get("mode") != "late"],
        }.get(part, [part])
        found += [n for n in group if n not in found]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, rows as they are done."""
    args = parse(argv)
    names = chosen(args.profiles)
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        if args.at:
            rates = [float(r) for r in args.at.split(",")]
            found = pool.map(attained, [(args, n, r) for n in names for r in rates], chunksize=1)
            print(f"{'profile':40s}" + "".join(f"{r:9.2f}" for r in rates))
            for i, name in enumerate(names):
                print(
                    f"{name:40s}" + "".join(f"{x:9.3f}" for x in found[i * len(rates) : (i + 1) * len(rates)])
                )
            return
        rows = []
        for row in pool.imap_unordered(goodput, [(args, n) for n in names]):
            rows.append(row)
            print(f"  {row.name}: c90 {row.c90:.3f} c99 {row.c99:.3f} ({row.seconds:.0f} s)", flush=True)
        best90 = (
            args.base or max((r.c90 for r in rows if not r.late), default=0.0) or max(r.c90 for r in rows)
        )
        best99 = max((r.c99 for r in rows if not r.late), default=0.0)
        shares: list[float | None] = [None] * len(rows)
        if best90:  # else nothing keeps 90 % at any rate
            shares = list(pool.map(attained, [(args, r.name, 2 * best90) for r in rows], chunksize=1))
    for row, share in zip(rows, shares, strict=True):
        row.at_2x = share
    rows.sort(key=lambda r: -r.c90)
    fleet = f"{args.prefill}P+{args.decode}D, {args.dialect}"
    print(f"\n{Path(args.trace).stem}, first {args.first}, {fleet}, {args.slo}, predictor {args.predictor}, "
          f"prediction error {args.error:g}; simulated")  # fmt: skip
    print(
        f"| profile | c90 | c99 | at {2 * best90:.2f}/s | c90 ratio | c99 ratio |\n|---|---|---|---|---|---|"
    )
    for r in rows:
        ratio99 = f"{r.c99 / best99:.2f}" if best99 else "-"
        ratio90 = f"{r.c90 / best90:.2f}" if best90 else "-"
        twice = "-" if r.at_2x is None else f"{r.at_2x:.3f}"
        print(f"| {r.name} | {r.c90:.2f} | {r.c99:.2f} | {twice} | {ratio90} | {ratio99} |")
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
