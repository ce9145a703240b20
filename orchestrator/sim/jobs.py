"""The plain data of the engine model: its settings, its jobs, what it reports of them, what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from orchestrator.sim.timing import QWEN3_32B_TP2, RDMA, Link, Timing


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One engine's size and habits.

    `kv_tokens` is all KV memory; `cache_tokens` how much of it unreferenced cached prefixes may keep
    (None: all, 0: no prefix cache). `mixed`: a prefill chunk and the decode of the running batch share a
    step (vLLM); otherwise prefill goes first and decode waits (SGLang). `reserve_tokens`: headroom that
    must be free beside a received prompt before it is admitted. `record_blocks`: keep the pool's
    `stored` and `removed` lists.
    """

    timing: Timing = QWEN3_32B_TP2
    link: Link = RDMA
    kv_tokens: int = 350_000
    cache_tokens: int | None = None
    block_tokens: int = 64
    max_running: int = 256
    chunk_tokens: int | None = None
    mixed: bool = True
    reserve_tokens: int = 512
    record_blocks: bool = False


class Mode(Enum):
    """What an engine does for a job."""

    LOCAL = "local"
    """Prefill and decode here."""
    PREFILL = "prefill"
    """Prefill, one token, then keep the KV for another engine until it is sent or released."""
    DECODE = "decode"
    """Reserve memory, wait for KV from another engine, decode."""


class State(Enum):
    """Where a job is; ENDED jobs hold nothing."""

    GATED = "gated"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    HELD = "held"
    RESERVED = "reserved"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Job:
    """One sequence.

    The caller sets the first group. `hashes` are the chained hashes of the full blocks of the prompt,
    and may go on over the output (which then is cached as well). A `gated` PREFILL job waits for
    `ungate` (SGLang's bootstrap): before its prefill, or, if `optimistic`, only before its KV leaves.
    With `lease_s`, finished KV is held that long for a puller (vLLM); otherwise it is pushed over the
    engine's link. `private`: never found by, nor finding, another job's cached prefix.
    The model keeps the rest; times are virtual seconds, `blocks` are what it holds (or last held),
    `hit_tokens` how much of them it found in the cache, and `cached_tokens` how much it found at first.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()
    mode: Mode = Mode.LOCAL
    gated: bool = False
    optimistic: bool = False
    lease_s: float | None = None
    private: bool = False

    state: State = State.WAITING
    computed: int = 0
    cached_tokens: int = 0
    hit_tokens: int = 0
    produced: int = 0
    blocks: list[int] = field(default_factory=list)
    sent_tokens: int = 0
    lease_until_s: float = 0.0
    submitted_s: float = 0.0
    admitted_s: float | None = None
    prefilled_s: float | None = None
    ended_s: float | None = None

    @property
    def context(self) -> int:
        """Tokens of the sequence so far; a preempted job recomputes all of them."""
        return self.prompt_tokens + self.produced


class What(Enum):
    """What happened to a job."""

    TOKEN = "token"
    """One more output token; `Job.produced` counts."""
    PREFILLED = "prefilled"
    """Its whole context is computed; its next token (a TOKEN event) comes with it."""
    RESERVED = "reserved"
    """A DECODE job has memory: KV may be sent to it."""
    ARRIVED = "arrived"
    """The KV of a `fetch` is here."""
    SENT = "sent"
    """A PREFILL job's KV has left over the link; the job has ended."""
    EXPIRED = "expired"
    """A lease ran out; the job has ended."""
    FINISHED = "finished"
    """All output is produced; the job has ended."""


class Event(NamedTuple):
    """Something happened to `job` at `at_s` (virtual seconds). A tuple: one is made for every token.

    PREFILLED and FINISHED tell the blocks the job had at that moment, and how many of them it had found in
    the cache: it may have lost them again by the time the event is looked at.
    """

    at_s: float
    what: What
    job: Job
    blocks: Sequence[int] = ()
    hit_blocks: int = 0


@dataclass(slots=True)
class Counters:
    """Figures that only grow, as an engine's own metrics do; all zero in a new incarnation.

    `decode_*` are moments over pure decode steps: count, sums of batch, microseconds, their squares and
    products, as SGLang reports them in `/v1/loads`.
    """

    prefill_tokens: int = 0
    prefill_busy_us: float = 0.0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    received_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    decode_batch: int = 0
    decode_us: float = 0.0
    decode_batch2: int = 0
    decode_batch_us: float = 0.0
    preemptions: int = 0
    transfers: int = 0
    transfer_tokens: int = 0
    last_transfer_s: float = 0.0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot of the queues: jobs in each, tokens waiting to be computed, KV tokens held."""

    gated: int
    waiting: int
    prealloc: int
    prefilling: int
    reserved: int
    running: int
    held: int
    waiting_tokens: int
    used_tokens: int
    cached_tokens: int
    total_tokens: int
