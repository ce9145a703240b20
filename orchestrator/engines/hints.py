"""Causes of death that every engine shares, by what the log says."""

from __future__ import annotations

from orchestrator.engines.base import LogHint

COMMON = (
    LogHint(
        r"unrecognized arguments: (?P<flag>--[\w-]+)|error: argument --[\w-]+",
        "the installed engine does not know a flag: check the pool's flags against its version",
    ),
    LogHint(
        r"No module named '?(sglang|vllm)", "the engine is not installed in runtime.python's environment"
    ),
    LogHint(
        r"Address already in use|EADDRINUSE|port \d+ is already in use|error while attempting to bind",
        "a port is taken: see who holds it (`ss -ltnp`), or move the range of the node: nodes[].ports",
    ),
    LogHint(
        r"CUDA out of memory|OutOfMemoryError|[Nn]ot enough memory|No available memory for the cache blocks",
        "out of GPU memory: less of it for KV, a smaller context, more tp, or something else runs on the GPU",
    ),
    LogHint(r"Cannot allocate memory|oom-kill|MemoryError", "the host is out of memory"),
    LogHint(
        r"No CUDA GPUs are available|CUDA driver version is insufficient|libcuda\.so|no CUDA-capable device",
        "no usable GPU: check the driver (`nvidia-smi`) and the pool's devices",
    ),
    LogHint(
        r"Repo id must be in the form|is not a local folder and is not a valid model|"
        r"does not appear to have a file named config\.json|(?:config\.json|model).{0,60}No such file",
        "the model was not found: check model.path (a folder needs a leading ./ or /)",
    ),
    LogHint(
        r"couldn't connect to .*huggingface|offline mode is enabled|HF_HUB_OFFLINE",
        "the model is not on this node and the hub cannot be reached: download it first, or give its folder",
    ),
    LogHint(r"No space left on device", "a disk is full (caches, /dev/shm, or the log folder)"),
    LogHint(
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError",
        "the ranks could not talk over NCCL: run again with NCCL_DEBUG=INFO in the pool's env",
    ),
)
