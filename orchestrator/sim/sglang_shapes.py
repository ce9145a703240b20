"""SGLang's answers, field by field in the order it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson

from orchestrator.sim import text
from orchestrator.sim.calls import Call
from orchestrator.sim.generation import Generation
from orchestrator.sim.replies import TEXT_SLOT, Failure, Reply

_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError"}


class _Shape:
    """What all kinds of calls have in common."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, cache_report: bool, prefill: bool) -> None:
        self._cache_report = cache_report
        self._prefill = prefill
        """A prefill engine answers with one token, and reports input log-probabilities; decode does not."""

    def error(self, failure: Failure, call: Call | None) -> dict[str, object]:
        """OpenAI's form; within a stream the type is the status by name."""
        status = failure.status
        kind = _ERROR_TYPES.get(status, str(status)) if call is None else HTTPStatus(status).name
        return {"object": "error", "message": failure.message, "type": kind, "param": None, "code": status}

    def _finish(self, gen: Generation) -> str | None:
        return "length" if self._prefill and gen.done == "stop" else gen.done

    def _matched(self, gen: Generation) -> str | int | None:
        return gen.matched if gen.done == "stop" and not self._prefill else None

    def _usage(self, reply: Reply) -> dict[str, Any]:
        prompt = sum(len(p) for p in reply.call.prompts)
        completion = sum(gen.produced for gen in reply.generations)
        details = None
        if self._cache_report:
            details = {"cached_tokens": sum(gen.cached_tokens for gen in reply.generations)}
        return {
            "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
            "prompt_tokens_details": details, "reasoning_tokens": 0, "completion_tokens_details": None,
        }  # fmt: skip

    def _metadata(self, reply: Reply) -> dict[str, Any]:
        end = max(gen.produced for gen in reply.generations)
        return {"weight_version": "default", "weight_versions": weights(end)}


def weights(end: int) -> list[dict[str, Any]]:
    """The one version that the weights ever have."""
    return [{"version": "default", "start": 0, "end": end}]


class ChatShape(_Shape):
    """`/v1/chat/completions`."""

    def opening(self, reply: Reply, gen: Generation) -> bytes | None:
        """The role, before any text."""
        return self._chunk(reply, gen, {"reasoning_content": None, "role": "assistant", "content": ""})

    def template(self, reply: Reply, gen: Generation) -> bytes | None:
        """A chunk of text."""
        if gen.params.logprobs is not None or reply.call.continuous_usage:
            return None
        return self._chunk(reply, gen, {"reasoning_content": None, "content": TEXT_SLOT})

    def chunk(self, reply: Reply, gen: Generation, start: int, end: int) -> Sequence[bytes]:
        """Text, and once it is over an empty chunk with the finish reason."""
        chunks = []
        if end > start and (piece := _piece(gen, start, end)):
            logprobs = _chat_logprobs(gen, start, end)
            delta = {"reasoning_content": None, "content": piece}
            chunks.append(self._chunk(reply, gen, delta, logprobs=logprobs))
        if gen.done is not None:
            chunks.append(self._chunk(reply, gen, {"reasoning_content": None}, finish=True))
        return chunks

    def usage(self, reply: Reply) -> bytes | None:
        """The usage chunk, if asked for."""
        if not reply.call.include_usage:
            return None
        return orjson.dumps({**self._base(reply), "choices": [], "usage": self._usage(reply)})

    def whole(self, reply: Reply) -> bytes:
        """The whole answer."""
        choices = [
            {
                "index": gen.index,
                "message": {
                    "role": "assistant", "content": gen.output_text(gen.produced), "reasoning_content": None,
                },
                "logprobs": _chat_logprobs(gen, 0, gen.produced),
                "finish_reason": self._finish(gen),
                "matched_stop": self._matched(gen),
            }
            for gen in reply.generations
        ]  # fmt: skip
        base = {**self._base(reply), "object": "chat.completion"}
        return orjson.dumps(
            {**base, "choices": choices, "usage": self._usage(reply), "metadata": self._metadata(reply)}
        )

    @staticmethod
    def _base(reply: Reply) -> dict[str, Any]:
        return {
            "id": reply.id, "object": "chat.completion.chunk", "created": reply.created, "model": reply.model,
        }  # fmt: skip

    def _chunk(
        self,
        reply: Reply,
        gen: Generation,
        delta: dict[str, Any],
        *,
        finish: bool = False,
        logprobs: Any = None,
    ) -> bytes:
        choice = {
            "index": gen.index, "delta": delta, "logprobs": logprobs,
            "finish_reason": self._finish(gen) if finish else None,
            "matched_stop": self._matched(gen) if finish else None,
        }  # fmt: skip
        body = {**self._base(reply), "choices": [choice]}
        if reply.call.continuous_usage:
            body["usage"] = self._usage(reply)
        return orjson.dumps(body)


class CompletionShape(_Shape):
    """`/v1/completions`."""

    def opening(self, reply: Reply, gen: Generation) -> bytes | None:
        """With `echo` the prompt comes first, alone."""
        if not reply.call.echo:
            return None
        return self._chunk(reply, gen, _echo(reply, gen), None, None)

    def template(self, reply: Reply, gen: Generation) -> bytes | None:
        """A chunk of text."""
        if gen.params.logprobs is not None or reply.call.continuous_usage:
            return None
        return self._chunk(reply, gen, TEXT_SLOT, None, None)

    def chunk(self, reply: Reply, gen: Generation, start: int, end: int) -> Sequence[bytes]:
        """Text, with the finish reason in the last one."""
        logprobs = self._logprobs(reply, gen, start, end)
        return [self._chunk(reply, gen, _piece(gen, start, end), logprobs, self._finish(gen))]

    def usage(self, reply: Reply) -> bytes | None:
        """The usage chunk, if asked for: without the fields that are null."""
        if not reply.call.include_usage:
            return None
        usage = {name: value for name, value in self._usage(reply).items() if value is not None}
        return orjson.dumps({**self._base(reply), "choices": [], "usage": usage})

    def whole(self, reply: Reply) -> bytes:
        """The whole answer."""
        choices = [
            {
                "index": gen.index,
                "text": (_echo(reply, gen) if reply.call.echo else "") + gen.output_text(gen.produced),
                "logprobs": self._logprobs(reply, gen, 0, gen.produced),
                "finish_reason": self._finish(gen),
                "matched_stop": self._matched(gen),
            }
            for gen in reply.generations
        ]
        return orjson.dumps(
            {
                **self._base(reply), "choices": choices, "usage": self._usage(reply),
                "metadata": self._metadata(reply),
            }
        )  # fmt: skip

    @staticmethod
    def _base(reply: Reply) -> dict[str, Any]:
        return {"id": reply.id, "object": "text_completion", "created": reply.created, "model": reply.model}

    def _chunk(self, reply: Reply, gen: Generation, piece: str, logprobs: Any, finish: str | None) -> bytes:
        choice = {
            "index": gen.index, "text": piece, "logprobs": logprobs, "finish_reason": finish,
            "matched_stop": self._matched(gen) if finish else None,
        }  # fmt: skip
        usage = self._usage(reply) if reply.call.continuous_usage else None
        return orjson.dumps({**self._base(reply), "choices": [choice], "usage": usage})

    def _logprobs(self, reply: Reply, gen: Generation, start: int, end: int) -> Any:
        top = gen.params.logprobs
        if top is None:
            return None
        tokens = list(gen.tokens[start:end])
        first = len(gen.prompt) + start
        values: list[float | None] = [text.logprob(t, first + i) for i, t in enumerate(tokens)]
        # Only who has computed the prompt can report on it.
        if reply.call.echo and start == 0 and gen.cached is None:
            tokens = [*gen.prompt, *tokens]
            values = [None, *(text.logprob(t, i) for i, t in enumerate(gen.prompt) if i), *values]
        pieces = [text.decode((token,)) for token in tokens]
        return {
            "text_offset": [-1] * len(tokens), "token_logprobs": values, "tokens": pieces,
            "top_logprobs": [
                None if value is None else {piece: value} for piece, value in zip(pieces, values, strict=True)
            ] if top else [],
        }  # fmt: skip


class GenerateShape(_Shape):
    """SGLang's own `/generate`: text so far in every chunk, figures in `meta_info`."""

    def error(self, failure: Failure, call: Call | None) -> dict[str, object]:
        """Input errors have a form of their own here; failures do not."""
        if failure.status == 400:
            return (
                {"message": failure.message} if call is not None else {"error": {"message": failure.message}}
            )
        return super().error(failure, call)

    def opening(self, reply: Reply, gen: Generation) -> bytes | None:
        """Nothing comes before the text."""
        return None

    def template(self, reply: Reply, gen: Generation) -> bytes | None:
        """Every chunk differs."""
        return None

    def chunk(self, reply: Reply, gen: Generation, start: int, end: int) -> Sequence[bytes]:
        """All so far."""
        body = self._one(reply, gen, end)
        if reply.call.batch or reply.call.n > 1:
            body["index"] = gen.index
        return [orjson.dumps(body)]

    def usage(self, reply: Reply) -> bytes | None:
        """There is no such chunk."""
        return None

    def whole(self, reply: Reply) -> bytes:
        """One object, or a list of them for a batch or several samples."""
        bodies = [self._one(reply, gen, gen.produced) for gen in reply.generations]
        return orjson.dumps(bodies if reply.call.batch or reply.call.n > 1 else bodies[0])

    def _one(self, reply: Reply, gen: Generation, end: int) -> dict[str, Any]:
        return {
            "text": gen.output_text(end),
            "output_ids": gen.tokens[:end],
            "meta_info": self._meta(reply, gen, end),
        }

    def _meta(self, reply: Reply, gen: Generation, end: int) -> dict[str, Any]:
        real_s = reply.engine.clock.real_s
        base_s = reply.created - real_s(gen.created_s)
        computed_here = gen.cached is None
        meta: dict[str, Any] = {
            "id": gen.id, "finish_reason": self._finish_object(gen, end), "prompt_tokens": len(gen.prompt),
            "weight_version": "default", "num_retractions": 0,
        }  # fmt: skip
        if computed_here:
            meta |= {"storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0}
        job = gen.job
        if job is not None and job.admitted_s is not None:
            meta["forward_entry_time"] = base_s + real_s(job.admitted_s)
            if computed_here and job.prefilled_s is not None:
                meta["prefill_finished_time"] = base_s + real_s(job.prefilled_s)
            meta["queue_time"] = real_s(job.admitted_s - job.submitted_s)
        if gen.params.logprobs is not None:
            meta |= self._logprobs(reply, gen, end)
        cached = gen.cached_tokens
        meta |= {"reasoning_tokens": 0, "completion_tokens": end, "cached_tokens": cached}
        if gen.done is not None:
            meta["weight_versions"] = weights(end)
        meta |= {"cached_tokens_details": {"device": cached, "host": 0} if cached else None, "dp_rank": None}
        if gen.done is not None:
            meta |= self._latencies(reply, gen, end, base_s)
        return meta

    @staticmethod
    def _latencies(reply: Reply, gen: Generation, end: int, base_s: float) -> dict[str, Any]:
        clock = reply.engine.clock
        now_s, created_s = clock.real_s(clock.now_s()), clock.real_s(gen.created_s)
        first_s = now_s if gen.first_s is None else clock.real_s(gen.first_s)
        sent = {"response_sent_to_client_ts": base_s + (first_s if reply.call.stream else now_s)}
        finished = {"request_finished_ts": base_s + now_s}
        if end > 1 and now_s > first_s:
            finished["decode_throughput"] = (end - 1) / (now_s - first_s)
        return {
            "e2e_latency": now_s - created_s,
            "request_received_ts": base_s + created_s,
            "first_token_latency": first_s - created_s,
            "api_server_dispatch_finish_ts": base_s + created_s,
            # A stream's first byte was sent long before its end.
            **(sent | finished if reply.call.stream else finished | sent),
        }

    def _finish_object(self, gen: Generation, end: int) -> dict[str, Any] | None:
        if gen.done is None:
            return None
        if gen.done == "abort":
            return {"type": "abort", "message": "Aborted"}
        if gen.done == "stop" and not self._prefill:
            return {"type": "stop", "matched": gen.matched}
        return {"type": "length", "length": 0 if self._prefill else end}

    def _logprobs(self, reply: Reply, gen: Generation, end: int) -> dict[str, Any]:
        top = gen.params.logprobs or 0
        own = reply.call.input_logprobs and gen.cached is None
        asked = (
            [[None if i == 0 else text.logprob(t, i), t, None] for i, t in enumerate(gen.prompt)]
            if own
            else []
        )
        first = len(gen.prompt)
        out = [[text.logprob(t, first + i), t, None] for i, t in enumerate(gen.tokens[:end])]
        meta: dict[str, Any] = {
            "input_token_logprobs": asked, "output_token_logprobs": out, "output_token_logprobs_length": end,
        }  # fmt: skip
        if top:
            meta["input_top_logprobs"] = [
                None if one[0] is None else _alternatives(one, top) for one in asked
            ]
            meta["output_top_logprobs"] = [_alternatives(one, top) for one in out]
        return meta


def _alternatives(best: list[Any], top: int) -> list[list[Any]]:
    """The chosen token and less likely ones."""
    value, token, _ = best
    return [[value - 0.7 * i, (token + 7 * i) % text.VOCABULARY, None] for i in range(top)]


def _piece(gen: Generation, start: int, end: int) -> str:
    piece: str = orjson.loads(b'"' + b"".join(gen.texts[start:end]) + b'"')
    return piece


def _echo(reply: Reply, gen: Generation) -> str:
    return reply.call.prompt_text(gen.index // reply.call.n) or text.decode(gen.prompt)


def _chat_logprobs(gen: Generation, start: int, end: int) -> Any:
    if gen.params.logprobs is None:
        return None
    content = []
    for at in range(start, end):
        token, value = text.decode((gen.tokens[at],)), text.logprob(gen.tokens[at], len(gen.prompt) + at)
        one = {"token": token, "bytes": list(token.encode()), "logprob": value}
        content.append({**one, "top_logprobs": [one] if gen.params.logprobs else []})
    return {"content": content}
