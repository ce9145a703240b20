"""The local launcher with real processes: what a unit inherits, what is refused, nothing survives."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.base import Process
from orchestrator.launch.local import LocalLauncher, LocalProcess, base_environment
from orchestrator.launch.process import MARK, MARK_DIGEST, Mark, Table, environment, identify
from orchestrator.launch.testing import word
from orchestrator.launch.unit import Unit, units_of
from orchestrator.topology.plan import InstancePlan

pytestmark = pytest.mark.integration


def unit(bench: Any, instance: InstancePlan) -> Unit:
    return units_of(bench.plan(instance))[instance.name]


@pytest.fixture
def launcher(bench: Any) -> LocalLauncher:
    bench.state.create()
    return LocalLauncher(bench.state)


async def written(bench: Any, path: Any) -> list[int]:
    await bench.eventually(lambda: path.exists() and path.read_text())
    return list(map(int, path.read_text().split()))


async def over(process: Process) -> int | None:
    async with asyncio.timeout(30):
        code = await process.exited()
        assert await process.sweep(0.0) == []
    return code


def script(bench: Any, code: str, **changes: Any) -> Unit:
    return unit(
        bench, replace(bench.engine("p0"), argv=tuple(map(word, [sys.executable, "-c", code])), **changes)
    )


async def test_a_unit_leads_a_session_and_logs_to_its_file(bench: Any, launcher: LocalLauncher) -> None:
    say = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == ''); sys.exit(3)"
    process = launcher.start(script(bench, say), 7)
    assert await over(process) == 3
    assert await over(process) == 3, "asked again"
    first, second = bench.log("p0").splitlines()
    assert first.startswith("--- pdctl: p0 incarnation 7, 20")
    assert second == "True True"


async def test_it_inherits_where_things_are_and_nothing_else(bench: Any) -> None:
    bench.state.create()
    surroundings = {
        "PATH": "/usr/bin",
        "HOME": "/home/x",
        "HF_TOKEN": "t",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTHONPATH": "/evil",
        MARK: "other/p9/1",
    }
    launcher = LocalLauncher(bench.state, surroundings)
    child = script(bench, "import time; time.sleep(3600)", env={"HOME": word("/plan"), "A": word("1")})
    process = launcher.start(child, 2)
    try:
        await bench.shows(process)
        found = environment(process.identity.pid)
    finally:
        await process.sweep(0.0)
    assert found == {
        "PATH": "/usr/bin",
        "HOME": "/plan",
        "HF_TOKEN": "t",
        "LC_ALL": "C",
        "A": "1",
        MARK: f"{bench.state.id}/p0/2",
        MARK_DIGEST: child.digest,
    }


def test_proxies_are_inherited_and_python_s_settings_are_not() -> None:
    assert base_environment({"https_proxy": "x", "PYTHONSTARTUP": "y", "NCCL_DEBUG": "z"}) == {
        "https_proxy": "x"
    }


async def test_a_missing_program_raises(bench: Any, launcher: LocalLauncher) -> None:
    with pytest.raises(FileNotFoundError):
        launcher.start(unit(bench, replace(bench.engine("p0"), argv=(word("/no/such"),))), 1)


async def test_sweep_ends_every_kind_of_child(
    bench: Any, launcher: LocalLauncher, loose: list[int], tmp_path: Path
) -> None:
    """In the session, out of it, with the marker and without, all deaf to TERM."""
    note = tmp_path / "children"
    process = launcher.start(unit(bench, bench.engine("p0", "--children", note, "--ignore-term")), 1)
    loose += await written(bench, note)
    assert len(loose) == 4
    assert all(identify(pid) for pid in loose)
    process.terminate()
    assert await process.sweep(0.0) == []
    assert [pid for pid in loose if identify(pid)] == []
    assert await over(process) == -9


async def test_orphans_of_a_dead_leader_are_remembered(
    bench: Any, launcher: LocalLauncher, loose: list[int], tmp_path: Path
) -> None:
    """A child with a session of its own and no marker is only known from before its parent died."""
    note = tmp_path / "children"
    process = launcher.start(unit(bench, bench.engine("p0", "--children", note)), 1)
    loose += await written(bench, note)
    launcher.remember([process])
    os.kill(process.identity.pid, 9)
    assert await over(process) == -9
    assert [pid for pid in loose if identify(pid)] == []


async def test_sweep_gives_the_time_it_was_told(bench: Any, launcher: LocalLauncher) -> None:
    process = launcher.start(script(bench, "import time; time.sleep(0.2); print('well done')"), 1)
    assert await process.sweep(30.0) == []
    assert await over(process) == 0
    assert "well done" in bench.log("p0")


async def test_leaders_are_found_and_adopted(bench: Any, launcher: LocalLauncher, tmp_path: Path) -> None:
    note = tmp_path / "children"
    engine = unit(bench, bench.engine("p0", "--children", note))
    started = launcher.start(engine, 4)
    await written(bench, note)
    (found,) = launcher.find()
    assert (found.mark, found.identity) == (Mark(bench.state.id, "p0", 4), started.identity)
    assert found.digest == engine.digest
    adopted = launcher.adopt(found.identity, found.mark)
    launcher.remember([adopted])
    assert isinstance(started, LocalProcess)
    adopted.terminate()
    async with asyncio.timeout(30):
        assert await started.exited() == 0
        # Its parent has reaped it: only a kernel of 6.15 or later tells anybody else.
        told = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
        assert await adopted.exited() == (0 if told else None)
        assert await adopted.exited() == (0 if told else None), "asked again"
    assert await adopted.sweep(0.0) == []
    assert launcher.find() == []


async def test_strays_are_ended_and_what_is_kept_is_not(bench: Any, launcher: LocalLauncher) -> None:
    kept = launcher.start(unit(bench, bench.engine("p0")), 2)
    stray = launcher.start(unit(bench, bench.engine("p1")), 5)
    await bench.shows(kept)
    await bench.shows(stray)
    assert await launcher.sweep_strays([Mark(bench.state.id, "p0", 2), Mark(bench.state.id, "p1", 6)]) == []
    assert identify(stray.identity.pid) is None
    assert identify(kept.identity.pid) == kept.identity
    assert await launcher.sweep_strays(()) == []
    assert await over(kept) == -9
    assert await over(stray) == -9


def refusals(launcher: LocalLauncher, unit: Unit, *ours: Process) -> list[str]:
    return list(launcher.refusals([unit], ours))


def test_a_taken_port_is_refused_and_its_holder_named(bench: Any, launcher: LocalLauncher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        engine = unit(bench, replace(bench.engine("p0"), ports={"http": 1, "bootstrap": port}))
        (said,) = refusals(launcher, replace(engine, ports={"bootstrap": port}))
        assert said.startswith(f"p0: port {port} (bootstrap) on 127.0.0.1 is held by pid {os.getpid()} (")
    assert refusals(launcher, replace(engine, ports={"bootstrap": port})) == []


async def test_a_port_that_our_own_process_holds_is_free_for_its_successor(
    bench: Any, launcher: LocalLauncher
) -> None:
    engine = unit(bench, bench.engine("p0"))
    process = launcher.start(engine, 1)
    port = engine.ports["http"]
    await bench.eventually(lambda: refusals(launcher, engine))
    (said,) = refusals(launcher, engine)
    assert f"port {port} (http) on 127.0.0.1 is held by pid {process.identity.pid}" in said
    assert "p0 of a deployment of pdctl's; stop that one, or give one of the two other ports" in said
    assert refusals(launcher, engine, process) == []
    await process.sweep(0.0)


def test_a_missing_program_folder_or_address_is_refused(bench: Any, launcher: LocalLauncher) -> None:
    engine = unit(bench, bench.engine("p0"))
    missing = replace(engine, argv=(word("/no/such"),))
    assert refusals(launcher, missing) == ["p0: no program '/no/such' here; set `runtime` of pool 'prefill'"]
    assert refusals(launcher, replace(engine, cwd="/no/such")) == ["p0: no folder '/no/such' to run in"]
    (said,) = refusals(launcher, replace(engine, url="http://192.0.2.1:9"))
    assert said.startswith("p0: 192.0.2.1 is not an address of this host (")


def test_the_plan_s_path_counts_for_the_program(bench: Any, launcher: LocalLauncher, tmp_path: Path) -> None:
    tool = tmp_path / "my-engine"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    engine = unit(bench, replace(bench.engine("p0"), argv=(word("my-engine"),)))
    assert refusals(launcher, engine) != []
    assert refusals(launcher, replace(engine, env={"PATH": word(str(tmp_path))})) == []


def test_the_table_is_all_that_lives() -> None:
    assert os.getpid() in Table.take().stats


async def test_files_of_a_unit_are_written_before_every_start(bench: Any, launcher: LocalLauncher) -> None:
    path = bench.state.root / "files" / "p0.0.nics.json"
    read = script(bench, f"print(open({str(path)!r}).read())", files={str(path): '{"0":"mlx5_0"}'})
    assert read.files
    assert await over(launcher.start(read, 1)) == 0
    path.write_text("meddled with")
    assert await over(launcher.start(read, 2)) == 0
    assert bench.log("p0").count('{"0":"mlx5_0"}') == 2
