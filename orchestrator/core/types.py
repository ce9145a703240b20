"""The plain frozen data that the scheduler, the policies and the router speak in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from orchestrator.core.frozen import frozen


class Role(StrEnum):
    """What an instance does for a request."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


class PathKind(StrEnum):
    """What a client asks for, independent of the URL's spelling."""

    CHAT = "chat"
    COMPLETION = "completion"
    GENERATE = "generate"
    EMBED = "embed"
    TOKENIZE = "tokenize"
    RESPONSES = "responses"
    MESSAGES = "messages"


class LegKind(StrEnum):
    """Which part of a request's life one engine call is; its first letter goes into the engine id."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    UNIFIED = "unified"


@frozen(frozen=True, slots=True)
class RequestView:
    """All that a policy sees of a request; never its body.

    `prompt_tokens` is an estimate until an engine has counted. `block_hashes` are the chained 64-bit
    hashes of the prompt's blocks, first block first (see `core.prefix`). `headers` holds only the
    allow-listed ones, lower-case. Times are seconds on the router's monotonic clock.
    """

    id: str
    model: str
    path: PathKind
    arrived_s: float
    prompt_tokens: int
    max_tokens: int
    stream: bool = False
    n: int = 1
    slo_class: str | None = None
    tenant: str | None = None
    block_hashes: tuple[int, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float | None = None
    avoid: tuple[str, ...] = ()
    """Endpoints a failed attempt of this request was on: used only where there is no other."""
    chains: Mapping[int, Sequence[int]] | None = None
    """Names of the prompt's whole blocks of tokens (`core.kvblocks.token_chain`), by how many tokens a block
    has; None where its tokens are not known. With them `prompt_tokens` is no estimate."""
    parts: bool = False
    """Whether whoever sends it has its tokens, so that a part of its prompt can be sent alone."""
    media: int = 0
    """Images and the like in it, which are encoded before the prompt is computed."""


@frozen(frozen=True, slots=True)
class Load:
    """What an engine last said of itself; None where it does not report the figure.

    Tokens are counts of KV slots. `at_s` is when it was read (router's monotonic clock). `incarnation`
    is set where this answer itself tells which life of the process it comes from. `progress` is a
    counter of work done that only grows within one life: running backwards means a new process,
    standing still with work running means a hung one.
    """

    at_s: float
    running: int = 0
    waiting: int = 0
    kv_used_tokens: int | None = None
    kv_total_tokens: int | None = None
    incarnation: str = ""
    progress: float | None = None
    prefilling: int | None = None
    """Requests whose prompt is computed or waits to be; one whose KV is only being passed on is none."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """What a predictor may learn from, each only growing within one life, under the names of `COUNTERS`."""
    alarms: Mapping[str, float] = field(default_factory=dict)
    """Counts of what must not happen to KV, each only growing within one life: `expired` (handed over to
    nobody in time), `after-expiry` (fetched when it may have been another prompt's already)."""


COUNTERS: Mapping[str, str] = {
    "prefill_tokens": "uncached prompt tokens computed",
    "prefill_busy_s": "seconds spent computing them",
    "cached_tokens": "prompt tokens found in the prefix cache",
    "prompt_tokens": "prompt tokens in all",
    "decode_steps": "decode steps made",
    "decode_batch": "sequences in them, summed over steps",
    "decode_s": "seconds they took",
    "decode_batch2": "sequences squared, summed over steps",
    "decode_batch_s": "sequences times seconds, summed over steps",
}
"""Names of `Load.counters` and what each counts. An adapter gives those that its engine tells."""


@frozen(frozen=True, slots=True)
class Inflight:
    """Work the router has given to an endpoint and not seen finished.

    `requests` counts legs; `prefill_tokens` are uncached prompt tokens still to be computed there;
    `kv_tokens` is the KV the legs will hold at most (prompt + expected output).
    """

    requests: int = 0
    prefill_tokens: int = 0
    kv_tokens: int = 0


@frozen(frozen=True, slots=True)
class Endpoint:
    """The router's immutable view of one instance at one moment.

    `labels` are the operator's own (`node`, `rack`, hardware, price); `facts` what was discovered at
    join (see `engines.base`). `incarnation` changes whenever the process behind it is a new one.
    """

    id: str
    pool: str
    role: Role
    engine: str
    model: str
    url: str
    ready: bool
    incarnation: str = ""
    max_model_len: int | None = None
    block_size: int | None = None
    load: Load | None = None
    inflight: Inflight = Inflight()
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    inflight_at_load: Inflight = Inflight()
    """What was in flight when `load` was read: what came and went since is the difference to `inflight`."""
    ready_since_s: float | None = None
    """When it last became ready (router's monotonic clock), as it does anew with each incarnation; None:
    not known, or not ready."""
    shuns: frozenset[str] = frozenset()
    """Decode endpoints that must not fetch what it prefills: together they fail, or are not tried."""
    cap: int | None = None
    """The most requests it may have at once while it is new, or tried after failures; None: any number."""

    requests: int = field(init=False, compare=False, default=0)
    """Requests there now: those last reported, corrected by what the router gave and saw end since.

    Never less than the router's own, which is all there is while nothing is reported. A report alone lags
    behind a burst; the router alone does not see what other clients sent.
    """
    kv_used_tokens: int = field(init=False, compare=False, default=0)
    """KV slots taken now, by the same rule as `requests`."""
    kv_total_tokens: int | None = field(init=False, compare=False, default=None)
    """KV slots there are, as reported or as discovered at join; None if neither tells."""

    def __post_init__(self) -> None:
        """Derive what every policy reads of every candidate: once for each change, not at each reading."""
        load, given, seen = self.load, self.inflight, self.inflight_at_load
        requests, used, total = given.requests, given.kv_tokens, None
        if load is not None:
            requests = max(requests, load.running + load.waiting + requests - seen.requests)
            total = load.kv_total_tokens
            if load.kv_used_tokens is not None:
                used = max(used, load.kv_used_tokens + used - seen.kv_tokens)
        if total is None:
            told = self.facts.get("kv_total_tokens")
            total = told if isinstance(told, int) else None
        object.__setattr__(self, "requests", requests)
        object.__setattr__(self, "kv_used_tokens", used)
        object.__setattr__(self, "kv_total_tokens", total)

    def kv_free_tokens(self) -> int | None:
        """KV slots left beside `kv_used_tokens`; None if capacity is unknown, negative if overcommitted."""
        return None if self.kv_total_tokens is None else self.kv_total_tokens - self.kv_used_tokens


@frozen(frozen=True, slots=True)
class Snapshot:
    """Every endpoint as seen at one moment; what a decision is made on."""

    at_s: float
    endpoints: tuple[Endpoint, ...]
    unix_s: float = 0.0
    """The same moment in seconds since the Unix epoch."""

    def ready(self, model: str, role: Role) -> tuple[Endpoint, ...]:
        """The endpoints of `model` in `role` that may be given work."""
        return tuple(e for e in self.endpoints if e.ready and e.role == role and e.model == model)


@frozen(frozen=True, slots=True)
class Route:
    """Where a request goes: a (prefill, decode) pair, or one unified endpoint. Values are endpoint ids."""

    decode: str
    prefill: str | None = None
    encode: str | None = None

    @property
    def disaggregated(self) -> bool:
        """True when prefill and decode run on different endpoints."""
        return self.prefill is not None


@frozen(frozen=True, slots=True)
class Scored:
    """One candidate of a decision with its total and each scorer's share of it."""

    endpoint: str
    total: float
    parts: Mapping[str, float] = field(default_factory=dict)


@frozen(frozen=True, slots=True)
class Choice:
    """Why one role's endpoint was chosen: who was filtered by what, the scores, the runner-up.

    `unit` is that of the totals: `share`, of which the highest wins, or `seconds`, a cost: the lowest.
    """

    role: Role
    chosen: str
    runner_up: str | None
    scored: tuple[Scored, ...]
    filtered: Mapping[str, str] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    unit: str = "share"


@frozen(frozen=True, slots=True)
class Prediction:
    """What was predicted for a request at one moment, in seconds.

    `ttft_s` is the median from arrival to the first token: the time already waited and the stages to come
    (`wait_s` for the endpoint to be free, `encode_s` for its media, `prefill_s`, `handoff_s` for exposed
    transfer and first token).
    `tail_s` is the same at `quantile`. `itl_s` is the decode step with the request in its batch, `itl_tail_s`
    the mean gap that `quantile` of the answers keep.
    """

    at_s: float
    waited_s: float
    wait_s: float
    prefill_s: float
    handoff_s: float
    tail_s: float
    quantile: float
    itl_s: float
    cached_tokens: int = 0
    due_s: float | None = None
    """How long after its arrival the first token is due; None: nothing is promised."""
    itl_tail_s: float = 0.0
    encode_s: float = 0.0

    @property
    def takes_s(self) -> float:
        """Median time from `at_s` to first token: all stages that were to come then."""
        return self.wait_s + self.encode_s + self.prefill_s + self.handoff_s

    @property
    def ttft_s(self) -> float:
        """Median time from arrival to first token."""
        return self.waited_s + self.takes_s


@frozen(frozen=True, slots=True)
class LegEvent:
    """Something that happened to a leg: `what` is sent, first_token, done or failed."""

    request_id: str
    leg: LegKind
    endpoint: str
    what: str
    at_s: float
    tokens: int = 0


class End(StrEnum):
    """How a request ended, as the client saw it."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    BROKEN = "broken"
    CANCELLED = "cancelled"


@frozen(frozen=True, slots=True)
class Outcome:
    """What became of a request; fed to accounting, metrics, policies' hooks and the decision log.

    BROKEN is a failure after the first byte (the client got an error event), FAILED one before it.
    Stage durations in seconds by name (`queue`, `prefill`, `first_token`, ...); None: not reached.
    """

    request_id: str
    end: End
    http_status: int
    reason: str = ""
    route: Route | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between its tokens, in seconds; None where there was none, or they were not seen to come.

        Of an answer of several choices it means nothing: their tokens are counted together.
        """
        if self.ttft_s is None or self.e2e_s is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)
