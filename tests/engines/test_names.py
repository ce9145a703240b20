"""A user's flags and variables against a table: what is refused or warned of, and which name is near."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import InstanceSpec, LintContext
from orchestrator.engines.capabilities import Known, dump, parse
from orchestrator.engines.linting import Writer
from orchestrator.engines.names import against_table

Spec = Callable[..., InstanceSpec]

TABLE = parse(
    dump(
        {
            "version": "2.0",
            "flags": {
                "page-size": {"kind": "int"},
                "ratio": {"kind": "float"},
                "mode": {"kind": "text", "choices": ["prefill", "decode"]},
                "modes": {"kind": "list", "choices": ["a", "b"]},
                "metrics": {"kind": "switch", "default": True},
                "trace": {"kind": "text", "bare": True},
                "config": {"kind": "json"},
                "former": {"kind": "text", "deprecated": "--latter"},
            },
            "variables": {"X_TIMEOUT": {"default": 3}, "LIB_DEPTH": {}},
            "replaced": {"X_GONE": "it is X_TIMEOUT now", "--dropped": "use --page-size"},
        }
    )
)


def found(spec: InstanceSpec, exact: bool = True) -> list[str]:
    writer = Writer(LintContext((spec,)), {})
    problems = against_table(writer, lambda _: Known(TABLE, exact), {"X_": True, "LIB_": False})
    return [f"{p.rule} {p.severity}: {p.message} ({p.hint})" for p in problems]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"page-sise": 1}, "unknown-flag error: --page-sise is not a flag of version 2.0 (did you mean"),
        ({"zz": 1}, "unknown-flag error: --zz is not a flag of version 2.0 (no flag has a name like it"),
        ({"dropped": 1}, "replaced error: --dropped is not in version 2.0 any more (use --page-size)"),
        ({"former": "x"}, "deprecated warn: --former is going away (--latter)"),
        ({"page-size": "many"}, "flag-value error: --page-size should be a whole number, not 'many'"),
        ({"page-size": True}, "flag-value error: --page-size needs a whole number"),
        ({"ratio": "half"}, "flag-value error: --ratio should be a number, not 'half'"),
        ({"mode": "prefil"}, "flag-value error: --mode is 'prefil', not one of prefill, decode; 'prefill'?"),
        ({"mode": True}, "flag-value error: --mode needs one of prefill, decode"),
        ({"modes": ["a", "c"]}, "flag-value error: --modes is 'c', not one of a, b"),
        ({"metrics": "yes"}, "flag-value error: --metrics takes no value; write true or false, not 'yes'"),
        ({"metrics": False}, "ineffective-flag warn: --metrics: false leaves the flag out"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_found(spec: Spec, flags: dict[str, Any], says: str) -> None:
    (line,) = found(spec(Role.PREFILL, flags=flags))
    assert line.startswith(says), line


@pytest.mark.parametrize(
    "flags",
    [
        {"page-size": 64, "ratio": "0.5", "mode": "prefill", "modes": ["a", "b"], "metrics": True},
        {"page_size": "64", "--mode": "decode", "no-metrics": True, "trace": True, "config": {"a": 1}},
        {"config.level": 3, "page-size": None, "mode": None, "trace": "x"},
    ],
)
def test_a_right_flag_is_not(spec: Spec, flags: dict[str, Any]) -> None:
    assert found(spec(Role.PREFILL, flags=flags)) == []


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"X_TIMEOUTS": 1}, "unknown-env error: X_TIMEOUTS is read by nothing in version 2.0 (did you"),
        ({"X_WHATEVER_ELSE": 1}, "unknown-env error: X_WHATEVER_ELSE is read by nothing in version 2.0 (no"),
        ({"X_GONE": 1}, "replaced error: X_GONE is no longer read by the engine (it is X_TIMEOUT now)"),
        ({"LIB_DEPHT": 1}, "unknown-env warn: LIB_DEPHT is read by nothing in version 2.0 (did you"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_found(spec: Spec, env: dict[str, Any], says: str) -> None:
    (line,) = found(spec(Role.PREFILL, env=env))
    assert line.startswith(says), line


def test_variables_of_others_are_nobodys_business(spec: Spec) -> None:
    assert found(spec(Role.PREFILL, env={"X_TIMEOUT": 1, "LIB_DEPTH": 1, "OMP_NUM_THREADS": 1})) == []


def test_of_an_unknown_version_all_are_warnings(spec: Spec) -> None:
    lines = found(
        spec(Role.PREFILL, version="3.0", flags={"page-sise": 1, "mode": "x"}, env={"X_GONE": 1}), exact=False
    )
    assert [line.partition(":")[0] for line in lines] == [
        "unknown-version warn", "unknown-flag warn", "flag-value warn", "replaced warn",
    ]  # fmt: skip
    assert "version 3.0; held against that of 2.0" in lines[0]
