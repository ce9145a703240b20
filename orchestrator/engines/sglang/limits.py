"""Values in a request that end SGLang's process or hang it: seen on 0.5.23, which checks none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NoReturn

from orchestrator.core.types import PathKind
from orchestrator.errors import BadRequest

INT32 = 2**31 - 1
"""What SGLang keeps `top_k` in; also taken for the last token id where the vocabulary is not known."""

LARGEST_BIAS = 1e9
SMALLEST_PENALTY = 1e-6
"""Beyond these, divided by the smallest temperature (1e-6), a logit leaves 32-bit floats, the probabilities
are no numbers, and sampling raises."""

_PROMPTS = {
    PathKind.CHAT: "input_ids",
    PathKind.COMPLETION: "prompt",
    PathKind.GENERATE: "input_ids",
    PathKind.EMBED: "input",
}
"""Where token ids may stand for the prompt."""

_SAMPLING = ("top_k", "stop_token_ids", "stop_regex", "repetition_penalty", "logit_bias")
_TOPS = ("logprobs", "top_logprobs", "top_logprobs_num")
_WATCHED = frozenset({*_PROMPTS.values(), *_TOPS, "sampling_params", *_SAMPLING})


def check(kind: PathKind, fields: Mapping[str, Any], vocab_size: int | None) -> None:
    """Raise BadRequest for what the scheduler would die of: its exception kills the whole process tree.

    Without `vocab_size` only what no vocabulary holds is refused. A prompt's ids are compared in C, in half
    the time that it takes to parse them.
    """
    if _WATCHED.isdisjoint(fields):
        return
    last = INT32 if vocab_size is None else vocab_size - 1
    name = _PROMPTS.get(kind)
    if name is not None and isinstance(prompt := fields.get(name), list) and prompt:
        _prompt(name, prompt, last)
    for sampling in _sampling(kind, fields):
        _sampled(sampling, last)
    for name in _TOPS:
        asked = fields.get(name)
        for one in asked if isinstance(asked, list) else (asked,):
            _count(name, one, last + 1)


def _sampled(sampling: Mapping[str, Any], last: int) -> None:
    _count("top_k", sampling.get("top_k"), INT32)
    # They kill where a request in the same batch has a minimum of tokens, whoever sent that one.
    _ids("stop_token_ids", sampling.get("stop_token_ids"), last)
    if sampling.get("stop_regex"):
        raise BadRequest(
            "stop_regex is not supported: some patterns hold up the engine and every request on it "
            "without end; use `stop`",
            reason="unsupported",
            param="stop_regex",
        )
    penalty = sampling.get("repetition_penalty")
    if penalty is not None and not (isinstance(penalty, int | float) and penalty >= SMALLEST_PENALTY):
        _refuse("repetition_penalty", f"be a number of at least {SMALLEST_PENALTY:g}", "out-of-range")
    bias = sampling.get("logit_bias")
    if isinstance(bias, dict) and bias and not _narrow(bias.values()):
        _refuse("logit_bias", f"hold numbers from -{LARGEST_BIAS:g} to {LARGEST_BIAS:g}", "out-of-range")


def _narrow(biases: Iterable[Any]) -> bool:
    try:
        return bool(max(map(abs, biases)) <= LARGEST_BIAS)
    except TypeError:
        return False  # the engine would take "1e38" for a number


def _sampling(kind: PathKind, fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Where the sampling parameters are: in the body, or in one or several objects of /generate."""
    if kind is not PathKind.GENERATE:
        return [fields]
    given = fields.get("sampling_params")
    several = given if isinstance(given, list) else [given]
    return [one for one in several if isinstance(one, dict)]


def _prompt(name: str, prompt: list[Any], last: int) -> None:
    """One list of ids, or one per prompt; texts, and the parts of a message, hold none."""
    first = prompt[0]
    if isinstance(first, list):
        if set(map(type, prompt)) != {list}:
            _mixed(name)
        _ids(name, list(chain.from_iterable(prompt)), last)
    elif isinstance(first, str):
        # The engine would take ["1", 99999] for two ids.
        if set(map(type, prompt)) != {str}:
            _mixed(name)
    elif not isinstance(first, dict):
        _ids(name, prompt, last)


def _ids(name: str, ids: object, last: int) -> None:
    if ids is None or ids == []:
        return
    if not isinstance(ids, list):
        _mixed(name)
    try:
        low, high = min(ids), max(ids)
    except TypeError:
        _mixed(name)
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        _mixed(name)
    if low < 0 or high > last:
        wrong = low if low < 0 else high
        raise BadRequest(
            f"`{name}` holds the token id {wrong}; this model's go from 0 to {last}",
            reason="bad-token-id",
            param=name,
        )


def _count(name: str, value: object, most: int) -> None:
    if value is not None and not (isinstance(value, int | float) and value <= most):
        _refuse(name, f"be a number of at most {most}, not {value!r}"[:160], "too-many")


def _refuse(name: str, wanted: str, reason: str) -> NoReturn:
    raise BadRequest(f"`{name}` must {wanted}", reason=reason, param=name)


def _mixed(name: str) -> NoReturn:
    _refuse(name, "hold nothing but numbers where it is a list of token ids", "bad-token-id")
