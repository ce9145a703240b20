"""Which SLO class a request is of: what it asks for, what its tenant may use, and how long its prompt is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.core.frozen import frozen
from orchestrator.core.slo import SloClass
from orchestrator.errors import BadRequest


class Chosen(NamedTuple):
    """A request's class (None: nothing is promised), and the one that it asked for and may not use."""

    name: str | None
    clamped_from: str | None = None


NOTHING = Chosen(None)


@frozen(frozen=True, slots=True)
class PriorityRange:
    """Requests whose body field `priority` is an integer from `at_least` to `at_most` are of `slo_class`."""

    slo_class: str
    at_least: float = float("-inf")
    at_most: float = float("inf")


@frozen(frozen=True, slots=True)
class LongPrompts:
    """Prompts of a class that are longer than `over_tokens` are of the class `use` instead."""

    over_tokens: int
    use: str


@frozen(frozen=True, slots=True)
class TenantClasses:
    """What a tenant's requests may be of.

    `default` is for those that name no class. `allowed` None: with a `default`, every class whose priority is
    not above that one's; without, any.
    """

    default: str | None = None
    allowed: tuple[str, ...] | None = None


class ClassRules:
    """Chooses the class of each request; made anew when the configuration changes.

    `classes` are all there are by name, `default` is the class of requests that nothing else gives one,
    `tiers` maps values of the body field `service_tier`, `priorities` ranges of the body field `priority`
    (the first that fits counts), `tenants` and `long_prompts` (by class) are as above. The names in them
    must all be in `classes`; KeyError otherwise.
    """

    def __init__(
        self,
        classes: Mapping[str, SloClass],
        *,
        default: str | None = None,
        tiers: Mapping[str, str] | None = None,
        priorities: Sequence[PriorityRange] = (),
        tenants: Mapping[str, TenantClasses] | None = None,
        long_prompts: Mapping[str, LongPrompts] | None = None,
    ) -> None:
        self.classes = classes
        self._default = default
        self._tiers = dict(tiers or {})
        self._priorities = tuple(priorities)
        self._long = dict(long_prompts or {})
        self._clamps: dict[str, Mapping[str, str]] = {}
        self._defaults: dict[str, str] = {}
        for name, tenant in (tenants or {}).items():
            self._add_tenant(name, tenant)
        self.idle = default is None and not (self._tiers or self._priorities or self._defaults)
        """Nothing but a request's own header can give it a class."""

    def choose(
        self, named: str | None, fields: Mapping[str, Any], tenant: str | None, prompt_tokens: int
    ) -> Chosen:
        """The class of a request that names `named` in its header, with the body's top-level `fields`.

        In this order: the header, `service_tier`, `priority`, the tenant's class, the default; then the
        tenant's clamp, then the length of the prompt. Raises BadRequest (`unknown-class`) for a header that
        names no class.
        """
        if named is None and self.idle:
            return NOTHING
        asked = self._of_body(fields) if named is None else self._known(named)
        clamped_from = None
        if asked is None:
            name = self._default if tenant is None else self._defaults.get(tenant, self._default)
        else:
            clamp = None if tenant is None else self._clamps.get(tenant)
            name = asked if clamp is None else clamp[asked]
            clamped_from = None if name == asked else asked
        if name is None:
            return NOTHING
        long = self._long.get(name)
        if long is not None and prompt_tokens > long.over_tokens:
            name = long.use
        return Chosen(name, clamped_from)

    def _known(self, named: str) -> str:
        if named in self.classes:
            return named
        close = difflib.get_close_matches(named, sorted(self.classes), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        known = ", ".join(sorted(self.classes)) or "none"
        raise BadRequest(f"there is no SLO class {named!r}{hint}; known: {known}", reason="unknown-class")

    def _of_body(self, fields: Mapping[str, Any]) -> str | None:
        if self._tiers:
            tier = fields.get("service_tier")
            found = self._tiers.get(tier) if isinstance(tier, str) else None
            if found is not None:
                return found
        if self._priorities:
            priority = fields.get("priority")
            if type(priority) is int:
                for span in self._priorities:
                    if span.at_least <= priority <= span.at_most:
                        return span.slo_class
        return None

    def _add_tenant(self, name: str, tenant: TenantClasses) -> None:
        allowed = tenant.allowed
        if allowed is None:
            if tenant.default is None:
                return
            least = self.classes[tenant.default].priority
            allowed = tuple(other for other, slo in self.classes.items() if slo.priority >= least)
        self._clamps[name] = clamp = {asked: self._nearest(asked, allowed) for asked in self.classes}
        if tenant.default is not None:
            self._defaults[name] = tenant.default
        else:
            # Restricted to some classes, it must not get past them by naming none.
            self._defaults[name] = allowed[0] if self._default is None else clamp[self._default]

    def _nearest(self, asked: str, allowed: Sequence[str]) -> str:
        """`asked` itself, else the allowed class of the next lower priority, else of the lowest there is."""
        if asked in allowed:
            return asked
        priority = self.classes[asked].priority
        below = [name for name in allowed if self.classes[name].priority >= priority]
        if below:
            return min(below, key=lambda name: self.classes[name].priority)
        return max(allowed, key=lambda name: self.classes[name].priority)
