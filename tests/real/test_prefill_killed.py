"""Prefill killed with -9 under load: nothing hangs or ends in silence, and the supervisor brings it back."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
from asks import OUTPUT, TIMEOUT_S, Ask, ask_for, completion, events, read, read_stream, tokens
from pair import Pair
from running import eventually

CLIENTS = 6
AFTER_S = 4.0
"""How long the load goes on after the kill."""
LOAD = [("completion", 3_000), ("chat", 500), ("completion", 1_500), ("chat", 3_000)]

INFLIGHT = "pdctl_endpoint_inflight_requests"
LONG_OUTPUT = 1_500
LONG = completion(tokens(500), max_tokens=LONG_OUTPUT)
"""What decode is busy with all the while, and prefill has done its part of."""

RIGHT, REFUSED, EVENT = "right", "error status", "error event"
GOOD_ENDS = {RIGHT, REFUSED, EVENT}


def end_of(pair: Pair, key: tuple[str, int], stream: bool) -> str:
    """How one request ended: one of the good ends, or what was wrong with it."""
    ask = ask_for(*key)
    ask = pair.family.streamed(ask) if stream else ask
    try:
        response = pair.client.post(ask.path, json=ask.body, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return f"{key} stream={stream}: {error!r}"
    return classify(pair, key, ask, response)


def classify(pair: Pair, key: tuple[str, int], ask: Ask, response: httpx.Response) -> str:
    """See end_of."""
    said = f"{key} stream={ask.stream}: {response.status_code} {response.text[-300:]}"
    if response.status_code >= 500:
        error = response.json().get("error", {})
        return REFUSED if error.get("message") and response.headers.get("x-pdctl-reason") else said
    if response.status_code != 200:
        return said
    if ask.stream:
        told = list(events(response.text.splitlines()))
        if told and "error" in told[-1]:
            return EVENT
        if "data: [DONE]" not in response.text:
            return said
    told_answer = read_stream(response.text) if ask.stream else read(json.loads(response.text))
    return RIGHT if told_answer.agrees(pair.reference.answers[key]) else f"wrong answer: {said}"


def client(pair: Pair, index: int, stop: threading.Event, ends: list[str]) -> None:
    """Ask again and again, with a breath after each error, as clients do."""
    turn = index
    while not stop.is_set():
        ends.append(end_of(pair, LOAD[turn % len(LOAD)], stream=turn % 2 == 0))
        turn += 1 if index % 2 else 3
        if ends[-1] != RIGHT:
            stop.wait(0.3)


def test_prefill_killed_under_load(pair: Pair) -> None:
    ends: list[str] = []
    stop = threading.Event()
    with ThreadPoolExecutor(CLIENTS + 1) as threads:
        decoding = threads.submit(pair.ask, pair.family.streamed(LONG))
        running = [threads.submit(client, pair, index, stop, ends) for index in range(CLIENTS)]
        try:
            eventually(lambda: len(ends) >= 2 * CLIENTS, "the load runs")
            assert set(ends) == {RIGHT}, Counter(ends)
            assert not decoding.done()
            eventually(lambda: pair.router(INFLIGHT, endpoint="prefill-0"), "prefill has work")
            pair.processes["prefill-0"].send_signal(signal.SIGKILL)
            time.sleep(AFTER_S)
        finally:
            stop.set()
        for one in running:
            one.result(timeout=TIMEOUT_S)
        unharmed = decoding.result(timeout=TIMEOUT_S)
    bad = [end for end in ends if end not in GOOD_ENDS]
    assert not bad, bad
    first = (unharmed.choices[0].tokens or ())[:OUTPUT]
    assert first == pair.reference.answers["completion", 500].choices[0].tokens
    assert unharmed.output_tokens == LONG_OUTPUT
    assert_back(pair)


def assert_back(pair: Pair) -> None:
    """Restarted once, everything ready, and the answers right."""

    def found() -> dict[str, tuple[str, int]]:
        return {name: (one["state"], one["restarts"]) for name, one in pair.deployment.ps().items()}

    eventually(
        lambda: found()["prefill-0"] == ("ready", 1), "prefill is ready again", within_s=300.0, every_s=2.0
    )
    assert found() == {"prefill-0": ("ready", 1), "decode-0": ("ready", 0), "router": ("ready", 0)}
    assert not [mark for mark in pair.deployment.marked().values() if mark.endswith("/prefill-0/1")]
    eventually(lambda: pair.client.get("/ready").status_code == 200, "the router has joined it")
    for way in pair.family.ways:
        for size in (33, 3_000):
            told, expected = pair.ask(ask_for(way, size)), pair.reference.answers[way, size]
            assert told.agrees(expected), f"{told}\nunified: {expected}"
    pair.wait_until_idle()
