"""The lint rules that adapters share; those of one engine alone are declared beside its adapter."""

from __future__ import annotations

from orchestrator.core.rules import WARN, Rule

PLANNED_FLAG = Rule(
    "planned-flag",
    "A flag or variable is given that the plan sets itself: model, addresses, ports, sizes, devices.",
    "The plan would say one thing and the engine do another: ports clash, GPUs are counted wrongly.",
    "Write it where the finding says; the plan renders the flag.",
)
UNKNOWN_FLAG = Rule(
    "unknown-flag",
    "The engine's version has no such flag; a known one that is near is named.",
    "The engine exits as soon as it starts.",
    "Correct the name, or remove it.",
)
UNKNOWN_ENV = Rule(
    "unknown-env",
    "A variable that begins like the engine's own, and that its version does not read.",
    "It is ignored without a word, and the default is in force.",
    "Correct the name, or remove it.",
)
REPLACED = Rule(
    "replaced",
    "A flag or variable that earlier versions of the engine had.",
    "As a flag it ends the engine as it starts; as a variable it is ignored, and the default is in force.",
    "Write what the finding names, which came instead.",
)
DEPRECATED = Rule(
    "deprecated",
    "A flag or variable that a later version of the engine will not have.",
    "An upgrade will not start.",
    "Write what the finding names.",
    WARN,
)
UNKNOWN_VERSION = Rule(
    "unknown-version",
    "The flags and variables of the engine's version are not known; the nearest version below stands in.",
    "A new flag looks mistyped, and one that went away looks good; findings about names are warnings then.",
    "`pdctl engines inspect ENGINE --python PATH --write FILE`, and name the file in `runtime.table`.",
    WARN,
)
DEVICE_MAP = Rule(
    "device-map",
    "NICs written by hand in a form that the engine does not take, or that another setting undoes.",
    "The engine stops at start, or moves KV over other NICs than those written.",
    "Write what the finding says, or leave it to the plan: `nodes[].nics`, or `nodes[].fabric`.",
)
NIC_MISSING = Rule(
    "nic-missing",
    "A NIC is named that its node does not have, or whose link is down there.",
    "The engine stops at start, or no hand-off of its gets through.",
    "Name one of those that the finding lists; names differ between hosts.",
)
FLAG_VALUE = Rule(
    "flag-value",
    "A flag has a value that the engine does not take.",
    "The engine exits as soon as it starts.",
    "Write one of the values named.",
)
ROLE_CONTRADICTION = Rule(
    "role-contradiction",
    "A flag says otherwise than the role of its pool.",
    "The instance starts, and cannot do its part of a hand-off: both sides send, or both wait.",
    "Remove the flag: the role implies it.",
)
UNKNOWN_TRANSFER = Rule(
    "unknown-transfer",
    "No hand-off is known for the `transfer` of a pool.",
    "The router could not tell the two sides of each other.",
    "Write one of those named.",
)
TRANSFER_MISMATCH = Rule(
    "transfer-mismatch",
    "A prefill and a decode pool move KV by different means.",
    "No hand-off between them can succeed.",
    "Give both pools the same `transfer`.",
)
PAGE_SIZE = Rule(
    "page-size",
    "Prefill and decode keep KV in pages (blocks) of different sizes.",
    "The engines refuse each other, or decode fetches the wrong number of pages.",
    "Give both pools the same page or block size.",
    running=True,
)
KV_DTYPE = Rule(
    "kv-dtype",
    "Prefill and decode keep KV in different number formats.",
    "The engines refuse each other's KV.",
    "Give both pools the same `kv-cache-dtype`.",
    running=True,
)
MODEL_DTYPE = Rule(
    "model-dtype",
    "Prefill and decode run the model in different number formats.",
    "KV has the model's format unless one is given, so the engines refuse each other.",
    "Give both pools the same `dtype`.",
    running=True,
)
MODEL_MISMATCH = Rule(
    "model-mismatch",
    "Prefill and decode load a model under different names, or different revisions of it.",
    "Engines that compare the name refuse the hand-shake; KV of one revision is noise to another.",
    "Leave both to `model.path` and `model.revision`.",
    running=True,
)
ENGINE_VERSION = Rule(
    "engine-version",
    "Prefill and decode are of different versions of the engine.",
    "The hand-off is no stable protocol: engines of two versions refuse each other, or misread.",
    "Run both pools from one environment.",
    running=True,
)
PROMPT_RENDERING = Rule(
    "prompt-rendering",
    "Prefill and decode make different tokens of one request: template, tokenizer or parts of them differ.",
    "Decode goes on from KV of another prompt, and answers nonsense.",
    "Give both pools the same.",
)
CONTEXT_LENGTH = Rule(
    "context-length",
    "Prefill and decode take prompts of different lengths.",
    "What one side takes the other refuses, after the work is done.",
    "Give both pools the same.",
    WARN,
    running=True,
)
HASH_SEED = Rule(
    "hash-seed",
    "Prefill and decode hash the blocks of a prompt differently: another algorithm, or another seed.",
    "One prompt has two names: what one side tells of its cache is not found at the other.",
    "Give both pools the same algorithm and the same `PYTHONHASHSEED`, or neither a seed.",
)
KV_LAYOUT = Rule(
    "kv-layout",
    "Prefill and decode lay KV out differently in memory.",
    "The engines refuse each other's KV.",
    "Give both pools the same.",
)
PIPELINE_SIZE = Rule(
    "pipeline-size",
    "The pipeline of decode does not fit that of prefill.",
    "The ranks of the two sides do not find each other.",
    "Give decode `pp: 1`, or the `pp` of prefill.",
)
ILLEGAL_TP = Rule(
    "illegal-tp",
    "Tensor or context parallelism that this model, or this pair of sizes, cannot have with this transfer.",
    "The engine refuses to start, or every transfer fails.",
    "Sizes of which one divides the other, and by which the model's KV heads can be shared out.",
)
UNEQUAL_TP = Rule(
    "unequal-tp",
    "Prefill and decode differ in tensor parallelism, and KV is cut into a slice per token.",
    "Measured: 10 to 52 % more time to first token.",
    "Equal `tp`, or what the finding names.",
    WARN,
)
PREFILL_DP = Rule(
    "prefill-dp",
    "A prefill pool with data parallelism, where a hand-off cannot tell which rank has the KV.",
    "Half or more of the requests fail.",
    "Use as many instances with `dp: 1`.",
)
KV_EVENTS = Rule(
    "kv-events",
    "`kv_events` in a pool whose caches cannot be indexed: data parallelism, where each rank has a cache and "
    "the engine chooses the rank, or blocks under 8 tokens (SGLang's are of one unless told otherwise).",
    "The events are published for nothing: requests go by the approximate index.",
    "Use as many instances with `dp: 1`; give SGLang `flags: {page-size: 64}`.",
    WARN,
)
SPANNING_DP = Rule(
    "spanning-dp",
    "Data parallelism over several nodes as the engine cannot divide it: SGLang keeps the DP ranks of an "
    "instance on one node, vLLM wants equally many on each.",
    "The engine does not start.",
    "Instances with `dp: 1`, or a `dp` that the number of nodes divides (vLLM).",
)
TIMEOUT_ORDER = Rule(
    "timeout-order",
    "An engine gives a hand-off up before the router's own deadline.",
    "The client gets an engine's error in place of the router's 504, and the other side waits on.",
    "Leave the engine's time-out to the plan, or shorten `router.timeouts.prefill` and `first_token`.",
    WARN,
)
UNROUTABLE_ADDRESS = Rule(
    "unroutable-address",
    "KV would be fetched from an address that the other host cannot reach.",
    "Every hand-off between the hosts fails, each after its time-out.",
    "Give the node its routable address in `nodes[].address`.",
)
INEFFECTIVE_FLAG = Rule(
    "ineffective-flag",
    "A flag does nothing here, or does not what it seems to.",
    "Somebody counts on it.",
    "Remove it; the finding says what does it instead.",
    WARN,
)
BAD_OPTION = Rule(
    "bad-option",
    "One of the pool's `options` has a value that the adapter does not take.",
    "The adapter would guess.",
    "Write what the finding says.",
    fixed=True,
)

STARTED_OTHERWISE = Rule(
    "started-otherwise",
    "An engine that runs tells otherwise of itself than was planned: model, sizes, version.",
    "Something between the plan and the process changed it, or another process answers in its place.",
    "Look at its log, and at who listens on its port; `pdctl plan --explain` shows what it was told.",
    running=True,
)
FOREIGN_PROCESS = Rule(
    "foreign-process",
    "The port of an instance is answered by a process that is none of its own.",
    "Requests would go to whatever that is.",
    "End the process that the finding names, or give the node other `ports`.",
    running=True,
    fixed=True,
)

PAIRS: tuple[Rule, ...] = (
    TRANSFER_MISMATCH,
    PAGE_SIZE,
    KV_DTYPE,
    MODEL_DTYPE,
    MODEL_MISMATCH,
    ENGINE_VERSION,
    PROMPT_RENDERING,
    CONTEXT_LENGTH,
    HASH_SEED,
    KV_LAYOUT,
    PIPELINE_SIZE,
)
"""Those that hold a prefill pool and a decode pool against each other."""

SHARED: tuple[Rule, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Rule))
"""All of them, in the order above."""
