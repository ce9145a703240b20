"""Hand-off parameters: the captured ones pass, and no damaged ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.vllm import params

GOOD: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[41, 40, 42]],
    "remote_engine_id": "7b4e36df-4170-449a-8d21-86386c08c845",
    "remote_request_id": "cmpl-x-0-895a1d6f",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 300,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 256,
}
REQUIRED = (
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ["completion_5", "chat"])
def test_captured_parameters_pass(captured: Callable[[str], bytes], name: str) -> None:
    answer = orjson.loads(captured(f"vllm/{name}_prefill.json"))
    tokens = answer["usage"]["prompt_tokens"]
    assert params.fault(answer["kv_transfer_params"], block_size=128, prompt_tokens=tokens) is None


def test_the_good_ones_are_good() -> None:
    assert params.fault(GOOD, block_size=128, prompt_tokens=300) is None
    assert params.fault(GOOD) is None


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_refused(name: str) -> None:
    assert params.fault({k: v for k, v in GOOD.items() if k != name}, block_size=128)


@given(name=st.sampled_from(REQUIRED), value=anything)
def test_any_other_value_of_a_required_field_is_refused_or_still_fits(name: str, value: Any) -> None:
    why = params.fault(GOOD | {name: value}, block_size=128, prompt_tokens=300)
    if why is None:
        assert still_fits(name, value), f"{name}={value!r} passed"


def still_fits(name: str, value: Any) -> bool:
    """What a mutation may be without harm: the same kind of thing, of the same size."""
    if name.startswith("do_"):
        return value is GOOD[name]
    if name == "remote_block_ids":
        return (
            isinstance(value, list)
            and [len(set(g)) for g in value] == [3]
            and all(type(block) is int and block >= 0 for group in value for block in group)
        )
    if name == "remote_port":
        return type(value) is int and 1 <= value <= 65535
    if name == "remote_num_tokens":
        return type(value) is int and 257 <= value <= 384
    return isinstance(value, str) and value != ""


@given(count=st.integers(0, 8), block_size=st.integers(1, 200), tokens=st.integers(1, 1000))
def test_the_number_of_blocks_must_be_what_the_tokens_take(count: int, block_size: int, tokens: int) -> None:
    told = GOOD | {"remote_block_ids": [list(range(count))], "remote_num_tokens": tokens}
    assert (params.fault(told, block_size=block_size) is None) == (count == -(-tokens // block_size))


@pytest.mark.parametrize("told", [None, [], "x", 1, {}])
def test_what_are_no_parameters_is_refused(told: object) -> None:
    assert params.fault(told)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"do_remote_prefill": 1}, "do_remote_prefill is not true"),
        ({"do_remote_decode": True}, "do_remote_decode is not false"),
        ({"remote_engine_id": ""}, "remote_engine_id"),
        ({"remote_host": "not a host"}, "remote_host is no host"),
        ({"remote_host": "0.0.0.0"}, "no address to reach"),
        ({"remote_port": True}, "remote_port"),
        ({"remote_port": 70000}, "remote_port"),
        ({"transfer_mode": "push"}, "transfer_mode is not pull"),
        ({"tp_size": 0}, "tp_size is no size"),
        ({"remote_num_tokens": 0}, "remote_num_tokens"),
        ({"remote_block_ids": []}, "missing or empty"),
        ({"remote_block_ids": [[]]}, "names no block"),
        ({"remote_block_ids": [41, 40, 42]}, "per KV cache group"),
        ({"remote_block_ids": [[41, -1, 42]]}, "per KV cache group"),
        ({"remote_block_ids": [[41, 41, 42]]}, "twice"),
        ({"remote_block_ids": [[41, 40]]}, "2 blocks for 300 tokens, which take 3 of 128"),
        ({"remote_block_ids": [[1, 2, 3, 4]]}, "4 blocks for 300 tokens"),
    ],
)
def test_each_damage_is_named(damage: dict[str, Any], says: str) -> None:
    why = params.fault(GOOD | damage, block_size=128)
    assert why is not None
    assert says in why


def test_blocks_for_another_prompt_are_refused() -> None:
    assert params.fault(GOOD, block_size=128, prompt_tokens=300) is None
    assert params.fault(GOOD, block_size=128, prompt_tokens=100)


def test_groups_with_a_window_may_hold_less() -> None:
    told = GOOD | {"remote_block_ids": [[1, 2, 3], [9], []]}
    assert params.fault(told, block_size=128) is None
    assert params.fault(told | {"remote_block_ids": [[1, 2, 3, 4], [9]]}, block_size=128)
