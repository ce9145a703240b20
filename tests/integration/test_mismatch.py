"""Engines that run and tell otherwise than was planned, or than their peers: told of, and given no work."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from deployment import Deployment, eventually, sim

from orchestrator.core.lifecycle import State

pytestmark = pytest.mark.integration

Deploy = Callable[..., Deployment]

WRONG_PAGES = {
    "sglang": {"server_info": {"page_size": 16}},
    "vllm": {"cache_config": {"block_size": 16}},
}


def pools(dialect: str, **decode: Any) -> dict[str, Any]:
    return {"prefill": sim("prefill", dialect), "decode": sim("decode", dialect, **decode)}


@pytest.mark.parametrize("dialect", WRONG_PAGES)
def test_case_5_a_pair_that_differs_once_it_runs_is_given_nothing(deploy: Deploy, dialect: str) -> None:
    told = json.dumps(WRONG_PAGES[dialect])
    made = deploy(pools(dialect, tells=told))
    done = made.start("up", "--detach")
    try:
        says = "block_size is 16 at decode-0 and 64 at prefill-0 [page-size]"
        eventually(lambda: "decode-0" in made.status() and says in made.status()["decode-0"].detail)
        assert made.status()["decode-0"].state is State.READY
        eventually(lambda: "router" in made.status() and made.status()["router"].state is State.READY)
        eventually(lambda: made.endpoints()["decode-0"]["why"] == says, made.endpoints)
        assert made.endpoints()["decode-0"]["ready"] is False
        answer = made.client.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 1})
        assert answer.status_code == 503
        assert says in made.log("controller")
    finally:
        done.kill()
        done.communicate()


def test_silenced_it_is_used(deploy: Deploy) -> None:
    told = json.dumps(WRONG_PAGES["sglang"])
    made = deploy(pools("sglang", tells=told), silence={"page-size": {"reason": "it only says so"}})
    made.up()
    answer = made.client.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 1})
    assert answer.status_code == 200


def test_an_engine_that_serves_another_model_is_given_up(deploy: Deploy) -> None:
    made = deploy(pools("sglang", tells=json.dumps({"models": {"id": "another"}})))
    done = made.pdctl("up", "--detach")
    assert done.returncode == 3
    says = "decode-0 tells id another, planned was demo [started-otherwise]"
    assert says in done.stderr
    assert made.status()["decode-0"].state is State.FATAL
    assert says in made.status()["decode-0"].last_error


FOREIGN = """
import http.server, sys
class Everything(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): ...
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Everything).serve_forever()
"""


@contextmanager
def foreign(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server of somebody else's on `port`, which says 200 to everything."""
    process = subprocess.Popen([sys.executable, "-c", FOREIGN, str(port)])
    try:
        eventually(lambda: _listens(port))
        yield process
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_of_somebody_else_is_not_taken_for_the_engine(deploy: Deploy) -> None:
    # A minute until it opens its port, as real ones load: time for another to take it.
    made = deploy({"only": sim("unified", **{"load-delay-s": 60, "speed": 5})})
    up = made.start("up", "--detach")
    try:
        eventually(lambda: "only-0" in made.status() and made.status()["only-0"].pid is not None)
        port = made.status()["only-0"].ports["http"]
        with foreign(port) as stranger:
            says = f"port {port} is answered by pid {stranger.pid}"
            eventually(lambda: says in made.status()["only-0"].detail, lambda: made.status()["only-0"])
            assert made.status()["only-0"].state is State.STARTING
            assert "[foreign-process]" in made.status()["only-0"].detail
        eventually(lambda: made.status()["only-0"].state is State.READY)
    finally:
        up.kill()
        up.communicate()
