"""What a dying SGLang writes into its log, and what to tell the operator."""

from __future__ import annotations

from orchestrator.engines.base import LogHint
from orchestrator.engines.hints import COMMON

HINTS = (
    LogHint(
        r"libibverbs\.so\.1|Please install mooncake by following",
        "Mooncake needs libibverbs even over TCP: install the packages libibverbs1 and ibverbs-providers",
    ),
    LogHint(
        r"pin_memory=True requires a CUDA|Cannot access accelerator device",
        "the prefill's KV sender assumes a GPU; on a CPU it needs a plug-in that sets "
        "MooncakeKVSender.supports_host_tensor_indices = False",
    ),
    LogHint(
        r"Torch not compiled with CUDA enabled",
        "on a CPU, decode needs --disaggregation-decode-retraction-backup cpu_tensor",
    ),
    LogHint(
        r"InfiniBand sysfs path not found|No IB devices configured",
        "nics: names RDMA devices that this node does not have; remove it, or use transfer: mooncake_tcp",
    ),
    LogHint(
        r"NIXL_ERR_BACKEND", "NIXL cannot register this memory; without a GPU use transfer: mooncake_tcp"
    ),
    LogHint(
        r"decode allocation policy mismatch|(page_size|kv_cache_dtype).{0,40}(mismatch|must match|not match)",
        "the prefill and decode pools differ in page size, KV type or allocation policy: make them equal",
    ),
    LogHint(
        r"AttributeError.*NetworkAddress|in __post_init__.*network\.py",
        "a request reached decode without bootstrap_host: something other than pdctl's router sends to it",
    ),
    LogHint(
        r"Unexpected poll state \d in .*pop_bootstrapped",
        "two live requests had one bootstrap room: does another router send to this prefill too?",
    ),
    LogHint(
        r"follow_bootstrap_room conflict",
        "--dp-size on a prefill does not work under disaggregation: use more instances with dp: 1",
    ),
    LogHint(
        r"TCP lane queue-full rejection",
        "unequal TP over mooncake_tcp overflows its queue: MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER=65535, equal "
        "tp, or RDMA",
    ),
    LogHint(
        r"requires a numa|SGLANG_CPU_OMP_THREADS_BIND",
        'several ranks on a CPU need SGLANG_CPU_OMP_THREADS_BIND, for two ranks "0|1"',
    ),
    LogHint(
        r"len\(req\.origin_input_ids\)",
        "an encoder could not read an image, or was gone, and SGLang ends the engine that waited for it: "
        "look at the encode instances' logs, then at docs/engines.md, Encoders",
    ),
    *COMMON,
    # Last, for the exception itself may be one of those above.
    LogHint(
        r"scheduler\.run_event_loop\(\)",
        "a request made SGLang's scheduler raise, and it killed its own processes over it: that SIGKILL came "
        "from no one outside. The traceback after `Scheduler hit an exception` shows what it choked on; the "
        "router refuses what is known to do this, and for token ids needs model.vocab_size",
    ),
    LogHint(
        r"Scheduler hit an exception",
        "SGLang's scheduler raised while starting, and it killed its own processes over it: the traceback "
        "after `Scheduler hit an exception` says what is wrong",
    ),
)
