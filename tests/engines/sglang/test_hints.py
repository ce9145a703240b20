"""What dying SGLangs were seen to write leads to the right advice."""

from __future__ import annotations

import re

import pytest

from orchestrator.engines.sglang.hints import HINTS


def first(line: str) -> str | None:
    return next((h.hint for h in HINTS if re.search(h.pattern, line)), None)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("ImportError: libibverbs.so.1: cannot open shared object file", "libibverbs1"),
        ("RuntimeError: pin_memory=True requires a CUDA or other accelerator backend", "plug-in"),
        ("AssertionError: Torch not compiled with CUDA enabled", "retraction-backup cpu_tensor"),
        ("RuntimeError: InfiniBand sysfs path not found: /sys/class/infiniband", "mooncake_tcp"),
        ("nixl_cu12._bindings.nixlBackendError: NIXL_ERR_BACKEND", "mooncake_tcp"),
        ("decode allocation policy mismatch", "make them equal"),
        ("TCP lane queue-full rejection", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"),
        ("follow_bootstrap_room conflict: dispatched to dp_rank 0", "dp: 1"),
        (
            "launch_server.py: error: unrecognized arguments: --mem-fraction-statik 0.5",
            "does not know a flag",
        ),
        ("ModuleNotFoundError: No module named 'sglang'", "not installed"),
        ("[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000)", "port is taken"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "GPU memory"),
        ("RuntimeError: No CUDA GPUs are available", "no usable GPU"),
        ("OSError: /models/x does not appear to have a file named config.json", "model was not found"),
        ("Repo id must be in the form 'repo_name' or 'namespace/repo_name'", "model was not found"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
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
