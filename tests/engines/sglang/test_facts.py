"""What is learned from SGLang's own accounts, against captured ones."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from orchestrator.core.types import COUNTERS, PathKind, Role
from orchestrator.engines.base import Encoders, HttpCall, InstanceSpec, NotYet
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sglang.facts import ROUTE
from orchestrator.engines.sglang.media import UNCHECKED

Captured = Callable[[str], bytes]
Spec = Callable[..., InstanceSpec]


def test_ready_is_never_health(spec: Spec) -> None:
    probes = SGLang().probes(spec(Role.PREFILL, ports={"http": 1, "bootstrap": 8998}))
    assert [(call.path, call.port) for call in probes.ready] == [("/ready", None), (ROUTE, 8998)]
    assert probes.live.path == "/ping"


@pytest.mark.parametrize("role", [Role.DECODE, Role.UNIFIED])
def test_only_a_prefill_has_a_bootstrap_server_to_ask(spec: Spec, role: Role) -> None:
    probes = SGLang().probes(spec(role, ports={"http": 1, "bootstrap": 8998}))
    assert [call.path for call in probes.ready] == ["/ready"]


def test_facts_before_the_engine_is_asked(spec: Spec) -> None:
    prefill = SGLang().facts(spec(Role.PREFILL, ports={"http": 1, "bootstrap": 8998}))
    assert prefill == {
        "idle_s": 70.0,
        "transfer": "mooncake",
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 8998,
        "prefill_answers": "transferred",
    }
    assert SGLang().facts(spec(Role.UNIFIED)) == {"idle_s": 70.0}


def test_an_encoder_has_nothing_but_its_health(spec: Spec) -> None:
    encoder = spec(Role.ENCODE, ports={"http": 1, "nccl": 2})
    probes = SGLang().probes(encoder)
    assert [call.path for call in (*probes.ready, probes.live)] == ["/health", "/health"]
    assert SGLang().discover(Role.ENCODE, {}) == {}
    assert SGLang().facts(encoder) == {"transfer": "zmq_to_scheduler"}
    assert not any(SGLang().serves(kind, Role.ENCODE, True) for kind in PathKind)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.UNIFIED])
def test_whoever_may_get_a_request_knows_which_media_encoders_bear(spec: Spec, role: Role) -> None:
    seen = SGLang().facts(spec(role, encoders=Encoders(("http://e:1",))))
    unseen = SGLang().facts(spec(role, encoders=Encoders(("http://e:1",), options={UNCHECKED: True})))
    assert (seen["media"], unseen["media"]) == ("checked", "any")
    assert "media" not in SGLang().facts(spec(role))


def test_discovery_by_role() -> None:
    known = {"bootstrap_port": 8998}
    prefill = SGLang().discover(Role.PREFILL, known)
    assert prefill["bootstrap"] == HttpCall("GET", ROUTE, port=8998)
    assert {name: call.path for name, call in SGLang().discover(Role.DECODE, known).items()} == {
        "decode-info": "/server_info",
        "models": "/v1/models",
    }


def test_slices_need_an_engine_alone_with_one_prefix_cache(captured: Captured) -> None:
    told = orjson.loads(captured("sglang/server_info_prefill.json"))
    assert SGLang().learn("prefill-info", 200, orjson.dumps(told))["slices"] is False  # type: ignore[index]
    for more, able in (({}, True), ({"disable_radix_cache": True}, False), ({"dp_size": 2}, False)):
        body = orjson.dumps(told | {"disaggregation_mode": "null"} | more)
        assert SGLang().learn("unified-info", 200, body)["slices"] is able  # type: ignore[index]


def test_server_info(captured: Captured) -> None:
    facts = SGLang().learn("prefill-info", 200, captured("sglang/server_info_prefill.json"))
    assert not isinstance(facts, NotYet)
    assert {
        name: facts[name] for name in ("version", "block_size", "kv_total_tokens", "dtype", "dp_size")
    } == {
        "version": "0.5.23",
        "block_size": 1,
        "kv_total_tokens": 20000,
        "dtype": "float32",
        "dp_size": 1,
    }


def test_each_life_of_a_process_has_a_name_of_its_own(captured: Captured) -> None:
    bodies = [captured(f"sglang/server_info_{name}.json") for name in ("prefill", "decode", "unified")]
    roles = ("prefill", "decode", "unified")
    lives = [SGLang().learn(f"{r}-info", 200, b) for r, b in zip(roles, bodies, strict=True)]
    names = {life["incarnation"] for life in lives if not isinstance(life, NotYet)}
    assert len(names) == 3
    again = SGLang().learn("prefill-info", 200, bodies[0])
    assert not isinstance(again, NotYet)
    assert again["incarnation"] in names


def test_an_engine_in_another_role_does_not_join(captured: Captured) -> None:
    told = SGLang().learn("decode-info", 200, captured("sglang/server_info_prefill.json"))
    assert isinstance(told, NotYet)
    assert "--disaggregation-mode prefill" in told.why


def test_models(captured: Captured) -> None:
    assert SGLang().learn("models", 200, captured("sglang/models.json")) == {
        "id": "tiny",
        "max_model_len": 8192,
    }


def test_bootstrap() -> None:
    body = orjson.dumps(
        {"attn_tp_size": 2, "dp_size": 1, "pp_size": 1, "page_size": 64, "kv_cache_dtype": "auto",
         "follow_bootstrap_room": True, "prefill_http_port": 30000}
    )  # fmt: skip
    learned = SGLang().learn("bootstrap", 200, body)
    assert not isinstance(learned, NotYet)
    assert learned["attn_tp_size"] == 2
    early = SGLang().learn(
        "bootstrap", 503, b"Prefill server not fully registered yet (1 workers registered)."
    )
    assert isinstance(early, NotYet)
    assert "not fully registered" in early.why


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data":[]}', b"<html>"])
@pytest.mark.parametrize("name", ["models"])
def test_nonsense_is_no_fact(name: str, body: bytes) -> None:
    with pytest.raises(ValueError):
        SGLang().learn(name, 200, body)


def test_load_of_an_idle_pair(captured: Captured) -> None:
    load = SGLang().load(captured("sglang/loads_prefill.json"), {}, 5.0)
    assert (load.at_s, load.running, load.waiting, load.kv_used_tokens, load.kv_total_tokens) == (
        5.0, 0, 0, 0, 20000,
    )  # fmt: skip
    assert load.progress == 689.0  # prompt tokens computed
    assert SGLang().load(captured("sglang/loads_decode.json"), {}, 5.0).progress == 107.0  # tokens generated


def test_load_is_the_sum_over_ranks(captured: Captured) -> None:
    told = orjson.loads(captured("sglang/loads_prefill.json"))
    rank = told["loads"][0] | {"num_running_reqs": 3, "num_waiting_reqs": 2, "num_used_tokens": 640}
    load = SGLang().load(orjson.dumps(told | {"loads": [rank, rank]}), {}, 0.0)
    assert (load.running, load.waiting, load.kv_used_tokens, load.kv_total_tokens) == (6, 4, 1280, 40000)


def test_a_new_process_begins_its_progress_again(captured: Captured) -> None:
    told = orjson.loads(captured("sglang/loads_prefill.json"))
    before = SGLang().load(orjson.dumps(told), {}, 0.0)
    told["loads"][0]["total_prefill_uncached_tokens"] = 0
    after = SGLang().load(orjson.dumps(told), {}, 1.0)
    assert before.progress is not None
    assert after.progress is not None
    assert after.progress < before.progress


@pytest.mark.parametrize("body", [b"", b"{}", b'{"loads":[]}', b'{"loads":[1]}', b'{"loads":[{}]}', b"[]"])
def test_a_load_that_cannot_be_read_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        SGLang().load(body, {}, 0.0)


def test_counters_are_the_engines_own_in_seconds(captured: Captured) -> None:
    prefill = SGLang().load(captured("sglang/loads_prefill.json"), {}, 0.0).counters
    assert prefill == {"prefill_tokens": 689.0, "prefill_busy_s": pytest.approx(0.518993)}
    decode = SGLang().load(captured("sglang/loads_decode.json"), {}, 0.0).counters
    assert decode.keys() <= COUNTERS.keys()
    assert (decode["decode_steps"], decode["decode_batch"], decode["decode_batch2"]) == (105.0, 107.0, 111.0)
    assert (decode["decode_s"], decode["decode_batch_s"]) == (
        pytest.approx(0.547284),
        pytest.approx(0.562372),
    )
    told = orjson.loads(captured("sglang/loads_unified.json"))
    two = orjson.dumps(told | {"loads": told["loads"] * 2})
    assert SGLang().load(two, {}, 0.0).counters["prefill_busy_s"] == pytest.approx(2 * 18.783453)


def prefill_load(captured: Captured, age_s: float = 0.0, **figures: object) -> int | None:
    """What is said to be prefilling when the captured prefill engine's snapshot is `age_s` old."""
    told = orjson.loads(captured("sglang/loads_prefill.json"))
    known = {"sleep_on_idle": figures.pop("sleep_on_idle", False)}
    rank = told["loads"][0] | figures
    rank["timestamp"] -= age_s
    return SGLang().load(orjson.dumps(told | {"loads": [rank]}), known, 0.0).prefilling


def test_prefilling_are_those_that_wait(captured: Captured) -> None:
    assert prefill_load(captured) == 0
    assert prefill_load(captured, num_waiting_reqs=2) == 2
    assert prefill_load(captured, num_waiting_uncached_tokens=100) == 1


def test_what_is_only_being_sent_is_not_prefilling(captured: Captured) -> None:
    told = orjson.loads(captured("sglang/loads_prefill.json"))["loads"][0]["disaggregation"]
    sending = told | {"prefill_inflight_queue_reqs": 1}
    assert prefill_load(captured, disaggregation=sending, num_used_tokens=1024) == 0


def test_a_snapshot_that_grows_old_is_a_prompt_being_computed(captured: Captured) -> None:
    assert prefill_load(captured, age_s=0.5) == 1
    assert prefill_load(captured, age_s=0.5, num_waiting_reqs=2) == 2
    # One that sleeps when idle tells nothing by it.
    assert prefill_load(captured, age_s=0.5, sleep_on_idle=True) is None
    assert prefill_load(captured, age_s=0.5, sleep_on_idle=True, num_used_tokens=64) == 1


@pytest.mark.parametrize("name", ["loads_decode", "loads_unified"])
def test_only_a_prefill_engine_says_what_is_prefilling(captured: Captured, name: str) -> None:
    assert SGLang().load(captured(f"sglang/{name}.json"), {}, 0.0).prefilling is None


def test_the_load_call_asks_for_what_load_reads() -> None:
    path = SGLang().load_call().path
    assert path.startswith("/v1/loads")
    assert "core" in path
    assert "disagg" in path
