"""What dying vLLMs were seen to write leads to the right advice."""

from __future__ import annotations

import re

import pytest

from orchestrator.engines.vllm.hints import HINTS


def first(line: str) -> str | None:
    return next((h.hint for h in HINTS if re.search(h.pattern, line)), None)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("RuntimeError: NIXL compatibility hash mismatch", "make both pools equal"),
        ("PackageNotFoundError: No package metadata was found for vllm", "dist-info"),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision"),
        ("RuntimeError: Cannot access accelerator device when none is available.", "transfer: nixl"),
        ("    assert num_external_tokens == 0", "hand-off parameters"),
        ("assert num_decode_blocks <= len(prefill_group)", "hand-off parameters"),
        ("RuntimeError: Unsupported CPU attention configuration: head_dim=16", "head size"),
        ("ValueError: No available memory for the cache blocks.", "KV cache does not fit"),
        ("OSError: [Errno 98] Address already in use", "port is taken"),
        ("ERROR [core.py:1512] EngineCore encountered a fatal error.", "with code 0"),
        ("vllm serve: error: unrecognized arguments: --max-model-length 10", "does not know a flag"),
    ],
)
def test_dying_words_lead_to_advice(line: str, advice: str) -> None:
    hint = first(line)
    assert hint is not None
    assert advice in hint


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 14:22:42 [launcher.py:46] Route: /health, Methods: GET",
        "[2026-11-30 14:38:08] The server is fired up and ready to roll!",
        "sampling_params: {'max_new_tokens': 8}, disaggregation_mode='prefill', page_size=1, port=31100",
    ],
)
def test_ordinary_lines_lead_nowhere(line: str) -> None:
    assert first(line) is None


def test_every_pattern_compiles() -> None:
    for hint in HINTS:
        re.compile(hint.pattern)
