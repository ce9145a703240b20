"""SGLang's hand-off: both legs at once under one bootstrap room, the answer from decode (0.5.23)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from orchestrator.core.types import LegKind, PathKind
from orchestrator.engines import errors, fan
from orchestrator.engines.base import HandoffDone, HandoffFailed, HandoffRequest, HandoffStep, Leg
from orchestrator.engines.splice import JsonBody, quote
from orchestrator.errors import LegFailed

GENERATING = frozenset({PathKind.CHAT, PathKind.COMPLETION, PathKind.GENERATE})
"""The kinds of request that know `rid` and the bootstrap fields."""

_JSON = (("content-type", "application/json"),)
_NOTHING: Mapping[str, Any] = {}


def rooms(kind: PathKind, body: JsonBody) -> int:
    """One per prompt: the engine gives prompt i of a batch the room after prompt i-1's."""
    prompts = prompts_of(kind, body)
    return 1 if prompts is None else len(prompts)


def prompts_of(kind: PathKind, body: JsonBody) -> list[Any] | None:
    """The prompts of a batch; None for one prompt."""
    if kind is PathKind.COMPLETION:
        return fan.batch(body.fields.get("prompt"))
    if kind is not PathKind.GENERATE:
        return None
    text = body.fields.get("text")
    if text is not None:
        return text if isinstance(text, list) and text else None
    return fan.batch(body.fields.get("input_ids"))


class Paired:
    """Prefill and decode, told of each other by the prefill's bootstrap address and the room.

    Prefill answers once its KV has been fetched, decode with the whole text; each waits minutes for the
    other, so whoever runs the legs cuts one when the other fails.
    """

    def __init__(self, request: HandoffRequest, drop: frozenset[str]) -> None:
        assert request.prefill is not None
        self._request = request
        self._drop = drop
        self.notes: dict[str, Any] = {}

    def start(self) -> tuple[Leg, ...]:
        """Prefill (not relayed, never streamed: its errors then have their status) and decode."""
        request = self._request
        prefill: dict[str, bytes] = {"rid": b"", **self._bootstrap()}
        decode = dict(prefill)
        rank = self._rank()
        if rank is not None:
            prefill["routed_dp_rank"] = decode["disagg_prefill_dp_rank"] = quote(rank)
        dropped: Collection[str] = self._drop
        if request.stream:
            prefill["stream"] = b"false"
            if request.body.has("stream_options"):
                dropped = self._drop | {"stream_options"}
        assert request.prefill is not None
        return (
            self._leg(LegKind.PREFILL, request.prefill.id, prefill, dropped),
            self._leg(LegKind.DECODE, request.decode.id, decode, self._drop),
        )

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """Prefill's answer: the KV has been handed over, or the request is over."""
        if status != 200:
            return HandoffFailed(errors.to_error(status, body))
        failure = read_prefill(body, self.notes)
        return HandoffFailed(failure) if failure else HandoffDone(self.notes)

    def _bootstrap(self) -> dict[str, bytes]:
        request = self._request
        assert request.prefill is not None
        facts = request.prefill.facts
        host, port = facts.get("bootstrap_host"), facts.get("bootstrap_port")
        if not isinstance(host, str) or not host or not isinstance(port, int):
            # A decode engine dies of a request with a room and no host.
            raise LegFailed(
                f"the bootstrap address of {request.prefill.id} is unknown", reason="no-bootstrap"
            )
        return {
            "bootstrap_host": quote(host),
            "bootstrap_port": b"%d" % port,
            "bootstrap_room": b"%d" % request.room,
        }

    def _rank(self) -> int | None:
        """The prefill's DP rank that the room stands for, told to both sides rather than worked out by
        each; a batch has a room, and so a rank, per prompt, which one field cannot tell."""
        request = self._request
        assert request.prefill is not None
        ranks = request.prefill.facts.get("dp_size")
        if not isinstance(ranks, int) or ranks < 2 or rooms(request.kind, request.body) > 1:
            return None
        return request.room % ranks

    def _leg(self, kind: LegKind, endpoint: str, fields: dict[str, bytes], drop: Collection[str]) -> Leg:
        request = self._request
        engine_id = request.engine_id(kind)
        fields["rid"] = b'"%b"' % engine_id.encode()
        relay = kind is LegKind.DECODE
        return Leg(
            kind=kind,
            endpoint=endpoint,
            path=request.path,
            body=request.body.edit(fields, drop),
            engine_id=engine_id,
            relay=relay,
            stream=request.stream and relay,
            headers=_JSON + request.headers,
        )


class Part:
    """The beginning of a prompt as a plain request for one token, for what stays of it in the cache."""

    def __init__(self, request: HandoffRequest, ids: Sequence[int], number: int) -> None:
        self._request = request
        self._engine_id = f"{request.request_id}-s{request.attempt}.{number:04d}"
        sampling = {"max_new_tokens": 1, "temperature": 0}
        self._body = orjson.dumps({"input_ids": ids, "sampling_params": sampling, "rid": self._engine_id})
        self.notes: dict[str, Any] = {}

    def start(self) -> tuple[Leg, ...]:
        """The one leg."""
        return (
            Leg(
                kind=LegKind.PREFILL,
                endpoint=self._request.decode.id,
                path="/generate",
                body=(self._body,),
                engine_id=self._engine_id,
                relay=False,
                headers=_JSON + self._request.headers,
            ),
        )

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """It is computed, or not."""
        if status != 200:
            return HandoffFailed(errors.to_error(status, body))
        failure = read_prefill(body, self.notes)
        return HandoffFailed(failure) if failure else HandoffDone(self.notes)


class Alone:
    """One unified endpoint: the client's bytes, with only the request id put in."""

    def __init__(self, request: HandoffRequest, drop: frozenset[str]) -> None:
        self._request = request
        self._drop = drop
        self.notes: dict[str, Any] = {}

    def start(self) -> tuple[Leg, ...]:
        """The one leg."""
        request = self._request
        engine_id = request.engine_id(LegKind.UNIFIED)
        fields = {"rid": quote(engine_id)} if request.kind in GENERATING else {}
        leg = Leg(
            kind=LegKind.UNIFIED,
            endpoint=request.decode.id,
            path=request.path,
            body=request.body.edit(fields, self._drop),
            engine_id=engine_id,
            relay=True,
            stream=request.stream,
            headers=_JSON + request.headers,
        )
        return (leg,)

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """Nothing follows the only leg."""
        return HandoffDone()


def read_prefill(body: bytes, notes: dict[str, Any]) -> LegFailed | None:
    """Note the token counts of prefill's answer; a generation that failed or was cut is a failed leg."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return LegFailed("the prefill engine's answer is not JSON", reason="bad-answer")
    prompt = cached = 0
    for answer in told if isinstance(told, list) else (told,):
        if not isinstance(answer, dict) or not (answer.get("choices") or answer.get("meta_info")):
            # Taken for a success it would leave decode waiting for minutes.
            return LegFailed("the prefill engine's answer is not what it should be", reason="bad-answer")
        meta = answer.get("meta_info") or _NOTHING
        usage = answer.get("usage") or _NOTHING
        cut = _cut(meta.get("finish_reason"))
        for choice in answer.get("choices") or ():
            cut = cut or _cut(choice.get("finish_reason"))
        if cut:
            return LegFailed("the prefill engine cut the request short", reason="prefill-aborted")
        prompt += meta.get("prompt_tokens") or usage.get("prompt_tokens") or 0
        details = usage.get("prompt_tokens_details") or _NOTHING
        cached += meta.get("cached_tokens") or details.get("cached_tokens") or 0
    notes["prompt_tokens"], notes["cached_tokens"] = prompt, cached
    return None


def _cut(end: object) -> bool:
    reason = end.get("type") if isinstance(end, dict) else end
    return reason in ("abort", "error")
