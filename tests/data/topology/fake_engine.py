"""A small engine adapter for the planner's tests: three flags, two ports, one lint rule."""

from __future__ import annotations

from orchestrator.core.types import Role
from orchestrator.engines import flags
from orchestrator.engines.base import Command, HttpCall, LogHint, PortNeed, Probes, Word
from orchestrator.errors import Problem


class Fake:
    name = "fake"
    roles = frozenset({Role.PREFILL, Role.DECODE, Role.UNIFIED})
    idle_s = 5.0
    guarded_fields = frozenset()
    guarded_headers = frozenset()
    hints = (LogHint("boom", "it went boom"),)
    distributions = ("fake-engine",)

    def __init__(self, options=None):
        self.options = options or {}

    def bind(self, options):
        return type(self)(options)

    def ports(self, role, shape, transfer):
        extra = (PortNeed("bootstrap"),) if role is Role.PREFILL else ()
        return (PortNeed("http"), *extra, PortNeed("events", shape.dp))

    def command(self, spec):
        own = flags.Settings()
        own.put("plan", host=spec.bind, port=spec.ports["http"], model=spec.model_path)
        own.put("plan", revision=spec.revision)
        own.put(f"role {spec.role.value}", mode=spec.role.value, transfer=spec.transfer)
        merged = flags.merge(own, spec.flags, {})
        key = (Word("--key", "credentials"), Word(spec.key, "credentials")) if spec.key else ()
        env = flags.Settings()
        env.env("plan", {"FAKE_HOST": spec.address, "FAKE_VERSION": spec.version})
        if spec.devices:
            env.env("plan", {"GPUS": ",".join(map(str, spec.devices)), "NICS": ",".join(spec.nics)})
        merged_env = {**env, **spec.env}
        start = (Word("-m", "adapter"), Word("fake.server", "adapter"))
        return Command(argv=(*start, *flags.words(merged), *key), env=flags.variables(merged_env))

    def probes(self, spec):
        return Probes(
            ready=(HttpCall("GET", "/ready"),), live=HttpCall("GET", "/health"), ready_timeout_s=77.0
        )

    def facts(self, spec):
        return {"bootstrap_port": spec.ports.get("bootstrap")}

    def lint(self, context):
        return [
            Problem("contradicts the role", field=f"pools.{spec.pool}.flags.mode", rule="role-flags")
            for spec in context.specs
            if "mode" in spec.flags and spec.index == 0
        ]

    discover = learn = load_call = load = flush = serves = check = split = rooms = needs_merge = merge = None
    handoff = abort = map_error = None


class NotAnEngine:
    name = "not"


class Broken:
    def __init__(self):
        raise RuntimeError("no licence")
