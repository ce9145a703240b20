"""What dying SGLangs were seen to write leads to the right advice."""

from __future__ import annotations

import re

import pytest

from orchestrator.engines.sglang.hints import HINTS
from orchestrator.launch.failure import explain


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
        ("    len(req.origin_input_ids)", "an encoder could not read an image"),
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
        ("[2026-11-30 17:50:21] Scheduler hit an exception: Traceback (most recent call last):", "starting"),
        ("    scheduler.run_event_loop()", "a request made SGLang's scheduler raise"),
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


DEATH = """\
[2026-11-30 17:51:43] Scheduler hit an exception: Traceback (most recent call last):
  File ".../sglang/srt/managers/scheduler.py", line 6368, in run_scheduler_process
    scheduler.run_event_loop()
  File ".../torch/nn/functional.py", line 2567, in embedding
    return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)
IndexError: index out of range in self
"""


def test_a_kill_by_its_own_hand_is_not_laid_on_somebody_outside() -> None:
    """SGLang ends with -9 whatever its scheduler raised; what is known of the exception comes first."""
    told = explain("killed by SIGKILL while it was serving", -9, DEATH.splitlines(), HINTS, ())
    assert "killed its own processes" in told.hint
    assert "dmesg" not in told.hint
    out_of_memory = [*DEATH.splitlines()[:-1], "torch.OutOfMemoryError: CUDA out of memory."]
    assert "GPU memory" in explain("", -9, out_of_memory, HINTS, ()).hint
    assert "dmesg" in explain("", -9, ["all was well"], HINTS, ()).hint
