"""The one choke point of work given to endpoints: what each holds that the router began and saw no end of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from operator import attrgetter

from orchestrator.core.frozen import record
from orchestrator.core.types import Endpoint, Inflight, PathKind, RequestView, Route, Snapshot
from orchestrator.errors import AccountingError

EXPECTED_OUTPUT_TOKENS = 512
"""Output tokens a request is taken to produce when its own limit is higher: lengths are not known in
advance, most chat answers are shorter, and an engine's report takes over once one has grown longer."""


def expected_kv_tokens(request: RequestView, output_tokens: int = EXPECTED_OUTPUT_TOKENS) -> int:
    """KV slots that the endpoint which generates will hold for `request`: prompt and expected output.

    The prompt is shared by the `n` answers; each grows by at most `output_tokens` or its own limit.
    """
    if request.path is PathKind.TOKENIZE:
        return 0
    if request.path is PathKind.EMBED:
        return request.prompt_tokens
    return request.prompt_tokens + request.n * min(request.max_tokens, output_tokens)


@record(slots=True)
class Work:
    """What one request holds, endpoint by endpoint, until it ends.

    `computing` is the endpoint its prompt is computed on, None once that is done; `holding` the
    prefill endpoint that keeps its KV until the decode side has it, None if there is none. `guessed`: the
    decode side is only expected to be that one, and knows nothing of it. `sequences` decode together: one for
    each answer that was asked for, as engines count them.
    """

    route: Route
    started_s: float
    prefill_tokens: int
    prompt_tokens: int
    kv_tokens: int
    computing: str | None
    holding: str | None
    guessed: bool = False
    sequences: int = 1


@record(slots=True)
class Sums:
    """What is in flight at one endpoint, changed in place; see `core.types.Inflight`."""

    requests: int = 0
    prefill_tokens: int = 0
    kv_tokens: int = 0

    def frozen(self) -> Inflight:
        """As it is now."""
        return Inflight(self.requests, self.prefill_tokens, self.kv_tokens)


class Ledger:
    """In-flight work by endpoint. Every way a request may go through the router is counted here or nowhere.

    A request goes `start`, perhaps `prefill_done`, perhaps `handed_over`, then `finish`, each O(1).
    Whatever the order, the sums are zero once every request has finished (property-tested).
    """

    def __init__(self) -> None:
        self._work: dict[str, Work] = {}
        self._sums: dict[str, Sums] = {}
        self._given: dict[str, Endpoint] = {}
        self._views: dict[str, Endpoint] = {}
        self._epoch_s = 0.0
        self._stale: set[str] = set()
        self._guesses: dict[str, int] = {}

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._work)

    def __contains__(self, request_id: str) -> bool:
        """Whether the request was started and has not finished."""
        return request_id in self._work

    def start(
        self,
        request: RequestView,
        route: Route,
        now_s: float,
        cached_tokens: int = 0,
        kv_tokens: int | None = None,
        *,
        guessed: bool = False,
    ) -> Work:
        """Count `request` against the endpoints of `route`.

        A leg counts as one request where it runs, as `n` where it decodes `n` answers.
        The prompt's uncached tokens are prefill work of the
        prefill (or unified) endpoint; its KV is held there until handed over, and with the expected
        output on the decode (or unified) one (`kv_tokens` in all; None: `expected_kv_tokens`). `guessed`: the
        decode side is told by `rebind`, if at all; until then no report of that endpoint's has seen it.
        Raises AccountingError if it is in flight already.
        """
        if request.id in self._work:
            raise AccountingError(f"request {request.id} was started twice")
        prompt = 0 if request.path is PathKind.TOKENIZE else request.prompt_tokens
        computing = route.prefill or route.decode
        work = Work(
            route=route,
            started_s=now_s,
            prefill_tokens=max(0, prompt - cached_tokens),
            prompt_tokens=prompt,
            kv_tokens=expected_kv_tokens(request) if kv_tokens is None else kv_tokens,
            computing=computing,
            holding=route.prefill,
            guessed=guessed,
            sequences=max(1, request.n),
        )
        if guessed:
            self._guess(route.decode, work.sequences)
        self._work[request.id] = work
        if route.encode:
            self._add(route.encode, 1, 0, 0)
        if route.prefill:
            self._add(route.prefill, 1, work.prefill_tokens, prompt)
            self._add(route.decode, work.sequences, 0, work.kv_tokens)
        else:
            self._add(route.decode, work.sequences, work.prefill_tokens, work.kv_tokens)
        return work

    def prefill_done(self, request_id: str) -> None:
        """The prompt is computed: a prefill leg ends here, though its KV stays until handed over.

        May be told more than once (the prefill side's answer and the first token both tell it).
        Raises AccountingError if the request is not in flight.
        """
        self._computed(self._get(request_id))

    def rebind(self, request_id: str, route: Route, kv_tokens: int) -> None:
        """The decode side is `route.decode` from now on, and holds `kv_tokens` there.

        Raises AccountingError if it is not in flight.
        """
        work = self._get(request_id)
        self._named(work)
        self._add(work.route.decode, -work.sequences, 0, -work.kv_tokens)
        self._add(route.decode, work.sequences, 0, kv_tokens)
        work.route, work.kv_tokens = route, kv_tokens

    def unbind(self, request_id: str) -> None:
        """The decode side that was named does not have it, and another is not named yet.

        Raises AccountingError if it is not in flight.
        """
        work = self._get(request_id)
        self._add(work.route.decode, 0, 0, -work.kv_tokens)
        work.kv_tokens = 0
        if not work.guessed:
            work.guessed = True
            self._guess(work.route.decode, work.sequences)

    def route(self, request_id: str) -> Route:
        """Where a request in flight is. Raises AccountingError if it is not."""
        return self._get(request_id).route

    def handed_over(self, request_id: str) -> None:
        """The decode side has the KV, so the prompt is computed and prefill holds nothing of it.

        May be told more than once. Raises AccountingError if the request is not in flight.
        """
        self._fetched(self._get(request_id))

    def finish(self, request_id: str) -> Work:
        """The request is over, however it ended: release all that is left of it, and say what it was.

        Raises AccountingError if it was never started or has finished before.
        """
        work = self._get(request_id)
        self._fetched(work)
        self._named(work)
        del self._work[request_id]
        self._add(work.route.decode, -work.sequences, 0, -work.kv_tokens)
        if work.route.encode:
            self._add(work.route.encode, -1, 0, 0)
        return work

    def inflight(self, endpoint_id: str) -> Inflight:
        """What is in flight at one endpoint."""
        sums = self._sums.get(endpoint_id)
        return _NOTHING if sums is None else sums.frozen()

    def sums(self, endpoint_id: str) -> Sums:
        """The same without a copy: to be read at once, and never changed."""
        return self._sums.get(endpoint_id, _NO_SUMS)

    def observe(self, endpoints: Iterable[Endpoint], epoch_s: float = 0.0) -> None:
        """Take the endpoints as they are now; work in flight at one that left is still counted.

        Where a load was read anew, what is in flight at this moment is what that report has seen. An
        endpoint given as the same object as before is taken to be unchanged. `epoch_s` is the Unix time when
        the monotonic clock stood at zero.
        """
        given = {e.id: e for e in endpoints}
        views = {}
        for endpoint_id, endpoint in given.items():
            view = self._views.get(endpoint_id)
            if view is None or self._given[endpoint_id] is not endpoint:
                now = self.inflight(endpoint_id)
                same_report = view is not None and endpoint.load is not None and view.load == endpoint.load
                guesses = self._guesses.get(endpoint_id, 0)
                seen = replace(now, requests=now.requests - guesses) if guesses else now
                if view is not None and same_report:
                    seen = view.inflight_at_load
                view = _with_inflight(endpoint, now, seen)
            views[endpoint_id] = view
        self._given, self._views, self._epoch_s = given, views, epoch_s

    def snapshot(self, now_s: float) -> Snapshot:
        """The endpoints last observed, each with what is in flight there at this moment.

        Rebuilds only the endpoints whose work has changed since the last call.
        """
        for endpoint_id in self._stale:
            view = self._views.get(endpoint_id)
            if view is not None:
                self._views[endpoint_id] = _with_inflight(view, self.inflight(endpoint_id))
        self._stale.clear()
        return Snapshot(at_s=now_s, endpoints=tuple(self._views.values()), unix_s=now_s + self._epoch_s)

    def _get(self, request_id: str) -> Work:
        work = self._work.get(request_id)
        if work is None:
            raise AccountingError(f"request {request_id} is not in flight: never started, or finished before")
        return work

    def _named(self, work: Work) -> None:
        if work.guessed:
            work.guessed = False
            self._guess(work.route.decode, -work.sequences)

    def _guess(self, endpoint_id: str, more: int) -> None:
        guesses = self._guesses.get(endpoint_id, 0) + more
        if guesses:
            self._guesses[endpoint_id] = guesses
        else:
            del self._guesses[endpoint_id]

    def _computed(self, work: Work) -> None:
        if work.computing is not None:
            legs = -1 if work.route.prefill else 0
            self._add(work.computing, legs, -work.prefill_tokens, 0)
            work.computing = None

    def _fetched(self, work: Work) -> None:
        self._computed(work)
        if work.holding is not None:
            self._add(work.holding, 0, 0, -work.prompt_tokens)
            work.holding = None

    def _add(self, endpoint_id: str, requests: int, prefill_tokens: int, kv_tokens: int) -> None:
        """The only place where a sum changes; one at zero is forgotten."""
        sums = self._sums.get(endpoint_id)
        if sums is None:
            sums = self._sums[endpoint_id] = Sums()
        sums.requests += requests
        sums.prefill_tokens += prefill_tokens
        sums.kv_tokens += kv_tokens
        if not (sums.requests or sums.prefill_tokens or sums.kv_tokens):
            del self._sums[endpoint_id]
        self._stale.add(endpoint_id)


_NOTHING = Inflight()
_NO_SUMS = Sums()
_GIVEN = [f.name for f in fields(Endpoint) if f.init]
_given_values = attrgetter(*_GIVEN)
_AT, _SEEN_AT = _GIVEN.index("inflight"), _GIVEN.index("inflight_at_load")


def _with_inflight(endpoint: Endpoint, inflight: Inflight, seen: Inflight | None = None) -> Endpoint:
    """A copy with `inflight`, and `inflight_at_load` if given: what `dataclasses.replace` makes, faster."""
    values = list(_given_values(endpoint))
    values[_AT] = inflight
    if seen is not None:
        values[_SEEN_AT] = seen
    return Endpoint(*values)
