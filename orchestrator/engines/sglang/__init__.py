"""SGLang as an engine: what pdctl knows of it, in one place (written against 0.5.23)."""

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
from orchestrator.engines.sglang import (
    command,
    facts,
    handoff,
    kvcache,
    limits,
    lint,
    logprobs,
    media,
    rules,
    switching,
)
from orchestrator.engines.sglang.hints import HINTS
from orchestrator.engines.sglang.rules import AGREEMENTS
from orchestrator.engines.splice import JsonBody, quote
from orchestrator.engines.told import Agreement
from orchestrator.errors import BadRequest, Problem, RequestError

_PAIR_KINDS = handoff.GENERATING | {PathKind.TOKENIZE}


class SGLang:
    """The adapter for SGLang; see `engines.base.Engine` for what each member means."""

    name: ClassVar[str] = "sglang"
    roles: ClassVar[frozenset[Role]] = frozenset(Role)
    spans_nodes: ClassVar[bool] = True
    idle_s: ClassVar[float] = 4.0
    """Its own keep-alive time-out is 5 s; launched instances get a longer one (fact `idle_s`)."""

    guarded_fields: ClassVar[frozenset[str]] = guard.FIELDS | {
        # Parts of the hand-off that only this engine has.
        "bootstrap_pair_key", "decode_tp_size",
        # The engine's internals: where outputs are sent, which encoders are called, what is waited for.
        "http_worker_ipc", "encoder_urls", "num_items_assigned", "need_wait_for_mm_inputs",
        "kv_hints", "lora_id", "received_time", "external_trace_header", "return_bytes",
        # The scheduler's view of a request, which only an operator may set.
        "routing_key", "log_metrics",
        # Tensors, within the process: anything from outside ends the scheduler.
        "positional_embed_overrides",
        # Labels that its metrics were not made with end the loop that delivers answers: nothing is answered
        # any more, and the process lives on.
        "custom_labels",
    }  # fmt: skip
    guarded_headers: ClassVar[frozenset[str]] = guard.HEADERS | {
        "x-smg-routing-key",
        # With SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES these win over the body.
        "x-override-rid", "x-override-bootstrap-host", "x-override-bootstrap-port",
        "x-override-bootstrap-room", "x-override-conversation-id", "x-override-routed-dp-rank",
        "x-override-disagg-prefill-dp-rank", "x-override-priority",
    }  # fmt: skip
    hints: ClassVar[tuple[base.LogHint, ...]] = HINTS
    rules: ClassVar[tuple[Rule, ...]] = (*shared.SHARED, *rules.OWN)
    """The lint rules that it may speak by."""
    recipe: ClassVar[Recipe] = Recipe(
        distributions=("sglang",),
        parser="sglang.srt.server_args:ServerArgs.add_cli_args",
        variables="sglang.srt.environ:envs",
        replaced="sglang.srt.environ:_DEPRECATED_ENVS",
        scan=(("sglang", "SGLANG_"), ("mooncake", "MC_")),
    )
    """How an installed one is asked for its flags and variables."""
    distributions: ClassVar[tuple[str, ...]] = ("sglang",)
    """The packages whose version is the engine's, asked of its environment when a plan is made."""
    no_local_prefill: ClassVar[str | None] = "its decode server takes only what a prefill server hands over"
    """Why a decode instance cannot compute a prompt itself: without a room it answers 400."""
    dies_of_unknown_tokens: ClassVar[bool] = True
    """Whether a token id beyond the vocabulary ends it, so that a plan warns where the size is not known."""

    agreements: ClassVar[tuple[Agreement, ...]] = AGREEMENTS
    """What its prefill and decode must tell alike."""

    def bind(self, options: Mapping[str, Any]) -> base.Engine:
        """Itself."""
        return self

    def capabilities(self, version: str | None) -> Known:
        """The table of flags and variables that stands for a version."""
        return known(__name__, version)

    def ports(self, role: Role, shape: Shape, transfer: str | None) -> tuple[base.PortNeed, ...]:
        """HTTP, bootstrap, NCCL, KV events, the run of data parallelism, and where encoders register."""
        return command.ports(role, shape)

    def command(self, spec: InstanceSpec) -> base.Command:
        """`python -m sglang.launch_server` with what the role needs."""
        return command.command(spec)

    def carriage(self, transfer: str | None) -> base.Carriage | None:
        """Mooncake needs RDMA, or goes over TCP under another name; NIXL takes what there is."""
        return command.carriage(transfer)

    def probes(self, spec: InstanceSpec) -> base.Probes:
        """/ready, the bootstrap server's /route, and /ping; of an encoder /health, which is all it has."""
        return facts.probes(spec)

    def facts(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """Where decode finds a prefill's bootstrap server; the transfer backend; the model's vocabulary;
        which images may come near encoders."""
        if spec.role is Role.ENCODE:  # its server is another one, whose keep-alive time-out cannot be set
            return {"transfer": command.encoder_transfer(spec)}
        known: dict[str, Any] = {"idle_s": command.KEEP_ALIVE_S - 5.0}
        if spec.role is not Role.UNIFIED:
            known["transfer"] = command.transfer(spec)
        if spec.role is Role.PREFILL:
            known["prefill_answers"] = "transferred"  # only then, not when the prompt is computed
        if spec.role is Role.PREFILL and "bootstrap" in spec.ports:
            known |= {"bootstrap_host": spec.address, "bootstrap_port": spec.ports["bootstrap"]}
        if spec.vocab_size is not None:
            known["vocab_size"] = spec.vocab_size
        if spec.encoders is not None:
            known["media"] = media.allowed(spec.encoders.options)
        return known

    def expects(self, spec: InstanceSpec) -> Mapping[str, Any]:
        """Model, sizes, version, and what else was asked for by name."""
        return facts.expects(spec)

    def discover(self, role: Role, known: Mapping[str, Any]) -> Mapping[str, HttpCall]:
        """/server_info, /v1/models, and of a prefill the bootstrap server's /route; nothing of an encoder."""
        return facts.discover(role, known)

    def learn(self, name: str, status: int, body: bytes) -> Mapping[str, Any] | NotYet:
        """Sizes, limits, the KV layout, and a name for this life of the process."""
        return facts.learn(name, status, body)

    def load_call(self) -> HttpCall:
        """/v1/loads, from shared memory: a few ms, no question to the scheduler."""
        return HttpCall("GET", "/v1/loads?include=core,disagg", timeout_s=2.0)

    def load(self, body: bytes, known: Mapping[str, Any], at_s: float) -> Load:
        """The sum over DP ranks, with a progress counter that a new process begins again."""
        return facts.load(body, known, at_s)

    def flush(self) -> HttpCall:
        """Refused (400) while requests are running or waiting."""
        return HttpCall("POST", "/flush_cache", timeout_s=10.0)

    def serves(self, kind: PathKind, role: Role, disaggregated: bool) -> bool:
        """Generation everywhere; the rest, which has no hand-off, on unified engines; nothing on encoders,
        which the engines themselves call."""
        return role is not Role.ENCODE and (kind in _PAIR_KINDS or not disaggregated)

    def check(
        self, kind: PathKind, body: JsonBody, disaggregated: bool, facts: Mapping[str, Any] = base.NO_FACTS
    ) -> None:
        """Refuse what the engine would die of, ignore, hang on or answer wrongly."""
        fields = body.fields
        limits.check(kind, fields, facts.get("vocab_size"))
        if (allowed := facts.get("media")) is not None:
            media.check(fields, allowed)
        if kind not in handoff.GENERATING:
            return
        if fields.get("session_params") is not None:
            raise BadRequest(
                "session_params: a session lives in one engine, which requests are not pinned to",
                reason="unsupported",
                param="session_params",
            )
        if kind is PathKind.COMPLETION:
            fan.refuse_best_of(fields)
        if not disaggregated:
            return
        n, sampling = _samples(kind, fields)
        if any((params.get("beam_width") or 1) != 1 for params in sampling):
            raise _unpaired("beam search", "beam_width")
        if kind is PathKind.GENERATE and n > 1 and handoff.prompts_of(kind, body) is not None:
            raise _unpaired("n above 1 with several prompts", "n", "send one request per prompt")
        if logprobs.wanted(kind, body) and fields.get("stream"):
            raise _unpaired("a stream with log-probabilities of the prompt", "stream", "set stream to false")

    def split(self, kind: PathKind, body: JsonBody, disaggregated: bool) -> Sequence[JsonBody] | None:
        """One request per sample: samples that share a room hang decode. A batch stays whole."""
        if not disaggregated or kind not in handoff.GENERATING:
            return None
        n, _ = _samples(kind, body.fields)
        if n == 1:
            return None
        if kind is PathKind.GENERATE:
            return _samples_of_generate(body, n, self.guarded_fields)
        return fan.split(body, handoff.prompts_of(kind, body), n, self.guarded_fields | {"best_of"})

    def rooms(self, kind: PathKind, body: JsonBody) -> int:
        """One per prompt of a batch, which the engine numbers on from the first."""
        return handoff.rooms(kind, body)

    def needs_merge(self, kind: PathKind, body: JsonBody) -> bool:
        """Log-probabilities of the prompt come from prefill alone."""
        return logprobs.wanted(kind, body)

    def merge(self, kind: PathKind, prefill_body: bytes, decode_body: bytes) -> bytes:
        """Decode's answer with prefill's input log-probabilities."""
        return logprobs.merge(kind, prefill_body, decode_body)

    def handoff(self, request: HandoffRequest) -> base.Handoff:
        """Both legs at once, or the one of a unified endpoint."""
        if request.prefill is None:
            return handoff.Alone(request, self.guarded_fields)
        return handoff.Paired(request, self.guarded_fields)

    def part(self, request: HandoffRequest, model: str, ids: Sequence[int], number: int) -> base.Handoff:
        """A plain request to a unified instance; a prefill instance computes nothing without its pair."""
        return handoff.Part(request, ids, number)

    def abort(self, leg: Leg) -> HttpCall:
        """By the request's id; answered 200 even for an unknown one. The prompts of a batch have ids of their
        own: there, closing the connection is what ends them."""
        return HttpCall("POST", "/abort_request", quote({"rid": leg.engine_id}), timeout_s=2.0)

    def map_error(self, status: int, body: bytes) -> RequestError:
        """OpenAI's shape, SGLang's flat one, or an error event."""
        return errors.to_error(status, body)

    def kv_source(self, host: str, known: Mapping[str, Any]) -> KvSource | str:
        """By /server_info, or as the topology has it."""
        return kvcache.source(host, known)

    def kv_events(self, batch: bytes) -> Sequence[KvEvent]:
        """MessagePack maps."""
        return kvevents.decode(batch)

    def tokenize(self, kind: PathKind, fields: Mapping[str, Any]) -> HttpCall | None:
        """/tokenize, which renders messages as for a chat completion."""
        return kvcache.tokenize(kind, fields)

    def tokens(self, body: bytes) -> list[int]:
        """Its `tokens`."""
        return kvevents.tokens_in(body)

    def switch(self, spec: InstanceSpec, to: Role) -> HttpCall | str:
        """Between prefill and decode, where it was started so that it can."""
        return switching.switch(spec, to)

    def lint(self, context: base.LintContext) -> Sequence[Problem]:
        """P and D against each other, flags against roles and version."""
        return lint.lint(context)


def _samples(kind: PathKind, fields: Mapping[str, Any]) -> tuple[int, list[Mapping[str, Any]]]:
    """How many samples per prompt, and the sampling parameters of /generate."""
    if kind is not PathKind.GENERATE:
        return fan.samples(fields), []
    sampling = fields.get("sampling_params")
    several = sampling if isinstance(sampling, list) else [sampling]
    params: list[Mapping[str, Any]] = [p for p in several if isinstance(p, dict)]
    return max((fan.samples(p) for p in params), default=1), params


def _samples_of_generate(body: JsonBody, n: int, drop: frozenset[str]) -> list[JsonBody]:
    if n > fan.MAX_ITEMS:
        raise BadRequest(f"n is {n}, the limit is {fan.MAX_ITEMS}", reason="too-many-items", param="n")
    sampling = JsonBody(body.text("sampling_params"))
    items = []
    for sample in range(n):
        seed = fan.seeded(sampling.fields, "sampling_seed", sample)
        params = b"".join(sampling.edit({"n": b"1", **seed}))
        items.append(JsonBody(b"".join(body.edit({"sampling_params": params}, drop))))
    return items


def _unpaired(what: str, param: str, instead: str | None = None) -> BadRequest:
    message = f"{what} is not supported when prefill and decode are separate"
    return BadRequest(f"{message}; {instead}" if instead else message, reason="unsupported", param=param)
