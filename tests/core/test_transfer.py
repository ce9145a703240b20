"""What a transfer costs, held against what was measured (SGLang 0.5.22, Qwen3-32B, TP2 on both sides)."""

from __future__ import annotations

import pytest

from orchestrator.core.transfer import CROSS_NUMA_SHARE, RDMA, TCP, exposed_s, reference_ttft_s

MEASURED_MS = {
    # tokens: colocated, exposed over RDMA, exposed over TCP
    1024: (261, 17, 97),
    4096: (1052, 36, 349),
    16384: (4860, 67, 724),
    32768: (11274, 83, 634),
}


@pytest.mark.parametrize(("tokens", "measured"), MEASURED_MS.items())
def test_the_exposed_columns(tokens: int, measured: tuple[int, int, int]) -> None:
    colocated, rdma, tcp = (ms / 1000 for ms in measured)
    assert reference_ttft_s(tokens) == pytest.approx(colocated, rel=0.015)
    # Within a quarter: the longest prompt's last chunk waits for more than its own bytes.
    assert exposed_s(RDMA, tokens) == pytest.approx(rdma, rel=0.25)
    assert exposed_s(TCP, tokens) == pytest.approx(tcp, rel=0.10)


def test_only_the_last_chunk_is_waited_for() -> None:
    assert exposed_s(TCP, 8192) == exposed_s(TCP, 100_000)


def test_half_the_bandwidth_doubles_what_depends_on_it() -> None:
    near, far = (exposed_s(RDMA, 8192, share=s) - RDMA.fixed_s for s in (1.0, CROSS_NUMA_SHARE))
    assert far / near == pytest.approx(48.9 / 24.0)
