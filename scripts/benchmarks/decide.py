"""What a decision of the late scheduler costs, by the number of endpoints and of requests that wait."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from random import Random

from benchmarks.machine import describe
from benchmarks.report import Report, Table
from orchestrator.core.choosing import Step
from orchestrator.core.contracts import Assign, Decision
from orchestrator.core.late import pump
from orchestrator.core.late.scheduler import LateScheduler
from orchestrator.core.lateprofile import LateProfile
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import (
    End,
    Endpoint,
    LegEvent,
    LegKind,
    Load,
    Outcome,
    RequestView,
    Role,
    Route,
    Snapshot,
)
from orchestrator.policy.testing import FakePredictor, make_endpoint, make_request
from policies.orders.moore_hodgson import MooreHodgson

CASES = tuple((endpoints, waiting) for endpoints in (4, 64, 1_000) for waiting in (0, 1_000, 10_000))
"""Endpoints, a quarter of which decode, and requests that wait."""

CALLS = ("submit", "prefill done", "first token", "finish", "all", "dispatch")
"""What is timed: each with the `due_s` that a shell asks after it; `all` is a request's four together, and
`dispatch` what one that sends requests takes for each of them."""

PREFIXES, BLOCKS = 50, 250
"""Prompts begin like one of so many documents of so many blocks of 128 tokens, and go on by themselves."""


PATIENT = SloClass("patient", ttft=Target(3600.0))
"""What all are promised: something to sort the queue by, and not so little that any is refused."""


class Fleet:
    """Requests that keep a scheduler as full as it was at the beginning, one coming for each that goes."""

    def __init__(self, endpoints: int, waiting: int) -> None:
        decode = max(1, endpoints // 4)
        self.prefill = endpoints - decode
        self.scheduler = LateScheduler(
            LateProfile(Step("moore-hodgson", MooreHodgson())),
            FakePredictor(),
            rng=Random(1),
            classes={PATIENT.name: PATIENT},
        )
        room = Load(0.0, kv_used_tokens=0, kv_total_tokens=10**9)
        fleet: list[Endpoint] = [make_endpoint(f"p{i}", Role.PREFILL) for i in range(self.prefill)]
        fleet += [make_endpoint(f"d{i}", Role.DECODE, load=room) for i in range(decode)]
        self.scheduler.observe(Snapshot(0.0, tuple(fleet)), 0.0)
        self.rng = Random(1)
        self.documents = [tuple(self.rng.getrandbits(63) for _ in range(BLOCKS)) for _ in range(PREFIXES)]
        self.running: list[tuple[str, Route]] = []
        self.now_s = 0.0
        self.asked = 0
        self.sent: list[tuple[int, int]] = []
        """(wall, CPU) nanoseconds of a call for each request that it sent."""
        for _ in range(waiting + self.prefill):
            self.take(self.scheduler.submit(self.request(), self.now_s))

    def request(self) -> RequestView:
        """The next prompt."""
        rng = self.rng
        self.asked += 1
        own = tuple(rng.getrandbits(63) for _ in range(rng.randint(0, 60)))
        hashes = rng.choice(self.documents)[: rng.randint(5, BLOCKS)] + own
        return make_request(
            id=f"r{self.asked}",
            prompt_tokens=len(hashes) * 128 + 50,
            block_hashes=hashes,
            max_tokens=100,
            slo_class=PATIENT.name,
            arrived_s=self.now_s,
            stream=True,
        )

    def take(self, decisions: Sequence[Decision]) -> None:
        """Note who was sent where."""
        self.running += [(d.request_id, d.route) for d in decisions if isinstance(d, Assign)]

    def turn(self) -> list[tuple[int, int]]:
        """One request comes, another goes through its life: (wall, CPU) nanoseconds of each call."""
        self.now_s += 0.01
        new = self.request()
        scheduler, now_s = self.scheduler, self.now_s
        spent = [self.timed(lambda: scheduler.submit(new, now_s))]
        request_id, route = self.running.pop(self.rng.randrange(len(self.running)))
        for leg, endpoint, what in (
            (LegKind.PREFILL, route.prefill, "done"),
            (LegKind.DECODE, route.decode, "first_token"),
        ):
            event = LegEvent(request_id, leg, endpoint or "", what, now_s)
            spent.append(self.timed(lambda event=event: scheduler.progress(event, now_s)))  # type: ignore[misc]
        outcome = Outcome(request_id, End.COMPLETED, 200, route=route, output_tokens=50)
        spent.append(self.timed(lambda: scheduler.finish(outcome, now_s)))
        return spent

    def timed(self, call: Callable[[], Sequence[Decision]]) -> tuple[int, int]:
        """(wall, CPU) nanoseconds of a call, and of asking when the next is due."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        decisions = call()
        self.scheduler.due_s()
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        before = len(self.running)
        self.take(decisions)
        sent = len(self.running) - before
        if sent:
            self.sent += [(wall // sent, cpu // sent)] * sent
        return wall, cpu


def measure(endpoints: int, waiting: int, seconds: float) -> dict[str, object]:
    """Medians and P99 in microseconds by call, over `seconds` of making decisions."""
    load = Fleet(endpoints, waiting)
    for _ in range(50):
        load.turn()
    gc.collect()
    gc.freeze()
    load.sent.clear()
    turns = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        turns.append(load.turn())
    gc.unfreeze()
    timed = [*map(list, zip(*turns, strict=True))]
    timed.append([(sum(w for w, _ in turn), sum(c for _, c in turn)) for turn in turns])
    timed.append(load.sent)
    calls = {}
    for name, spent in zip(CALLS, timed, strict=True):
        calls[name] = {
            f"{clock}_{quantile}_us": round(_quantile([one[which] for one in spent], share) / 1e3, 1)
            for which, clock in enumerate(("wall", "cpu"))
            for quantile, share in (("p50", 0.5), ("p99", 0.99))
        }
    return {
        "endpoints": endpoints,
        "waiting": load.scheduler.waiting,
        "requests": len(turns),
        "calls": calls,
    }


def _quantile(values: list[int], share: float) -> int:
    values.sort()
    return values[min(len(values) - 1, int(len(values) * share))]


def report(results: Sequence[dict[str, object]]) -> Report:
    """What a request that is sent costs, and all calls of a request's life."""
    rows = []
    for result in results:
        calls = result["calls"]
        assert isinstance(calls, dict)
        cells = [f"{calls[name][f'cpu_{q}_us']:,.0f}" for name in ("dispatch", "all") for q in ("p50", "p99")]
        rows.append((f"{result['endpoints']:,}", f"{result['waiting']:,}", *cells))
    kind = "compiled" if pump.__file__.endswith(".so") else "interpreted"
    columns = ("endpoints", "waiting", "sent P50", "P99", "all P50", "P99")
    note = (
        "`sent`: a call that sends requests, for each of them. `all`: the calls of one request's life "
        "together (it comes, a prompt is computed, a first token, an end), whatever they send."
    )
    return Report(
        f"decide-{kind}",
        "What a decision costs",
        "scripts/bench decide --write",
        describe(),
        (f"The late scheduler, {kind}: microseconds of CPU time. A quarter of the endpoints decode; prompts "
         f"begin like one of {PREFIXES} documents of {BLOCKS} blocks.",),
        (Table("CPU time", columns, rows, note),),
        {"results": list(results)},
    )  # fmt: skip


def table(results: Sequence[dict[str, object]]) -> str:
    """The results for people: microseconds, CPU time of the thread (wall time)."""
    head = f"{'endpoints':>9} {'waiting':>8} {'call':<13}{'P50 us':>9}{'P99 us':>9}   (wall: P50, P99)"
    rows = [head]
    for result in results:
        calls = result["calls"]
        assert isinstance(calls, dict)
        for name, one in calls.items():
            rows.append(
                f"{result['endpoints']:>9} {result['waiting']:>8} {name:<13}{one['cpu_p50_us']:>9.0f}"
                f"{one['cpu_p99_us']:>9.0f}   ({one['wall_p50_us']:.0f}, {one['wall_p99_us']:.0f})"
            )
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every case and print the results."""
    parser = argparse.ArgumentParser(prog="bench decide", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each case (default 5)")
    parser.add_argument(
        "--case",
        action="append",
        metavar="ENDPOINTS,WAITING",
        help="instead of the usual ones; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="write the page under docs/benchmarks")
    args = parser.parse_args(argv)
    cases: Sequence[tuple[int, int]] = CASES
    if args.case:
        try:
            cases = tuple((int(e), int(w)) for e, w in (case.split(",") for case in args.case))
        except ValueError:
            parser.error("a case is two numbers: --case 64,1000")
    if any(endpoints < 2 or waiting < 0 for endpoints, waiting in cases):
        parser.error("a case has at least two endpoints, one of which decodes")
    results = [measure(endpoints, waiting, args.seconds) for endpoints, waiting in cases]
    print(json.dumps(results, indent=2) if args.json else table(results))
    if args.write:
        print(f"wrote {report(results).write()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
