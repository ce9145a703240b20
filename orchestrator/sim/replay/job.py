"""One sequence on a lean engine, what an engine tells of it, and what it tells of its queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.core.frozen import frozen
from orchestrator.sim.jobs import Mode
from orchestrator.sim.replay.cache import Holding

Schedule = Callable[[float, Callable[[float, Any], None], Any], None]
"""Call a function with a moment and an argument, at that moment of virtual time."""


class LeanJob:
    """One sequence; see `sim.jobs.Job` for the names they share. `owner` is whatever the sink knows it by.

    `part`: it is a slice of its owner's prompt. `lease`: its KV, once computed, is held until released (else
    it is pushed). `taken` is what memory it was given at admission, `token_s` when the latest token came that
    is known of it, `worst_s` its longest gap. `joined` and `ends` are the numbers of the steps between which
    it decodes.
    """

    __slots__ = (
        "cached", "computed", "context", "ends", "gated", "hashes", "held", "joined", "lease", "mode",
        "output", "owner", "part", "produced", "prompt", "sent", "started", "taken", "token_s", "worst_s",
    )  # fmt: skip

    def __init__(
        self,
        owner: Any,
        prompt: int,
        output: int,
        hashes: tuple[int, ...] = (),
        mode: Mode = Mode.LOCAL,
        *,
        gated: bool = False,
        lease: bool = False,
        part: bool = False,
    ) -> None:
        self.owner = owner
        self.prompt = prompt
        self.output = output
        self.hashes = hashes
        self.mode = mode
        self.gated = gated
        self.lease = lease
        self.part = part
        self.held = Holding()
        self.context = prompt
        self.taken = 0
        self.computed = 0
        self.cached = 0
        self.produced = 0
        self.sent = 0
        self.started = False
        self.joined = 0
        self.ends = -1
        self.token_s: float | None = None
        self.worst_s = 0.0

    @property
    def grown(self) -> int:
        """Tokens of memory taken since admission: one for each step, but for the last token's own."""
        return max(0, self.context - self.taken - 1)


class Sink(Protocol):
    """What an engine tells. A call may go on to other engines, never back to the one that tells."""

    def prefilled(self, job: LeanJob, at_s: float) -> None:
        """A PREFILL job's prompt is computed; its KV is held, or on its way."""
        ...

    def first_token(self, job: LeanJob, at_s: float) -> None:
        """It produces its first token at `at_s`: now, or at the end of the step that begins now."""
        ...

    def finished(self, job: LeanJob, at_s: float) -> None:
        """All output is produced; the job is gone."""
        ...

    def reserved(self, job: LeanJob, at_s: float) -> None:
        """A DECODE job has memory: KV may be sent to it."""
        ...

    def sent(self, job: LeanJob, at_s: float) -> None:
        """A PREFILL job's KV has left over the link; the job is gone."""
        ...

    def arrived(self, job: LeanJob, at_s: float) -> None:
        """The KV of a `fetch` is here."""
        ...


@frozen(frozen=True, slots=True)
class Queued:
    """Jobs in each queue of an engine, and its KV tokens in use."""

    gated: int
    waiting: int
    prealloc: int
    prefilling: int
    reserved: int
    running: int
    held: int
    used_tokens: int
    cached_tokens: int
