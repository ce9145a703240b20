"""Engines that fail in every way they know, under requests through every hand-off; clients that leave.

What is asked of each: the client is told, in the way that is still possible; nothing stays in flight or
held anywhere; and afterwards everything serves as before. Each case runs in one deployment per hand-off, all
at once, since most of the time is spent waiting for deadlines.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from asking import CHAT, COMPLETION, WORDS, limited
from crowd import sent
from deployment import FLEETS, GIVE_UP, MODEL, Deployment, Fleet, eventually, sim

pytestmark = pytest.mark.integration

TIMEOUTS = {"prefill": "2s", "first_token": "2s", "inter_token": "2s", "total": "8s"}
SLOW = 50
"""Makes a decode step of the simulated engine 30 ms and more: a stream that can be met in the middle."""

Case = Callable[[Fleet], None]
Answer = Callable[[], httpx.Response]


@pytest.fixture(scope="module")
def fleets(
    tmp_path_factory: pytest.TempPathFactory, references: dict[str, httpx.Client]
) -> Iterator[list[Fleet]]:
    """One prefill and one decode instance for each hand-off."""
    with ExitStack() as stack:
        found = []
        for name, (dialect, more) in FLEETS.items():
            settings = {**more, "env": GIVE_UP, "max_restarts": 100}
            settings |= {"lease-s": 60} if dialect == "vllm" else {}
            pools = {role: sim(role, dialect, **settings) for role in ("prefill", "decode")}
            folder = tmp_path_factory.mktemp(f"failing-{name}")
            made = stack.enter_context(Deployment(folder, pools, router={"timeouts": TIMEOUTS}))
            found.append(Fleet(name, dialect, made, references[dialect]))
        together(lambda fleet: fleet.deployment.up(), found)
        yield found


def together(what: Callable[[Fleet], object], fleets: list[Fleet]) -> None:
    """Do something with each deployment, at once."""
    errors: list[Exception] = []
    with ThreadPoolExecutor(len(fleets)) as pool:
        running = [(fleet, pool.submit(what, fleet)) for fleet in fleets]
    for fleet, future in running:
        error = future.exception()
        if isinstance(error, Exception):
            error.add_note(f"in the deployment {fleet.name}")
            errors.append(error)
    if errors:
        raise ExceptionGroup("failed", errors)


def body(tokens: int = 8, *, stream: bool = False, prompt: str = "hello") -> dict[str, Any]:
    """A completion that does not end early."""
    return {**limited(COMPLETION, {"prompt": prompt}, tokens), "ignore_eos": True, "stream": stream}


@contextmanager
def asked(fleet: Fleet, *bodies: dict[str, Any]) -> Iterator[list[Answer]]:
    """Requests under way, each answered when called."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        futures = [pool.submit(fleet.client.post, COMPLETION, json=one) for one in bodies]
        yield [future.result for future in futures]


@contextmanager
def streaming(fleet: Fleet, tokens: int = 400) -> Iterator[Iterator[str]]:
    """The data of a stream that has begun."""
    with fleet.client.stream("POST", COMPLETION, json=body(tokens, stream=True)) as answer:
        assert answer.status_code == 200
        data = (line[6:] for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(next(data))["choices"][0]["text"]
        yield data


def broken(data: Iterator[str]) -> str:
    """Read a stream to its end, which is an error event; its code."""
    rest = list(data)
    assert "[DONE]" not in rest
    error = json.loads(rest[-1])["error"]
    assert error["message"]
    assert error["type"]
    return str(error["code"])


def refused(answer: httpx.Response, status: int, *reasons: str) -> None:
    """The answer is an error of the router's, for one of the reasons."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) in {(status, reason) for reason in reasons}, answer.text
    assert answer.headers["x-pdctl-reason"] == error["code"]
    assert len(answer.headers["x-pdctl-request-id"]) == 32
    assert "127.0.0.1" not in error["message"], "addresses of the inside"


def refused_or_right(fleet: Fleet, request: dict[str, Any], answer: httpx.Response) -> None:
    """A leg has failed before the client had a byte. It was tried again, where the budget that this
    module's many failures share had something left, with an engine that may have failed again."""
    if answer.status_code != 200:
        refused(answer, 502, "connection-dropped")
        return
    right(fleet, request, answer)


def right(fleet: Fleet, request: dict[str, Any], answer: httpx.Response) -> None:
    """The answer is what a unified engine answers."""
    assert answer.status_code == 200, answer.text
    theirs = fleet.unified.post(COMPLETION, json=request)
    if request["stream"]:
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.json()["choices"] == theirs.json()["choices"]


@contextmanager
def dies(fleet: Fleet, name: str) -> Iterator[int]:
    """Within, this process (the pid) comes to its end; wait until another is in its place."""
    pid = fleet.deployment.engine_state(name)["pid"]
    yield pid
    fleet.deployment.replaced(name, pid)


# -- engines that die


def prefill_killed_in_the_middle(fleet: Fleet) -> None:
    """Case 13: decode does not wait for it, and gives its memory back. Who waited in the router goes to its
    successor."""
    made = fleet.deployment
    before = made.endpoints()["prefill-0"]["incarnation"]
    # Too long to go together: one runs, one more may be handed ahead, the others wait.
    requests = [body(stream=n % 2 == 0, prompt=f"{n} {WORDS * 250}") for n in range(6)]
    with (
        dies(fleet, "prefill-0") as pid,
        made.fault("prefill-0", "slow", factor=5000),
        asked(fleet, *requests) as answers,
    ):
        eventually(lambda: made.metrics()["pdctl_inflight_requests"] == 6)
        assert made.metrics()["pdctl_queued_requests"] >= 1
        os.kill(pid, signal.SIGKILL)
        told = [(request, answer()) for request, answer in zip(requests, answers, strict=True)]
        for request, answer in told:
            refused_or_right(fleet, request, answer)
        # One more may have been sent in the very moment.
        assert sum(answer.status_code == 200 for _, answer in told) >= 1
    assert made.endpoints()["prefill-0"]["incarnation"] != before


def decode_killed_in_mid_stream(fleet: Fleet) -> None:
    """Case 26: never a silent end."""
    made = fleet.deployment
    with (
        dies(fleet, "decode-0") as pid,
        made.fault("decode-0", "slow", factor=SLOW),
        streaming(fleet) as data,
        asked(fleet, body(400)) as answers,
    ):
        made.at_work("decode-0", 2)
        os.kill(pid, signal.SIGKILL)
        assert broken(data) == "connection-dropped"
        refused_or_right(fleet, body(400), answers[0]())


def prefill_dies_of_a_request(fleet: Fleet) -> None:
    with dies(fleet, "prefill-0"), fleet.deployment.fault("prefill-0", "die"):
        refused_or_right(fleet, body(), fleet.client.post(COMPLETION, json=body()))


def decode_dies_after_some_tokens(fleet: Fleet) -> None:
    made = fleet.deployment
    with (
        dies(fleet, "decode-0"),
        made.fault("decode-0", "slow", factor=SLOW),
        made.fault("decode-0", "die", after_tokens=30),
        streaming(fleet) as data,
    ):
        assert broken(data) == "connection-dropped"


# -- engines that answer errors


def prefill_answers_errors(fleet: Fleet) -> None:
    errors(fleet, "prefill-0")


def decode_answers_errors(fleet: Fleet) -> None:
    errors(fleet, "decode-0")


def errors(fleet: Fleet, name: str) -> None:
    """Case 13: the client is told what is his fault and what is not; the other leg is not left alone."""
    for status, ours, reasons in [
        (500, 502, ("leg-failed",)),
        (400, 400, ("bad-request",)),
        (429, 429, ("engine-queue-full",)),
        (401, 502, ("engine-auth",)),
        # Tried again elsewhere, of which there is nothing here.
        (503, 503, ("engine-unavailable", "no-capacity")),
    ]:
        with fleet.deployment.fault(name, "error", status=status, message="as was told to"):
            for stream in (False, True):
                answer = fleet.client.post(COMPLETION, json=body(stream=stream))
                refused(answer, ours, *reasons)


# -- engines that hang while their health is good


def prefill_hangs(fleet: Fleet) -> None:
    """Cases 19, 40."""
    with fleet.deployment.fault("prefill-0", "hang"), asked(fleet, body(), body(stream=True)) as answers:
        for answer in answers:
            refused(answer(), 504, "prefill-deadline", "total-deadline")


def decode_hangs(fleet: Fleet) -> None:
    with fleet.deployment.fault("decode-0", "hang"), asked(fleet, body(), body(stream=True)) as answers:
        refused(answers[1](), 504, "first-token-deadline", "prefill-deadline")
        refused(answers[0](), 504, "total-deadline", "prefill-deadline")


def decode_freezes_in_mid_stream(fleet: Fleet) -> None:
    made = fleet.deployment
    with (
        made.fault("decode-0", "slow", factor=SLOW),
        streaming(fleet) as data,
        made.fault("decode-0", "freeze"),
    ):
        assert broken(data) == "inter-token-deadline"


# -- engines that answer nonsense


def decode_truncates_its_stream(fleet: Fleet) -> None:
    """Case 26."""
    made = fleet.deployment
    with (
        made.fault("decode-0", "slow", factor=SLOW),
        made.fault("decode-0", "truncate", after_tokens=5),
        streaming(fleet) as data,
    ):
        assert broken(data) == "stream-truncated"


def connections_are_cut(fleet: Fleet) -> None:
    made = fleet.deployment
    with made.fault("decode-0", "close", after_tokens=5), made.fault("decode-0", "slow", factor=SLOW):
        with streaming(fleet) as data:
            assert broken(data) == "connection-dropped"
        refused(fleet.client.post(COMPLETION, json=body()), 502, "connection-dropped")
    with made.fault("prefill-0", "close"):
        refused_or_right(fleet, body(), fleet.client.post(COMPLETION, json=body()))


def wrong_kv_is_wrong_text(fleet: Fleet) -> None:
    """Case 17: nobody but a comparison can tell; it shows that the comparisons here do."""
    own = body(24, prompt=f"only here {WORDS * 9}")
    with fleet.deployment.fault("decode-0", "garbage"):
        wrong = fleet.client.post(COMPLETION, json=own)
    assert wrong.status_code == 200
    right = fleet.unified.post(COMPLETION, json=own)
    assert wrong.json()["choices"][0]["text"] != right.json()["choices"][0]["text"]


def connections_are_refused(fleet: Fleet) -> None:
    made = fleet.deployment
    with made.fault("prefill-0", "refuse", for_s=30), asked(fleet, body()) as [served]:
        eventually(lambda: not made.endpoints()["prefill-0"]["ready"])
        refused(fleet.client.post(COMPLETION, json=body()), 503, "no-capacity")
        right(fleet, body(), served())


# -- clients that leave


def clients_leave(fleet: Fleet) -> None:
    """Cases 14, 15: at every stage, each with a whole answer, a stream, samples and a batch."""
    made = fleet.deployment
    bodies = [
        (COMPLETION, body(400)),
        (COMPLETION, body(400, stream=True)),
        (COMPLETION, {**body(400, stream=True), "prompt": ["one", "two", "three"]}),
        (COMPLETION, {**body(400), "n": 3}),
        (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}),
    ]
    stages: list[tuple[str, str, dict[str, Any]]] = [
        ("prefill-0", "slow", {"factor": 500}),  # while prefill computes
        ("prefill-0", "hang", {}),  # while prefill does nothing
        ("decode-0", "hang", {}),  # after prefill, decode does nothing
        ("decode-0", "no-kv", {}),  # while KV is on its way
        ("decode-0", "slow", {"factor": SLOW}),  # while decode generates
    ]
    for name, kind, fields in stages:
        with made.fault(name, kind, **fields), ExitStack() as stack:
            for path, one in bodies:
                leaver = stack.enter_context(sent(made, path, one))
                if kind == "slow" and one["stream"] and name == "decode-0":
                    assert leaver.recv(64).startswith(b"HTTP/1.1 200")
            eventually(lambda: made.metrics()["pdctl_inflight_requests"] == len(bodies), made.unrest)
        made.at_rest()
    for cut in (1, 30, -1):
        with sent(made, COMPLETION, body(), cut):
            pass
    with sent(made, COMPLETION, body(400)):
        pass


CASES: list[Case] = [
    *(prefill_killed_in_the_middle, decode_killed_in_mid_stream, prefill_dies_of_a_request),
    *(decode_dies_after_some_tokens, prefill_answers_errors, decode_answers_errors, prefill_hangs),
    *(decode_hangs, decode_freezes_in_mid_stream, decode_truncates_its_stream, connections_are_cut),
    *(wrong_kv_is_wrong_text, connections_are_refused, clients_leave),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_client_is_told_and_afterwards_everything_serves(fleets: list[Fleet], case: Case) -> None:
    together(case, fleets)
    together(serves_as_before, fleets)


def serves_as_before(fleet: Fleet) -> None:
    """Nothing is left of what failed, and answers are right."""
    fleet.deployment.serves()
    fleet.deployment.at_rest()
    one = body(24, prompt="as before")
    ours, theirs = (to.post(COMPLETION, json=one) for to in (fleet.client, fleet.unified))
    assert ours.status_code == 200, ours.text
    assert ours.json()["choices"] == theirs.json()["choices"]
