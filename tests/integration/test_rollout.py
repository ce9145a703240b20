"""`pdctl rollout` on real processes: one at a time under load, across revisions, paused and gone on with."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from asking import COMPLETION
from deployment import MODEL, Deployment, sim

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]


def four(deploy: Deploy) -> Deployment:
    return deploy({r: sim(r, "sglang", 2, **{"page-size": 64}) for r in ("prefill", "decode")}).up()


@contextmanager
def load(made: Deployment) -> Iterator[list[int]]:
    """Requests for as long as the context is open; their statuses."""
    over, seen = threading.Event(), list[int]()

    def ask(_: int) -> None:
        n = 0
        while not over.is_set():
            n += 1
            body = {"model": MODEL, "prompt": f"{n} of many", "max_tokens": 4, "ignore_eos": True}
            seen.append(made.client.post(COMPLETION, json=body).status_code)
            over.wait(0.02)

    with ThreadPoolExecutor(4) as pool:
        asking = pool.map(ask, range(4))
        try:
            yield seen
        finally:
            over.set()
        list(asking)


def changed(made: Deployment, **options: object) -> None:
    for pool in made.topology["pools"].values():
        pool["options"] |= options
    made.write()


def test_both_sides_change_to_what_does_not_go_with_the_old_and_nobody_is_refused(deploy: Deploy) -> None:
    made = four(deploy)
    before = made.pids()
    changed(made, **{"page-size": 32})
    with load(made) as seen:
        done = made.pdctl("rollout", "--watch", "0s")
        assert done.returncode == 0, done.stderr
    assert seen
    assert set(seen) == {200}
    made.serves()
    after = made.pids()
    assert {n for n in after if after[n] == before[n]} == {"router"}
    order = [line.split()[0] for line in done.stderr.splitlines() if " STOPPED" in line]
    assert order == ["prefill-0", "decode-0", "prefill-1", "decode-1"]
    assert made.here("plan", "--diff").returncode == 0


def test_one_pool_alone_which_pauses_when_requests_fail_and_goes_on_from_there(deploy: Deploy) -> None:
    made = four(deploy)
    before = made.pids()
    with load(made):
        changed(made, seed=7, faults=json.dumps([{"kind": "error", "status": 400}]))
        done = made.pdctl("rollout", "decode", "--watch", "14s")
    assert done.returncode == 3
    assert "paused after decode-0: " in done.stderr
    assert "requests failed since the step before; left as they were: decode-1" in done.stderr
    first = made.pids()
    assert {n for n in first if first[n] == before[n]} == {"prefill-0", "prefill-1", "decode-1", "router"}

    for pool in made.topology["pools"].values():
        del pool["options"]["faults"]
    made.write()
    with load(made) as seen:
        assert made.pdctl("rollout", "decode", "--watch", "0s").returncode == 0
    assert seen[-1] == 200
    after = made.pids()
    assert {n for n in after if after[n] == before[n]} == {"prefill-0", "prefill-1", "router"}
    assert after["decode-0"] != first["decode-0"]
    assert "no pool 'nobody' here; there are: prefill, decode" in made.pdctl("rollout", "nobody").stderr
