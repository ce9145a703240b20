"""The existing routers that `router.kind` can launch over the same engines, as data and argument lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.engines.base import HttpCall, Probes, Setting, Word
from orchestrator.engines.flags import words as flag_words

ROLE = "role"
"""Origin of the words that follow from what the router is launched over."""


@dataclass(frozen=True, slots=True)
class Behind:
    """One engine as another router is told of it.

    `engine` is the protocol it speaks (a simulated engine's dialect); `transfer` as in the topology.
    """

    role: str
    engine: str
    url: str
    bootstrap_port: int | None = None
    transfer: str | None = None


@dataclass(frozen=True, slots=True)
class Front:
    """Where the router listens: for clients, and for its metrics."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int


@dataclass(frozen=True, slots=True)
class Keys:
    """What the topology's credentials come down to."""

    client: tuple[str, ...] = ()
    engine: str | None = None
    admin: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignRouter:
    """How one existing router is started. Versions tried: sglang-router 0.3.2, vllm-router 0.1.17.

    `checks_keys`: it can demand a client key, which it then also presents to the engines (seen with
    sglang-router; vllm-router presents an empty one in prefill/decode mode whatever it is told).
    """

    module: str
    engine: str
    pair_flag: str
    bootstrap: bool
    checks_keys: bool
    package: str
    connectors: Mapping[str, str] = field(default_factory=dict)

    def argv(
        self, behind: Sequence[Behind], front: Front, flags: Mapping[str, Setting], keys: Keys
    ) -> tuple[Word, ...]:
        """Words after the interpreter; the user's `flags` come last and win."""
        words = [
            *("-m", self.module, "--host", front.host, "--port", str(front.port)),
            *("--prometheus-host", front.metrics_host, "--prometheus-port", str(front.metrics_port)),
        ]
        prefill = [b for b in behind if b.role == "prefill"]
        decode = [b for b in behind if b.role == "decode"]
        if prefill and decode:
            words.append(self.pair_flag)
            words += self._connector(prefill, flags)
            for engine in prefill:
                words += ["--prefill", engine.url]
                if self.bootstrap:
                    words.append(str(engine.bootstrap_port))
            for engine in decode:
                words += ["--decode", engine.url]
        else:
            words += ["--worker-urls", *(b.url for b in behind if b.role == "unified")]
        rendered = [Word(word, ROLE) for word in words]
        if self.checks_keys and keys.client:
            rendered += [Word("--api-key", ROLE), Word(keys.client[0], ROLE, secret=True)]
        return (*rendered, *flag_words(flags))

    def _connector(self, prefill: Sequence[Behind], flags: Mapping[str, Setting]) -> list[str]:
        """The flag for a KV connector other than its default, told from the pools' `transfer`."""
        transfer = (prefill[0].transfer or "").lower()
        named = next((value for part, value in self.connectors.items() if part in transfer), None)
        return ["--kv-connector", named] if named and "kv-connector" not in flags else []

    def refuses(self, behind: Sequence[Behind]) -> list[str]:
        """Why it cannot route over these engines; empty if it can."""
        found = []
        strangers = sorted({b.engine for b in behind} - {self.engine})
        if strangers:
            found.append(f"it routes to {self.engine} alone, not to {', '.join(strangers)}")
        roles = {b.role for b in behind}
        if roles not in ({"prefill", "decode"}, {"unified"}):
            found.append(f"it takes prefill and decode, or unified engines; here: {', '.join(sorted(roles))}")
        if self.bootstrap and any(b.role == "prefill" and b.bootstrap_port is None for b in behind):
            found.append("it needs the bootstrap port of every prefill engine")
        return found

    def refuses_keys(self, keys: Keys) -> list[str]:
        """Why it cannot honour these credentials; empty if it can."""
        found = []
        if keys.admin is not None:
            found.append(f"{self.package} has no separate admin key")
        if not self.checks_keys and (keys.client or keys.engine):
            found.append(f"{self.package} neither demands client keys nor presents one to paired engines")
        elif len(keys.client) > 1:
            found.append(f"{self.package} knows one client key, here are {len(keys.client)}")
        elif keys.engine is not None and keys.client != (keys.engine,):
            found.append(f"{self.package} presents its client key to engines: engine_key must be the same")
        return found

    def probes(self, ready_timeout_s: float) -> Probes:
        """Both answer 200 on `/readiness` once their engines are healthy, and on `/liveness` at once."""
        return Probes(
            ready=(HttpCall("GET", "/readiness"),),
            live=HttpCall("GET", "/liveness"),
            ready_timeout_s=ready_timeout_s,
        )


KINDS: Mapping[str, ForeignRouter] = {
    "sglang-router": ForeignRouter(
        module="sglang_router.launch_router",
        engine="sglang",
        pair_flag="--pd-disaggregation",
        bootstrap=True,
        checks_keys=True,
        package="sglang-router",
    ),
    "vllm-router": ForeignRouter(
        module="vllm_router.launch_router",
        engine="vllm",
        pair_flag="--vllm-pd-disaggregation",
        bootstrap=False,
        checks_keys=False,
        package="vllm-router",
        connectors={"mooncake": "mooncake", "moriio": "moriio"},
    ),
}
"""By the name a topology gives in `router.kind`, which is also their package's."""
