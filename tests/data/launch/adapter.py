"""An engine adapter for tests: the stand-in engine beside this file, driven by the pool's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.engines.base import Command, HttpCall, InstanceSpec, LogHint, PortNeed, Probes, Word
from orchestrator.engines.vllm import VLLM


class StandIn(VLLM):
    """The stand-in, which speaks no engine's protocol: only its launch matters here."""

    name = "stand-in"
    distributions = ()
    hints = (LogHint("CUDA out of memory", "lower mem_fraction"),)

    def ports(self, *_: object) -> tuple[PortNeed, ...]:
        return (PortNeed("http"),)

    def command(self, spec: InstanceSpec) -> Command:
        words = [str(Path(__file__).with_name("engine.py")), "--port", str(spec.ports["http"])]
        for name, setting in spec.flags.items():
            if setting.value is not False:
                words.append(f"--{name}")
            if not isinstance(setting.value, bool):
                words.append(str(setting.value))
        return Command(tuple(Word(text, "test") for text in words))

    def probes(self, spec: InstanceSpec) -> Probes:
        return Probes((HttpCall("GET", "/ready"),), HttpCall("GET", "/health"), ready_timeout_s=60.0)

    def discover(self, role: object, facts: object) -> Mapping[str, HttpCall]:
        return {}

    def facts(self, spec: InstanceSpec) -> Mapping[str, Any]:
        return {}

    def lint(self, context: object) -> Sequence[Any]:
        return ()
