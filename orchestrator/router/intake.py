"""From a request's bytes to all that its life goes by, refusing what nothing here could serve."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest
from orchestrator.router.offers import Offer, Offers, Registry
from orchestrator.router.record import Record
from orchestrator.router.settings import Settings
from orchestrator.router.view import Asked, Prompt, check_length, model_of, prompt_of, read
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


class Intake:
    """Reads requests."""

    def __init__(self, registry: Registry, offers: Offers, counts: Counts) -> None:
        self._registry = registry
        self._offers = offers
        self._counts = counts

    def read(self, exchange: Exchange, record: Record, settings: Settings) -> Ask:
        """The request as it goes on. Raises RequestError."""
        kind, body = record.kind, JsonBody(exchange.body)
        record.model = model = model_of(body, self._registry.models())
        offer = self._offers.offer(model, kind)
        if kind is PathKind.RESPONSES and body.fields.get("previous_response_id") is not None:
            message = "no responses are kept here: send the whole conversation as `input`"
            raise BadRequest(message, reason="not-stored", param="previous_response_id")
        # Every hand-off leaves these out; what is left to do here is to say that someone tried.
        for name in offer.guarded_fields & body.fields.keys():
            self._counts.stripped(name)
        seen, passed = self._headers(exchange, offer, settings)
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
            headers=seen,
        )
        return Ask(read(kind, body, model, prompt, settings.seed, asked), body, prompt, offer, passed)

    def _headers(
        self, exchange: Exchange, offer: Offer, settings: Settings
    ) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
        """The headers that policies may read, and those that engines get."""
        seen: dict[str, str] = {}
        passed = []
        guarded, wanted = offer.guarded_headers, settings.seen
        for name, value in exchange.headers:
            if name in guarded:
                self._counts.stripped(name.decode("latin-1"))
            elif name in wanted:
                header = (name.decode("latin-1"), value.decode("latin-1"))
                seen[header[0]] = header[1]
                if name in settings.passed:
                    passed.append(header)
        return seen, tuple(passed)
