"""The lint rules about the topology itself; those about engines are declared with the adapters."""

from __future__ import annotations

from orchestrator.core.rules import WARN, Rule

ROLES = Rule(
    "roles",
    "Prefill without decode, decode without prefill, encoders without a prefill or unified pool of their "
    "engine, or no instance at all.",
    "Nothing could serve a request.",
    "Add the missing pool, or give the lonely one `role: unified`.",
)
ONE_PROTOCOL = Rule(
    "one-protocol",
    "A prefill and a decode pool that speak different hand-offs, or transfer KV by different means.",
    "Any prefill instance may be paired with any decode instance, and KV cannot be handed off between these.",
    "Give both pools the same `engine` (or `dialect`) and the same `transfer`.",
)
MODEL_PATH = Rule(
    "model-path",
    "pdctl launches engines, and `model.path` does not say what they load.",
    "No engine can be started.",
    "Write `model.path`: a folder, or the id of a model on a hub.",
    fixed=True,
)
ADDRESSES = Rule(
    "addresses",
    "A node that the other nodes cannot reach: loopback, or 0.0.0.0.",
    "KV is pulled from and pushed to the addresses of the nodes; every hand-off between hosts would fail.",
    "Write the address that the other nodes reach it at in `nodes[].address`.",
)
ROUTER_REACH = Rule(
    "router-reach",
    "Nodes at several addresses, and a router whose admin listener only its own node can reach.",
    "An engine that is stopped on another node cannot tell the router before: requests that reach it while "
    "it drains may be lost.",
    "Write `router.admin` with an address of its node, and `router.credentials.admin_key: ${env:NAME}`.",
    WARN,
)
PORT_RANGES = Rule(
    "port-ranges",
    "Two nodes at one address whose port ranges overlap.",
    "Their instances would be given the same ports.",
    "Give each its own `nodes[].ports`.",
)
SHARED_HOST = Rule(
    "shared-host",
    "Two nodes at one address that list the same GPU.",
    "They are one machine, and its GPU would be given to two instances.",
    "Give each node its own address, or its share of the GPUs as a list.",
)
RACKS = Rule(
    "racks",
    "A node without a `rack`, where others have one.",
    "All without one are taken for one rack: instances are kept apart, and ranks together, by that.",
    "Write the `rack` of every node, or of none.",
    WARN,
)
SPANS = Rule(
    "spans",
    "An instance on several nodes that its engine cannot run there, or whose tensor-parallel groups would be "
    "cut unevenly.",
    "The engine would not start, or its ranks would not meet.",
    "Another `nnodes`, or more instances, each on one node.",
    fixed=True,
)
EPHEMERAL_PORTS = Rule(
    "ephemeral-ports",
    "A node's range meets the ports that Linux gives to outgoing connections, 32768-60999.",
    "Now and then one of them is taken when an engine starts.",
    "Choose a range below 32768.",
    WARN,
)
PORTS = Rule(
    "ports",
    "A range that is too small, or a port that the router or an external engine has.",
    "Two processes would want one port.",
    "Change `nodes[].ports`, or the port of the other.",
    fixed=True,
)
PLACEMENT = Rule(
    "placement",
    "Not enough GPUs or nodes, GPUs that cannot be shared out evenly, or GPUs pinned twice.",
    "An instance would have no GPU, or share one that is full.",
    "State the GPUs in `nodes`, or ask for fewer.",
    fixed=True,
)
PINS = Rule(
    "pins",
    "An instance pinned to more or fewer GPUs than it takes.",
    "The engine would find too few GPUs, or leave some idle.",
    "Pin as many as tp x pp x dp, or set `gpus`.",
)
CLASSES = Rule(
    "classes",
    "An SLO class that is named and does not exist, or one for long prompts that hands them on again.",
    "The requests would have no class.",
    "Write the class in `slo_classes`, or name another.",
    fixed=True,
)
CLASS_POOLS = Rule(
    "class-pools",
    "The pools of an SLO class: one that does not exist, or that cannot serve a request between them.",
    "Every request of the class would be refused.",
    "Name prefill and decode pools, or a unified one.",
    fixed=True,
)
PROMISES = Rule(
    "promises",
    "An `e2e` that leaves no time after `ttft`, reserves that leave nothing, or a `max_wait` or "
    "one of `timeouts` over that of `router.timeouts`.",
    "The promise cannot be kept, or never counts.",
    "Widen the one or narrow the other.",
    fixed=True,
)
ROUTER_KIND = Rule(
    "router-kind",
    "An existing router that cannot route over these engines.",
    "It would not start, or send requests where they cannot be served.",
    "Use `router.kind: pdctl`, or the pools that the router knows.",
    fixed=True,
)
ADMIN_KEY = Rule(
    "admin-key",
    "An admin listener that other machines reach, without a key; `auth: none` is about clients.",
    "Whoever reaches it can take engines out and flush their caches.",
    "Write `router.credentials.admin_key: ${env:NAME}`, or listen on 127.0.0.1.",
)
TLS_FILES = Rule(
    "tls-files",
    "A file of `router.tls` cannot be read, is no PEM, or key and certificate do not belong together.",
    "The router would not start. Where a plan is made for another machine, silence this.",
    "Give the paths of the certificate with its chain, and of its own private key without a passphrase.",
)
INLINE_SECRETS = Rule(
    "inline-secrets",
    "A key is written in the file.",
    "It ends up in version control.",
    "Write `${env:NAME}` and keep the key in the environment.",
    WARN,
)
UNTRIED = Rule(
    "untried",
    "A launch profile that nobody has run yet.",
    "Its figures come from documentation.",
    "Try it on one instance first; report what you find.",
    WARN,
)
VOCABULARY = Rule(
    "vocabulary",
    "A client's token id can end an engine, and the size of the vocabulary is not known.",
    "One request with a token id beyond it takes an instance down with all its requests.",
    "Write `model.vocab_size`, as the model's `config.json` has it.",
    WARN,
)
ENGINE_MISSING = Rule(
    "engine-missing",
    "An engine's environment runs and has no such engine installed.",
    "It cannot be started here; fine where plans are made for another machine.",
    "Set `pools.NAME.runtime.python`.",
    WARN,
)
RUNTIME = Rule(
    "runtime",
    "An engine's environment does not run, so its version is unknown.",
    "The engine will not start from it either.",
    "Mend the path in `pools.NAME.runtime`.",
    WARN,
)
SILENCE = Rule(
    "silence",
    "A rule is silenced that does not exist, that cannot be silenced, or in a pool that does not exist.",
    "A finding that was thought about and a name that was mistyped look alike otherwise.",
    "Write the rule's name as the finding has it in brackets.",
    fixed=True,
)
UNUSED_SILENCE = Rule(
    "unused-silence",
    "A rule is silenced that has nothing to say.",
    "When it has one day, nobody will hear it.",
    "Remove it from `silence`.",
    WARN,
)

RULES: tuple[Rule, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Rule))
"""All of them, in the order above."""
