"""What is recorded of a request that ends, why, and how (decisions, decisionline, promises, figures)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datapath import DONE, Adapter, Rig, answers, build, completion, event, streams

from orchestrator.clock import FakeClock
from orchestrator.core.contracts import Assign, Bind, Reject
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.prefixcheck import PrefixCheck
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import (
    Choice,
    End,
    Outcome,
    PathKind,
    Prediction,
    RequestView,
    Role,
    Route,
    Scored,
)
from orchestrator.metrics import RouterMetrics
from orchestrator.predictor import StagePredictor
from orchestrator.router import decisions, figures
from orchestrator.router.decisionfiles import DecisionFiles, parts
from orchestrator.router.decisions import DecisionLog
from orchestrator.router.desk import Desk
from orchestrator.router.promises import kept
from orchestrator.router.record import Record
from orchestrator.router.stream import Usage
from orchestrator.topology.plan import Decisions

FAST = SloClass("fast", ttft=Target(0.5), tpot=Target(0.08))
ROUTE = Route(decode="d0", prefill="p0")
LOW, HIGH = "0" * 32, "f" * 32
PREDICTED = Prediction(
    at_s=1.0,
    waited_s=0.1,
    wait_s=0.0,
    prefill_s=0.2,
    handoff_s=0.05,
    tail_s=0.6,
    quantile=0.99,
    itl_s=0.02,
    cached_tokens=128,
    due_s=0.5,
)
WHY = (
    Choice(
        Role.PREFILL,
        "p0",
        "p1",
        (
            Scored("p0", 0.25, {"wait": 0.0, "prefill": 0.25}),
            Scored("p1", 0.4, {"wait": 0.15, "prefill": 0.25}),
        ),
        {"p2": "warm-up"},
        ("odd",),
        "seconds",
    ),
)


class Counts:
    """Keeps what the log counts."""

    def __init__(self) -> None:
        self.results: Counter[str] = Counter()
        self.verdicts: list[tuple[str, str]] = []

    def decision(self, result: str, number: int = 1) -> None:
        self.results[result] += number

    def promise(self, slo_class: str, verdict: str) -> None:
        self.verdicts.append((slo_class, verdict))


class Desked:
    """A log in a folder, and what it has written."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.clock = FakeClock(1000.0)
        self.counts = Counts()
        files = DecisionFiles(folder, 10_000_000)
        self.log = DecisionLog(Decisions(**settings), files, self.clock, self.counts)

    def end(self, request_id: str = LOW, end: End = End.COMPLETED, **changes: Any) -> Record:
        """One request ends."""
        record = made(request_id, self.clock.now_s() - 1.0)
        record.end = end
        slo = changes.pop("slo", None)
        for name, value in changes.items():
            setattr(record, name, value)
        self.log.ended(record, record.outcome(self.clock.now_s()), slo)
        return record

    async def lines(self) -> list[dict[str, Any]]:
        """Close the log; what it wrote."""
        await self.log.close()
        text = b"".join(path.read_bytes() for path in parts(self.folder))
        return [json.loads(line) for line in text.splitlines()]


def made(request_id: str, arrived_s: float) -> Record:
    """A request that went well: 0.3 s to its first token, 11 tokens in a second."""
    record = Record(request_id, PathKind.CHAT, arrived_s)
    record.model, record.route = "m", ROUTE
    record.view = RequestView(
        id=request_id,
        model="m",
        path=PathKind.CHAT,
        arrived_s=arrived_s,
        prompt_tokens=300,
        max_tokens=64,
        stream=True,
        slo_class="fast",
        block_hashes=(1, 2**64 - 1),
    )
    record.assign = Assign(request_id, ROUTE, WHY, predicted=PREDICTED)
    for stage, at_s in (("queue", 0.1), ("connect", 0.11), ("prefill", 0.28), ("first_token", 0.3)):
        record.mark(stage, arrived_s + at_s)
    record.first_s, record.ended_s = arrived_s + 0.3, arrived_s + 1.0
    record.mark("decode", record.ended_s)
    record.usage = Usage(310, 11, 128)
    return record


@pytest.fixture
def desk(tmp_path: Path) -> Callable[..., Desked]:
    return lambda **settings: Desked(tmp_path / "decisions", **{"record": "full", **settings})


# -- the line


async def test_a_line_holds_all_that_explains_a_decision_and_no_prompt(desk: Callable[..., Desked]) -> None:
    one = desk()
    one.end(client_id=b"mine", tenant="acme", clamped_from="realtime", slo=FAST)
    [line] = await one.lines()
    assert line["request_id"] == LOW
    assert (line["client_request_id"], line["tenant"], line["clamped_from"]) == ("mine", "acme", "realtime")
    assert (line["arrived_s"], line["recorded"], line["v"]) == (999.0, "full", 1)
    assert (line["prompt_tokens"], line["estimated_tokens"], line["output_tokens"]) == (310, 300, 11)
    assert line["block_hashes"] == ["0000000000000001", "ffffffffffffffff"]
    assert line["blocks"] == 2
    assert line["route"] == {"prefill": "p0", "decode": "d0"}
    assert line["predicted"]["ttft_s"] == pytest.approx(0.35)
    assert line["predicted"]["due_s"] == 0.5
    [choice] = line["choices"]
    assert (choice["chosen"], choice["runner_up"], choice["unit"]) == ("p0", "p1", "seconds")
    assert choice["scored"][1] == {"endpoint": "p1", "total": 0.4, "parts": {"wait": 0.15, "prefill": 0.25}}
    assert (choice["filtered"], choice["fallbacks"]) == ({"p2": "warm-up"}, ["odd"])
    stages = line["stages"]
    assert sum(stages.values()) - stages["decode"] == pytest.approx(line["ttft_s"])
    assert line["promise"]["verdict"] == "kept"
    assert line["promise"]["tpot_s"] == pytest.approx(0.07 / 1)


async def test_hashes_are_as_many_as_the_setting_says(desk: Callable[..., Desked]) -> None:
    one = desk(hashes=1)
    one.end()
    [line] = await one.lines()
    assert (line["block_hashes"], line["blocks"]) == (["0000000000000001"], 2)


async def test_an_engines_words_are_not_kept_and_the_routers_are(desk: Callable[..., Desked]) -> None:
    """An engine may quote the prompt in its message."""
    one = desk()
    one.end(end=End.FAILED, message="bad prompt: my secret", reason="engine-error", status=502)
    reject = Reject(HIGH, "slo-unreachable", "no endpoint in time", 429, 3.25, PREDICTED)
    one.end(
        HIGH,
        End.REFUSED,
        route=None,
        assign=None,
        reject=reject,
        message=reject.message,
        reason=reject.reason,
    )
    failed, refused = await one.lines()
    assert failed["message"] == ""
    assert failed["reason"] == "engine-error"
    assert refused["message"] == "no endpoint in time"
    assert refused["retry_after_s"] == 3.25
    assert refused["admitted"]["ttft_s"] == pytest.approx(0.35)
    assert refused["predicted"] is None
    assert refused["route"] is None


async def test_what_was_refused_at_the_door_is_recorded_without_a_view(desk: Callable[..., Desked]) -> None:
    one = desk()
    one.end(end=End.REFUSED, view=None, assign=None, route=None, status=400, reason="bad-json", stages={})
    [line] = await one.lines()
    assert (line["status"], line["reason"], line["prompt_tokens"]) == (400, "bad-json", 0)
    assert "block_hashes" not in line


async def test_a_decode_side_that_was_bound_later_takes_the_place_of_the_guess(
    desk: Callable[..., Desked],
) -> None:
    one = desk()
    guess, bound = (Choice(Role.DECODE, d, None, (Scored(d, 0.02),), unit="seconds") for d in ("d1", "d0"))
    assign = Assign(LOW, ROUTE, (*WHY, guess), provisional=True)
    one.end(assign=assign, bind=Bind(LOW, ROUTE, why=(bound,)))
    one.end(assign=assign)
    told = [[(c["role"], c["chosen"]) for c in line["choices"]] for line in await one.lines()]
    assert told == [[("prefill", "p0"), ("decode", "d0")], [("prefill", "p0")]]


async def test_attempts_that_failed_are_told_with_their_time(desk: Callable[..., Desked]) -> None:
    one = desk()
    record = made(LOW, 999.0)
    record.reason = "connect-failed"
    record.again(999.5)
    record.route = Route("u0")
    record.mark("queue", 999.6)
    one.log.ended(record, record.outcome(1000.0), None)
    [line] = await one.lines()
    assert line["tries"] == [
        {"route": {"prefill": "p0", "decode": "d0"}, "reason": "connect-failed", "at_s": 0.5}
    ]
    assert line["stages"] == {"retry": 0.5, "queue": 0.1}


# -- which requests


async def test_full_records_all_and_off_none(desk: Callable[..., Desked], tmp_path: Path) -> None:
    off = Desked(tmp_path / "off", record="off")
    for end in (End.COMPLETED, End.REFUSED):
        off.end(end=end)
    assert not off.log.wants(LOW)
    assert await off.lines() == []
    full = desk()
    assert full.log.wants(HIGH)
    for _ in range(50):
        full.end(HIGH)
    assert len(await full.lines()) == 50
    assert full.counts.results == {"written": 50}


async def test_a_sample_goes_by_the_id_and_what_went_wrong_is_always_in_it(
    desk: Callable[..., Desked],
) -> None:
    one = desk(record="sampled", sample=0.25)
    while one.log._quiet.take(1000.0):
        pass
    assert one.log.wants(LOW)
    assert not one.log.wants(HIGH)
    for number in range(256):
        one.end(f"{number:02x}" + "0" * 30)
    for end in (End.REFUSED, End.FAILED, End.BROKEN, End.CANCELLED):
        one.end(HIGH, end)
    slow = made(HIGH, 999.0)
    slow.first_s = 999.9
    one.log.ended(slow, slow.outcome(1000.0), FAST)
    lines = await one.lines()
    assert Counter(line["recorded"] for line in lines) == {
        "sample": 64, "refused": 1, "failed": 1, "broken": 1, "slo-missed": 1
    }  # fmt: skip


async def test_in_a_quiet_deployment_all_are_recorded(desk: Callable[..., Desked]) -> None:
    one = desk(record="sampled", sample=0.001)
    for _ in range(30):
        assert one.log.wants(HIGH)
        one.end(HIGH)
        one.clock.advance(0.1)
    for _ in range(100):
        one.end(HIGH)
    lines = await one.lines()
    assert {line["recorded"] for line in lines} == {"quiet"}
    assert 30 < len(lines) <= 30 + decisions.QUIET_RATE


async def test_a_storm_of_refusals_is_bounded_and_counted(desk: Callable[..., Desked]) -> None:
    one = desk(record="sampled", sample=0.001)
    for _ in range(1000):
        one.end(HIGH, End.REFUSED)
    assert len(await one.lines()) == decisions.NOTABLE_RATE
    assert one.counts.results == {"written": 200, "rate": 800}


# -- what may go wrong


async def test_a_disk_that_takes_nothing_costs_records_and_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Desked(tmp_path / "taken", record="full")
    (tmp_path / "taken").write_bytes(b"")
    for _ in range(3):
        one.end()
    await one.log.close()
    assert one.counts.results == {"disk": 3}
    assert "decisions are not recorded" in caplog.text


async def test_more_than_fits_into_memory_is_dropped_and_counted(desk: Callable[..., Desked]) -> None:
    one = desk()
    record = made(LOW, 999.0)
    outcome = record.outcome(1000.0)
    for _ in range(decisions.MAX_PENDING + 7):
        one.log.ended(record, outcome, None)
    assert one.counts.results == {"overflow": 7}


async def test_lines_are_written_while_the_router_runs(desk: Callable[..., Desked]) -> None:
    one = desk()
    one.end()
    async with asyncio.timeout(20):
        while not one.counts.results["written"]:  # noqa: ASYNC110  a thread tells nobody
            await asyncio.sleep(0.01)
    one.end(HIGH)
    assert [line["request_id"] for line in await one.lines()] == [LOW, HIGH]


# -- promises


def outcome(ttft: float | None, e2e: float, tokens: int | None = 11, end: End = End.COMPLETED) -> Outcome:
    return Outcome(LOW, end, 200, output_tokens=tokens, ttft_s=ttft, e2e_s=e2e)


@pytest.mark.parametrize(
    ("slo", "due_s", "what", "verdict"),
    [
        (FAST, None, outcome(0.4, 0.9), "kept"),
        (FAST, None, outcome(0.6, 0.9), "missed-ttft"),
        (FAST, 1.0, outcome(0.6, 1.0), "kept"),
        (FAST, 0.3, outcome(0.4, 0.9), "missed-ttft"),
        (FAST, None, outcome(0.4, 1.3), "missed-tpot"),
        (FAST, None, outcome(0.4, 9.0, 1), "kept"),
        (FAST, None, outcome(0.4, 9.0, None), "kept"),
        (FAST, None, outcome(None, 9.0), "unjudged"),
        (FAST, None, outcome(None, 0.1, end=End.REFUSED), "refused"),
        (FAST, None, outcome(0.1, 0.2, end=End.BROKEN), "broken"),
        (SloClass("x", ttft=Target(0.5, per_cold_prefill=2)), None, outcome(9.0, 9.0), "unjudged"),
        (SloClass("x", itl=Target(0.05)), None, outcome(9.0, 9.1), "kept"),
        (SloClass("x", itl=Target(0.05)), None, outcome(1.0, 9.1), "missed-tpot"),
        (SloClass("x", e2e=Target(5.0)), 1.0, outcome(4.0, 4.9), "kept"),
        (SloClass("x", e2e=Target(5.0)), 1.0, outcome(None, 5.1), "missed-e2e"),
    ],
)
def test_promises(slo: SloClass, due_s: float | None, what: Outcome, verdict: str) -> None:
    found = kept(slo, what, due_s)
    assert found is not None
    assert found.verdict == verdict
    assert found.missed == verdict.startswith("missed-")


def test_whoever_leaves_or_is_promised_nothing_is_not_judged() -> None:
    assert kept(FAST, outcome(None, 1.0, end=End.CANCELLED), None) is None
    assert kept(SloClass("none"), outcome(9.0, 9.0), None) is None


def test_the_gaps_of_several_answers_are_nobodys() -> None:
    found = kept(FAST, outcome(0.4, 9.0), None, n=2)
    assert found is not None
    assert (found.verdict, found.tpot_s) == ("kept", None)


async def test_promises_are_counted_whatever_is_recorded(desk: Callable[..., Desked]) -> None:
    one = desk(record="off")
    one.end(slo=FAST, stages={})
    one.end(end=End.REFUSED, slo=FAST)
    one.end(slo=None)
    assert one.counts.verdicts == [("fast", "kept"), ("fast", "refused")]


# -- reasons are asked in time


class Explaining:
    """A scheduler whose decisions can be explained until it is called again."""

    def __init__(self) -> None:
        self.calls = 0
        self.asked: list[str] = []
        self.waiting: list[str] = []

    def decide(self, request_id: str) -> Assign:
        now = self.calls

        def explain() -> tuple[Choice, ...]:
            assert self.calls == now, "the scheduler was called meanwhile"
            self.asked.append(request_id)
            if request_id == "bad":
                raise ValueError("a bug")
            return WHY

        return Assign(request_id, ROUTE, explain=explain)

    def submit(self, request: RequestView, now_s: float) -> Sequence[Assign]:
        self.calls += 1
        self.waiting.append(request.id)
        if len(self.waiting) < 3:
            return ()
        waiting, self.waiting = self.waiting, []
        return [self.decide(one) for one in waiting]

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Assign]:
        self.calls += 1
        return ()

    def due_s(self) -> float | None:
        return None


async def test_only_what_will_be_recorded_is_asked_for_its_reasons_and_before_anything_else_happens() -> None:
    scheduler = Explaining()
    desk = Desk(scheduler, FakeClock(), lambda request_id: request_id != "skip")  # type: ignore[arg-type]
    heard: dict[str, Assign] = {}

    def told(decision: Any) -> None:
        heard[decision.request_id] = decision
        desk.finish(Outcome(decision.request_id, End.COMPLETED, 200))  # calls the scheduler from within

    for request_id in ("skip", "bad", "good"):
        desk.submit(replace(made(LOW, 0.0).view, id=request_id), told)  # type: ignore[type-var]
    assert scheduler.asked == ["bad", "good"]
    assert heard["good"].why == WHY
    assert heard["skip"].why == heard["bad"].why == ()


# -- headers

Make = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    rigs: list[Rig] = []

    async def build_one(**options: Any) -> Rig:
        rig = await build(**options)
        rigs.append(rig)
        for engine in rig.engines.values():
            prefill = engine.role is Role.PREFILL
            engine.script = answers(200, b'{"kv":[1]}') if prefill else answers(200, completion("x"))
        return rig

    yield build_one
    for rig in rigs:
        await rig.at_rest()
        await rig.close()


ASK = {"model": "m", "prompt": "hi"}
ASKED = {"x-pdctl-explain": "1"}
TOLD = {"x-pdctl-route", "x-pdctl-queue-s"}


def explained(reply: Any) -> set[str]:
    return {name for name in reply.headers if name.startswith("x-pdctl-")} - {"x-pdctl-request-id"}


async def test_an_answer_tells_of_its_decision_if_it_is_asked_to(make: Make) -> None:
    rig = await make(slo_classes={"gold": {"ttft": {"seconds": 1.0}}})
    assert explained(await rig.ask("/v1/completions", ASK)) == set()
    reply = await rig.ask("/v1/completions", ASK, headers={**ASKED, "x-pdctl-class": "gold"})
    assert explained(reply) == {*TOLD, "x-pdctl-class"}
    assert reply.headers["x-pdctl-route"] == "p0>d0"
    assert reply.headers["x-pdctl-class"] == "gold"
    assert float(reply.headers["x-pdctl-queue-s"]) >= 0
    rig.engines["d0"].script = streams(event("a"), DONE)
    assert explained(await rig.ask("/v1/completions", {**ASK, "stream": True}, headers=ASKED)) == TOLD


async def test_an_answer_of_several_items_and_a_refusal_tell_of_it_too(make: Make) -> None:
    rig = await make(adapter=Adapter(splits=True))
    assert explained(await rig.ask("/v1/completions", {**ASK, "n": 2}, headers=ASKED)) == TOLD
    rig.scheduler.reject = Reject("", "slo-unreachable", "not in time", 429, 2.0, PREDICTED)
    reply = await rig.ask("/v1/completions", ASK, headers=ASKED)
    assert reply.status == 429
    assert explained(reply) == {
        "x-pdctl-reason", "x-pdctl-queue-s", "x-pdctl-predicted-ttft-s", "x-pdctl-due-s"
    }  # fmt: skip
    assert float(reply.headers["x-pdctl-predicted-ttft-s"]) == pytest.approx(0.35)


@pytest.mark.parametrize(("setting", "told"), [("always", TOLD), ("never", set())])
async def test_the_operator_may_have_it_always_or_never(make: Make, setting: str, told: set[str]) -> None:
    rig = await make(decisions=Decisions(headers=setting))
    headers = {} if setting == "always" else ASKED
    assert explained(await rig.ask("/v1/completions", ASK, headers=headers)) == told


# -- figures


def test_what_the_index_counts_becomes_metrics() -> None:
    check = PrefixCheck(PrefixIndex(), 128)
    metrics = RouterMetrics(["m"], FakeClock(), "0")
    figures.follow(metrics, lambda: check, StagePredictor(), lambda: {("good",): 1.0})
    for _ in range(2):
        view = replace(made(LOW, 0.0).view, block_hashes=(1, 2))  # type: ignore[type-var]
        check.sent(view, "p0", 16)
        check.ended(Outcome(LOW, End.COMPLETED, 200, prompt_tokens=300, cached_tokens=0))
    text = metrics.render().decode()
    assert 'pdctl_prefix_hit_tokens_total{model="m"} 0.0' in text
    assert 'pdctl_prefix_ceiling_tokens_total{model="m"} 256.0' in text
    assert 'pdctl_prefix_predicted_tokens_total{endpoint="p0"} 256.0' in text
    assert 'pdctl_prefix_wrong_tokens_total{endpoint="p0"} 256.0' in text
    assert 'pdctl_prefix_blocks{endpoint="p0"} 2.0' in text
