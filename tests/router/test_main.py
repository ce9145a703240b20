"""The router's own process (modules serve, running and __main__): starting, refusing, reloading, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from routerprocess import GUARD_S, Process

from orchestrator.core.types import Role
from orchestrator.fabric import unix
from orchestrator.topology.plan import Credentials, Plan, dump

MakePlan = Callable[..., Plan]
StartStub = Callable[[str], Awaitable[Any]]

Until = Callable[[Callable[[], object]], Awaitable[None]]
Streaming = Callable[..., Awaitable[Any]]

Start = Callable[..., Awaitable[Process]]


async def get(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(url)


async def test_it_serves_clients_and_admin_on_tcp_and_on_the_socket(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan()))
    url, admin = await router.urls()
    await router.says('msg="endpoint ready" endpoint=p0')
    assert (await get(f"{url}/v1/models")).json()["data"][0]["id"] == "m"
    assert (await get(f"{admin}/health")).json()["ready"] == 1
    assert "pdctl_build_info" in (await get(f"{admin}/metrics")).text
    assert (await get(f"{url}/metrics")).status_code == 404, "metrics are not for clients"
    transport = httpx.AsyncHTTPTransport(uds=str(router.state / "router.sock"))
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        shown = (await client.get("http://router/endpoints")).json()["endpoints"]
    assert [(e["name"], e["ready"]) for e in shown] == [("p0", True)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_0_and_its_socket_goes(
    stub: StartStub, make_plan: MakePlan, run: Start, number: signal.Signals
) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan()))
    await router.urls()
    router.signal(number)
    assert await router.ends() == 0
    assert not (router.state / "router.sock").exists()
    assert any("msg=stopped all_finished=true" in line for line in router.lines)


async def test_a_taken_port_is_exit_3_and_names_the_holder(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        router = await run(make_plan(engine.plan(), port=port))
        assert await router.ends() == 3
    message = router.lines[-1]
    assert f"the client address 127.0.0.1:{port} is taken by pid {os.getpid()} (" in message
    assert not (router.state / "router.sock").exists()


async def test_a_second_router_of_one_state_directory_is_refused(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    first = await run(make_plan(engine.plan()))
    await first.urls()
    second = await run(None)
    assert await second.ends() == 3
    assert "another router serves this state directory" in second.lines[-1]
    assert unix.answers(first.state / "router.sock")


async def test_an_address_of_another_machine_is_told(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan(), host="192.0.2.1"))
    assert await router.ends() == 3
    assert "cannot listen on the client address 192.0.2.1:0" in router.lines[-1]


async def test_a_missing_plan_is_exit_2(run: Start) -> None:
    router = await run(None)
    assert await router.ends() == 2
    assert "plan.json: cannot be read: No such file" in router.lines[-1]


async def test_a_broken_plan_is_exit_2_and_shows_no_key(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    plan = make_plan(engine.plan(), credentials=Credentials(client_keys=("sk-client-1234",)))
    data = json.loads(dump(plan))
    data["router"]["credentials"]["client_keys"] = "sk-client-1234"
    router = await run(json.dumps(data).encode())
    assert await router.ends() == 2
    said = "\n".join(router.lines)
    assert "is not a plan" in said
    assert "router.credentials.client_keys" in said
    assert "sk-client" not in said
    assert "Traceback" not in said


async def test_another_routers_plan_is_exit_2(stub: StartStub, make_plan: MakePlan, run: Start) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan(), kind="none"))
    assert await router.ends() == 2
    assert "router.kind" in router.lines[-1]


@pytest.mark.parametrize("change", [{"engine": "no-such-engine"}, {"engine": "./missing.py:Engine"}])
async def test_an_engine_that_does_not_load_is_exit_2(
    stub: StartStub, make_plan: MakePlan, run: Start, change: dict[str, str]
) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan(**change)))
    assert await router.ends() == 2
    said = "\n".join(router.lines)
    assert change["engine"].split(":")[0].lstrip("./") in said
    assert "Traceback" not in said


async def test_a_profile_that_does_not_build_is_exit_2(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan(), scheduling={"mode": "later"}))
    assert await router.ends() == 2
    assert "mode" in router.lines[-1]


async def test_sighup_reloads_and_a_bad_plan_changes_nothing(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    one, two = await stub("p0"), await stub("p1")
    router = await run(make_plan(one.plan()))
    _, admin = await router.urls()
    await router.says('msg="endpoint ready" endpoint=p0')
    (router.state / "plan.json").write_bytes(b"{}")
    router.signal(signal.SIGHUP)
    await router.says("reload refused")
    assert (await get(f"{admin}/health")).json()["ready"] == 1
    (router.state / "plan.json").write_bytes(dump(make_plan(one.plan(), two.plan(), port=1)))
    router.signal(signal.SIGHUP)
    await router.says(r"msg=reloaded endpoints=2 needs_restart=.*port")
    await router.says('msg="endpoint ready" endpoint=p1')
    metrics = (await get(f"{admin}/metrics")).text
    assert 'pdctl_reloads_total{result="refused"} 1.0' in metrics
    assert 'pdctl_reloads_total{result="ok"} 1.0' in metrics


async def test_a_plan_file_without_a_state_directory_will_do(
    stub: StartStub, make_plan: MakePlan, run: Start, tmp_path: Path
) -> None:
    engine = await stub("p0")
    file = tmp_path / "elsewhere.json"
    file.write_bytes(dump(make_plan(engine.plan())))
    router = await run(None, "--plan", str(file))
    await router.urls()
    assert not (tmp_path / "router.sock").exists()


class Reading:
    """A client that reads a stream; `text` is what has come."""

    def __init__(self, url: str) -> None:
        self.text = ""
        self.task = asyncio.create_task(self._read(url))

    async def _read(self, url: str) -> None:
        body = {"model": "m", "prompt": "x", "stream": True}
        async with (
            httpx.AsyncClient(trust_env=False, timeout=None) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            async for piece in answer.aiter_text():
                self.text += piece

    async def ends(self) -> str:
        async with asyncio.timeout(GUARD_S):
            await self.task
        return self.text


@pytest.fixture
async def streaming(stub: StartStub, make_plan: MakePlan, run: Start, until: Until) -> Streaming:
    """A router with a client in the middle of a stream."""

    async def start(**router: Any) -> tuple[Process, Any, Reading]:
        engine = await stub("u0")
        whole = engine.plan(Role.UNIFIED, engine="./stub.py:Whole", disaggregated=False)
        process = await run(make_plan(whole, **router))
        url, _ = await process.urls()
        await process.says('msg="endpoint ready" endpoint=u0')
        reading = Reading(url)
        await until(lambda: "Hello" in reading.text or reading.task.done())
        return process, engine, reading

    return start


async def test_case_42_a_stop_lets_a_stream_end(streaming: Streaming) -> None:
    router, engine, reading = await streaming()
    router.signal(signal.SIGTERM)
    await router.says("msg=draining inflight=1")
    engine.streams[0].write(b"data: [DONE]\n\n")
    engine.streams[0].end()
    assert (await reading.ends()).endswith("data: [DONE]\n\n")
    assert await router.ends() == 0
    await router.says("msg=stopped all_finished=true")


@pytest.mark.parametrize("how", ["deadline", "second signal"])
async def test_a_stream_that_is_cut_is_told_so(streaming: Streaming, how: str) -> None:
    router, _, reading = await streaming(drain_s=0.1 if how == "deadline" else 3600.0)
    router.signal(signal.SIGTERM)
    await router.says("msg=draining inflight=1")
    if how == "second signal":
        router.signal(signal.SIGTERM)
    text = await reading.ends()
    assert '"code":"draining"' in text.splitlines()[-2]
    assert "[DONE]" not in text
    assert await router.ends() == 0


async def test_case_42_another_router_takes_over_and_a_stream_goes_on(
    streaming: Streaming, run: Start
) -> None:
    old, engine, reading = await streaming()
    url, _ = await old.urls()
    new = await run(None, "--state", str(old.state), "--take-over")
    await new.says("took over from the router before")
    assert (await new.urls())[0] == url
    old.signal(signal.SIGTERM)
    await old.says("msg=draining inflight=1")
    for _ in range(3):
        assert (await get(f"{url}/v1/models")).status_code == 200
    assert not reading.task.done()
    engine.streams[0].write(b"data: [DONE]\n\n")
    engine.streams[0].end()
    assert (await reading.ends()).endswith("data: [DONE]\n\n")
    assert await old.ends() == 0
    await old.says("msg=stopped all_finished=true")
    assert (old.state / "router.sock").exists(), "it is the new one's"
    third = await run(None)
    assert await third.ends() == 3, "who does not take over is refused as ever"


async def test_case_44_a_reload_drops_no_stream_even_of_a_removed_endpoint(
    streaming: Streaming, stub: StartStub, make_plan: MakePlan
) -> None:
    router, engine, reading = await streaming()
    other = await stub("u1")
    (router.state / "plan.json").write_bytes(
        dump(make_plan(other.plan(Role.UNIFIED, engine="./stub.py:Whole", disaggregated=False)))
    )
    router.signal(signal.SIGHUP)
    await router.says('msg="endpoint ready" endpoint=u1')
    engine.streams[0].write(b"data: [DONE]\n\n")
    engine.streams[0].end()
    assert (await reading.ends()).endswith("data: [DONE]\n\n")


async def test_keys_are_demanded_and_never_logged(stub: StartStub, make_plan: MakePlan, run: Start) -> None:
    engine = await stub("p0")
    engine.key = "sk-engine-1234"
    keys = Credentials(
        client_keys=("sk-client-1234",), engine_key="sk-engine-1234", admin_key="sk-admin-1234"
    )
    router = await run(make_plan(engine.plan(), credentials=keys))
    url, admin = await router.urls()
    await router.says('msg="endpoint ready" endpoint=p0')
    assert (await get(f"{url}/v1/models")).status_code == 401
    assert (await get(f"{admin}/endpoints?key=sk-admin-1234")).status_code == 401
    router.signal(signal.SIGTERM)
    assert await router.ends() == 0
    assert "1234" not in "\n".join(router.lines).replace("pid=", "")


async def test_the_limit_of_open_files_is_raised_and_told(
    stub: StartStub, make_plan: MakePlan, run: Start
) -> None:
    engine = await stub("p0")
    router = await run(make_plan(engine.plan()))
    match = await router.says(r"open files allow this many streams\" streams=(\d+) max_inflight=10000")
    await router.urls()
    limits = Path("/proc", str(router.process.pid), "limits").read_text()  # noqa: ASYNC240
    soft, hard = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits).groups()  # type: ignore[union-attr]
    assert soft == hard
    assert int(match[1]) == (int(soft) - 128) // 3


async def test_the_socket_works_in_a_folder_with_a_long_path(
    stub: StartStub, make_plan: MakePlan, run: Start, tmp_path: Path
) -> None:
    engine = await stub("p0")
    state = tmp_path / ("d" * 120)
    state.mkdir()
    (state / "plan.json").write_bytes(dump(replace(make_plan(engine.plan()), state_dir=str(state))))
    router = await run(None, "--state", str(state))
    await router.urls()
    assert unix.answers(state / "router.sock")
