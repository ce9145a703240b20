"""vLLM's answers, field by field in the order it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from orchestrator.sim import text
from orchestrator.sim.calls import Call
from orchestrator.sim.generation import Generation
from orchestrator.sim.replies import TEXT_SLOT, Failure, Reply

FINGERPRINT = "vllm-0.32.0-51ed0000"


def error_object(failure: Failure) -> dict[str, object]:
    """The inside of `{"error": ...}`."""
    kind = failure.type or "InternalServerError"
    return {"message": failure.message, "type": kind, "param": failure.param, "code": failure.status}


class _Shape:
    """What both kinds of calls have in common."""

    kind = ""
    chunk_kind = ""

    def __init__(self, cache_report: bool) -> None:
        self._cache_report = cache_report
        self.headers: tuple[tuple[bytes, bytes], ...] = ()

    def error(self, failure: Failure, call: Call | None) -> dict[str, object]:
        """The same in a body and in a stream."""
        body = error_object(failure)
        return body if call is not None else {"error": body}

    def template(self, reply: Reply, gen: Generation) -> bytes | None:
        """A chunk of text, unless chunks carry more."""
        call = reply.call
        if gen.params.logprobs is not None or call.continuous_usage or call.token_ids:
            return None
        return orjson.dumps(self._chunk(reply, gen, TEXT_SLOT, 0, 0))

    def chunk(self, reply: Reply, gen: Generation, start: int, end: int) -> Sequence[bytes]:
        """Text, with the finish reason in the last one."""
        joined: str = orjson.loads(b'"' + b"".join(gen.texts[start:end]) + b'"')
        body = self._chunk(reply, gen, joined, start, end)
        if reply.done and gen.done is not None and not reply.call.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        return [orjson.dumps(body)]

    def usage(self, reply: Reply) -> bytes | None:
        """The usage chunk, if asked for."""
        if not reply.call.include_usage:
            return None
        usage = {**self._counts(reply), **self._stream_details(reply)}
        base = self._base(reply, self.chunk_kind)
        return orjson.dumps({**base, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT})

    def _chunk(self, reply: Reply, gen: Generation, piece: str, start: int, end: int) -> dict[str, Any]:
        raise RuntimeError("each kind has its own")

    @staticmethod
    def _base(reply: Reply, kind: str) -> dict[str, Any]:
        return {"id": reply.id, "object": kind, "created": reply.created, "model": reply.model}

    @staticmethod
    def _counts(reply: Reply) -> dict[str, Any]:
        prompt = sum(len(p) for p in reply.call.prompts)
        completion = sum(gen.produced for gen in reply.generations)
        return {
            "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
        }  # fmt: skip

    def _details(self, reply: Reply) -> dict[str, Any] | None:
        if not self._cache_report:
            return None
        cached = sum(gen.cached_tokens for gen in reply.generations)
        return {"cached_tokens": cached, "created_cache_tokens": None, "multimodal_tokens": None}

    def _stream_details(self, reply: Reply) -> dict[str, Any]:
        details = self._details(reply)
        return (
            {} if details is None else {"prompt_tokens_details": {"cached_tokens": details["cached_tokens"]}}
        )

    def _usage(self, reply: Reply) -> dict[str, Any]:
        return {
            **self._counts(reply),
            "prompt_tokens_details": self._details(reply), "completion_tokens_details": None,
        }  # fmt: skip

    def _tail(self, reply: Reply) -> dict[str, Any]:
        params = reply.extra.get("kv_transfer_params")
        ec_params = reply.extra.get("ec_transfer_params")
        return {"kv_transfer_params": params, "ec_transfer_params": ec_params, "metrics": None}


def _stop_reason(gen: Generation) -> str | None:
    return gen.matched if gen.done == "stop" and isinstance(gen.matched, str) else None


class ChatShape(_Shape):
    """`/v1/chat/completions`."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, reply: Reply, gen: Generation) -> bytes | None:
        """The role, with the first token."""
        choice = {
            "index": gen.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
            "finish_reason": None,
        }  # fmt: skip
        body: dict[str, Any] = {**self._base(reply, self.chunk_kind), "choices": [choice]}
        body["prompt_token_ids"] = list(gen.prompt) if reply.call.token_ids else None
        body["prompt_text"] = None
        return orjson.dumps(body)

    def _chunk(self, reply: Reply, gen: Generation, piece: str, start: int, end: int) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": gen.index, "delta": {"content": piece}, "logprobs": self._logprobs(gen, start, end),
            "finish_reason": gen.done,
        }  # fmt: skip
        if gen.done is not None:
            choice["stop_reason"] = _stop_reason(gen)
        choice["token_ids"] = gen.tokens[start:end] if reply.call.token_ids else None
        body = {**self._base(reply, self.chunk_kind), "choices": [choice]}
        if reply.call.continuous_usage:
            body["usage"] = self._counts(reply)
        return body

    def whole(self, reply: Reply) -> bytes:
        """The whole answer."""
        first = reply.generations[0]
        choices = [
            {
                "index": gen.index,
                "message": {
                    "role": "assistant", "content": gen.output_text(gen.produced), "refusal": None,
                    "annotations": None, "audio": None, "function_call": None, "reasoning": None,
                },
                "logprobs": self._logprobs(gen, 0, gen.produced),
                "finish_reason": gen.done,
                "stop_reason": _stop_reason(gen),
                "token_ids": gen.tokens[: gen.produced] if reply.call.token_ids else None,
                "routed_experts": None,
            }
            for gen in reply.generations
        ]  # fmt: skip
        return orjson.dumps(
            {
                **self._base(reply, self.kind), "choices": choices, "service_tier": None,
                "system_fingerprint": FINGERPRINT, "usage": self._usage(reply), "prompt_logprobs": None,
                "prompt_token_ids": list(first.prompt) if reply.call.token_ids else None,
                "prompt_text": None, **self._tail(reply),
            }
        )  # fmt: skip

    def _details(self, reply: Reply) -> dict[str, Any] | None:
        details = super()._details(reply)
        if details is not None:
            prompt = sum(len(p) for p in reply.call.prompts)
            block = reply.engine.options.page_size
            details["created_cache_tokens"] = max(0, prompt // block * block - details["cached_tokens"])
        return details

    @staticmethod
    def _logprobs(gen: Generation, start: int, end: int) -> Any:
        if gen.params.logprobs is None:
            return None
        content = []
        for at in range(start, end):
            token, value = text.decode((gen.tokens[at],)), text.logprob(gen.tokens[at], len(gen.prompt) + at)
            one = {"token": token, "logprob": value, "bytes": list(token.encode())}
            content.append({**one, "top_logprobs": [one] if gen.params.logprobs else []})
        return {"content": content}


class CompletionShape(_Shape):
    """`/v1/completions`."""

    kind = "text_completion"
    chunk_kind = "text_completion"

    def opening(self, reply: Reply, gen: Generation) -> bytes | None:
        """With `echo` the prompt comes first."""
        if not reply.call.echo:
            return None
        return orjson.dumps(self._chunk(reply, gen, self._echo(reply, gen), 0, 0))

    def _chunk(self, reply: Reply, gen: Generation, piece: str, start: int, end: int) -> dict[str, Any]:
        ids = reply.call.token_ids
        choice = {
            "index": gen.index, "text": piece, "logprobs": self._logprobs(gen, start, end),
            "finish_reason": gen.done, "stop_reason": _stop_reason(gen),
            "prompt_token_ids": list(gen.prompt) if ids and start == 0 else None,
            "token_ids": gen.tokens[start:end] if ids else None,
        }  # fmt: skip
        body = {**self._base(reply, self.chunk_kind), "choices": [choice]}
        if reply.call.continuous_usage:
            body["usage"] = self._counts(reply)
        return body

    def whole(self, reply: Reply) -> bytes:
        """The whole answer."""
        ids = reply.call.token_ids
        choices = [
            {
                "index": gen.index,
                "text": (self._echo(reply, gen) if reply.call.echo else "") + gen.output_text(gen.produced),
                "logprobs": self._logprobs(gen, 0, gen.produced),
                "finish_reason": gen.done,
                "stop_reason": _stop_reason(gen),
                "token_ids": gen.tokens[: gen.produced] if ids else None,
                "prompt_logprobs": None,
                "prompt_token_ids": list(gen.prompt) if ids else None,
                "routed_experts": None,
            }
            for gen in reply.generations
        ]
        return orjson.dumps(
            {
                **self._base(reply, self.kind), "choices": choices, "service_tier": None,
                "system_fingerprint": FINGERPRINT, "usage": self._usage(reply), **self._tail(reply),
            }
        )  # fmt: skip

    @staticmethod
    def _echo(reply: Reply, gen: Generation) -> str:
        return reply.call.prompt_text(gen.index // reply.call.n) or text.decode(gen.prompt)

    @staticmethod
    def _logprobs(gen: Generation, start: int, end: int) -> Any:
        if gen.params.logprobs is None:
            return None
        tokens = gen.tokens[start:end]
        pieces = [text.decode((token,)) for token in tokens]
        values = [text.logprob(token, len(gen.prompt) + start + i) for i, token in enumerate(tokens)]
        offsets, at = [], sum(len(text.piece(token)) for token in gen.tokens[:start])
        for piece in pieces:
            offsets.append(at)
            at += len(piece)
        return {
            "text_offset": offsets, "token_logprobs": values, "tokens": pieces,
            "top_logprobs": [{piece: value} for piece, value in zip(pieces, values, strict=True)],
        }  # fmt: skip
