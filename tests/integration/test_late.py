"""Late binding on real processes: what waits in the router, what is held between prefill and decode, and that
nothing of it is lost, kept or left, whoever dies, leaves or has no room."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import COMPLETION, WORDS
from crowd import Crowd, completion, crowd, sent, under_way, waiting
from deployment import GUARD_S, Deployment, eventually, sim

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]
Answer = Future[httpx.Response]

RECORD = {"decisions": {"record": "full"}}
ROOM = 4096
"""KV tokens of a decode side that is tight."""

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

            def load():
                return made.endpoints()["decode-0"]["load"]

            eventually(lambda: load()["kv_used_tokens"] > ROOM - 700, load)
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
