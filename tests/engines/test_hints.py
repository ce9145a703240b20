"""The causes of death that all engines share are among the hints of each."""

from __future__ import annotations

from orchestrator.engines.hints import COMMON
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sim import Sim
from orchestrator.engines.vllm import VLLM


def test_every_adapter_knows_the_common_causes() -> None:
    for adapter in (SGLang, VLLM, Sim):
        assert set(COMMON) <= set(adapter.hints)
