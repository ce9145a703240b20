"""The shipped scheduling profiles as plain data, in the form a topology writes its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ParamError, Problem
from orchestrator.plugins import nearest

ROLES = ("prefill", "decode", "unified")

DEFAULT_MODE = "immediate"
"""The mode of a profile that names none."""

BASES = {"immediate": "priced", "late": "slo"}
"""By mode, the profile from which what another leaves out is taken."""

Data = Mapping[str, Any]

# The price of a unit is weight / scale. A cached token is worth 2/16384, a token of backlog costs
# 4/65536: half as much, since computing it again delays this request and all behind it. A request
# costs 2/256, as much as 128 tokens, for what a step costs however little is in it. Affinity can
# earn 2, load can cost 6: no prefix, however hot, holds traffic on an overloaded endpoint.
_NEAREST_FIRST_TOKEN = [
    {"use": "prefix-affinity", "weight": 2.0, "full_tokens": 16_384},
    {"use": "token-load", "weight": 4.0, "scale_tokens": 65_536},
    {"use": "queue-depth", "weight": 2.0, "scale_requests": 256},
]

# Projected KV bounds what is admitted. Four times capacity: an immediate scheduler has no queue of its
# own, and engines hold requests back in theirs when memory is taken, so that a burst need not be refused.
_BOUNDED_KV = [{"use": "kv-capacity", "overcommit": 4.0}]

_BEST = {"use": "max-score"}

# The rate only bounds how far apart two endpoints can be told: the cheapest has the whole share.
_PREDICTED = [{"use": "predicted-latency", "others": 1.0, "worth": "1h"}]

# By the median: by the tail that is promised, a fleet that has learned little refuses nearly all, and so
# learns nothing.
_IN_TIME = [{"use": "predicted-ttft", "quantile": 0.5}]

# Long prompts are kept to their part of the endpoints, short ones are not: borders that fit long-context
# traffic then cost short-prompt traffic nothing.
_BY_SIZE = [{"use": "size-pools", "bounds": [8192, 24_576], "shares": [1, 2, 5], "spill": True}]

# Prefix against queue against memory, each compared with the best candidate's, as llm-d weighs them.
_WEIGHTED = [
    {"use": "prefix-affinity", "weight": 3.0, "full_tokens": 0},
    {"use": "queue-depth", "weight": 2.0, "scale_requests": None},
    {"use": "kv-utilization", "weight": 2.0},
]


def _immediate(prefill: Data, decode: Data | None = None, unified: Data | None = None) -> Data:
    """The same for every role that is not given."""
    roles = (prefill, decode or prefill, unified or prefill)
    return {"mode": "immediate", **dict(zip(ROLES, roles, strict=True))}


def _late(order: str) -> Data:
    return {"mode": "late", "order": {"use": order}, **{role: {} for role in ROLES}}


def _ranked(*scorers: Any, filters: Any = ()) -> Data:
    return {"filters": list(filters), "scorers": list(scorers), "picker": _BEST}


_PRICED = _immediate(
    _ranked(*_NEAREST_FIRST_TOKEN),
    _ranked(
        {"use": "kv-utilization", "weight": 1.0},
        {"use": "token-load", "weight": 1.0},
        filters=_BOUNDED_KV,
    ),
    _ranked(*_NEAREST_FIRST_TOKEN, {"use": "kv-utilization", "weight": 1.0}, filters=_BOUNDED_KV),
)

PROFILES: Mapping[str, Data] = {
    "default": _late("moore-hodgson"),
    "priced": _PRICED,
    "slo": _late("moore-hodgson"),
    "slo-shortest": _late("uncached-shortest"),
    "slo-least-slack": _late("least-slack"),
    "slo-edf": _late("edf"),
    "late-fcfs": _late("fcfs"),
    "round-robin": _immediate({"picker": {"use": "round-robin"}}),
    # Without scorers all candidates tie, and max-score draws among ties.
    "random": _immediate({"picker": _BEST}),
    "power-of-two": _immediate({"scorers": [{"use": "queue-depth"}], "picker": {"use": "power-of-two"}}),
    "least-requests": _immediate(_ranked({"use": "queue-depth"})),
    "least-tokens": _immediate(_ranked({"use": "token-load"})),
    "cache-aware": _immediate(_ranked({"use": "prefix-or-balance"}), _ranked({"use": "queue-depth"})),
    "weighted": _immediate(_ranked(*_WEIGHTED), _ranked(*_WEIGHTED[1:])),
    "predicted": _immediate(
        _ranked(*_PREDICTED),
        _ranked(*_PREDICTED, filters=_BOUNDED_KV),
        _ranked(*_PREDICTED, filters=_BOUNDED_KV),
    ),
    "predicted-shed": _immediate(
        _ranked(*_PREDICTED, filters=_IN_TIME),
        _ranked(*_PREDICTED, filters=_BOUNDED_KV),
        _ranked(*_PREDICTED, filters=[*_BOUNDED_KV, *_IN_TIME]),
    ),
    "size-pools": _immediate(
        _ranked({"use": "token-load"}, filters=_BY_SIZE),
        _ranked({"use": "token-load"}),
        _ranked({"use": "token-load"}, filters=_BY_SIZE),
    ),
}
"""Name to profile. `BASES` says where a profile's missing roles are taken from."""


def mode_of(profile: Mapping[str, Any]) -> str:
    """The mode that a profile names, right or wrong, or the default one."""
    return str(profile.get("mode", DEFAULT_MODE))


def complete(profile: str | Mapping[str, Any] = "default") -> dict[str, Any]:
    """The profile with every role: a shipped one by name, or one's own, completed from its mode's base.

    Raises ParamError for a name that is not shipped.
    """
    if isinstance(profile, str):
        if profile not in PROFILES:
            close = nearest(profile, PROFILES)
            hint = f"did you mean {close!r}?" if close else f"shipped: {', '.join(PROFILES)}"
            problem = Problem(f"no scheduling profile is called {profile!r}", hint=hint)
            raise ParamError([((), problem)])
        profile = PROFILES[profile]
    base = PROFILES[BASES.get(mode_of(profile), BASES[DEFAULT_MODE])]
    return {**base, **profile}
