"""The scheduler as a relay has it: each call of the port is a message, each decision comes as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from orchestrator.core.contracts import Assign, Bind, Decision, Reject, Spent
from orchestrator.core.frozen import record
from orchestrator.core.pairs import Pair, Pairs
from orchestrator.core.types import LegEvent, LegKind, Outcome, RequestView, Route, Snapshot
from orchestrator.router.workers import messages
from orchestrator.router.workers.messages import Kind, Submitted
from orchestrator.router.workers.views import Note

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long requests wait for a scheduler that is gone: it is started anew within seconds, or not at all."""

LOST = "scheduler-lost"
"""The reason of what is refused, or tried again, for want of a scheduler."""

Send = Callable[[bytes], None]


@record(slots=True)
class _Held:
    """What must be told anew to a scheduler that knows nothing of it."""

    view: RequestView
    wants: bool
    route: Route | None = None
    provisional: bool = False
    computed: bool = False
    begun: bool = False


class RemoteScheduler:
    """Meets the Scheduler port. `deliver` takes decisions; `wants` says whose are to be explained.

    While there is no connection (`lost`, until `linked`) requests wait, for `patience_s` at most.
    """

    def __init__(
        self, heeds: frozenset[str], wants: Callable[[str], bool], patience_s: float = PATIENCE_S
    ) -> None:
        self.heeds = heeds
        self.deliver: Callable[[Sequence[Decision]], None] = _nowhere
        self._wants = wants
        self._patience_s = patience_s
        self._send: Send | None = None
        self._held: dict[str, _Held] = {}
        self._loop = asyncio.get_running_loop()
        self._patience: asyncio.TimerHandle | None = None
        self._gone = False

    def __len__(self) -> int:
        """Requests that the scheduler should know."""
        return len(self._held)

    def submit(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """See `core.contracts.Scheduler`."""
        if self._gone:
            return (_refusal(request.id),)
        held = self._held[request.id] = _Held(request, self._wants(request.id))
        if self._send is not None:
            self._send(messages.submit(Kind.SUBMIT, Submitted(request, held.wants)))
        return ()

    def progress(self, event: LegEvent, now_s: float) -> Sequence[Decision]:
        """See `core.contracts.Scheduler`."""
        held = self._held.get(event.request_id)
        if held is not None:
            if event.leg is LegKind.PREFILL:
                held.computed |= event.what == "done"
            else:
                held.begun = True
            if self._send is not None:
                self._send(messages.progress(event))
        return ()

    def cancel(self, request_id: str, now_s: float) -> Sequence[Decision]:
        """See `core.contracts.Scheduler`."""
        if self._send is not None:
            self._send(messages.id_frame(Kind.CANCEL, request_id))
        return ()

    def rebind(self, request: RequestView, now_s: float) -> Sequence[Decision]:
        """See `core.contracts.Scheduler`."""
        held = self._held.get(request.id)
        if held is None or self._send is None:
            return (Spent(request.id, LOST),)
        held.view, held.provisional = request, True
        self._send(messages.submit(Kind.REBIND, Submitted(request, held.wants)))
        return ()

    def finish(self, outcome: Outcome, now_s: float) -> Sequence[Decision]:
        """See `core.contracts.Scheduler`."""
        if self._held.pop(outcome.request_id, None) is not None and self._send is not None:
            self._send(messages.finish(outcome))
        return ()

    def observe(self, snapshot: Snapshot, now_s: float) -> Sequence[Decision]:
        """Nothing: it has told of the endpoints itself."""
        return ()

    def due_s(self) -> float | None:
        """Never: time passes elsewhere."""
        return None

    def tick(self, now_s: float) -> Sequence[Decision]:
        """Nothing."""
        return ()

    def over(self, request_id: str) -> None:
        """No attempt at a request will follow."""
        if self._send is not None:
            self._send(messages.id_frame(Kind.OVER, request_id))

    # -- the connection

    def decided(self, decision: Decision) -> None:
        """A decision has come."""
        held = self._held.get(decision.request_id)
        if held is not None:
            if isinstance(decision, Assign):
                held.route, held.provisional = decision.route, decision.provisional
                held.computed = held.begun = False  # what was computed before were slices of its prompt
            elif isinstance(decision, Bind):
                held.route, held.provisional = decision.route, False
        self.deliver((decision,))

    def linked(self, send: Send) -> None:
        """There is a scheduler: it is told of everything that is under way."""
        self._send, self._gone = send, False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        for held in self._held.values():
            asked = Submitted(held.view, held.wants, held.route, held.computed, held.begun)
            send(messages.submit(Kind.SUBMIT if held.route is None else Kind.RESUME, asked))

    def lost(self) -> None:
        """The scheduler is gone. What only it could finish is given up, to be tried again."""
        self._send = None
        self.close()
        self._patience = self._loop.call_later(self._patience_s, self._out_of_patience)
        half = [name for name, held in self._held.items() if held.provisional]
        if half:
            self.deliver([Spent(name, LOST) for name in half])

    def close(self) -> None:
        """Stop the timer."""
        if self._patience is not None:
            self._patience.cancel()

    def _out_of_patience(self) -> None:
        self._gone = True
        waiting = [name for name, held in self._held.items() if held.route is None]
        self.deliver([_refusal(name) for name in waiting])


class RemotePairs(Pairs):
    """What a relay sees of pairs, passed on; who is kept apart is told with the endpoints."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note

    def failed(self, pair: Pair, now_s: float) -> None:
        """A request has failed over this pair."""
        self.failing.add(pair)
        self._note(("pair-failed", *pair))

    def well(self, pair: Pair) -> None:
        """A request has gone well over this pair."""
        self.failing.discard(pair)
        self._note(("pair-well", *pair))

    def used(self, pair: Pair) -> None:
        """A request has been sent over this pair."""
        self._note(("pair-used", *pair))


def _nowhere(decisions: Sequence[Decision]) -> None:
    """Before there is a desk."""


def _refusal(request_id: str) -> Reject:
    message = "the router's scheduler process is gone; it is being started anew"
    return Reject(request_id, LOST, message, 503, 1.0)
