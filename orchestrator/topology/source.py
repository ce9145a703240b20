"""YAML text to plain data that remembers the line of every key, with every syntax finding at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from orchestrator.core.rules import ERROR, Rule
from orchestrator.errors import Problem

Place = tuple[str | int, ...]
"""Where in the data: keys and list indices from the root."""

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""Bounds on what a file may unfold to; aliases of aliases would otherwise fill the memory."""


@dataclass(slots=True)
class Source:
    """A file's data, the line of each place in it, and what was wrong with its YAML."""

    name: str
    short: str = ""
    """What origins call it; default the file's own name."""
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    overridden: dict[Place, str] = field(default_factory=dict)
    """Places set by `--set`, and the place as written there (its value may be a secret)."""

    def line(self, place: Place) -> int | None:
        """The line of the nearest enclosing place that has one."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)

    def override(self, place: Place) -> str | None:
        """The `--set` that `place` comes from, if one set it or anything it is part of."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.overridden:
                return self.overridden[place[:length]]
        return None

    def problem(
        self,
        place: Place,
        message: str,
        *,
        hint: str | None = None,
        rule: Rule | None = None,
        severity: str | None = None,
    ) -> Problem:
        """A finding about `place`, with its file and line, or the `--set` that put it there; as grave as its
        rule says unless `severity` does."""
        override = self.override(place)
        return Problem(
            message=message,
            file=f"--set {override}" if override else self.name,
            line=None if override else self.line(place),
            field=dotted(place) or None,
            hint=hint,
            rule=rule.name if rule else None,
            severity=severity or (rule.severity if rule else ERROR),
        )

    def origin(self, place: Place) -> str:
        """`FILE:LINE`, or `--set`, for the origin of a setting."""
        if self.override(place):
            return "--set"
        line = self.line(place)
        name = self.short or Path(self.name).name
        return f"{name}:{line}" if line else name


def dotted(place: Place) -> str:
    """`pools.prefill.external.0.url`, as `--set` writes it."""
    return ".".join(str(part) for part in place)


def read(path: Traversable, short: str = "") -> Source:
    """The file at `path`; whatever keeps it from being read or parsed is in `problems`."""
    source = Source(str(path), short)

    def cannot(message: str) -> Source:
        source.problems.append(Problem(message, file=source.name))
        return source

    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return cannot("no such file")
    except IsADirectoryError:
        return cannot("is a directory, not a file")
    except OSError as error:
        return cannot(f"cannot be read: {error.strerror or error}")
    if len(raw) > MAX_BYTES:
        return cannot(f"is larger than {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        source.problems.append(Problem("is not UTF-8 text", file=source.name, line=line))
        return source
    return parse(text, source.name, short)


def parse(text: str, name: str, short: str = "") -> Source:
    """`text` as a mapping with positions; findings go to `problems` of the result."""
    source = Source(name, short)
    try:
        node = _Loader(text).get_single_node()
        if node is None:
            source.problems.append(Problem("is empty", file=name))
        elif not isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1
            message = f"must be a mapping of settings, not {_kind(node)}"
            source.problems.append(Problem(message, file=name, line=line))
        else:
            source.data = _Builder(source).mapping(node, ())
    except yaml.YAMLError as error:
        source.problems.append(_syntax(error, name))
    except RecursionError:
        source.problems.append(Problem("is nested too deeply", file=name))
    return source


def parse_value(text: str) -> Any:
    """One YAML value (of a `--set`). Raises ValueError."""
    source = Source("--set")
    try:
        node = _Loader(text).get_single_node()
        value = None if node is None else _Builder(source).value(node, ())
    except (yaml.YAMLError, RecursionError) as error:
        message = _syntax(error, "").message if isinstance(error, yaml.YAMLError) else "is nested too deeply"
        raise ValueError(message) from None
    if source.problems:
        raise ValueError(source.problems[0].message)
    return value


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: `no`, `on` and `12:30` are text, `1e3` is a number.

    Digits after a leading zero are text: YAML 1.1 takes them for octal, 1.2 for decimal, people for an id.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own attribute


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    # PyYAML looks the resolvers up by first character; the empty scalar is under "".
    _firsts = ["" if c == "\0" else c for c in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _firsts)


class _Builder:
    """Turns composed nodes into data, noting lines and findings in a Source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open: set[int] = set()
        self._values = 0

    def _note(self, node: yaml.Node, place: Place, message: str, hint: str | None = None) -> None:
        line = node.start_mark.line + 1
        self._source.problems.append(
            Problem(message, file=self._source.name, line=line, field=dotted(place) or None, hint=hint)
        )

    def value(self, node: yaml.Node, place: Place) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"unfolds to more than {MAX_VALUES} values")
        if id(node) in self._open:
            self._note(node, place, "contains itself through an alias")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, place)
            if isinstance(node, yaml.SequenceNode):
                return [self._item(n, (*place, i)) for i, n in enumerate(node.value)]
            return self._scalar(node, place)
        finally:
            self._open.discard(id(node))

    def _item(self, node: yaml.Node, place: Place) -> Any:
        self._source.lines[place] = node.start_mark.line + 1
        return self.value(node, place)

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        merged: list[yaml.MappingNode] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(key_node, place, f"a key must be a word, not {_kind(key_node)}")
                continue
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += self._merge_sources(value_node, place)
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            at = (*place, key)
            if key in first_line:
                self._note(key_node, at, "is given twice", f"first on line {first_line[key]}")
                continue
            first_line[key] = line
            self._source.lines[at] = line
            data[key] = self.value(value_node, at)
        for base in merged:
            self._merge(base, data, place)
        return data

    def _merge_sources(self, node: yaml.Node, place: Place) -> Iterator[yaml.MappingNode]:
        for candidate in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(candidate, yaml.MappingNode):
                yield candidate
            else:
                self._note(candidate, place, f"<< takes a mapping, not {_kind(candidate)}")

    def _merge(self, base: yaml.MappingNode, data: dict[str, Any], place: Place) -> None:
        inner = Source(self._source.name)
        builder = _Builder(inner)
        builder._open, builder._values = self._open, self._values
        inherited = builder.value(base, place)
        self._values = builder._values
        self._source.problems += inner.problems
        for key, value in (inherited or {}).items():
            if key not in data:
                data[key] = value
                at = (*place, key)
                self._source.lines |= {p: n for p, n in inner.lines.items() if p[: len(at)] == at}

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        tag, text = node.tag.removeprefix("tag:yaml.org,2002:"), node.value
        try:
            if tag == "str":
                return text
            if tag == "null":
                return None
            if tag == "bool":
                return text.lower() == "true"
            if tag == "int":
                return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            if tag == "float" and isfinite(float(text)):
                return float(text)
        except ValueError:
            pass
        if tag in ("int", "float"):
            self._note(node, place, f"{text[:40]!r} is not a number pdctl can read")
        else:
            self._note(node, place, f"the YAML tag {node.tag} is not supported")
        return None


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else f"{str(node.value)[:40]!r}"


def _syntax(error: yaml.YAMLError, name: str) -> Problem:
    """A YAML error in plain words."""
    if isinstance(error, yaml.reader.ReaderError):
        character = error.character if isinstance(error.character, int) else ord(error.character)
        return Problem(f"holds a character that YAML forbids (U+{character:04X})", file=name)
    message, hint, mark = str(error), None, None
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        message = error.problem or error.context or message
    if "'\\t'" in message:
        message, hint = "a tab where YAML wants spaces", "indent with spaces"
    elif "expected a single document" in message or "but found another document" in message:
        message = "holds more than one YAML document"
    elif "mapping values are not allowed here" in message:
        hint = "is the indentation right, and is text with ': ' in it quoted?"
    elif "found undefined alias" in message:
        message = message.replace("found undefined alias", "no anchor has the name of the alias")
    if not message.startswith(("holds", "a tab", "unfolds")):
        message = f"is not valid YAML: {message}"
    return Problem(message, file=name, line=mark.line + 1 if mark else None, hint=hint)
