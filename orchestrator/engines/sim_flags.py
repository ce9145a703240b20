"""The simulator's flags by name, each with what its value must be, and the findings about a user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.core.rules import Rule
from orchestrator.engines import flags, rules
from orchestrator.engines.base import InstanceSpec
from orchestrator.engines.linting import Writer, one_per_pool
from orchestrator.errors import Problem
from orchestrator.plugins import nearest


@dataclass(frozen=True, slots=True)
class Form:
    """What a flag takes: `kind` is `int`, `float`, `text`, `switch` or `list`; a float has a least value."""

    kind: str
    choices: tuple[str, ...] = ()
    above: float | None = None
    """The value must be more than this."""
    least: float | None = None

    def expects(self, value: object) -> str | None:
        """What the value should be, in words, if it is not that. False and None leave any flag out."""
        if value is None or value is False:
            return None
        if self.kind == "switch":
            return None if value is True else "true or false"
        if self.kind == "list":
            return None if isinstance(value, list | str) else "a list"
        if value is True or isinstance(value, list):
            return self._words()
        if self.kind == "text":
            return None if not self.choices or value in self.choices else self._words()
        return None if self._is_number(str(value)) else self._words()

    def _is_number(self, text: str) -> bool:
        try:
            number = int(text) if self.kind == "int" else float(text)
        except ValueError:
            return False
        return (self.above is None or number > self.above) and (self.least is None or number >= self.least)

    def _words(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bound = f" above {self.above:g}" if self.above is not None else ""
        bound = f" of at least {self.least:g}" if self.least is not None else bound
        return {"int": "a whole number", "float": "a number", "text": "text"}[self.kind] + bound


_INT, _TEXT, _SWITCH = Form("int"), Form("text"), Form("switch")
_POSITIVE, _NATURAL = Form("float", above=0), Form("float", least=0)

FORMS: Mapping[str, Form] = {
    "dialect": Form("text", ("sglang", "vllm")),
    "role": Form("text", ("prefill", "decode", "unified", "encode")),
    "host": _TEXT,
    "port": _INT,
    "served-model-name": _TEXT,
    "model-path": _TEXT,
    "speed": _POSITIVE,
    "seed": _INT,
    "transfer": Form("text", ("mooncake", "mooncake_tcp", "nixl")),
    "link": Form("text", ("rdma", "tcp")),
    "bootstrap-port": _INT,
    "side-channel-host": _TEXT,
    "side-channel-port": _INT,
    "lease-s": _POSITIVE,
    "kv-load-failure-policy": Form("text", ("fail", "recompute")),
    "optimistic-prefill": _SWITCH,
    "enable-pd-role-switch": _SWITCH,
    "encoder-urls": Form("list"),
    "nnodes": _INT,
    "node-rank": _INT,
    "dist-init-addr": _TEXT,
    "page-size": _INT,
    "kv-tokens": _INT,
    "prefix-tokens": _INT,
    "chunk": _INT,
    "interference": Form("text", ("mixed", "prefill-first")),
    "max-running": _INT,
    "max-model-len": _INT,
    "api-key": _TEXT,
    "enable-cache-report": _SWITCH,
    "enable-server-load-tracking": _SWITCH,
    "faults": _TEXT,
    "tells": _TEXT,
    "control-port": _INT,
    "kv-events-port": _INT,
    "kv-replay-port": _INT,
    "load-delay-s": _NATURAL,
    "shutdown-timeout": _NATURAL,
    "drain-poll-s": _POSITIVE,
}
"""The flags of `python -m orchestrator.sim`, which a test holds equal to its parser."""

ALIASES = {"block-size": "page-size", "enable-prompt-tokens-details": "enable-cache-report"}

PLANNED: Mapping[str, str] = {
    "dialect": "write options: {dialect: ...} in the pool",
    "role": "write role: in the pool",
    "host": "engines listen on the address of their node: nodes[].address",
    "port": "ports come from the range of the node: nodes[].ports",
    "served-model-name": "write model.served_name in the topology",
    "model-path": "write model.path in the topology",
    "transfer": "write transfer: in the pool",
    "bootstrap-port": "ports come from the range of the node: nodes[].ports",
    "side-channel-host": "it is the address of the node: nodes[].address",
    "side-channel-port": "ports come from the range of the node: nodes[].ports",
    "kv-events-port": "write kv_events: true in the pool",
    "kv-replay-port": "write kv_events: true in the pool",
    "nnodes": "write nnodes: N in the pool",
    "node-rank": "instances are placed by the plan",
    "dist-init-addr": "instances are placed by the plan",
    "encoder-urls": "encoders are the pools with role: encode",
    "api-key": "write router.credentials.engine_key: probes and requests need it too",
}
"""Flags that the plan sets, and where what they say belongs."""


def lint(writer: Writer, own: tuple[str, ...]) -> Iterator[Problem]:
    """Findings about each pool's flags and options; `own` are options that are no flags of the simulator."""
    for spec in one_per_pool(writer.context.specs):
        for name, setting in writer.user(spec).items():
            if found := _wrong(name, setting.value):
                rule, message, hint = found
                yield writer.problem(
                    spec, rule, f"--{name} {message}", hint=hint, field=f"flags.{name}", at=setting
                )
        for option, value in spec.options.items():
            if option not in own and (found := _wrong(flags.plain(option, ALIASES), value, own)):
                yield _about_option(spec, option, *found)


def _wrong(name: str, value: object, own: tuple[str, ...] = ()) -> tuple[Rule, str, str | None] | None:
    """Rule, message and hint."""
    form = FORMS.get(name)
    if form is None:
        close = nearest(name, sorted({*FORMS, *own} - set(PLANNED)))
        return rules.UNKNOWN_FLAG, "is unknown to the simulator", f"did you mean {close}?" if close else None
    if name in PLANNED:
        return rules.PLANNED_FLAG, "is set by the plan", PLANNED[name]
    expected = form.expects(value)
    return (rules.FLAG_VALUE, f"should be {expected}, not {value!r}", None) if expected else None


def _about_option(spec: InstanceSpec, option: str, rule: Rule, message: str, hint: str | None) -> Problem:
    """Without file and line, which the topology adds for the field."""
    return Problem(message, field=f"pools.{spec.pool}.options.{option}", hint=hint, rule=rule.name)
