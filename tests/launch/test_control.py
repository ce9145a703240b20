"""The control socket, both ends (control, control_server): who may speak, what is refused or unanswered."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest

from orchestrator.errors import LaunchError
from orchestrator.fabric import unix
from orchestrator.launch import control
from orchestrator.launch.paths import Lock, StateDir
from orchestrator.launch.status import Phase, parse_status
from orchestrator.topology.plan import dump

pytestmark = pytest.mark.integration


async def raw(bench: Any, line: bytes) -> bytes:
    with unix.short(bench.state.control) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(line)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_apply_follow_restart_stop(bench: Any) -> None:
    async with bench.controller():
        await control.call(bench.state, "apply", plan=dump(bench.plan(bench.engine("p0"))).decode())
        phases = []
        async for status in control.follow(bench.state):
            phases.append(status.phase)
            if status.phase is Phase.READY and len(status.instances) == 1:
                if status.instances[0].incarnation == 2:
                    break
                await control.call(bench.state, "restart", instances=["p0"])
        assert phases[0] in (Phase.WORKING, Phase.READY)
        answer = await control.call(bench.state, "status")
        assert parse_status(answer["status"]).instances[0].incarnation == 2
        await control.call(bench.state, "stop", force=False)
        async for status in control.follow(bench.state):
            last = status.phase
        assert last is Phase.STOPPED


async def test_a_refusal_reaches_the_client_with_its_reason(bench: Any) -> None:
    async with bench.controller():
        with pytest.raises(LaunchError, match="no instance 'x' here; there are: none") as error:
            await control.call(bench.state, "restart", instances=["x"])
        assert error.value.reason == "no-instance"
        with pytest.raises(LaunchError, match="knows no 'fly'"):
            await control.call(bench.state, "fly")


async def test_a_socket_that_is_removed_is_there_again(bench: Any) -> None:
    async with bench.controller():
        bench.state.control.unlink()
        assert (await control.status(bench.state)).phase is Phase.READY


async def test_who_listens_without_the_lock_is_no_controller(bench: Any) -> None:
    bench.state.create()
    with closing(unix.bind(bench.state.control)) as stranger:
        stranger.listen()
        with pytest.raises(LaunchError, match="no controller runs"):
            await control.call(bench.state, "status")
        async with bench.controller():
            assert (await control.status(bench.state)).phase is Phase.READY


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400\r\n\r\n", b"[]\n", b'{"ok": true, "status": {"phase": 7}}\n']
)
async def test_nonsense_for_an_answer_is_told(bench: Any, said: bytes) -> None:
    bench.state.create()
    lock = Lock(bench.state)
    assert lock.acquire()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(said)
        writer.close()

    listener = unix.bind(bench.state.control)
    async with await asyncio.start_unix_server(answer, sock=listener):
        with pytest.raises(LaunchError) as error:
            await control.status(bench.state)
    lock.release()
    assert error.value.reason == "protocol"


async def test_a_client_of_another_version_is_told_what_to_do(bench: Any) -> None:
    async with bench.controller():
        answer = json.loads(await raw(bench, b'{"op": "status", "protocol": 0}\n'))
        assert answer["ok"] is False
        assert "of another pdctl version" in answer["error"]
        assert "kill -9" in answer["error"]


@pytest.mark.parametrize(
    "asked",
    [
        {"op": "follow", "protocol": 0},
        {"op": "apply", "protocol": 1},
        [1],
        {"op": "apply", "protocol": 1, "plan": '{"sk-secret": 1}'},
    ],
)
async def test_what_is_not_understood_is_answered_without_a_quote(bench: Any, asked: Any) -> None:
    async with bench.controller():
        answer = await raw(bench, json.dumps(asked).encode() + b"\n")
    assert json.loads(answer)["ok"] is False
    assert json.loads(answer)["reason"] == "protocol"
    assert b"sk-secret" not in answer


@pytest.mark.parametrize("line", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b""])
async def test_nonsense_does_no_harm(bench: Any, line: bytes) -> None:
    async with bench.controller():
        await raw(bench, line)
        assert await control.call(bench.state, "status")


async def test_a_client_that_leaves_does_no_harm(bench: Any) -> None:
    async with bench.controller():
        for _ in range(3):
            async for _status in control.follow(bench.state):
                break
        assert await control.call(bench.state, "status")


async def test_the_socket_is_for_its_owner_only(bench: Any) -> None:
    async with bench.controller():
        assert bench.state.control.stat().st_mode & 0o777 == 0o600
        assert bench.state.root.stat().st_mode & 0o777 == 0o700
    assert not bench.state.control.exists()


async def test_nobody_answers(bench: Any) -> None:
    bench.state.create()
    with pytest.raises(LaunchError, match="no controller runs for this topology; `pdctl up`") as error:
        await control.call(bench.state, "status")
    assert error.value.reason == "no-controller"


async def test_a_controller_that_is_still_adopting_is_waited_for(bench: Any) -> None:
    bench.state.create()
    lock = Lock(bench.state)
    assert lock.acquire()
    asking = asyncio.create_task(control.call(bench.state, "status"))
    done, _ = await asyncio.wait({asking}, timeout=0.2)
    assert not done
    lock.release()
    async with bench.controller():
        assert await asking


async def test_a_path_longer_than_a_socket_address(bench: Any) -> None:
    bench.state = StateDir(bench.state.root / ("d" * 120))
    async with bench.controller():
        assert await control.call(bench.state, "status")
