"""pair: keeps endpoints that the other side of the hand-off goes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.policy import Context, Endpoint, Field, Params, RequestView, Role


class Allowed(Params):
    """One kind of pair: the labels that a prefill and a decode endpoint must have."""

    prefill: dict[str, str]
    decode: dict[str, str]


class PairParams(Params):
    """Who goes with whom."""

    same: list[str] = Field(default=[])
    """Labels that must have the same value on both sides, such as `rack` or `zone`."""

    allow: list[Allowed] = Field(default=[])
    """Pairs that are allowed in any case."""

    same_transfer: bool = Field(default=True)
    """Both sides must move KV by the same transfer backend, as far as both tell theirs."""

    strict: bool = Field(default=False)
    """Refuse rather than use a pair that `same` and `allow` leave out. Another backend is refused always."""


class Pair:
    """Keeps, on the decode side, partners of the prefill endpoint chosen; on the prefill side, endpoints with
    a partner that is ready.

    Two endpoints are partners when all labels of `same` agree, or one of `allow` fits. Unified endpoints need
    no partner.
    """

    def __init__(self, params: PairParams) -> None:
        self._params = params

    def filter(
        self, request: RequestView, candidates: Sequence[Endpoint], context: Context
    ) -> Sequence[Endpoint]:
        """The candidates with a partner."""
        if context.role is Role.DECODE and context.prefill is not None:
            one = context.prefill
            possible = [e for e in candidates if self._connected(one, e)]
            kept = [e for e in possible if self._partners(one, e)]
        elif context.role is Role.PREFILL:
            others = context.snapshot.ready(request.model, Role.DECODE)
            possible = [e for e in candidates if any(self._connected(e, o) for o in others)]
            kept = [
                e for e in possible if any(self._connected(e, o) and self._partners(e, o) for o in others)
            ]
        else:
            return candidates
        return kept if kept or self._params.strict else possible

    def _connected(self, prefill: Endpoint, decode: Endpoint) -> bool:
        if not self._params.same_transfer:
            return True
        one, other = prefill.facts.get("transfer"), decode.facts.get("transfer")
        return one is None or other is None or bool(one == other)

    def _partners(self, prefill: Endpoint, decode: Endpoint) -> bool:
        one, other = prefill.labels, decode.labels
        same = self._params.same
        if all(name in one and one[name] == other.get(name) for name in same) and (
            same or not self._params.allow
        ):
            return True
        return any(_has(one, a.prefill) and _has(other, a.decode) for a in self._params.allow)


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
