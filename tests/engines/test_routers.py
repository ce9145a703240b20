"""The existing routers as argument lists: their words, what they refuse, what they are told of keys."""

from __future__ import annotations

import pytest

from orchestrator.engines.base import Setting
from orchestrator.engines.routers import KINDS, Behind, Front, Keys

FRONT = Front("0.0.0.0", 8000, "127.0.0.1", 8001)
PAIR = (
    Behind("prefill", "sglang", "http://p:1", bootstrap_port=8998),
    Behind("decode", "sglang", "http://d:1"),
)


def words(
    kind: str, behind: tuple[Behind, ...], flags: dict[str, Setting] | None = None, keys: Keys = Keys()
) -> str:
    return " ".join(w.text for w in KINDS[kind].argv(behind, FRONT, flags or {}, keys))


def test_the_users_flags_come_last_and_win() -> None:
    text = words("sglang-router", PAIR, {"policy": Setting("random", "topology t.yaml:1")})
    assert text.endswith("--decode http://d:1 --policy random")


def test_unified_engines_become_workers() -> None:
    behind = (Behind("unified", "vllm", "http://u:1"), Behind("unified", "vllm", "http://u:2"))
    assert words("vllm-router", behind).endswith("--worker-urls http://u:1 http://u:2")


@pytest.mark.parametrize(
    ("transfer", "flag"), [("MooncakeConnector", "mooncake"), ("NixlConnector", None), (None, None)]
)
def test_the_connector_follows_the_pools(transfer: str | None, flag: str | None) -> None:
    behind = (
        Behind("prefill", "vllm", "http://p:1", transfer=transfer),
        Behind("decode", "vllm", "http://d:1", transfer=transfer),
    )
    text = words("vllm-router", behind)
    assert (f"--kv-connector {flag}" in text) == (flag is not None)
    chosen = words("vllm-router", behind, {"kv-connector": Setting("nixl", "topology t.yaml:1")})
    assert chosen.count("--kv-connector") == 1


def test_only_a_router_that_checks_keys_is_given_one() -> None:
    assert words("sglang-router", PAIR, keys=Keys(client=("k",))).endswith("--api-key k")
    assert KINDS["sglang-router"].refuses_keys(Keys(client=("k",), engine="k")) == []
    assert KINDS["sglang-router"].refuses_keys(Keys(client=("k",), engine="other"))
    assert KINDS["vllm-router"].refuses_keys(Keys(client=("k",)))
    assert KINDS["vllm-router"].refuses_keys(Keys()) == []


def test_what_they_cannot_route_over() -> None:
    assert KINDS["sglang-router"].refuses(PAIR) == []
    assert KINDS["vllm-router"].refuses(PAIR) == ["it routes to vllm alone, not to sglang"]
    lost = (Behind("prefill", "sglang", "http://p:1"), PAIR[1])
    assert KINDS["sglang-router"].refuses(lost) == ["it needs the bootstrap port of every prefill engine"]
