"""The driver: published measurements come out, both hand-offs go as the engines do them, nothing is lost.

Covers `fleet`, `life`, `loads`, `parts`, `requests` and `schedulers` too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.contracts import Assign, Bind, Decision, Poll, Reject, Spent
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import Endpoint, LegEvent, LegKind, Outcome, RequestView, Role, Route, Snapshot
from orchestrator.policy.profiles import PROFILES
from orchestrator.sim.replay.driver import Replay
from orchestrator.sim.replay.fleet import Drift, Fleet, Unit, published
from orchestrator.sim.replay.life import Life, Run
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe, bare_router
from orchestrator.sim.replay.steps import Histogram
from orchestrator.sim.replay.trace import Entry, Trace
from orchestrator.sim.replay.workload import uniform
from orchestrator.sim.timing import LINKS, QWEN3_32B_TP2

EXPOSED_MS = {
    "rdma": {1024: 17, 4096: 36, 16384: 67, 32768: 83},
    "tcp": {1024: 97, 4096: 349, 16384: 724, 32768: 634},
}


def entries(*given: tuple[float, int, int]) -> Trace:
    return Trace("t", tuple(Entry(*one) for one in given))


def replay(
    trace: Trace, fleet: Fleet, profile: str | dict[str, object] = "round-robin", **options: object
) -> Run:
    requests = Requests(trace, block_tokens=512)
    return Replay(requests, fleet, Recipe(profile).make(512), **options).run()  # type: ignore[arg-type]


def alone(tokens: int, fleet: Fleet) -> Life:
    (life,) = replay(entries((0.0, tokens, 5)), fleet).lives
    return life


@pytest.mark.parametrize("tokens", [1024, 4096, 16384, 32768])
@pytest.mark.parametrize("link", ["rdma", "tcp"])
def test_exposed_transfer_is_as_measured(tokens: int, link: str) -> None:
    """Through router, network and both legs: what disaggregation adds to the TTFT of one engine alone."""
    apart, together = published(1, 1, link=LINKS[link]), published(0, 0, 1)
    exposed_s = alone(tokens, apart).ttft_s - alone(tokens, together).ttft_s  # type: ignore[operator]
    assert exposed_s * 1e3 == pytest.approx(EXPOSED_MS[link][tokens], rel=0.25)


def jitter(fleet: Fleet) -> float:
    """P99/P50 of the gaps of 16 streams, with a 16K prompt every 6 s for as long as they last: a minute."""
    streams = [(0.0, 1000, 850)] * 16
    prompts = [(5.0 + 6.0 * i, 16_384, 2) for i in range(10)]
    run = replay(entries(*streams, *prompts), fleet)
    gaps = Histogram().merge(run.gaps.values())
    return gaps.quantile(0.99) / gaps.quantile(0.5)  # type: ignore[operator]


def chunked(fleet: Fleet, tokens: int) -> Fleet:
    """Chunks of so many tokens that share their steps with decode; memory for long streams."""
    units = tuple(
        replace(u, config=replace(u.config, chunk_tokens=tokens, mixed=True, kv_tokens=2_000_000))
        for u in fleet.units
    )
    return replace(fleet, units=units)


def test_interference_is_as_measured() -> None:
    """48x with mixed chunks of 2,048, 13x with 512; disaggregated 1.23x."""
    one = published(0, 0, 1)
    assert jitter(chunked(one, 2048)) == pytest.approx(48, rel=0.15)
    assert jitter(chunked(one, 512)) == pytest.approx(13, rel=0.15)
    assert jitter(chunked(published(1, 1), 8192)) <= 1.4


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_the_client_waits_for_the_network_too(dialect: str) -> None:
    near = published(1, 1, dialect=dialect, latency_s=0.0)
    far = published(1, 1, dialect=dialect, latency_s=0.02)
    a, b = alone(2000, near), alone(2000, far)
    trips = 2 if dialect == "sglang" else 4
    assert b.ttft_s == pytest.approx(a.ttft_s + trips * 0.02)  # type: ignore[operator]
    assert b.tpot_s == pytest.approx(a.tpot_s)
    assert b.ttft_s == pytest.approx(sum(b.stages.values()))


def test_pulled_kv_is_exposed_in_full_and_decode_makes_the_first_token() -> None:
    pull, push = (published(1, 1, dialect=d, latency_s=0.0) for d in ("vllm", "sglang"))
    wire_s = QWEN3_32B_TP2.wire_s(30_000, LINKS["rdma"])
    prefill_s = QWEN3_32B_TP2.prefill_s(0, 30_000)
    assert alone(30_000, pull).ttft_s == pytest.approx(
        prefill_s + 0.011 + wire_s + QWEN3_32B_TP2.decode_s(1, 30_000)
    )
    last_chunk_s = QWEN3_32B_TP2.wire_s(30_000 % 8192, LINKS["rdma"])
    assert alone(30_000, push).ttft_s == pytest.approx(prefill_s + 0.011 + last_chunk_s)


class Scripted:
    """A scheduler that sends all to one pair and does what a test says; it notes all it is told."""

    def __init__(self, *, provisional: bool = False, bind_after_s: float = 0.0, polls: bool = False) -> None:
        self.events: list[tuple[str, str, float]] = []
        self.ended: list[Outcome] = []
        self.loads: list[tuple[float, Endpoint]] = []
        self.submitted: list[RequestView] = []
        self.provisional, self.bind_after_s, self.polls = provisional, bind_after_s, polls
        self.spend = 0
        self._due: float | None = None
        self._held: list[str] = []

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        self.submitted.append(request)
        assign = Assign(request.id, Route("decode-0", "prefill-0"), provisional=self.provisional)
        return (assign, Poll("prefill-0")) if self.polls else (assign,)

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        self.events.append((event.leg.value, event.what, now_s))
        if not self.provisional or event.leg is not LegKind.PREFILL or event.what != "done":
            return ()
        if self.spend:
            self.spend -= 1
            return (Spent(event.request_id),)
        self._held.append(event.request_id)
        self._due = now_s + self.bind_after_s
        return ()

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        return ()

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        self.ended.append(outcome)
        return ()

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        self.loads += [(now_s, e) for e in snapshot.endpoints if e.load is not None]
        return ()

    def due_s(self) -> float | None:
        return self._due

    def tick(self, now_s: float) -> Sequence[Decision]:
        self._due = None
        held, self._held = self._held, []
        return [Bind(name, Route("decode-1", "prefill-0")) for name in held]


def scripted(scheduler: Scripted, fleet: Fleet, *given: tuple[float, int, int]) -> Run:
    return Replay(Requests(entries(*given), block_tokens=512), fleet, scheduler).run()


def test_both_legs_of_a_push_start_at_once_and_prefill_answers_after_the_transfer() -> None:
    scheduler = Scripted()
    (life,) = scripted(scheduler, published(1, 1), (0.0, 4096, 3)).lives
    assert len(scheduler.events) == 4
    at = {(leg, what): s for leg, what, s in scheduler.events}
    assert at["prefill", "sent"] == at["decode", "sent"] == 0.0
    assert at["decode", "first_token"] == at["prefill", "done"]
    transfer_s = 0.011 + 4096 * 131_072 / 20e9
    assert at["prefill", "done"] == pytest.approx(life.prefilled_s + 0.005 + transfer_s)  # type: ignore[operator]


def test_a_poll_shows_a_prompt_that_is_computed_before_its_leg_answers() -> None:
    """Over a slow link: prefilling falls to zero while the KV is still on its way."""
    scheduler = Scripted(polls=True)
    fleet = published(1, 1, link=LINKS["tcp"], poll_s=0.05)
    (life,) = scripted(scheduler, fleet, (0.0, 8192, 3)).lives
    done_s = next(s for leg, what, s in scheduler.events if (leg, what) == ("prefill", "done"))
    seen = [(at, e.load.prefilling) for at, e in scheduler.loads if e.id == "prefill-0" and e.load]
    idle_s = min(at for at, prefilling in seen if prefilling == 0)
    assert life.prefilled_s is not None
    assert life.prefilled_s < idle_s < min(done_s, life.prefilled_s + 0.1)
    assert seen[0] == (0.01, 1)


def test_a_pull_waits_for_its_decode_side_to_be_named() -> None:
    scheduler = Scripted(provisional=True, bind_after_s=2.5)
    (life,) = scripted(scheduler, published(1, 2, dialect="vllm"), (0.0, 4096, 3)).lives
    assert life.route == Route("decode-1", "prefill-0")
    at = {(leg, what): s for leg, what, s in scheduler.events}
    assert at["decode", "sent"] == pytest.approx(at["prefill", "done"] + 2.5)
    assert life.first_s > at["decode", "sent"]  # type: ignore[operator]
    (outcome,) = scheduler.ended
    assert (outcome.end, outcome.output_tokens, outcome.route) == ("completed", 3, life.route)


def test_a_hand_off_that_is_given_up_is_tried_anew() -> None:
    scheduler = Scripted(provisional=True)
    scheduler.spend = 1
    run = Replay(
        Requests(entries((0.0, 4096, 3)), block_tokens=512),
        published(1, 2, dialect="vllm"),
        scheduler,
    )
    (life,) = run.run().lives
    assert [outcome.end for outcome in scheduler.ended] == ["failed", "completed"]
    assert [view.id for view in scheduler.submitted] == [life.view.id] * 2
    assert life.attempts == 2
    assert run.engines["prefill-0"].memory.used == 0


def test_what_no_engine_can_hold_fails_and_is_told() -> None:
    scheduler = Scripted()
    run = scripted(scheduler, published(1, 1), (0.0, 360_000, 3), (1.0, 1000, 3))
    assert [life.refused for life in run.lives] == ["too-long", ""]
    assert [outcome.http_status for outcome in scheduler.ended] == [400, 200]


def test_requests_that_are_refused_have_no_times() -> None:
    class Refusing(Scripted):
        def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
            return (Reject(request.id, "queue-full", "no", retry_after_s=3.0),)

    (life,) = scripted(Refusing(), published(1, 1), (0.0, 1000, 3)).lives
    assert (life.refused, life.retry_after_s, life.ttft_s, life.tpot_s) == ("queue-full", 3.0, None, None)


def test_nobody_sees_an_output_in_advance() -> None:
    requests = Requests(entries((0.0, 100, 7)), block_tokens=512)
    assert requests.view(0, 0.0).max_tokens == 4096


def test_a_drift_slows_what_comes_after_it() -> None:
    fleet = published(1, 1, drifts=(Drift(5.0, 1.3, frozenset({"prefill-0"})),))
    before, after = replay(entries((0.0, 8192, 2), (10.0, 8192, 2)), fleet).lives
    assert after.prefilled_s - 10.005 == pytest.approx(1.3 * (before.prefilled_s - 0.005))  # type: ignore[operator]


def test_slow_instances_are_not_what_their_profile_says() -> None:
    fleet = published(2, 1, slowdowns=(1.0, 2.0))
    first, second = replay(entries((0.0, 8192, 2), (0.0, 8192, 2)), fleet).lives
    assert second.prefilled_s - 0.005 == pytest.approx(2 * (first.prefilled_s - 0.005))  # type: ignore[operator]
    assert fleet.units[0].endpoint.facts["prior"] == fleet.units[1].endpoint.facts["prior"]


def test_hardware_of_two_speeds_is_two_pools_with_profiles_of_their_own() -> None:
    fleet = published(2, 1, speeds=(1.0, 0.5))
    first, second = replay(entries((0.0, 8192, 2), (0.0, 8192, 2)), fleet).lives
    assert second.prefilled_s - 0.005 == pytest.approx(2 * (first.prefilled_s - 0.005))  # type: ignore[operator]
    fast, slow = fleet.units[:2]
    assert (fast.endpoint.pool, slow.endpoint.pool) == ("prefill", "prefill-0.5x")
    token_s = [unit.endpoint.facts["prior"]["prefill"]["token_s"] for unit in (fast, slow)]
    assert token_s[1] == pytest.approx(2 * token_s[0])


def test_noise_is_drawn_from_what_was_passed_in() -> None:
    fleet = published(1, 1, noise=0.1)
    trace = entries((0.0, 8192, 50), (1.0, 8192, 50))
    times = [[life.last_s for life in replay(trace, fleet, rng=Random(seed)).lives] for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]


def test_an_interrupted_run_tells_what_it_has() -> None:
    def progress(arrived: int, now_s: float) -> None:
        if arrived:
            raise KeyboardInterrupt

    run = replay(entries(*((float(i), 1000, 3) for i in range(200))), published(1, 1), progress=progress)
    assert run.interrupted
    assert run.offered == len(run.lives) == 64
    assert all(life.ended_s is not None for life in run.lives)


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_very_short_prompts_keep_their_throughput(dialect: str) -> None:
    """Sent in units, not one by one: 0.95 of what round robin gets by filling the engines' own queues."""
    trace = uniform("short", [(1.0, 1200.0)], 100, 8, Random(1))
    fleet = published(2, 1, dialect=dialect)
    took_s = {
        p: max(life.last_s or 0.0 for life in replay(trace, fleet, p).lives) for p in ("slo", "round-robin")
    }
    assert took_s["slo"] <= took_s["round-robin"] / 0.95


SLICED: dict[str, object] = {**PROFILES["slo"], "late": {"slices": "500ms"}}
"""`slo`, with long prompts computed in slices."""


def _ids(entry: Entry) -> tuple[int, ...]:
    ids = range(entry.prompt_tokens, entry.prompt_tokens + entry.prompt_tokens // 512)
    return tuple(ids)


SLO = SloClass("fast", ttft=Target(1.5, per_cold_prefill=2.0), tpot=Target(0.040))


def test_short_prompts_overtake_between_slices() -> None:
    """A prompt of 19 s, and one of a second that comes right after it: it waits for a slice and no more."""
    given = entries((0.0, 49_152, 5), (0.1, 4_096, 5))
    given = replace(given, entries=tuple(replace(e, ids=_ids(e)) for e in given.entries), block_tokens=512)
    requests = Requests(given, default_class="fast")
    fleet = published(1, 1, dialect="vllm")

    def lives(profile: str | dict[str, object]) -> Sequence[Life]:
        return Replay(requests, fleet, Recipe(profile, bare_router([SLO])).make(512)).run().lives

    (whole, late), (sliced, soon) = lives("slo"), lives(SLICED)
    assert late.refused
    assert soon.ttft_s < 2.0  # type: ignore[operator]
    assert not sliced.refused
    # The same work is done, and some for each of about 40 slices.
    assert sliced.ttft_s < 1.05 * (whole.ttft_s + soon.ttft_s)  # type: ignore[operator]
    assert sliced.cached_tokens > 47_000


traces = st.lists(
    st.builds(
        Entry,
        at_s=st.floats(0.0, 20.0),
        prompt_tokens=st.integers(1, 60_000),
        output_tokens=st.integers(1, 300),
        ids=st.lists(st.integers(0, 2), max_size=20).map(tuple),
        slo_class=st.sampled_from([None, "fast"]),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("profile", ["slo", SLICED, "priced", "predicted-shed"], ids=str)
@settings(max_examples=25, deadline=None)
@given(traces, st.sampled_from(["sglang", "vllm"]), st.booleans())
def test_whatever_comes_ends_once_and_leaves_nothing(
    profile: str | dict[str, object], given_entries: list[Entry], dialect: str, alone_too: bool
) -> None:
    """Every request ends, engines are empty again, and the scheduler's books balance."""
    ordered = tuple(sorted(given_entries, key=lambda e: e.at_s))
    fleet = published(2, 2, int(alone_too), dialect=dialect)
    if alone_too:
        fleet = replace(fleet, units=tuple(_may_prefill(u) for u in fleet.units))
    scheduler = Recipe(profile, bare_router([SLO]), {"use": "stages"}).make(512)
    run = Replay(Requests(Trace("t", ordered, 512)), fleet, scheduler)
    lives = run.run().lives
    assert len(lives) == len(ordered)
    assert Counter(bool(life.refused) == (life.last_s is None) for life in lives) == {True: len(lives)}
    assert len(scheduler.ledger) == 0
    for engine in run.engines.values():
        assert engine.idle
        assert engine.memory.used == 0
    for life in lives:
        if life.last_s is not None:
            assert life.view.arrived_s < life.first_s <= life.last_s  # type: ignore[operator]
            assert life.cached_tokens < life.view.prompt_tokens


def _may_prefill(unit: Unit) -> Unit:
    if unit.endpoint.role is not Role.DECODE:
        return unit
    facts = {**unit.endpoint.facts, "may_prefill": True}
    return replace(unit, endpoint=replace(unit.endpoint, facts=facts))
