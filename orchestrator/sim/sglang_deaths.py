"""Numbers in a request that SGLang computes with unchecked: its scheduler raises, and the process ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.sim.text import VOCABULARY

_PROMPTS = ("prompt", "input_ids", "input")
_TOPS = ("logprobs", "top_logprobs", "top_logprobs_num")


def cause(body: Mapping[str, Any], role: str) -> str | None:
    """What the scheduler would raise over `body`, as its log has it; None if it survives.

    A decode engine computes no prompt, and so does not look at the ids of one. A stop id kills only beside
    a minimum of tokens; that of another request in the batch is not looked for here.
    """
    if role != "decode" and any(_outside(body.get(name)) for name in _PROMPTS):
        return "IndexError: index out of range in self"
    for name in _TOPS:
        if any(_over(one, VOCABULARY) for one in _each(body.get(name))):
            return "RuntimeError: selected index k out of range"
    for sampling in _each(body.get("sampling_params", body)):
        if not isinstance(sampling, Mapping):
            continue
        if _over(sampling.get("top_k"), 2**31 - 1):
            return "RuntimeError: value cannot be converted to type int without overflow"
        if (sampling.get("min_tokens") or sampling.get("min_new_tokens")) and _outside(
            sampling.get("stop_token_ids")
        ):
            return "RuntimeError: index is out of bounds for dimension 1"
    return None


def _each(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _over(value: object, most: int) -> bool:
    return isinstance(value, int) and value > most


def _outside(value: object) -> bool:
    return any(not 0 <= token < VOCABULARY for token in _ids(value))


def _ids(value: object) -> Iterator[int]:
    """The token ids in a prompt or a batch; digits among numbers, or in a nested list, count as one."""
    if not isinstance(value, list):
        return
    numbers = any(isinstance(one, int | float) for one in value)
    for one in value:
        for token in one if isinstance(one, list) else [one] if numbers else ():
            if isinstance(token, int | float) or (isinstance(token, str) and token.isdecimal()):
                yield int(token)
