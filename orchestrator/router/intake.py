"""From a request's bytes to all that its life goes by, refusing what nothing here could serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest
from orchestrator.router.offers import Offer, Offers, Registry
from orchestrator.router.record import Record
from orchestrator.router.settings import Settings
from orchestrator.router.view import Asked, Prompt, check_depth, check_length, model_of, prompt_of, read
from orchestrator.wire.exchange import Exchange


class Counts(Protocol):
    """What intake counts; `RouterMetrics` is one."""

    def stripped(self, field: str) -> None:
        """A guarded field or header was taken out of a request."""
        ...


class Ask(NamedTuple):
    """A request as read: its view, its body, what there is for it, and the headers engines get to see."""

    view: RequestView
    body: JsonBody
    prompt: Prompt
    offer: Offer
    headers: tuple[tuple[str, str], ...]


class Sifted(NamedTuple):
    """What the headers of a request are to one offer and settings: those that policies may read, those that
    engines get, and the guarded ones, which were taken out."""

    offer: Offer
    settings: Settings
    seen: Mapping[str, str]
    passed: tuple[tuple[str, str], ...]
    stripped: tuple[str, ...]


class Intake:
    """Reads requests."""

    def __init__(self, registry: Registry, offers: Offers, counts: Counts) -> None:
        self._registry = registry
        self._offers = offers
        self._counts = counts

    def read(self, exchange: Exchange, record: Record, settings: Settings) -> Ask:
        """The request as it goes on. Raises RequestError."""
        kind, body = record.kind, JsonBody(exchange.body)
        check_depth(body, settings.limits.max_json_depth)
        record.model = model = model_of(body, self._registry.models())
        offer = self._offers.offer(model, kind)
        if kind is PathKind.RESPONSES and body.fields.get("previous_response_id") is not None:
            message = "no responses are kept here: send the whole conversation as `input`"
            raise BadRequest(message, reason="not-stored", param="previous_response_id")
        # Every hand-off leaves these out; what is left to do here is to say that someone tried.
        if not offer.guarded_fields.isdisjoint(body.fields):
            for name in [name for name in body.fields if name in offer.guarded_fields]:
                self._counts.stripped(name)
        headers = self._headers(exchange, offer, settings)
        prompt = prompt_of(kind, body)
        check_length(prompt, offer.max_model_len)
        offer.check(kind, body)
        chosen = settings.slo_class(exchange, body.fields, record.tenant, prompt.tokens)
        record.clamped_from = chosen.clamped_from
        asked = Asked(
            id=record.id,
            arrived_s=record.arrived_s,
            slo_class=chosen.name,
            tenant=record.tenant,
            headers=headers.seen,
        )
        view = read(kind, body, model, prompt, settings.seed, asked)
        return Ask(view, body, prompt, offer, headers.passed)

    def _headers(self, exchange: Exchange, offer: Offer, settings: Settings) -> Sifted:
        """The request's headers, sifted once for all requests that share their head."""
        memo = exchange.head.memo
        if isinstance(memo, Sifted) and memo.offer is offer and memo.settings is settings:
            found = memo
        else:
            found = exchange.head.memo = _sift(exchange, offer, settings)
        for name in found.stripped:
            self._counts.stripped(name)
        return found


def _sift(exchange: Exchange, offer: Offer, settings: Settings) -> Sifted:
    seen: dict[str, str] = {}
    passed, stripped = [], []
    for name, value in exchange.headers:
        if name in offer.guarded_headers:
            stripped.append(name.decode("latin-1"))
        elif name in settings.seen:
            header = (name.decode("latin-1"), value.decode("latin-1"))
            seen[header[0]] = header[1]
            if name in settings.passed:
                passed.append(header)
    return Sifted(offer, settings, seen, tuple(passed), tuple(stripped))
