"""What is learned from vLLM's own accounts, against captured ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.core.types import COUNTERS, Role
from orchestrator.engines.base import InstanceSpec, NotYet
from orchestrator.engines.vllm import VLLM

Captured = Callable[[str], bytes]
TOTAL = {"kv_total_tokens": 1048576}


def test_ready_and_live(spec: Callable[..., InstanceSpec]) -> None:
    probes = VLLM().probes(spec(Role.PREFILL))
    assert [call.path for call in probes.ready] == ["/health", "/v1/models"]
    assert probes.live.path == "/health"


def test_discovery_by_role_and_transfer() -> None:
    nixl = VLLM().discover(Role.PREFILL, {"transfer": "nixl"})
    assert {name: call.path for name, call in nixl.items()} == {
        "models": "/v1/models",
        "version": "/version",
        "metrics": "/metrics",
    }
    known = {"transfer": "mooncake", "bootstrap_port": 8998}
    query = VLLM().discover(Role.PREFILL, known)["query"]
    assert (query.path, query.port) == ("/query", 8998)
    assert "query" not in VLLM().discover(Role.DECODE, known)


def test_models_and_version(captured: Captured) -> None:
    told = VLLM().learn("models", 200, captured("vllm/models.json"))
    assert told == {"id": "tiny", "root": "/models/tiny", "max_model_len": 4096}
    assert VLLM().learn("version", 200, captured("vllm/version.json")) == {"version": "0.32.0"}


def test_metrics_tell_sizes_and_which_life_this_is(captured: Captured) -> None:
    assert VLLM().learn("metrics", 200, captured("vllm/metrics_prefill.txt")) == {
        "incarnation": "1.79604858921e+09",
        "block_size": 128,
        "kv_cache_dtype": "auto",
        "kv_total_tokens": 1048576,
        "slices": True,
    }


def test_a_mooncake_prefill_is_not_ready_before_it_registered() -> None:
    assert isinstance(VLLM().learn("query", 200, b"{}"), NotYet)
    body = b'{"0": {"engine_id": "012a9b8b", "worker_addr": {"0": {"0": "tcp://192.0.2.2:40685"}}}}'
    assert VLLM().learn("query", 200, body) == {"engine_id": "012a9b8b"}
    assert isinstance(VLLM().learn("query", 200, b'{"0":{"engine_id":"a"},"1":{"engine_id":"b"}}'), NotYet)


@pytest.mark.parametrize("name", ["models", "version", "metrics", "query"])
def test_an_engine_that_does_not_answer_is_not_ready(name: str) -> None:
    told = VLLM().learn(name, 503, b"starting")
    assert isinstance(told, NotYet)
    assert "503" in told.why


@pytest.mark.parametrize(
    ("name", "body"), [("models", b"{}"), ("version", b"[]"), ("query", b'{"0":{}}'), ("query", b"x")]
)
def test_nonsense_is_no_fact(name: str, body: bytes) -> None:
    with pytest.raises(ValueError):
        VLLM().learn(name, 200, body)


def test_load(captured: Captured) -> None:
    body = captured("vllm/metrics_decode.txt")
    body = body.replace(
        b'num_requests_running{engine="0",model_name="tiny"} 0.0',
        b'num_requests_running{engine="0",model_name="tiny"} 3.0',
    )
    body = body.replace(
        b'kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0',
        b'kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25',
    )
    load = VLLM().load(body, TOTAL, 9.0)
    assert (load.at_s, load.running, load.waiting) == (9.0, 3, 0)
    assert (load.kv_used_tokens, load.kv_total_tokens) == (262144, 1048576)
    assert load.incarnation == "1.79604858921e+09"
    assert load.progress == 5283.0 + 192.0


def test_load_is_the_sum_over_ranks() -> None:
    body = b"".join(
        b'vllm:num_requests_running{engine="%d",model_name="a}b"} 2.0\n'
        b'vllm:num_requests_waiting{engine="%d",model_name="a}b"} 1.0\n'
        b'vllm:kv_cache_usage_perc{engine="%d",model_name="a}b"} 0.%d\n' % (rank, rank, rank, rank + 1)
        for rank in (0, 2)
    )
    load = VLLM().load(body, {"kv_total_tokens": 1000}, 0.0)
    assert (load.running, load.waiting, load.kv_used_tokens) == (4, 2, 200)


def test_counters_of_a_pair(captured: Captured) -> None:
    prefill = VLLM().load(captured("vllm/metrics_prefill.txt"), TOTAL, 0.0).counters
    decode = VLLM().load(captured("vllm/metrics_decode.txt"), TOTAL, 0.0).counters
    assert (prefill["prefill_tokens"], prefill["prompt_tokens"], prefill["cached_tokens"]) == (5283, 5283, 0)
    # What another engine computed is neither computed here nor found in the cache.
    assert (decode["prefill_tokens"], decode["prompt_tokens"], decode["cached_tokens"]) == (0, 5283, 0)
    assert {*prefill, *decode} <= {*COUNTERS}


def test_gaps_are_steps_weighted_by_batch(captured: Captured) -> None:
    busy = captured("vllm/metrics_decode_busy.txt")
    counters = VLLM().load(busy, TOTAL, 0.0).counters
    assert (counters["decode_batch"], counters["decode_batch_s"]) == (805.0, pytest.approx(58.865236))
    two = busy + busy.replace(b'engine="0"', b'engine="1"')
    assert VLLM().load(two, TOTAL, 0.0).counters["decode_batch"] == 1610.0
    # Neither steps nor prefill time are told: no figure is made up for them.
    assert counters.keys() <= COUNTERS.keys() - {"decode_steps", "decode_s", "prefill_busy_s"}


def test_slices_need_one_prefix_cache(captured: Captured) -> None:
    one = captured("vllm/metrics_prefill.txt")
    several = one + b"\n" + one.replace(b'engine="0"', b'engine="1"')
    off = one.replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="False"')
    assert off != one
    told = [VLLM().learn("metrics", 200, body) for body in (one, several, off)]
    assert [facts["slices"] for facts in told] == [True, False, False]  # type: ignore[index]


def test_capacity_is_unknown_until_it_was_learned(captured: Captured) -> None:
    load = VLLM().load(captured("vllm/metrics_decode.txt"), {}, 0.0)
    assert (load.kv_used_tokens, load.kv_total_tokens) == (None, None)


@pytest.mark.parametrize("body", [b"", b"<html>", b"vllm:num_requests_running{} many\n"])
def test_a_load_that_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        VLLM().load(body, TOTAL, 0.0)


def test_what_must_not_happen_to_kv_is_told_as_alarms() -> None:
    page = (
        b'vllm:num_requests_running{engine="0"} 0.0\n'
        b'vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0\n'
        b'vllm:nixl_num_kv_expired_reqs_total{engine="1"} 1.0\n'
        b'vllm:nixl_num_notifications_after_expiry_total{engine="0"} 4.0\n'
    )
    assert VLLM().load(page, {}, 1.0).alarms == {"expired": 3.0, "after-expiry": 4.0}
    assert VLLM().load(page.splitlines()[0] + b"\n", {}, 1.0).alarms == {}
