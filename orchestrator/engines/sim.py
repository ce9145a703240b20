"""Simulated engines: started differently, and in all protocol the adapter of the dialect they speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from orchestrator.core.address import join_host_port
from orchestrator.core.rules import Rule
from orchestrator.core.types import Role
from orchestrator.engines import base, flags, rules, sim_flags
from orchestrator.engines.base import InstanceSpec, LintContext, PortNeed, Setting, Shape, Word
from orchestrator.engines.hints import COMMON
from orchestrator.engines.linting import Writer
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sglang.command import has_encoders
from orchestrator.engines.sglang.media import UNCHECKED
from orchestrator.engines.sglang.switching import FLAG
from orchestrator.engines.vllm import VLLM
from orchestrator.engines.vllm.command import family, shutdown_timeout_s
from orchestrator.errors import Problem, TopologyError

_PORTS = ("http", "bootstrap", "side-channel", "kv-events")
_MEETING = ("dist", "master", "dp-rpc")
"""Where the processes of an instance on several nodes meet, as the dialects call it."""
_RULES = frozenset(
    rule.name
    for rule in (
        *rules.PAIRS,
        rules.UNKNOWN_TRANSFER,
        rules.PREFILL_DP,
        rules.SPANNING_DP,
        rules.UNROUTABLE_ADDRESS,
    )
)
"""The dialects' rules that hold for simulated engines too; the others are about real flags."""

VOCABULARY = 151_936
"""Token ids that the simulator knows, whatever the model is called: `orchestrator.sim.text`'s own."""

_NO_FLAGS = ("dialect", UNCHECKED)
"""Pool options that are the adapter's, and none of the simulator's flags."""


class _Simulated:
    """What differs from the real engine of the dialect: how it is started, and on which ports."""

    dialect: ClassVar[str]
    name: ClassVar[str] = "sim"
    hints: ClassVar[tuple[base.LogHint, ...]] = COMMON
    distributions: ClassVar[tuple[str, ...]] = ()
    dies_of_unknown_tokens: ClassVar[bool] = False
    """Its vocabulary is known in any case."""
    rules: ClassVar[tuple[Rule, ...]] = rules.SHARED
    switchable = False
    """Whether the pool's options let its role be switched, so that decode opens a bootstrap server too."""
    recipe: ClassVar[Any] = None
    """It is asked for nothing: `sim_flags` has its flags."""

    def bind(self, options: Mapping[str, Any]) -> base.Engine:
        """The adapter of `options.dialect`, `sglang` unless given. Raises TopologyError for another one."""
        dialect = options.get("dialect", "sglang")
        adapter = DIALECTS.get(dialect) if isinstance(dialect, str) else None
        if adapter is None:
            raise TopologyError(
                [
                    Problem(
                        f"a simulated engine speaks {' or '.join(DIALECTS)}, not {dialect!r}", field="dialect"
                    )
                ]
            )
        made = adapter()
        made.switchable = any(flags.plain(name, {}) == FLAG and on is True for name, on in options.items())
        return made

    def command(self, spec: InstanceSpec) -> base.Command:
        """`python -P -m orchestrator.sim`; pool options become its flags."""
        own = flags.Settings()
        own.put("plan", host=spec.bind, port=spec.ports["http"])
        own.put("plan", bootstrap_port=spec.ports.get("bootstrap"))
        own.put("plan", side_channel_host=spec.address if "side-channel" in spec.ports else None)
        own.put("plan", side_channel_port=spec.ports.get("side-channel"))
        own.put("plan", served_model_name=spec.served_name, model_path=spec.model_path)
        own.put(f"role {spec.role.value}", **_transfer(self.dialect, spec))
        if spec.kv_events and "kv-events" in spec.ports:
            first = spec.ports["kv-events"]
            own.put("pool kv_events", kv_events_port=first, kv_replay_port=first + 1)
        own.put("adapter", enable_cache_report=True)
        if self.dialect == "vllm":
            own.put("adapter", enable_server_load_tracking=True)
            own.put("plan", shutdown_timeout=shutdown_timeout_s(spec))
        if spec.head_address is not None:
            meeting = next(spec.ports[name] for name in _MEETING if name in spec.ports)
            own.put("plan", nnodes=spec.shape.nnodes, node_rank=spec.rank)
            own.put("plan", dist_init_addr=join_host_port(spec.head_address, meeting))
        if has_encoders(spec):
            assert spec.encoders is not None
            own.put("encoders", encoder_urls=list(spec.encoders.urls))
        own.put("pool", **{name: value for name, value in spec.options.items() if name not in _NO_FLAGS})
        own.put("credentials", api_key=None if spec.role is Role.ENCODE else spec.key)
        merged = flags.merge(own, spec.flags, sim_flags.ALIASES)
        start = [
            Word(word, "adapter") for word in ("-P", "-m", "orchestrator.sim", "--dialect", self.dialect)
        ]
        start += [Word(word, f"role {spec.role.value}") for word in ("--role", spec.role.value)]
        return base.Command(argv=(*start, *flags.words(merged)), env=flags.variables(spec.env))

    def carriage(self, transfer: str | None) -> base.Carriage | None:
        """None: whatever its transfer is called, it goes over TCP, on any machine."""
        return None

    def pace(self, spec: InstanceSpec) -> float:
        """How many times as fast as its launch profile's prior the instance is: `speed`, flag or option."""
        return _own(spec, "speed") or 1.0

    def facts(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """The dialect's, with the simulator's own lease, and vocabulary unless the topology names a size.

        Without `idle_s`: it closes idle connections when the real engine does by default, and the variable
        that makes the real one wait longer means nothing to it.
        """
        known = dict(REAL[self.dialect].facts(replace(spec, vocab_size=spec.vocab_size or VOCABULARY)))
        known.pop("idle_s", None)
        if "lease_s" not in known:
            return known
        lease_s = _own(spec, "lease-s")
        return {**known, "lease_s": (lease_s or known["lease_s"]) / self.pace(spec)}

    def expects(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """The model, and pages of the size that was asked for."""
        page = _own(spec, "page-size")
        return {"id": spec.served_name} | ({"block_size": int(page)} if page is not None else {})

    def ports(self, role: Role, shape: Shape, transfer: str | None) -> tuple[PortNeed, ...]:
        """Those of the dialect that the simulator opens too."""
        needs = REAL[self.dialect].ports(role, shape, transfer)
        wanted = (*_PORTS, *_MEETING) if shape.nnodes > 1 else _PORTS
        opened = [need for need in needs if need.purpose in wanted]
        if self.dialect == "sglang" and role is Role.DECODE and not self.switchable:
            opened = [need for need in opened if need.purpose != "bootstrap"]
        return tuple(opened)

    def lint(self, context: LintContext) -> Sequence[Problem]:
        """The dialect's rules about pairs, and the simulator's own flags and options."""
        found = REAL[self.dialect].lint(context)
        own = sim_flags.lint(Writer(context, sim_flags.ALIASES), _NO_FLAGS)
        return [*(problem for problem in found if problem.rule in _RULES), *own]


class Sim(_Simulated, SGLang):
    """A simulated engine that speaks SGLang's dialect; `bind` gives the one that a pool asks for."""

    dialect: ClassVar[str] = "sglang"
    name: ClassVar[str] = "sim"
    hints: ClassVar[tuple[base.LogHint, ...]] = COMMON
    distributions: ClassVar[tuple[str, ...]] = ()

    def switch(self, spec: InstanceSpec, to: Role) -> base.HttpCall | str:
        """As the real one, where its options have the flag."""
        if not self.switchable:
            return f"its pool was not started with `options: {{{FLAG}: true}}`"
        return super().switch(replace(spec, flags={FLAG: Setting(True, "pool")}), to)


class SimVLLM(_Simulated, VLLM):
    """A simulated engine that speaks vLLM's dialect."""

    dialect: ClassVar[str] = "vllm"
    name: ClassVar[str] = "sim"
    hints: ClassVar[tuple[base.LogHint, ...]] = COMMON
    distributions: ClassVar[tuple[str, ...]] = ()


DIALECTS: Mapping[str, type[Sim] | type[SimVLLM]] = {"sglang": Sim, "vllm": SimVLLM}
REAL: Mapping[str, base.Engine] = {"sglang": SGLang(), "vllm": VLLM()}


def _own(spec: InstanceSpec, name: str) -> float | None:
    """What a flag or option of the simulator's sets, as a number."""
    written = {**spec.options, **{flag: setting.value for flag, setting in spec.flags.items()}}
    return _number({flags.plain(flag, sim_flags.ALIASES): value for flag, value in written.items()}.get(name))


def _number(value: object) -> float | None:
    """What the command line will say, as a number; None for what the lint refuses anyway, or for nothing."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if number > 0 else None


def _transfer(dialect: str, spec: InstanceSpec) -> dict[str, str]:
    """How KV travels, in the simulator's own words; only those who hand off have it."""
    if spec.role in (Role.UNIFIED, Role.ENCODE):
        return {}
    if dialect == "sglang":
        return {"transfer": "mooncake_tcp" if spec.transfer == "mooncake_tcp" else "mooncake"}
    chosen = {"transfer": family(spec.transfer) or "nixl"}
    if spec.transfer == "mooncake_tcp":
        chosen["link"] = "tcp"
    if spec.role is Role.DECODE:
        chosen["kv_load_failure_policy"] = "recompute"
    return chosen
