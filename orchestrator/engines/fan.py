"""Requests for several answers, taken apart into single ones where an engine cannot hand them off."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.engines.splice import JsonBody, quote
from orchestrator.errors import BadRequest

MAX_ITEMS = 1000
"""Single requests that one client request may become; engine ids have four digits for them."""

_PER_PROMPT = ("extra_key", "cache_salt", "lora_path")
_SEEDS = 2**63


def samples(fields: Mapping[str, Any]) -> int:
    """How many answers per prompt are asked for (`n`).

    Raises BadRequest for anything but a positive whole number: engines read `"2"` and `2.0` as 2, and an
    unnoticed second sample hangs a disaggregated one.
    """
    n = fields.get("n")
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise BadRequest("n must be a positive whole number", reason="bad-n", param="n")
    return n


def batch(prompt: object) -> list[Any] | None:
    """The prompts of a batch; None for one prompt. A list of token ids is one prompt."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return prompt
    return None


def refuse_best_of(fields: Mapping[str, Any]) -> None:
    """Raise BadRequest for a `best_of` other than `n`: engines ignore it, and the answer is not the best."""
    best_of = fields.get("best_of")
    if best_of is not None and best_of != samples(fields):
        raise BadRequest(
            "best_of other than n is not supported: the engine would ignore it",
            reason="unsupported",
            param="best_of",
        )


def split(body: JsonBody, prompts: Sequence[Any] | None, n: int, drop: Collection[str]) -> list[JsonBody]:
    """One request per sample of each prompt, samples of the first prompt first.

    Each has `n` 1 and one prompt. A seed grows by one with each sample, as the engines do themselves:
    equal seeds would make the samples equal. Raises BadRequest over MAX_ITEMS.
    """
    count = n * len(prompts or [None])
    if count > MAX_ITEMS:
        raise BadRequest(
            f"{count} answers in one request are too many, the limit is {MAX_ITEMS}", reason="too-many-items"
        )
    fields = body.fields
    items = []
    for index, prompt in enumerate(prompts or [None]):
        edits: dict[str, bytes] = {}
        if prompts is not None:
            edits["prompt"] = quote(prompt)
            for name in _PER_PROMPT:
                value = fields.get(name)
                if isinstance(value, list) and len(value) == len(prompts):
                    edits[name] = quote(value[index])
        if n > 1:
            edits["n"] = b"1"
        for sample in range(n):
            if sample:
                edits |= seeded(fields, "seed", sample)
            items.append(JsonBody(b"".join(body.edit(edits, drop))))
    return items


def seeded(fields: Mapping[str, Any], name: str, sample: int) -> dict[str, bytes]:
    """The seed field of one sample, if the client set a seed."""
    seed = fields.get(name)
    if not isinstance(seed, int) or isinstance(seed, bool):
        return {}
    return {name: quote((seed + sample + _SEEDS) % (2 * _SEEDS) - _SEEDS)}
