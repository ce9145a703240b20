"""What the adapters' lint rules share: a user's settings and where they stand, pairs that must agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core import address
from orchestrator.core.rules import Rule
from orchestrator.core.types import Role
from orchestrator.engines import flags, rules
from orchestrator.engines.base import InstanceSpec, LintContext, Setting
from orchestrator.engines.capabilities import Known
from orchestrator.errors import Problem

LEAST_BLOCK_TOKENS = 8
"""Smaller blocks are a hash or two per token: too much to keep for what they would add."""

_WHERE = re.compile(r"(?P<file>\S+\.ya?ml):(?P<line>\d+)")


@dataclass(frozen=True, slots=True)
class Writer:
    """Makes findings that point at where the user wrote the thing, or at the pool's declaration."""

    context: LintContext
    aliases: Mapping[str, str]
    tables: Callable[[str | None], Known] | None = None

    def user(self, spec: InstanceSpec) -> dict[str, Setting]:
        """The user's flags under their plain names."""
        return {flags.plain(name, self.aliases): setting for name, setting in spec.flags.items()}

    def flag(self, spec: InstanceSpec, name: str) -> object:
        """The value of the user's flag `name`, or None."""
        setting = self.user(spec).get(name)
        return None if setting is None else setting.value

    def value(self, spec: InstanceSpec, name: str) -> object:
        """What the flag `name` is: the user's value, else the version's default, as far as it is known."""
        given = self.flag(spec, name)
        if given is not None or self.tables is None:
            return given
        flag = table_of(spec, self.tables).table.flags.get(name)
        return None if flag is None else flag.default

    def problem(
        self,
        spec: InstanceSpec,
        rule: Rule,
        message: str,
        *,
        hint: str | None = None,
        field: str = "",
        at: Setting | None = None,
        severity: str | None = None,
    ) -> Problem:
        """A finding about `spec`'s pool, at the setting `at` if one is to blame; as grave as its rule says
        unless `severity` does."""
        file, line = self.context.origins.get(spec.pool, (None, None))
        if at is not None and (where := _WHERE.search(at.origin)):
            file, line = where["file"], int(where["line"])
        return Problem(
            message=message,
            file=file,
            line=line,
            field=f"pools.{spec.pool}.{field}" if field else f"pools.{spec.pool}",
            hint=hint,
            rule=rule.name,
            severity=severity or rule.severity,
        )


def table_of(spec: InstanceSpec, tables: Callable[[str | None], Known]) -> Known:
    """The table that holds for an instance: the topology's own, else the one among `tables`."""
    return tables(spec.version) if spec.table is None else Known(spec.table, exact=True)


def one_per_pool(specs: Iterable[InstanceSpec]) -> list[InstanceSpec]:
    """One instance of each pool: instances of a pool share what most rules look at."""
    return list({spec.pool: spec for spec in reversed(list(specs))}.values())[::-1]


def kv_events(writer: Writer, size_flag: str, usual: int | None = None) -> Iterator[Problem]:
    """Pools that are to tell of caches which cannot be indexed. `size_flag` says how large their blocks are,
    `usual` how large they are if it does not."""
    for spec in one_per_pool(writer.context.specs):
        if not spec.kv_events:
            continue
        if spec.shape.dp > 1:
            message = f"kv_events with dp: {spec.shape.dp}: each rank has a cache, and the engine chooses it"
            yield writer.problem(spec, rules.KV_EVENTS, message, field="kv_events")
        setting, size = writer.user(spec).get(size_flag), writer.value(spec, size_flag)
        if size is None and "kv-events" in spec.ports:  # of an external engine nothing is known yet
            size = usual
        if isinstance(size, int) and size < LEAST_BLOCK_TOKENS:
            yield writer.problem(
                spec,
                rules.KV_EVENTS,
                f"kv_events with blocks of {size} token(s), not indexed under {LEAST_BLOCK_TOKENS}",
                hint=f"write flags: {{{size_flag}: 64}} in the pool",
                field=f"flags.{size_flag}",
                at=setting,
            )


def sides(specs: Sequence[InstanceSpec]) -> Iterator[tuple[InstanceSpec, InstanceSpec]]:
    """Every (prefill, decode) pair of pools that serve one model."""
    pools = one_per_pool(specs)
    for prefill in pools:
        for decode in pools:
            if (
                prefill.role is Role.PREFILL
                and decode.role is Role.DECODE
                and prefill.served_name == decode.served_name
            ):
                yield prefill, decode


def disagreements(
    writer: Writer,
    names: Mapping[str, tuple[Rule, str]],
    value: Callable[[InstanceSpec, str], object],
) -> Iterator[Problem]:
    """Findings for the settings of `names` (name to rule, and why it matters) that differ between P and D."""
    for prefill, decode in sides(writer.context.specs):
        for name, (rule, why) in names.items():
            ours, theirs = value(prefill, name), value(decode, name)
            if _plain(ours) != _plain(theirs):
                yield writer.problem(
                    decode,
                    rule,
                    f"{name} is {_shown(theirs)} here and {_shown(ours)} in {prefill.pool}: {why}",
                    hint=f"give both pools the same {name}",
                    field="env" if value is variable else "flags",
                    at=_setting(writer, decode, name) or _setting(writer, prefill, name),
                )


def owned(writer: Writer, names: Mapping[str, str]) -> Iterator[Problem]:
    """Findings for flags (name to where it belongs) that the plan sets, and ports it must know of."""
    for spec in one_per_pool(writer.context.specs):
        for name, setting in writer.user(spec).items():
            if name in names:
                yield writer.problem(
                    spec,
                    rules.PLANNED_FLAG,
                    f"--{name} is set by the plan",
                    hint=names[name],
                    field=f"flags.{name}",
                    at=setting,
                )


def is_loopback(host: str) -> bool:
    """Whether a host is reachable from its own node only, or is no address at all (0.0.0.0)."""
    bare = host.strip("[]")
    return address.is_loopback(bare) or address.is_wildcard(bare)


def unroutable(
    writer: Writer, address: Callable[[InstanceSpec], tuple[str, Setting | None]], what: str
) -> Iterator[Problem]:
    """Findings for prefill pools whose `address` decode engines on another node cannot reach."""
    specs = writer.context.specs
    decodes = [spec for spec in specs if spec.role is Role.DECODE]
    seen: set[str] = set()
    for spec in specs:
        host, setting = address(spec)
        if spec.role is not Role.PREFILL or not is_loopback(host) or spec.pool in seen:
            continue
        mine = [d for d in decodes if d.served_name == spec.served_name]
        # Two loopback addresses are one machine, where hosts are tried out.
        away = [d for d in mine if d.address != spec.address and not is_loopback(d.address)]
        if away:
            seen.add(spec.pool)
            yield writer.problem(
                spec,
                rules.UNROUTABLE_ADDRESS,
                f"{what} would be {host}, which {away[0].name} on {away[0].address} cannot reach",
                hint="give the node its routable address: nodes[].address",
                at=setting,
            )


def impatient(writer: Writer, spec: InstanceSpec, name: str, setting: Setting) -> Problem:
    """The finding for a time-out variable of an engine's that ends before the router's patience does."""
    return writer.problem(
        spec,
        rules.TIMEOUT_ORDER,
        f"{name} {setting.value} is not above the {spec.patience_s:g} s that the router waits: the engine "
        "gives up first",
        hint="leave it out, or shorten router.timeouts.prefill and first_token",
        field=f"env.{name}",
        at=setting,
    )


def variable(spec: InstanceSpec, name: str) -> object:
    """The value of an environment variable, or None."""
    setting = spec.env.get(name)
    return None if setting is None else setting.value


def _setting(writer: Writer, spec: InstanceSpec, name: str) -> Setting | None:
    return writer.user(spec).get(name) or spec.env.get(name)


def is_on(value: object) -> bool:
    """Whether an engine takes the value of a variable, or of a bare flag, for on."""
    return value is True or str(value).lower() in ("1", "true", "yes", "on", "y")


def _plain(value: object) -> object:
    """A value as a command line would have it: 64 and "64" are one, and so are nothing and false."""
    return None if value is None or value is False else str(value)


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)
