"""The request that goes on where a stream broke off, in the API that all engines here share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.core.types import PathKind
from orchestrator.engines.splice import JsonBody, quote

_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "use_beam_search": (False,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "continue_final_message": (False,),
    "add_generation_prompt": (True,), "response_format": ({"type": "text"},),
}  # fmt: skip
"""Values that leave a request plain; null always does."""

_NEVER = (
    "prompt_logprobs", "top_logprobs", "tools", "functions", "suffix", "prompt_embeds", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf", "json_schema",
    "separate_reasoning", "min_tokens",
)  # fmt: skip
"""Fields whose meaning depends on where the output begins, or whose answer is more than its text."""

_LIMITS = ("max_completion_tokens", "max_tokens")
_DEFAULT_LIMIT = 16
"""Output tokens of a completion that sets no limit."""

_SAID = frozenset({"role", "content", "refusal"})


@dataclass(slots=True)
class Told:
    """What of a streamed answer its client has been given.

    `pieces` are its texts; `tokens` how many tokens they are at least, an event for one where the engine does
    not count; `ids` their token ids and `prompt_ids` the prompt's, where the engine tells all of them.
    `whole`: generation had ended. `odd`: it holds what no prompt can say.
    """

    pieces: list[str] = field(default_factory=list)
    size: int = 0
    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    whole: bool = False
    odd: bool = False

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    def read(self, kind: PathKind, events: bytes) -> None:
        """Take in whole events."""
        for line in events.splitlines():
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            try:
                event = orjson.loads(line[5:])
                for choice in event.get("choices") or ():
                    self._choice(kind, choice)
            except (orjson.JSONDecodeError, AttributeError, TypeError):
                self.odd = True

    def _choice(self, kind: PathKind, choice: Mapping[str, Any]) -> None:
        text: Any
        if kind is PathKind.CHAT:
            delta = choice.get("delta") or {}
            self.odd |= any(value for name, value in delta.items() if name not in _SAID)
            text = delta.get("content")
        else:
            text = choice.get("text")
        if text:
            self.size += len(text)
            self.pieces.append(text)
        prompt_ids, ids = choice.get("prompt_token_ids"), choice.get("token_ids")
        self.odd |= not (isinstance(text or "", str) and isinstance(ids or [], list))
        if prompt_ids:
            self.prompt_ids = list(prompt_ids)
        if ids:
            self.ids += ids
        self.tokens += len(ids) if ids else bool(text)
        self.whole |= choice.get("finish_reason") is not None


def sound(kind: PathKind, fields: Mapping[str, Any]) -> bool:
    """Whether a stream of this request may go on as another request: one choice of plain text.

    What guides decoding or penalises output has a state that a prompt does not carry; log-probabilities, tool
    calls and reasoning are more than the text.
    """
    if kind not in (PathKind.CHAT, PathKind.COMPLETION) or fields.get("stream") is not True:
        return False
    if any(fields.get(name) not in (None, *plain) for name, plain in _PLAIN.items()):
        return False
    logprobs = fields.get("logprobs")  # of which 0 asks for those of the chosen tokens
    if any(fields.get(name) for name in _NEVER) or not (logprobs is None or logprobs is False):
        return False
    if kind is PathKind.CHAT:
        return isinstance(fields.get("messages"), list)
    prompt = fields.get("prompt")
    return isinstance(prompt, str) or (_ids(prompt) and fields.get("return_token_ids") is True)


def request(kind: PathKind, body: JsonBody, told: Told) -> JsonBody | None:
    """The request whose answer is the rest of the answer to `body`; None if there can be none.

    What has all the tokens it asked for lacks only its end: no engine gives that without a token more.
    """
    if told.odd or told.whole or not sound(kind, body.fields):
        return None
    left = {name: limit - told.tokens for name, limit in _limits(kind, body).items()}
    if any(tokens < 1 for tokens in left.values()):
        return None
    edits = {name: b"%d" % tokens for name, tokens in left.items()}
    if kind is PathKind.CHAT:
        said = {"role": "assistant", "content": told.text}
        edits["messages"] = quote([*body.fields["messages"], said])
        edits["continue_final_message"] = b"true"
        edits["add_generation_prompt"] = b"false"
    else:
        prompt = body.fields["prompt"]
        ids = prompt if isinstance(prompt, list) else told.prompt_ids
        if ids and len(told.ids) == told.tokens:
            edits["prompt"] = quote([*ids, *told.ids])
        elif isinstance(prompt, str):
            edits["prompt"] = quote(prompt + told.text)
        else:
            return None
    return JsonBody(b"".join(body.edit(edits)))


def _limits(kind: PathKind, body: JsonBody) -> dict[str, int]:
    """Tokens that the whole answer may have, by the name of the field; none is no limit."""
    limits: dict[str, int] = {
        name: body.fields[name] for name in _LIMITS if type(body.fields.get(name)) is int
    }
    if not limits and kind is PathKind.COMPLETION:
        limits = {"max_tokens": _DEFAULT_LIMIT}
    return limits


def _ids(prompt: Sequence[Any] | Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is int
