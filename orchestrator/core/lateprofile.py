"""A late scheduling profile: the policies and settings of the scheduler that lets requests wait."""

from __future__ import annotations

from dataclasses import field

from orchestrator.core.choosing import Step
from orchestrator.core.contracts import Filter, Order, Scorer
from orchestrator.core.frozen import frozen


@frozen(frozen=True, slots=True)
class LateRole:
    """What narrows and prices one role's endpoints: scorers give seconds, added to the predicted cost."""

    filters: tuple[Step[Filter], ...] = ()
    scorers: tuple[Step[Scorer], ...] = ()


@frozen(frozen=True, slots=True)
class LateSettings:
    """The numbers of late binding. Defaults are those that replay on public traces favours.

    - `candidates`: how many requests at the head of the queue each dispatch considers.
    - `others`: seconds that a second of prefill costs those who wait for the machine; the request itself
      always pays one.
    - `hand_ahead_s`: a request is sent this long before the running prefill is predicted to end (a round trip
      and a step), behind work of at most `hand_ahead_work_s`; 0: only on its end.
    - `unit_tokens`: short prompts of up to so many uncached tokens together go as one unit.
    - `on_time_quantile`: a request is taken to be on time while its prediction at this quantile is.
    - `wait_for_warm`: a request may wait for a busy endpoint that holds its prefix, where that is predicted
      to be better.
    - `batch_reserve`: free endpoints that batch leaves to interactive requests.
    - `max_queue`: requests that may wait; more are refused (`queue-full`).
    - `spare`: pairs (seconds, share): a prefill of more than so many seconds is not begun where it would
      leave less than that share of the endpoints (rounded down) to shorter ones, while such come with a
      promise.
    - `slices_s`: prompts that take longer are computed in pieces of so many seconds, between which others may
      go, where the engine can and the prompt's tokens are known; 0: whole.
    - `overcommit`: how much of a decode endpoint's KV memory may be promised, as a share of it.
    """

    candidates: int = 16
    others: float = 1.0
    hand_ahead_s: float = 0.05
    hand_ahead_work_s: float = 0.5
    unit_tokens: int = 512
    on_time_quantile: float = 0.5
    wait_for_warm: bool = True
    batch_reserve: int = 1
    max_queue: int = 10_000
    spare: tuple[tuple[float, float], ...] = ((2.25, 0.125), (8.0, 0.375))
    overcommit: float = 1.0
    slices_s: float = 0.0


@frozen(frozen=True, slots=True)
class LateProfile:
    """How the queue is ordered, and what narrows and prices each role's endpoints.

    `headers` are the lower-case names of the request headers that its policies read.
    """

    order: Step[Order]
    prefill: LateRole = LateRole()
    decode: LateRole = LateRole()
    unified: LateRole = LateRole()
    settings: LateSettings = LateSettings()
    headers: frozenset[str] = field(default_factory=frozenset)
