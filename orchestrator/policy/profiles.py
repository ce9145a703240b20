"""The shipped scheduling profiles as plain data, in the form a topology writes its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ParamError, Problem
from orchestrator.plugins import nearest

ROLES = ("prefill", "decode", "unified")

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


def _same(role: Mapping[str, Any]) -> dict[str, Any]:
    return {"mode": "immediate", **dict.fromkeys(ROLES, role)}


PROFILES: Mapping[str, Mapping[str, Any]] = {
    "default": {
        "mode": "immediate",
        "prefill": {"scorers": _NEAREST_FIRST_TOKEN, "picker": _BEST},
        "decode": {
            "filters": _BOUNDED_KV,
            "scorers": [{"use": "kv-utilization", "weight": 1.0}, {"use": "token-load", "weight": 1.0}],
            "picker": _BEST,
        },
        "unified": {
            "filters": _BOUNDED_KV,
            "scorers": [*_NEAREST_FIRST_TOKEN, {"use": "kv-utilization", "weight": 1.0}],
            "picker": _BEST,
        },
    },
    "round-robin": _same({"picker": {"use": "round-robin"}}),
    "least-requests": _same({"scorers": [{"use": "queue-depth"}], "picker": _BEST}),
    # Without scorers all candidates tie, and max-score draws among ties.
    "random": _same({"picker": _BEST}),
}
"""Name to profile. `default` is also where a profile's missing roles are taken from."""


def complete(profile: str | Mapping[str, Any] = "default") -> dict[str, Any]:
    """The profile with every role: a shipped one by name, or one's own, completed from `default`.

    Raises ParamError for a name that is not shipped.
    """
    if isinstance(profile, str):
        if profile not in PROFILES:
            close = nearest(profile, PROFILES)
            hint = f"did you mean {close!r}?" if close else f"shipped: {', '.join(PROFILES)}"
            problem = Problem(f"no scheduling profile is called {profile!r}", hint=hint)
            raise ParamError([((), problem)])
        profile = PROFILES[profile]
    return {**PROFILES["default"], **profile}
