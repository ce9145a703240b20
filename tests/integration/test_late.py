"""Late binding on real processes: what waits in the router, what is held between prefill and decode, and that
nothing of it is lost, kept or left, whoever dies, leaves or has no room."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import COMPLETION, WORDS
from crowd import Crowd, completion, crowd, sent, under_way, waiting
from deployment import FLEETS, GIVE_UP, GUARD_S, Deployment, eventually, sim

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]
Answer = Future[httpx.Response]

RECORD = {"decisions": {"record": "full"}}
ROOM = 4096
"""KV tokens of a decode side that is tight."""

TOLD = {(502, "connection-dropped"), (502, "connect-failed"), (502, "leg-failed"), (503, "no-capacity")}
"""What clients of an engine that has died are told."""

BIG = completion(WORDS * 120, 64)
"""Needs a third of that."""


def right(answer: httpx.Response, body: Mapping[str, Any], references: Mapping[str, httpx.Client]) -> None:
    """What a unified engine answers."""
    assert answer.status_code == 200, answer.text
    theirs = references["vllm"].post(COMPLETION, json=body)
    assert answer.json()["choices"][0]["text"] == theirs.json()["choices"][0]["text"]


def record(made: Deployment, answer: httpx.Response) -> dict[str, Any]:
    """What the router recorded of a request."""
    found: list[str] = []

    def there() -> bool:
        found[:] = made.pdctl("explain", answer.headers["x-pdctl-request-id"], "--json").stdout.splitlines()
        return bool(found)

    eventually(there)
    return dict(json.loads(found[0]))


# -- vLLM over NIXL: decode is named when prefill is done


def tight(folder: Path, lease_s: int) -> Deployment:
    """A pair over NIXL whose decode side has little memory; leases of so many simulated seconds."""
    pools = {
        "prefill": sim("prefill", "vllm", transfer="nixl", **{"lease-s": lease_s}),
        "decode": sim("decode", "vllm", transfer="nixl", **{"lease-s": lease_s, "kv-tokens": ROOM}),
    }
    return Deployment(folder, pools, scheduling=RECORD)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Its leases are a minute long."""
    with tight(tmp_path_factory.mktemp("tight"), 1200) as made:
        yield made.up()


@contextmanager
def occupied(made: Deployment) -> Iterator[None]:
    """Somebody else has nearly all of decode's memory, and the router knows."""
    with httpx.Client(base_url=made.engines()["decode-0"], timeout=GUARD_S, trust_env=False) as other:
        ids = [256 + n % 150 for n in range(ROOM - 600)]
        own = {**completion(tokens=500), "prompt": ids}
        with made.fault("decode-0", "slow", factor=50), stream(other, own), made.fault("decode-0", "freeze"):
            eventually(lambda: made.endpoints()["decode-0"]["load"]["kv_used_tokens"] > ROOM - 700)
            yield


@contextmanager
def stream(client: httpx.Client, body: Mapping[str, Any]) -> Iterator[None]:
    """A stream that has begun, and is cut at the end."""
    with client.stream("POST", COMPLETION, json={**body, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines)
        yield
        del lines  # not before: it closes the stream


@contextmanager
def held(made: Deployment, people: Crowd) -> Iterator[Answer]:
    """A request whose prefill is done, and for which decode has no room."""
    with ExitStack() as stack:
        with made.fault("prefill-0", "freeze"):
            answer = people.ask(BIG)
            made.at_work("prefill-0")
            stack.enter_context(occupied(made))
        eventually(lambda: made.engine_state("prefill-0")["load"]["held"] == 1)
        yield answer


def test_more_than_decode_can_hold_is_served_bit_by_bit(
    pair: Deployment, references: dict[str, httpx.Client]
) -> None:
    bodies = [completion(f"{n} {WORDS * 100}", 200) for n in range(12)]
    with crowd(pair) as people:
        answers = [people.ask(body) for body in bodies]
        for body, answer in zip(bodies, answers, strict=True):
            right(answer.result(), body, references)
    pair.at_rest(well=True)
    assert pair.engine_state("prefill-0")["counters"]["expired"] == 0
    assert pair.engine_state("decode-0")["counters"]["preemptions"] == 0


def test_decode_is_bound_when_room_appears(pair: Deployment, references: dict[str, httpx.Client]) -> None:
    with crowd(pair) as people:
        with held(pair, people) as answer:
            assert (under_way(pair), waiting(pair)) == (1, 0)
            # Whoever comes now is not even prefilled.
            behind = people.ask(BIG)
            eventually(lambda: waiting(pair) == 1)
            assert not answer.done()
        for one in (answer, behind):
            right(one.result(), BIG, references)
    told = record(pair, answer.result())
    assert told["stages"]["bind"] > 0
    assert [(one["role"], one["chosen"]) for one in told["choices"]] == [
        ("prefill", "prefill-0"),
        ("decode", "decode-0"),
    ]
    pair.at_rest(well=True)


def test_who_leaves_while_held_frees_the_hand_off(pair: Deployment) -> None:
    """Long before its lease would end."""
    expired = pair.engine_state("prefill-0")["counters"]["expired"]
    with ExitStack() as stack:
        with pair.fault("prefill-0", "freeze"):
            leaver = stack.enter_context(sent(pair, COMPLETION, BIG))
            pair.at_work("prefill-0")
            stack.enter_context(occupied(pair))
        eventually(lambda: pair.engine_state("prefill-0")["load"]["held"] == 1)
        leaver.close()
        eventually(lambda: under_way(pair) == 0)
    pair.at_rest()
    assert pair.engine_state("prefill-0")["counters"]["expired"] == expired


def test_who_leaves_while_queued_leaves_nothing(pair: Deployment) -> None:
    with crowd(pair) as people, ExitStack() as stack:
        with pair.fault("prefill-0", "freeze"):
            first = people.fill()
            here = waiting(pair)
            leavers = [stack.enter_context(sent(pair, COMPLETION, BIG)) for _ in range(5)]
            eventually(lambda: waiting(pair) == here + 5)
            for leaver in leavers:
                leaver.close()
            eventually(lambda: waiting(pair) == here)
            assert under_way(pair) == len(first)
        assert [one.result().status_code for one in first] == [200] * len(first)
    pair.at_rest(well=True)


def test_what_is_held_is_prefilled_again_when_its_engine_has_died(
    pair: Deployment, references: dict[str, httpx.Client]
) -> None:
    with crowd(pair) as people:
        with held(pair, people) as answer:
            pid = pair.engine_state("prefill-0")["pid"]
            os.kill(pid, signal.SIGKILL)
            pair.replaced("prefill-0", pid)
            eventually(lambda: waiting(pair) == 1)
        right(answer.result(), BIG, references)
    assert [one["reason"] for one in record(pair, answer.result())["tries"]] == ["handoff-lost"]
    pair.at_rest()


def test_a_hand_off_that_nobody_took_is_prefilled_again(
    tmp_path: Path, references: dict[str, httpx.Client]
) -> None:
    """Not past half of its lease, which is two seconds here."""
    with tight(tmp_path / "short", 40) as made, crowd(made.up()) as people:
        with held(made, people) as answer:
            eventually(lambda: waiting(made) == 1)
            eventually(lambda: made.engine_state("prefill-0")["load"]["held"] == 0)
            assert not answer.done()
        right(answer.result(), BIG, references)
        told = record(made, answer.result())
        assert [one["reason"] for one in told["tries"]] == ["handoff-expired"]
        assert told["stages"]["retry"] > 0
        made.at_rest()


# -- SGLang: prefill answers when its KV has been fetched, long after it was computed


def test_prefill_goes_on_while_a_transfer_lasts(deploy: Deploy) -> None:
    """Its leg has not ended yet; that it is computed is read from its load."""
    pools = {role: sim(role, transfer="mooncake_tcp", speed=2) for role in ("prefill", "decode")}
    made = deploy(pools).up()

    def both() -> bool:
        load = made.engine_state("prefill-0")["load"]
        return bool(load["held"] and load["prefilling"])

    with crowd(made) as people:
        # A second of prefill each, which is too long to be handed ahead, and half a second of transfer.
        answers = [people.ask(completion(f"{n} {WORDS * 700}", 2)) for n in range(4)]
        eventually(both)
        assert [one.result().status_code for one in answers] == [200] * 4
    made.at_rest(well=True)


# -- engines that die while requests wait in the router


@pytest.mark.parametrize("name", ["nixl", "sglang"])
@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_who_waits_outlives_an_engine(
    tmp_path: Path, references: dict[str, httpx.Client], name: str, victim: str
) -> None:
    """Served by another or its successor; those that were on it are told. Nobody is told nothing."""
    dialect, more = FLEETS[name]
    pools = {
        "prefill": sim("prefill", dialect, 2, env=GIVE_UP, **more),
        "decode": sim("decode", dialect, env=GIVE_UP, **more),
    }
    bodies = [completion(f"{n} {WORDS * 150}", 16) for n in range(16)]
    with Deployment(tmp_path / "dying", pools) as made, crowd(made.up()) as people:
        with made.fault("prefill-0", "slow", factor=200), made.fault("prefill-1", "slow", factor=200):
            answers = [people.ask(body) for body in bodies]
            eventually(lambda: under_way(made) == len(bodies) and waiting(made) > 0)
            there, pid = waiting(made), made.engine_state(victim)["pid"]
            os.kill(pid, signal.SIGKILL)
            made.replaced(victim, pid)
        told = [one.result() for one in answers]
        for body, answer in zip(bodies, told, strict=True):
            if answer.status_code == 200:
                right(answer, body, references)
            else:
                assert (answer.status_code, answer.headers["x-pdctl-reason"]) in TOLD, answer.text
        # One or two more may have been sent in the very moment.
        assert sum(answer.status_code == 200 for answer in told) >= there - 2
        made.at_rest()


# -- promises and limits


def test_what_cannot_be_kept_is_refused_early_and_the_others_are_kept(deploy: Deploy) -> None:
    made = deploy(
        {"prefill": sim("prefill", speed=2), "decode": sim("decode", speed=2)},
        slo_classes={"chat": {"ttft": {"p50": "4s"}}},
        scheduling=RECORD,
    ).up()
    # Half a second of prefill each.
    bodies = [completion(f"{n} {WORDS * 380}", 4, stream=n % 2 == 0) for n in range(20)]
    with crowd(made) as people:
        calm = people.ask(completion("no promise"))
        answers = [people.ask(body, x_pdctl_class="chat", x_pdctl_explain="1") for body in bodies]
        told = [one.result() for one in answers]
        assert calm.result().status_code == 200
    refused = [answer for answer in told if answer.status_code != 200]
    served = len(told) - len(refused)
    assert served >= 3
    assert len(refused) >= 3
    for answer in refused:
        assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (429, "slo-unreachable")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "slo-unreachable"
        assert "class 'chat' promises the first token within 4.00 s" in answer.json()["error"]["message"]
    verdicts = 'pdctl_slo_requests_total{slo_class="chat",verdict="%s"}'
    words = ("kept", "missed-ttft", "unjudged", "refused")
    counts = {word: made.metrics().get(verdicts % word, 0) for word in words}
    assert counts["refused"] == len(refused)
    # Of an answer in one piece nobody knows when its first token was there.
    assert counts["unjudged"] == sum(n % 2 for n, answer in enumerate(told) if answer.status_code == 200)
    assert counts["kept"] + counts["missed-ttft"] + counts["unjudged"] == served
    assert counts["missed-ttft"] <= 2
    made.at_rest(well=True)


def test_a_tenant_has_its_own_limits(deploy: Deploy) -> None:
    made = deploy(
        tenants={
            "blue": {"keys": ["${env:BLUE_KEY}"], "max_inflight": 6, "max_queued": 2},
            "red": {"keys": ["${env:RED_KEY}"], "rate": {"per_second": 0.01, "burst": 3}},
        },
    )
    made.env |= {"BLUE_KEY": "blue-0123456789", "RED_KEY": "red-0123456789"}
    blue, red = ({"authorization": f"Bearer {made.env[f'{who}_KEY']}"} for who in ("BLUE", "RED"))
    made.up()

    def refused(answer: Answer, reason: str) -> None:
        told = answer.result()
        assert (told.status_code, told.headers["x-pdctl-reason"]) == (429, reason), told.text
        assert int(told.headers["retry-after"]) >= 1

    with crowd(made) as people:
        with made.fault("prefill-0", "freeze"):
            first = people.fill(**red)
            kept = [people.ask(completion(), **blue) for _ in range(2)]
            eventually(lambda: waiting(made) == 3)
            for _ in range(2):
                refused(people.ask(completion(), **blue), "tenant-queue")
            red_left = 3 - len(first)
            kept += [people.ask(completion(), **red) for _ in range(red_left)]
            eventually(lambda: waiting(made) == 3 + red_left)
            refused(people.ask(completion(), **red), "tenant-rate")
            assert under_way(made) == len(first) + len(kept)
        assert {one.result().status_code for one in (*first, *kept)} == {200}
    made.at_rest(well=True)


# -- short prompts


def test_short_prompts_keep_the_throughput_of_round_robin(tmp_path: Path) -> None:
    """They go together in units; the simulated engines tell how long it took them all in their own time."""

    def round_s(made: Deployment, turn: int) -> float:
        ids = (list(range(1000 * turn + n, 1000 * turn + n + 100)) for n in range(320))
        bodies = [{**completion(tokens=1), "prompt": one} for one in ids]
        began_s = made.engine_state("prefill-0")["now_s"]
        with ExitStack() as stack:
            clients = [stack.enter_context(sent(made, COMPLETION, body)) for body in bodies]
            assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}
            return float(made.engine_state("prefill-0")["now_s"] - began_s)

    pools = {"prefill": sim("prefill", instances=2, speed=1), "decode": sim("decode", speed=1)}
    with ExitStack() as stack:
        profiles = ("round-robin", "default")
        fleets = [
            stack.enter_context(Deployment(tmp_path / name, pools, scheduling={"profile": name})).up()
            for name in profiles
        ]
        took = [[round_s(made, turn) for made in fleets] for turn in range(1, 3)]
    robin_s, late_s = (min(times) for times in zip(*took, strict=True))
    assert robin_s / late_s >= 0.95, took
