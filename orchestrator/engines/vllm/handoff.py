"""vLLM's hand-offs: NIXL (prefill, then decode with its parameters) and Mooncake (both at once) (0.32.0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from orchestrator.core.address import http_url, split_http_url
from orchestrator.core.types import Endpoint, LegKind, PathKind
from orchestrator.engines import errors
from orchestrator.engines.base import (
    HandoffDone,
    HandoffFailed,
    HandoffRequest,
    HandoffStep,
    HttpCall,
    Leg,
)
from orchestrator.engines.linting import is_loopback
from orchestrator.engines.splice import quote
from orchestrator.engines.vllm import params
from orchestrator.errors import LegFailed, NoCapacity, RequestError

_JSON = ("content-type", "application/json")
_TO_DECODE = quote(
    {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
)
_SHAPES_OUTPUT = frozenset(
    {
        "stream_options", "stream_interval",
        "return_tokens_as_token_ids", "return_token_ids", "return_prompt_text", "echo",
    }
)  # fmt: skip
"""Fields that shape an answer and not the prompt; prefill's answer is only read for its parameters.

Log-probabilities are not among them: how many are allowed is the engine's setting, and what decode alone
refuses leaves prefill's KV pinned until its lease ends."""

NO_MODEL = b"pdctl:release"
"""The model that a leg names which only frees KV."""

_ENDS_EARLY = frozenset({"stop", "stop_token_ids"})


class _Legs:
    """What the three hand-offs share."""

    def __init__(self, request: HandoffRequest, drop: frozenset[str]) -> None:
        self._request = request
        self._drop = drop
        self.notes: dict[str, Any] = {}

    def bind(self, decode: Endpoint) -> None:
        """Decode goes there; told before prefill's answer."""
        self._request = replace(self._request, decode=decode)

    def _leg(
        self,
        kind: LegKind,
        endpoint: Endpoint,
        fields: Mapping[str, bytes],
        drop: frozenset[str] = frozenset(),
        owed: bool = False,
        release: Callable[[], HttpCall] | None = None,
    ) -> Leg:
        request = self._request
        engine_id = request.engine_id(kind)
        relay = kind is not LegKind.PREFILL
        return Leg(
            kind=kind,
            endpoint=endpoint.id,
            path=request.path,
            body=request.body.edit(fields, self._drop | drop),
            engine_id=engine_id,
            relay=relay,
            stream=request.stream and relay,
            headers=(_JSON, ("x-request-id", engine_id), *request.headers),
            owed=owed,
            release=release,
        )

    def _prefill(
        self,
        endpoint: Endpoint,
        transfer: bytes,
        fields: Mapping[str, bytes],
        drop: frozenset[str] = frozenset(),
        owed: bool = False,
    ) -> Leg:
        """One token and no stream: only a whole answer carries hand-off parameters."""
        body = self._request.body
        edits = {"kv_transfer_params": transfer, "max_tokens": b"1", **fields}
        if self._request.kind is PathKind.CHAT or body.has("max_completion_tokens"):
            edits["max_completion_tokens"] = b"1"
        least = body.fields.get("min_tokens")
        if isinstance(least, int) and least > 1:
            edits["min_tokens"] = b"1"
        if body.has("stream"):
            edits["stream"] = b"false"
        return self._leg(LegKind.PREFILL, endpoint, edits, _SHAPES_OUTPUT | drop, owed)

    def _answer(self, status: int, body: bytes) -> dict[str, Any] | RequestError:
        """Prefill's answer, its token counts noted; or why the request cannot go on."""
        if status != 200:
            return errors.to_error(status, body)
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            return LegFailed("the prefill engine's answer is not what it should be", reason="bad-answer")
        end = finish_reason(answer)
        if end == "abort":
            # A draining vLLM answers new requests 200 with this and no text: not begun.
            return NoCapacity("the prefill engine ended the request before it began", reason="engine-aborted")
        if end == "error":
            return LegFailed("the prefill engine cut the request short", reason="prefill-aborted")
        usage = answer.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if isinstance(tokens, int):
            self.notes["prompt_tokens"] = tokens
        return answer


class Pulled(_Legs):
    """NIXL: prefill answers with where its KV lies; decode is sent there and fetches it."""

    def start(self) -> tuple[Leg, ...]:
        """Prefill alone."""
        assert self._request.prefill is not None
        return (self._prefill(self._request.prefill, _TO_DECODE, {}),)

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """Decode with prefill's parameters, unchanged. A prefill that returned none, or bad ones, fails
        the request: decode alone would be right too, but does another engine's work without being asked."""
        answer = self._answer(status, body)
        if isinstance(answer, RequestError):
            return HandoffFailed(answer)
        told = answer.get("kv_transfer_params")
        why = self._fault(told)
        if why:
            return HandoffFailed(
                LegFailed(f"the prefill engine's hand-off parameters: {why}", reason="bad-handoff-params")
            )
        cached = told.get("remote_prefill_cached_tokens") if isinstance(told, dict) else None
        if isinstance(cached, int):
            self.notes["cached_tokens"] = cached
        transfer = quote(told)
        return (
            self._leg(
                LegKind.DECODE,
                self._request.decode,
                {"kv_transfer_params": transfer},
                release=partial(_release, self._request.path, transfer),
            ),
        )

    def _fault(self, told: object) -> str | None:
        request = self._request
        assert request.prefill is not None
        why = params.fault(
            told,
            block_size=request.prefill.block_size,
            prompt_tokens=self.notes.get("prompt_tokens"),
        )
        if why is None and isinstance(told, dict) and is_loopback(told["remote_host"]):
            ours, theirs = (split_http_url(e.url)[0] for e in (request.prefill, request.decode))
            if theirs != ours and not is_loopback(theirs):
                return f"remote_host is {told['remote_host']}, which decode on another host cannot reach"
        return why


class Announced(_Legs):
    """Mooncake: both legs at once under a transfer id; decode asks prefill's bootstrap server."""

    def start(self) -> tuple[Leg, ...]:
        """Prefill and decode."""
        request = self._request
        assert request.prefill is not None
        facts = request.prefill.facts
        host, port, engine = (facts.get(n) for n in ("bootstrap_host", "bootstrap_port", "engine_id"))
        if not isinstance(host, str) or not isinstance(port, int) or not isinstance(engine, str):
            # Decode has no time-out of its own for an address that does not answer.
            raise LegFailed(
                f"the bootstrap address of {request.prefill.id} is unknown", reason="no-bootstrap"
            )
        transfer = request.engine_id(LegKind.PREFILL)
        to_decode = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        to_prefill = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_bootstrap_addr": http_url(host, port),
            "remote_engine_id": engine,
            "transfer_id": transfer,
        }
        # The KV is dropped unless prefill ends by length: nothing else may end it.
        whole = {"ignore_eos": b"true"}
        return (
            # Prefill that is aborted leaves decode waiting for it, and decode's blocks pinned, for
            # VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT (480 s), even if decode has been aborted too.
            self._prefill(request.prefill, quote(to_decode), whole, _ENDS_EARLY, owed=True),
            self._leg(LegKind.DECODE, request.decode, {"kv_transfer_params": quote(to_prefill)}),
        )

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """Prefill is done; decode must not be left waiting for KV that was dropped."""
        answer = self._answer(status, body)
        if isinstance(answer, RequestError):
            return HandoffFailed(answer)
        if finish_reason(answer) != "length":
            return HandoffFailed(LegFailed("the prefill engine dropped its KV", reason="prefill-aborted"))
        return HandoffDone(dict(self.notes))


class Alone(_Legs):
    """One endpoint that does it all: the client's bytes."""

    def start(self) -> tuple[Leg, ...]:
        """The one leg."""
        return (self._leg(LegKind.UNIFIED, self._request.decode, {}),)

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """Nothing follows the only leg."""
        return HandoffDone()


class Part(_Legs):
    """The beginning of a prompt as a plain request for one token, for what stays of it in the cache."""

    def __init__(self, request: HandoffRequest, model: str, ids: Sequence[int], number: int) -> None:
        super().__init__(request, frozenset())
        self._body = orjson.dumps({"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0})
        self._engine_id = f"{request.request_id}-s{request.attempt}.{number:04d}"

    def start(self) -> tuple[Leg, ...]:
        """The one leg, at the endpoint that computes the prompt."""
        request = self._request
        endpoint = request.prefill or request.decode
        headers = (_JSON, ("x-request-id", self._engine_id), *request.headers)
        return (
            Leg(
                kind=LegKind.PREFILL,
                endpoint=endpoint.id,
                path="/v1/completions",
                body=(self._body,),
                engine_id=self._engine_id,
                relay=False,
                headers=headers,
            ),
        )

    def on_response(self, kind: LegKind, status: int, body: bytes) -> HandoffStep:
        """It is computed, or not."""
        answer = self._answer(status, body)
        return HandoffFailed(answer) if isinstance(answer, RequestError) else HandoffDone(dict(self.notes))


def _release(path: str, transfer: bytes) -> HttpCall:
    """A decode leg that is refused before it reaches the engine (404): vLLM then frees prefill's KV.

    No model has this name, so that it can never run: with the parameters of another prompt it would compute
    wrong tokens, and keep them in decode's prefix cache.
    """
    chat = path.endswith("/chat/completions")
    prompt = b'"messages":[{"role":"user","content":""}]' if chat else b'"prompt":""'
    return HttpCall("POST", path, b'{"model":"%b",%b,"kv_transfer_params":%b}' % (NO_MODEL, prompt, transfer))


def finish_reason(answer: Mapping[str, Any]) -> str | None:
    """How the first choice of an answer ended."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("finish_reason") if isinstance(first, dict) else None
    return reason if isinstance(reason, str) else None
