"""A simulated instance as a whole: its start, its control routes, and every kind of fault, on real processes.

Covers server, __main__ and testing; the idle limit is in test_dialect_sglang.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.sim.testing import SimProcess, spawn

PATH = "/v1/completions"
LONG = {"model": "sim", "prompt": "x", "max_tokens": 400, "ignore_eos": True}
SHORT = {"model": "sim", "prompt": "x", "max_tokens": 2, "ignore_eos": True}


@pytest.fixture(params=["sglang", "vllm"])
def engine(request: pytest.FixtureRequest) -> Any:
    with SimProcess("--dialect", request.param, "--speed", "20", "--control-port", "0") as process:
        yield process


def control(engine: SimProcess) -> str:
    return f"http://127.0.0.1:{engine.ports['control']}"


async def test_an_error_strikes_at_its_rate_and_as_often_as_it_says(engine: Any, client: Any) -> None:
    await client.fault(engine, {"kind": "error", "status": 503, "message": "no luck", "count": 2})
    answers = [await client.post(engine, PATH, SHORT) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 503, 200]
    assert "no luck" in answers[0].text
    await client.fault(engine, {"kind": "error", "status": 429, "rate": 0.5})
    statuses = [(await client.post(engine, PATH, SHORT)).status_code for _ in range(40)]
    assert 5 < statuses.count(429) < 35
    assert (await client.get(engine, "/v1/models")).status_code == 200
    fired = (await client.get(engine, "/sim/faults")).json()["fired"]
    assert fired["error"] == 2 + statuses.count(429)
    await client.http.delete(engine.url + "/sim/faults")
    assert (await client.post(engine, PATH, SHORT)).status_code == 200


async def test_an_error_can_be_aimed_at_a_path(engine: Any, client: Any) -> None:
    await client.fault(engine, {"kind": "error", "status": 500, "path": "/v1/models"})
    assert (await client.get(engine, "/v1/models")).status_code == 500
    assert (await client.post(engine, PATH, SHORT)).status_code == 200


async def test_connections_are_refused_for_a_while(engine: Any, client: Any) -> None:
    await client.http.post(control(engine) + "/sim/faults", json={"kind": "refuse", "for_s": 60})
    async with httpx.AsyncClient() as fresh:
        with pytest.raises(httpx.ConnectError):
            await fresh.get(engine.url + "/v1/models")
        async with asyncio.timeout(20):
            while True:
                try:
                    assert (await fresh.get(engine.url + "/v1/models")).status_code == 200
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)


async def test_refusing_can_be_ended_through_the_control_port(engine: Any, client: Any) -> None:
    await client.http.post(control(engine) + "/sim/faults", json={"kind": "refuse"})
    async with httpx.AsyncClient() as fresh:
        with pytest.raises(httpx.ConnectError):
            await fresh.get(engine.url + "/v1/models")
        await fresh.delete(control(engine) + "/sim/faults")
        async with asyncio.timeout(20):
            while True:
                try:
                    await fresh.get(engine.url + "/v1/models")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)


async def test_a_request_hangs_while_health_is_good(engine: Any, client: Any) -> None:
    await client.fault(engine, {"kind": "hang", "count": 1})
    leg = asyncio.create_task(client.post(engine, PATH, SHORT))
    done, _ = await asyncio.wait([leg], timeout=0.3)
    assert not done
    assert (await client.get(engine, "/health")).status_code == 200
    assert (await client.post(engine, PATH, SHORT)).status_code == 200
    leg.cancel()


async def test_a_frozen_engine_stands_still_and_goes_on(engine: Any, client: Any) -> None:
    leg = asyncio.create_task(client.post(engine, PATH, LONG))
    await client.until(engine, lambda state: state["counters"]["generated_tokens"] > 3)
    await client.fault(engine, {"kind": "freeze"})
    before = await client.state(engine)
    assert (await client.get(engine, "/health")).status_code == 200
    assert (await client.state(engine))["counters"] == before["counters"]
    assert not leg.done()
    await client.http.delete(engine.url + "/sim/faults")
    assert (await leg).status_code == 200


async def test_the_process_dies_after_some_tokens(engine: Any, client: Any) -> None:
    await client.fault(engine, {"kind": "die", "after_tokens": 300})
    lines: list[str] = []

    async def read() -> None:
        async with client.http.stream("POST", engine.url + PATH, json={**LONG, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)

    with pytest.raises(httpx.TransportError):
        await read()
    assert lines
    assert engine.wait() == 1
    assert "injected fault" in engine.errors()


async def test_a_slow_engine_takes_longer_in_its_own_time(engine: Any, client: Any) -> None:
    spans = []
    for rules in ([], [{"kind": "slow", "factor": 5.0}]):
        if rules:
            await client.fault(engine, *rules)
        before = (await client.state(engine))["counters"]["decode_us"]
        await client.post(engine, PATH, LONG)
        spans.append((await client.state(engine))["counters"]["decode_us"] - before)
    assert spans[1] == pytest.approx(5 * spans[0], rel=0.1)


async def test_a_stream_ends_without_a_word(engine: Any, client: Any) -> None:
    await client.fault(engine, {"kind": "truncate", "after_tokens": 300, "count": 1})
    answer = await client.post(engine, PATH, {**LONG, "stream": True})
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    assert '"finish_reason":"length"' not in answer.text
    assert answer.text.count("data: ") > 1
    await client.idle(engine)
    assert "[DONE]" in (await client.post(engine, PATH, {**LONG, "stream": True})).text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_is_cut(engine: Any, client: Any, stream: bool) -> None:
    await client.fault(engine, {"kind": "close", "after_tokens": 300, "count": 1})
    with pytest.raises(httpx.TransportError):
        await client.post(engine, PATH, {**LONG, "stream": stream})
    await client.idle(engine)


async def test_garbage_comes_through_one_pair_only(client: Any) -> None:
    """200 and wrong text from one prefill engine, right text from the other."""
    roles = (("--role", "unified"), ("--role", "prefill"), ("--role", "prefill"), ("--role", "decode"))
    with spawn(*roles, common=("--speed", "40")) as (unified, good, bad, decode):
        right = (await client.post(unified, PATH, LONG)).json()["choices"][0]["text"]
        peer = f"127.0.0.1:{bad.ports['bootstrap']}"
        await client.fault(decode, {"kind": "garbage", "peer": peer})
        texts = {}
        for name, prefill in (("good", good), ("bad", bad)):
            body = {
                **LONG, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.ports["bootstrap"],
                "bootstrap_room": 5,
            }  # fmt: skip
            _, answer = await asyncio.gather(
                client.post(prefill, PATH, body), client.post(decode, PATH, body)
            )
            assert answer.status_code == 200
            texts[name] = answer.json()["choices"][0]["text"]
        assert texts["good"] == right != texts["bad"]


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_kv_is_lost_between_one_pair(client: Any, side: str) -> None:
    env = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "10", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "10"}
    with (
        SimProcess("--role", "prefill", "--speed", "40", env=env) as prefill,
        SimProcess("--role", "decode", "--speed", "40", env=env) as decode,
    ):
        await client.fault({"prefill": prefill, "decode": decode}[side], {"kind": "no-kv", "count": 1})
        body = {**SHORT, "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.ports["bootstrap"]}
        statuses = []
        for room in (1, 2):
            whole = {**body, "bootstrap_room": room}
            _, answer = await asyncio.gather(
                client.post(prefill, PATH, whole), client.post(decode, PATH, whole)
            )
            statuses.append(answer.status_code)
        assert statuses == [500, 200]


async def test_garbage_through_a_pull(client: Any) -> None:
    roles = (("--role", "prefill"), ("--role", "decode"), ("--role", "unified"))
    with spawn(*roles, common=("--speed", "40", "--dialect", "vllm")) as (prefill, decode, unified):
        await client.fault(decode, {"kind": "garbage", "peer": f"127.0.0.1:{prefill.ports['side channel']}"})
        body = {**LONG, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        params = (await client.post(prefill, PATH, body)).json()["kv_transfer_params"]
        got = await client.post(decode, PATH, {**LONG, "kv_transfer_params": params})
        right = await client.post(unified, PATH, LONG)
        assert got.status_code == 200
        assert got.json()["choices"][0]["text"] != right.json()["choices"][0]["text"]


async def test_a_script_can_be_given_at_the_start(client: Any, tmp_path: Path) -> None:
    rule = {"rules": [{"kind": "error", "status": 418, "count": 1}]}
    (tmp_path / "faults.json").write_text(json.dumps(rule))
    for script in (json.dumps(rule), str(tmp_path / "faults.json")):
        with SimProcess("--faults", script, "--speed", "20") as engine:
            assert (await client.post(engine, PATH, SHORT)).status_code == 418
            assert (await client.post(engine, PATH, SHORT)).status_code == 200


async def test_a_deadly_fault_without_tokens_strikes_at_the_next_request(client: Any) -> None:
    with SimProcess("--faults", '[{"kind": "die"}]') as engine:
        assert (await client.get(engine, "/v1/models")).status_code == 200
        with pytest.raises(httpx.TransportError):
            await client.post(engine, PATH, SHORT)
        assert engine.wait() == 1


async def test_nonsense_is_refused_with_the_field(engine: Any, client: Any) -> None:
    answer = await client.http.post(engine.url + "/sim/faults", json=[{"kind": "slow", "factr": 2}])
    assert answer.status_code == 400
    assert "factr" in answer.json()["error"]
    assert (await client.get(engine, "/sim/nothing")).status_code == 404


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--faults", "/nowhere.json"), "/nowhere.json: No such file"),
        (("--faults", '[{"kind": "explode"}]'), "`kind` must be one of"),
        (("--transfer", "nixl"), "sglang knows mooncake"),
        (("--kv-tokens", "8"), "--kv-tokens must hold"),
        (("--speed", "0"), "must be greater than 0"),
    ],
)
def test_options_that_cannot_work_end_in_one_line(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        SimProcess(*flags)
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_bad_time_out_in_the_environment_is_named() -> None:
    name = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
    with pytest.raises(RuntimeError) as caught:
        SimProcess("--role", "decode", env={name: "soon"})
    assert f"{name} is not a number of seconds: 'soon'" in str(caught.value)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(RuntimeError) as caught:
            SimProcess("--port", str(port))
    assert str(port) in str(caught.value)
    assert "Traceback" not in str(caught.value)


async def test_loading_takes_its_time_and_the_bootstrap_server_says_so(client: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--role", "prefill", "--bootstrap-port", str(port), "--load-delay-s", "40", "--speed", "20")
    starting = asyncio.create_task(asyncio.to_thread(SimProcess, *flags))
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    seen = set()
    while not starting.done():
        try:
            route = await client.http.get(f"http://127.0.0.1:{port}/route", params=dict.fromkeys(names, -1))
            seen.add(route.status_code)
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.02)
    with await starting as engine:
        assert 503 in seen
        route = await client.http.get(f"http://127.0.0.1:{port}/route", params=dict.fromkeys(names, -1))
        assert route.status_code == 200
        assert engine.ports == {"bootstrap": port}


def test_an_interrupt_stops_it_at_once() -> None:
    with SimProcess() as engine:
        engine.process.send_signal(signal.SIGINT)
        assert engine.wait() == 0


async def test_bad_bodies_get_the_dialects_errors(engine: Any, client: Any) -> None:
    for body in (
        b"{",
        b"[]",
        b'{"model": "sim", "prompt": {}}',
        b'{"model": "sim", "prompt": "x", "n": "two"}',
    ):
        answer = await client.http.post(engine.url + PATH, content=body)
        assert answer.status_code == 400, body
        assert "Traceback" not in answer.text
    for path in ("/tokenize", "/v1/chat/completions"):
        assert (await client.http.post(engine.url + path, content=b"nope")).status_code == 400


async def test_one_seed_hashes_alike_in_every_process_and_ids_differ(client: Any) -> None:
    with spawn(("--seed", "1"), ("--seed", "1"), common=("--speed", "20")) as pair:
        ids = {(await client.post(engine, PATH, SHORT)).json()["id"] for engine in pair}
    assert len(ids) == 2


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_an_idle_engine_leaves_on_term_whatever_its_speed_and_whoever_keeps_a_connection(
    dialect: str,
) -> None:
    """What takes virtual time would take hours at this speed."""
    flags = ("--dialect", dialect, "--speed", "0.0001", "--shutdown-timeout", "9000")
    with SimProcess(*flags) as engine:
        kept = [await asyncio.open_connection("127.0.0.1", engine.port) for _ in range(3)]
        for reader, writer in kept[:2]:
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        engine.terminate()
        assert engine.wait() == 0
        for _, writer in kept:
            writer.close()
