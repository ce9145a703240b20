"""Status as data: over the wire and out of `ps --json`."""

from __future__ import annotations

import json
from dataclasses import replace

from orchestrator.core.lifecycle import State
from orchestrator.launch.status import (
    BadPair,
    InstanceStatus,
    Phase,
    Status,
    parse_status,
    ps_object,
    router_last,
)

ONE = InstanceStatus(
    name="p0",
    pool="prefill",
    role="prefill",
    state=State.FATAL,
    url="http://127.0.0.1:1",
    ports={"http": 1},
    log="/x/p0.log",
    exit_code=1,
    failure=("a", "b"),
    circuit="open",
    bad_pairs=("d0", "d1"),
)
PAIR = BadPair("p0", "d0", "it lies")


def test_it_survives_the_wire() -> None:
    status = Status(Phase.FAILED, "n", "http://x", 7, "problem", (ONE,), ("d0 http://y",), (PAIR,))
    assert parse_status(json.loads(json.dumps(status.to_json()))) == status


def test_ps_has_the_fields_it_promises() -> None:
    assert json.loads(json.dumps(ps_object(replace(ONE, circuit=None, bad_pairs=())))) == {
        "name": "p0",
        "pool": "prefill",
        "role": "prefill",
        "state": "fatal",
        "pid": None,
        "url": "http://127.0.0.1:1",
        "ports": {"http": 1},
        "uptime_s": None,
        "restarts": 0,
        "incarnation": 0,
        "exit_code": 1,
        "last_error": "",
        "circuit": None,
        "bad_pairs": [],
    }


def test_the_router_is_last_and_the_engines_keep_their_order() -> None:
    router, b, a = (
        replace(ONE, name=n, role=r) for n, r in (("r", "router"), ("b", "decode"), ("a", "prefill"))
    )
    assert router_last([router, b, a]) == (b, a, router)
