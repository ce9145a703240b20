"""Plays a trace live over HTTP against simulated engines, and prints the figures beside the replay's own.

The engines run `--speed` times as fast as their topology says, requests arrive that much faster, and targets
are that much tighter; every time printed is multiplied by it again. It is compared with the replay of the
plan that runs, with the same profile, predictor, targets and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import uvloop
from live_deployment import Gauge, deployed, placed, settings
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from orchestrator.analysis.live import HEAD, Cached, Machine, cached, figures, machine_lines, row, slowed
from orchestrator.analysis.records import Log
from orchestrator.analysis.report import in_words
from orchestrator.analysis.summary import Summary, quantile, summarize
from orchestrator.analysis.trials import Trials
from orchestrator.cli.app import load_plan, show_error
from orchestrator.core.duration import parse_duration
from orchestrator.core.slo import SloClass
from orchestrator.errors import PdctlError
from orchestrator.router.view import BLOCK_BYTES, BYTES_PER_TOKEN
from orchestrator.sim.replay.life import Life, Run
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.planned import fleet_of
from orchestrator.sim.replay.player import Client, Player, Server
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe
from orchestrator.sim.replay.trace import Trace, ceiling
from orchestrator.topology.plan import Plan, RouterPlan
from orchestrator.topology.slo import slo_classes

COMPARED = ("attainment", "TTFT mean")
"""What `--within` is about."""

LATE_S = 0.005
"""By up to so much each arrival of a further replay is late: as a busy client's are."""

err = Console(stderr=True, highlight=False, soft_wrap=True)


def offered(args: argparse.Namespace, router: RouterPlan) -> Trace:
    """The trace, its output lengths as the clients' own limits: an engine is told no other way.

    Requests of classes that do not exist are of the default one.
    """
    trace = load(args.trace)
    if args.first is not None:
        trace = trace.first(args.first)
    known = set() if args.slo else set(router.slo_classes)
    entries = [
        replace(e, max_tokens=e.output_tokens, slo_class=e.slo_class if e.slo_class in known else None)
        for e in trace.entries
    ]
    return replace(trace, entries=tuple(entries))


def factor_of(rate: str, trace: Trace) -> float:
    """By what the trace's times are divided, before speed."""
    match = re.fullmatch(r"(x?)([0-9]*\.?[0-9]+)", rate)
    if match is None or float(match[2]) <= 0:
        raise PdctlError(
            f"--rate {rate} is neither like x2 nor like 3.5 (requests a second)", reason="bad-rate"
        )
    value = float(match[2])
    return value if match[1] or trace.seconds == 0 else value / trace.rate


def trials_of(args: argparse.Namespace, plan: Plan, trace: Trace, seed: int) -> Trials:
    """The replay of what is run live, cut into the blocks that router and engines really use."""
    assert plan.router is not None
    router = plan.router
    default = router.default_class
    latency_s = parse_duration(args.latency)
    block_tokens = BLOCK_BYTES // BYTES_PER_TOKEN
    page = fleet_of(plan, block_tokens).units[0].endpoint.block_size or block_tokens
    requests = Requests(
        trace, block_tokens=block_tokens, engine_block_tokens=page, seed=plan.seed, default_class=default
    )
    fleet = fleet_of(plan, page, latency_s=latency_s)
    requests.model = fleet.models[0]
    used = {e.slo_class or default for e in trace.entries}
    targets: Mapping[str | None, SloClass] = {
        name: slo for name, slo in slo_classes(router).items() if name in used
    }
    timing = min((u.config.timing for u in fleet.units), key=lambda timing: timing.cold_s(2048))
    recipe = Recipe(router.scheduling, router, router.predictor, seed=seed, base_dir=plan.base_dir)
    name = args.profile or "topology"
    return Trials(name, recipe, requests, fleet, targets, timing=timing, seed=seed)


# -- the live run


def server_of(args: argparse.Namespace, plan: Plan) -> Server:
    """The router to send to."""
    assert plan.router is not None
    router = plan.router
    where = urlsplit(args.url or router.url)
    keys = router.credentials.client_keys
    model = next(i.model for i in plan.instances)
    return Server(where.hostname or "127.0.0.1", where.port or 80, model, keys[0] if keys else None)


def play(args: argparse.Namespace, requests: Requests, server: Server, rate: float) -> tuple[Run, Client]:
    """The live run, under a progress bar."""
    count = len(requests.trace.entries)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        sent, over = bar.add_task("sent", total=count), bar.add_task("over", total=count)

        def progress(now_sent: int, now_over: int) -> None:
            bar.update(sent, completed=now_sent)
            bar.update(over, completed=now_over)

        async def run() -> tuple[Run, Client]:
            player = Player(requests, server, rate=rate, on_progress=progress)
            return await player.play(), player.client

        return uvloop.run(run())


# -- the report


def report(
    args: argparse.Namespace,
    one: Trials,
    live: Summary,
    replays: Sequence[Summary],
    known: Cached,
    machine: Machine,
) -> dict[str, Any]:
    """Print the comparison; the same as plain data."""
    trace = one.requests.trace
    compared = figures(live, replays)
    print(f"simulated engines, {args.speed:g} times as fast; times are the engines' own, {args.speed:g} to 1")
    print(f"{trace.name}, {len(trace.entries)} requests at {live.rate:.2f}/s, profile {one.name}")
    for line in in_words(one.targets):
        print(f"  {line} in real time")
    print(HEAD)
    for figure in compared:
        print(row(figure))
    for name, run in (("live", live), ("replay", replays[0])):
        if run.refused:
            print(f"{name} refused " + ", ".join(f"{n} {reason}" for reason, n in run.refused.items()))
    print(
        f"cached tokens, predicted by the router and reported by engines: {known.predicted_tokens:,} and "
        f"{known.reported_tokens:,}; the same for {known.exact} of {known.requests} requests"
    )
    for line in machine_lines(machine):
        print(line)
    told = ("replay", "difference", "percent")
    rows = [{**asdict(f), **{name: getattr(f, name) for name in told}} for f in compared]
    return {
        "v": 1, "simulated": True, "speed": args.speed, "trace": trace.name, "profile": one.name,
        "figures": rows, "cached": asdict(known), "machine": asdict(machine),
        "live": asdict(live), "replays": [asdict(run) for run in replays],
    }  # fmt: skip


def prepared(args: argparse.Namespace, chosen: Sequence[str]) -> tuple[Plan, Trials, float]:
    """The plan that is to run, its replay, and by what the trace's times are divided."""
    plan = load_plan(args.topology, list(chosen), ask_versions=False)
    assert plan.router is not None
    trace = offered(args, plan.router)
    return plan, trials_of(args, plan, trace, args.seed), factor_of(args.rate, trace) * args.speed


def compared(
    args: argparse.Namespace, chosen: Sequence[str], plan: Plan, one: Trials, factor: float
) -> dict[str, Any]:
    """Play it live, replay it, print both."""
    gauge, load_before, began_s = Gauge(args, plan, chosen), os.getloadavg()[0], time.time()
    run, client = play(args, one.requests, server_of(args, plan), factor)
    cpu_s, router_lag_s = gauge.since()
    time.sleep(1.5)  # what became of a request is written down once a second
    records = Log(Path(plan.state_dir) / "decisions").newest()
    known = cached(record for record in records if record["arrived_s"] >= began_s)
    wall_s = client.wall_s

    def cores(kind: str) -> float | None:
        return cpu_s[kind] / wall_s if cpu_s[kind] else None

    machine = Machine(
        os.cpu_count() or 1, load_before, client.cpu_s / wall_s, cores("router"), cores("engines"),
        quantile(sorted(client.sent_late_s), 0.99), quantile(sorted(client.woke_late_s), 0.99), router_lag_s,
    )  # fmt: skip
    trace = one.requests.trace
    most = ceiling(trace.entries, trace.block_tokens)[0] if trace.block_tokens else 0
    runs = [run, *(each.run(factor) for each in by_chance(args, plan, one, factor))]
    live, *replays = (
        slowed(summarize(one.name, each, one.targets, one.timing, {}, most), args.speed) for each in runs
    )
    told = report(args, one, live, replays, known, machine)
    lives = {
        name: [by_request(life, args.speed) for life in each.lives]
        for name, each in zip(("live", "replay"), runs, strict=False)
    }
    return {**told, "requests": lives}


def by_chance(args: argparse.Namespace, plan: Plan, one: Trials, factor: float) -> Iterator[Trials]:
    """The replay, and others that differ in ties and by some milliseconds of each arrival."""
    yield one
    trace = one.requests.trace
    for seed in range(args.seed + 1, args.seed + args.replays):
        rng = Random(seed)
        entries = [replace(e, at_s=e.at_s + factor * LATE_S * rng.random()) for e in trace.entries]
        entries.sort(key=lambda e: e.at_s)
        yield trials_of(args, plan, replace(trace, entries=tuple(entries)), seed)


def by_request(life: Life, speed: float) -> dict[str, Any]:
    """What became of one request, in the engines' time."""
    ttft_s, tpot_s = life.ttft_s, life.tpot_s
    return {
        "at_s": life.view.arrived_s * speed, "prompt_tokens": life.view.prompt_tokens,
        "output_tokens": life.output_tokens, "cached_tokens": life.cached_tokens, "refused": life.refused,
        "ttft_s": None if ttft_s is None else ttft_s * speed,
        "tpot_s": None if tpot_s is None else tpot_s * speed,
    }  # fmt: skip


def within(told: Mapping[str, Any], percent: float) -> bool:
    """Whether attainment and mean TTFT are no further apart."""
    return all(abs(f["percent"] or 0.0) <= percent for f in told["figures"] if f["name"] in COMPARED)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="replay_live", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument("topology", type=Path, help="its engines are simulated, its router is pdctl's own")
    p.add_argument("--trace", type=Path, required=True, help="as `pdctl replay` takes it")
    p.add_argument("--first", type=int, default=None, help="only so many requests")
    p.add_argument("--rate", default="x1", help="x2: twice as fast; 3.5: at 3.5 requests a second")
    p.add_argument("--speed", type=float, default=5.0, help="of the engines and the arrivals; 10 at most")
    p.add_argument("--profile", default=None, help="scheduling profile (default: the topology's)")
    p.add_argument("--slo", default=None, help="for all requests, as ttft=1.5s+2x,tpot=40ms "
                   "(default: the topology's classes)")  # fmt: skip
    p.add_argument("--set", action="append", metavar="A.B=VALUE", help="one field of the topology")
    p.add_argument("--url", default=None, help="of a deployment of TOPOLOGY that runs, --speed times as fast "
                   "as real engines, instead of bringing one up; its targets are as written")  # fmt: skip
    p.add_argument("--latency", default="1ms", help="of the replay: one way between router and engines, real")
    p.add_argument("--replays", type=int, default=5, help="how many, to tell chance from difference")
    p.add_argument("--seed", type=int, default=0, help="of the first replay's ties")
    p.add_argument("--state", type=Path, default=None, help="state directory, kept for `pdctl explain` "
                   "(default: one that is thrown away)")  # fmt: skip
    p.add_argument("--json", type=Path, default=None, help="also write all figures here")
    p.add_argument("--within", type=float, default=None, metavar="PERCENT",
                   help="exit with 1 if attainment or mean TTFT are further apart")  # fmt: skip
    args = p.parse_args(argv)
    if not 0 < args.speed <= 10:
        p.error("--speed is more than 0 and 10 at most: beyond, the machine is what is measured")
    if args.replays < 1:
        p.error("--replays: at least one")
    if args.url and (args.slo or args.profile):
        p.error("--url: what runs has its own targets and profile")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 0 when there is something to compare, 130 after Ctrl-C or TERM."""
    args = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    scratch = None if args.state else Path(tempfile.mkdtemp(prefix="pdctl-live-"))
    state = args.state.absolute() if scratch is None else scratch / "state"
    try:
        if args.url:
            chosen = args.set or []
            told = compared(args, chosen, *prepared(args, chosen))
        else:
            chosen = placed(args.topology, [*settings(args), f"state_dir={state}"])
            ready = prepared(args, chosen)
            with deployed(args.topology, chosen):
                told = compared(args, chosen, *ready)
    except PdctlError as error:
        show_error(error)
        return 2
    except KeyboardInterrupt:
        err.print("interrupted")
        return 130
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    if args.json is not None:
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0 if args.within is None or within(told, args.within) else 1


if __name__ == "__main__":
    sys.exit(main())
