"""What a command line is made of: settings before rendering, words after it, ports, parallel sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FlagValue = str | int | float | bool | None | list[Any] | dict[str, Any]
"""A flag's YAML value. True: bare flag; False or None: leave the flag out; list: one word per item
after the flag; dict: one word of compact JSON; anything else: its text."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value before rendering, and its origin (`role`, `profile f.yaml:12`, `topology t.yaml:30`)."""

    value: FlagValue
    origin: str


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command line, and where it came from. A secret is printed as `***`."""

    text: str
    origin: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class PortNeed:
    """A run of `count` consecutive ports that an instance needs for `purpose` (`http`, `bootstrap`, ...).

    `head`: of an instance on several nodes, only the first one's process opens it; the others are told its
    number. Else each opens its own.
    """

    purpose: str
    count: int = 1
    head: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """How an instance is laid out: parallel sizes and the number of nodes it spans."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    nnodes: int = 1


@dataclass(frozen=True, slots=True)
class Command:
    """What to run after the interpreter (`-m module flags...`), and the environment to add.

    `files` are the files to write before, by absolute path (below `InstanceSpec.folder`), with their text.
    """

    argv: tuple[Word, ...]
    env: Mapping[str, Word] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
