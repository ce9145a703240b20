"""The cost model against measurements of Qwen3-32B (TP2) made by others, in milliseconds."""

from __future__ import annotations

import pytest

from orchestrator.sim.timing import LINKS, QWEN3_32B_TP2, RDMA

COLOCATED_TTFT_MS = {1024: 261, 4096: 1052, 16384: 4860, 32768: 11274}


@pytest.mark.parametrize(("tokens", "measured_ms"), COLOCATED_TTFT_MS.items())
def test_prefill_is_as_measured(tokens: int, measured_ms: float) -> None:
    assert QWEN3_32B_TP2.prefill_s(0, tokens) * 1e3 == pytest.approx(measured_ms, rel=0.015)


def test_a_cached_prefix_saves_its_own_cost() -> None:
    t = QWEN3_32B_TP2
    assert t.prefill_s(0, 4096) + t.prefill_s(4096, 10_000) == pytest.approx(t.prefill_s(0, 10_000))


def test_a_decode_step_is_as_measured() -> None:
    """12 to 15 ms with one sequence, 14 to 17 with sixteen in the jitter measurement's setting."""
    assert 0.012 <= QWEN3_32B_TP2.decode_s(1, 1024) <= 0.015
    assert 0.014 <= QWEN3_32B_TP2.decode_s(16, 16 * 2048) <= 0.017


def test_kv_bytes_are_those_of_the_model() -> None:
    assert QWEN3_32B_TP2.kv_token_bytes == 2 * 64 * 8 * 128 * 2


def test_links_have_names() -> None:
    assert LINKS["rdma"] is RDMA
    assert QWEN3_32B_TP2.wire_s(1024, LINKS["tcp"]) > QWEN3_32B_TP2.wire_s(1024, RDMA)
