"""Who answers at a unit's port, what it tells of itself, and what of that is shown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.fabric.ports import Holder
from orchestrator.launch.identity import Identities, Wrong
from orchestrator.launch.process import MARK
from orchestrator.launch.testing import instance, plan
from orchestrator.launch.testing import router as router_plan
from orchestrator.launch.unit import Unit, units_of

SERVE = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(3600)
"""


def units(tmp_path: Path, **changes: Any) -> dict[str, Unit]:
    """A pair that is to serve `m`, by SGLang's adapter."""
    made = plan(
        tmp_path,
        *(
            instance(
                role.value[0], role, 20000 + i, ["x"], engine="sglang", expects={"id": "m"}, **changes
            )
            for i, role in enumerate((Role.PREFILL, Role.DECODE))
        ),
        router=router_plan(1, 2, ["router"]),
    )  # fmt: skip
    return units_of(made)


def at(unit: Unit, port: int) -> Unit:
    return replace(unit, url=f"http://127.0.0.1:{port}")


async def test_a_port_of_ones_own_is_no_strangers(tmp_path: Path) -> None:
    unit = units(tmp_path)["p"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = Identities()
        assert await found.foreign(at(unit, port), [os.getpid()]) is None
        assert await found.foreign(at(unit, port), [os.getppid()]) is None  # a child of the leader
        wrong = await found.foreign(at(unit, port), [1 << 22])
        assert wrong is not None
        assert not wrong.hopeless
        assert f"port {port} is answered by pid {os.getpid()} (" in wrong.text
        assert wrong.text.endswith("which is no process of p's [foreign-process]")
        # Who starts engines by a program of his own has them anywhere; the router is looked after elsewhere.
        assert await found.foreign(at(replace(unit, wrapped=True), port), [1 << 22]) is None
        assert await found.foreign(at(units(tmp_path)["router"], port), [1 << 22]) is None


@pytest.mark.parametrize(
    ("mark", "ours"), [("state/p/3", True), ("state/d/3", False), ("other/p/3", False), ("", False)]
)
def test_the_marker_says_whose_a_process_is(tmp_path: Path, mark: str, ours: bool) -> None:
    env = {"PATH": os.environ["PATH"]} | ({MARK: mark} if mark else {})
    words = [sys.executable, "-c", SERVE]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        asked = Identities("state").foreign(at(units(tmp_path)["p"], port), [1 << 22])
        assert (asyncio.run(asked) is None) is ours
        server.kill()


async def test_what_cannot_be_seen_is_let_pass(tmp_path: Path) -> None:
    unit = units(tmp_path)["p"]
    for seen in ([], [Holder(20000)]):
        assert await Identities(who=lambda host, port, seen=seen: seen).foreign(unit, [1]) is None


def test_what_it_tells_is_held_against_the_plan(tmp_path: Path) -> None:
    unit, told = units(tmp_path)["p"], Identities()
    assert told.learn(unit, "not loaded yet") == Wrong("not loaded yet")
    assert not told.knows("p")
    assert told.learn(unit, {"id": "x"}) == Wrong("p tells id x, planned was m [started-otherwise]", True)
    assert told.learn(unit, {"id": "m"}) is None
    assert told.knows("p")
    assert told.about("p") == []
    told.forget(replace(unit))
    assert told.knows("p")  # another of the name
    told.forget(unit)
    assert not told.knows("p")
    assert told.about("p") == []


def test_what_it_tells_is_held_against_its_peers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, told = units(tmp_path), Identities()
    told.learn(made["p"], {"id": "m", "block_size": 64, "version": "0.5.23"})
    assert told.about("p") == []
    with caplog.at_level(logging.WARNING):
        assert told.learn(made["d"], {"id": "m", "block_size": 1, "version": "0.5.22"}) is None
    says = [
        "block_size is 1 at d and 64 at p [page-size]",
        "version is 0.5.22 at d and 0.5.23 at p [engine-version]",
    ]
    assert [str(finding) for finding in told.about("d")] == says
    assert [str(finding) for finding in told.about("p")] == says
    assert caplog.messages == says
    quiet = units(tmp_path, silenced=("page-size", "engine-version"))
    told.learn(quiet["d"], {"id": "m", "block_size": 1, "version": "0.5.22"})
    assert told.about("d") == []


def test_only_engines_that_are_to_tell_something_have_an_identity(tmp_path: Path) -> None:
    made = units_of(plan(tmp_path, instance("p0", Role.PREFILL, 1, ["engine"])))
    assert made["p0"].identity is None
    identity = units(tmp_path)["d"].identity
    assert identity is not None
    assert (identity.engine, identity.base_dir) == ("sglang", str(tmp_path))
