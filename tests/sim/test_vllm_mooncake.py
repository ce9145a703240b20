"""vLLM's Mooncake hand-off between real processes: both legs at once, matched by a transfer id."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from orchestrator.sim.testing import SimProcess, spawn

COMMON = ("--dialect", "vllm", "--transfer", "mooncake", "--speed", "40")
PATH = "/v1/completions"
_ids = itertools.count()


@pytest.fixture(scope="module")
def engines() -> Iterator[Any]:
    with spawn(("--role", "unified"), ("--role", "prefill"), ("--role", "decode"), common=COMMON) as started:
        yield started


async def bootstrap(client: Any, prefill: Any) -> tuple[str, str]:
    """The producer's bootstrap address and engine id."""
    address = f"http://127.0.0.1:{prefill.ports['bootstrap']}"
    found = (await client.http.get(address + "/query")).json()
    assert found["0"]["worker_addr"]["0"]["0"].startswith("tcp://")
    return address, found["0"]["engine_id"]


def body_of(prompt: Any, tokens: int, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"model": "sim", "prompt": prompt, "max_tokens": tokens, "kv_transfer_params": params}


async def legs(
    client: Any, engines: Any, ours: Any, theirs: Any, *, ignore_eos: bool = True
) -> tuple[httpx.Response, httpx.Response]:
    """`theirs` is prefilled for a decode leg of `ours` (the same, in good order)."""
    _, prefill, decode = engines
    address, engine_id = await bootstrap(client, prefill)
    transfer = {"transfer_id": f"t{next(_ids)}"}
    produce = {"do_remote_decode": True, "do_remote_prefill": False, **transfer}
    consume = {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": address,
        "remote_engine_id": engine_id, **transfer,
    }  # fmt: skip
    more = {"ignore_eos": ignore_eos}
    p, d = await asyncio.gather(
        client.post(prefill, PATH, {**body_of(theirs, 1, produce), **more}),
        client.post(decode, PATH, {**body_of(ours, 12, consume), **more}),
    )
    return p, d


@pytest.mark.parametrize("prompt", ["hello", list(range(100, 1700))], ids=("word", "ids"))
async def test_disaggregated_text_is_the_unified_text(engines: Any, client: Any, prompt: Any) -> None:
    alone = await client.post(engines[0], PATH, {**body_of(prompt, 12), "ignore_eos": True})
    p, d = await legs(client, engines, prompt, prompt)
    assert p.json()["kv_transfer_params"] is None
    assert d.json()["choices"][0]["text"] == alone.json()["choices"][0]["text"]
    await client.idle(engines[1], engines[2])
    # What was received is cached there as it is, for plain requests too.
    again = await client.post(engines[2], PATH, {**body_of(prompt, 12), "ignore_eos": True})
    assert again.json()["choices"][0]["text"] == alone.json()["choices"][0]["text"]


async def test_a_transfer_id_mixed_up_gives_wrong_text(engines: Any, client: Any) -> None:
    alone = await client.post(engines[0], PATH, {**body_of("mine", 12), "ignore_eos": True})
    _, d = await legs(client, engines, "mine", "not mine")
    assert d.status_code == 200
    assert d.json()["choices"][0]["text"] != alone.json()["choices"][0]["text"]


async def test_a_wrong_engine_id_fails(engines: Any, client: Any) -> None:
    address, _ = await bootstrap(client, engines[1])
    params = {
        "do_remote_prefill": True, "remote_bootstrap_addr": address, "remote_engine_id": "x",
        "transfer_id": "y",
    }  # fmt: skip
    answer = await client.post(engines[2], PATH, body_of("x", 2, params))
    assert answer.status_code == 500


async def test_neither_side_waits_for_ever(client: Any) -> None:
    env = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "10"}
    with (
        SimProcess(*COMMON, "--role", "prefill", env=env) as prefill,
        SimProcess(*COMMON, "--role", "decode", env=env) as decode,
    ):
        produce = {"do_remote_decode": True, "transfer_id": "lonely"}
        assert (await client.post(prefill, PATH, body_of("x", 1, produce))).status_code == 200
        await client.idle(prefill)
        consume = {
            "do_remote_prefill": True, "remote_bootstrap_addr": "http://127.0.0.1:1",
            "remote_engine_id": "x", "transfer_id": "lonely",
        }  # fmt: skip
        assert (await client.post(decode, PATH, body_of("x", 1, consume))).status_code == 500


@pytest.mark.parametrize("let_end", [False, True], ids=["prefill aborted too", "prefill let end"])
async def test_memory_of_an_aborted_decode_leg_is_prefills_until_it_answers(
    client: Any, let_end: bool
) -> None:
    env = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "100000"}
    with (
        SimProcess(*COMMON, "--role", "prefill", env=env) as prefill,
        SimProcess(*COMMON, "--role", "decode", env=env) as decode,
    ):
        await client.fault(prefill, {"kind": "slow", "factor": 2000})
        address, engine_id = await bootstrap(client, prefill)
        produce = {"do_remote_decode": True, "transfer_id": "t"}
        consume = {
            "do_remote_prefill": True, "remote_bootstrap_addr": address, "remote_engine_id": engine_id,
            "transfer_id": "t",
        }  # fmt: skip
        p = asyncio.create_task(client.post(prefill, PATH, body_of("hello", 1, produce)))
        d = asyncio.create_task(client.post(decode, PATH, body_of("hello", 12, consume)))
        for engine in (prefill, decode):
            await client.until(engine, lambda s: s["calls"] and s["load"]["used_tokens"])
        d.cancel()
        await client.until(decode, lambda s: not s["calls"])
        assert (await client.state(decode))["load"]["used_tokens"]
        if let_end:
            assert (await p).status_code == 200
            await client.idle(prefill, decode)
        else:
            p.cancel()
            await client.idle(prefill)
            assert (await client.state(decode))["load"]["used_tokens"]
