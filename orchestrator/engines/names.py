"""A user's flags and variables held against the table of the engine's version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

from orchestrator.core.rules import WARN
from orchestrator.engines import rules
from orchestrator.engines.base import FlagValue, InstanceSpec, Setting
from orchestrator.engines.capabilities import Capabilities, Flag, Known
from orchestrator.engines.linting import Writer, one_per_pool, table_of
from orchestrator.errors import Problem

Tables = Callable[[str | None], Known]

NEAR = 0.75
"""How alike two names must be for one to be taken for a misspelling of the other."""


def against_table(writer: Writer, tables: Tables, prefixes: Mapping[str, bool]) -> Iterator[Problem]:
    """Findings about names and values that the version of each pool does not know.

    `prefixes` are the beginnings of variables' names that are looked at; True for the engine's own, whose
    table is complete, False for those of libraries with versions of their own.
    """
    for spec in one_per_pool(writer.context.specs):
        known = table_of(spec, tables)
        if not known.exact:
            yield _unknown_version(writer, spec, known)
        for name, setting in writer.user(spec).items():
            yield from _flag(writer, spec, known, name, setting)
        for name, setting in spec.env.items():
            own = next((own for prefix, own in prefixes.items() if name.startswith(prefix)), None)
            if own is not None:
                yield from _variable(writer, spec, known, name, setting, own)


def _unknown_version(writer: Writer, spec: InstanceSpec, known: Known) -> Problem:
    return writer.problem(
        spec,
        rules.UNKNOWN_VERSION,
        f"no table of flags and variables for version {spec.version}; held against that of "
        f"{known.table.version}",
        hint="`pdctl engines inspect` makes one for runtime.table",
    )


def _flag(writer: Writer, spec: InstanceSpec, known: Known, name: str, setting: Setting) -> Iterator[Problem]:
    table, milder = known.table, None if known.exact else WARN
    field, shown = f"flags.{name}", f"--{name}"
    flag = table.flag(name)
    if flag is None and shown in table.replaced:
        yield writer.problem(
            spec,
            rules.REPLACED,
            f"{shown} is not in version {table.version} any more",
            hint=table.replaced[shown] or "remove it",
            field=field,
            at=setting,
            severity=milder,
        )
    elif flag is None:
        yield writer.problem(
            spec,
            rules.UNKNOWN_FLAG,
            f"{shown} is not a flag of version {table.version}",
            hint=_nearest(name, table.names(), "--") or _no_name_near("flag"),
            field=field,
            at=setting,
            severity=milder,
        )
    else:
        if flag.deprecated is not None:
            yield _deprecated(writer, spec, shown, flag.deprecated, field, setting)
        if "." not in name and (wrong := wrong_value(flag, setting.value)):
            message = f"{shown} {wrong}"
            yield writer.problem(spec, rules.FLAG_VALUE, message, field=field, at=setting, severity=milder)
        if setting.value is False and flag.kind == "switch" and flag.default is True:
            yield writer.problem(
                spec,
                rules.INEFFECTIVE_FLAG,
                f"{shown}: false leaves the flag out, and the engine's default is on",
                hint=f"write no-{name}: true",
                field=field,
                at=setting,
            )


def _deprecated(
    writer: Writer, spec: InstanceSpec, shown: str, instead: str, field: str, setting: Setting
) -> Problem:
    message = f"{shown} is going away"
    return writer.problem(spec, rules.DEPRECATED, message, hint=instead or None, field=field, at=setting)


def wrong_value(flag: Flag, value: FlagValue) -> str | None:
    """What is wrong with a flag's value, in words; None if the engine takes it, or the flag is left out."""
    if value is None or value is False:
        return None
    if flag.kind == "switch":
        return None if value is True else f"takes no value; write true or false, not {value!r}"
    if value is True:
        return None if flag.bare else f"needs {_expected(flag)}"
    given = value if isinstance(value, list) else [value]
    if flag.choices and (strange := [item for item in given if str(item) not in flag.choices]):
        close = get_close_matches(str(strange[0]), flag.choices, n=1)
        return f"is {strange[0]!r}, not {_expected(flag)}" + (f"; {close[0]!r}?" if close else "")
    if flag.kind in ("int", "float") and not all(_is_number(flag.kind, item) for item in given):
        return f"should be {_expected(flag)}, not {value!r}"
    return None


def _is_number(kind: str, value: object) -> bool:
    try:
        int(str(value)) if kind == "int" else float(str(value))
    except ValueError:
        return False
    return True


def _expected(flag: Flag) -> str:
    if flag.choices:
        return f"one of {', '.join(flag.choices)}"
    kinds = {"int": "a whole number", "float": "a number", "json": "a mapping", "list": "a list"}
    return kinds.get(flag.kind, "a value")


def _variable(
    writer: Writer, spec: InstanceSpec, known: Known, name: str, setting: Setting, own: bool
) -> Iterator[Problem]:
    table, field = known.table, f"env.{name}"
    if name in table.replaced:
        yield writer.problem(
            spec,
            rules.REPLACED,
            f"{name} is no longer read by the engine",
            hint=table.replaced[name] or "remove it",
            field=field,
            at=setting,
            severity=None if known.exact else WARN,
        )
    elif name not in table.variables:
        yield writer.problem(
            spec,
            rules.UNKNOWN_ENV,
            f"{name} is read by nothing in version {table.version}",
            hint=_nearest(name, _alike(table, name), "") or _no_name_near("variable"),
            field=field,
            at=setting,
            severity=None if known.exact and own else WARN,
        )


def _alike(table: Capabilities, name: str) -> list[str]:
    """The variables that begin as `name` does: the common beginning would make all look near."""
    prefix = name.partition("_")[0]
    return [known for known in table.variables if known.partition("_")[0] == prefix]


def _nearest(name: str, known: set[str] | list[str], dashes: str) -> str | None:
    near = get_close_matches(name, sorted(known), n=1, cutoff=NEAR)
    return f"did you mean {dashes}{near[0]}?" if near else None


def _no_name_near(what: str) -> str:
    return f"no {what} has a name like it; `pdctl engines show` lists them"
