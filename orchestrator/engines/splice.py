"""A request body that is parsed once to be read, and edited only by splicing fields into its own bytes."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from orchestrator.errors import BadRequest

_DEPTH = 12
"""Levels of nesting the one-pass pattern knows; deeper values are walked token by token."""

_SPARSE_BYTES = 4 * 1024
"""From this size on it is worth asking whether a body is mostly long strings (a document, a data URL)."""

_BYTES_PER_MARK = 512
"""Where brackets and strings are further apart, finding the next one with memchr beats the pattern."""

KEYS = 256
"""Names of fields whose JSON is kept: those that adapters set."""


def _all(pattern: str) -> str:
    """As often as `pattern` matches, and never less. Before 3.11.5, as in Debian 12, the possessive form of a
    group loses its place (CPython gh-106052); what stands for it there is slower."""
    return f"(?:{pattern})*+" if sys.version_info >= (3, 11, 5) else f"(?>(?:{pattern})*)"


# A string, in the speed of the engine's single-literal loop. It reads on over a quote with exactly one
# backslash before it, ends at one with none or two, and refuses to match at three or more, where only
# counting tells; `_SLOW_STRING` counts.
_STRING = r'"[^"]*+' + _all(r'"(?<=(?<!\\)\\")[^"]*+') + r'"(?<!\\\\\\")'
_FAST_STRING = re.compile(_STRING.encode())
_SLOW_STRING = re.compile(('"[^"\\\\]*+' + _all(r'\\.[^"\\]*+') + '"').encode(), re.DOTALL)


def _nested() -> str:
    flat = rf'[^"\[\]{{}}]++|{_STRING}'
    pattern = rf"[\[{{]{_all(flat)}[\]}}]"
    for _ in range(_DEPTH):
        pattern = rf"[\[{{]{_all(f'{flat}|{pattern}')}[\]}}]"
    return pattern


# All of these run only over text that orjson accepted, so they find ends and need not judge.
_SPACE = rb"[ \t\n\r]*+"
_BLANKS = b" \t\n\r"
_KEY = re.compile(_SPACE + rb"(" + _SLOW_STRING.pattern + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_SCALAR = re.compile(rb"[-+.\w]++")
_TAIL = re.compile(_SPACE + rb"[,}]")
_MARK = re.compile(rb'["\[\]{}]')
_NESTED = re.compile(_nested().encode())
_ITEM = re.compile(
    _SPACE + f"({_STRING})".encode() + _SPACE + rb":" + _SPACE
    + rf"({_STRING}|[-+.\w]++|{_nested()})".encode() + _SPACE + rb"[,}]"
)  # fmt: skip


class _Span(NamedTuple):
    """Where one top-level field lies: all of it (between its commas), its key, and its value."""

    start: int
    key: int
    key_end: int
    value: int
    value_end: int
    end: int


class JsonBody:
    """A JSON object as a client sent it: read through `fields`, changed by `edit`.

    Raises BadRequest for text that is not JSON, is not an object, or names a top-level field twice: which
    of two equal names counts differs between parsers, so one could be checked here and another obeyed by
    the engine. Costs one orjson parse and one search for the top level's keys, linear in C: about 2 us for
    1 KB, memchr speed where strings are long.
    """

    __slots__ = ("_front", "_items", "_keys", "_names", "_rest", "fields", "raw")

    def __init__(self, raw: bytes) -> None:
        try:
            fields = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise BadRequest(f"the body is not valid JSON: {error}", reason="bad-json") from None
        if not isinstance(fields, dict):
            raise BadRequest("the body must be a JSON object", reason="bad-json")
        self.raw = raw
        self.fields: dict[str, Any] = fields
        self._names: dict[str, _Span] | None = None
        # Up to the first brace, and all after it, for every edit that only adds.
        self._front = b""
        self._rest: bytes | None = None
        self._items: list[_Span | re.Match[bytes]] = []
        # Where the key of each field is, if that could be told without a scan.
        self._keys = _only_keys(raw, fields) if len(raw) < _SPARSE_BYTES else None
        if self._keys is not None:
            return
        self._items = _scan(raw)
        if len(self._items) != len(fields):
            name = _repeated(self._name(_span(item)) for item in self._items)
            raise BadRequest(f"the field {name!r} is given twice", reason="duplicate-field", param=name)

    def has(self, name: str) -> bool:
        """Whether the top-level field `name` was sent, even as null."""
        return name in self.fields

    def text(self, name: str) -> bytes:
        """The field's value as the client wrote it. Raises KeyError when it was not sent."""
        if self._names is None and self._keys is not None:
            at = self._keys.get(name)
            if at is not None:
                starts = list(self._keys.values())
                place = starts.index(at) + 1
                span = _between(self.raw, at, len(name), starts[place] if place < len(starts) else -1)
                return self.raw[span.value : span.value_end]
        if self._names is None and "\\" not in name:
            # One field is found among few by its bytes, unless the client has escaped its name; a name that
            # holds a backslash itself could read like another one's escape.
            key = b'"%b"' % name.encode()
            for item in self._items:
                if not isinstance(item, _Span) and item[1] == key:
                    return item[2]
        span = self._by_name()[name]
        return self.raw[span.value : span.value_end]

    def edit(self, set: Mapping[str, bytes], drop: Collection[str] = ()) -> tuple[bytes, ...]:
        """The body with fields set to the given JSON texts and others dropped, as pieces to write.

        Fields that were not sent are put in front, in the order given; those that were sent keep their
        place. Every other byte is the client's own. A name in both is set; dropping a name that was not
        sent does nothing.
        """
        fields, raw = self.fields, self.raw
        names = fields.keys()
        if not (names.isdisjoint(set) and names.isdisjoint(drop)):
            added = {name: text for name, text in set.items() if name not in fields}
            dropped = (fields.keys() & drop) - set.keys()
            if dropped or len(added) < len(set):
                return self._rebuild(_front(added), set, dropped)
        if not set:
            return (raw,)
        if self._rest is None:
            front = raw.index(b"{") + 1
            self._front, self._rest = raw[:front], raw[front:]
        return (b"%b%b%b" % (self._front, _front(set), b"," if fields else b""), self._rest)

    def _rebuild(self, front: bytes, set: Mapping[str, bytes], dropped: Collection[str]) -> tuple[bytes, ...]:
        raw = self.raw
        pieces = [raw[: raw.index(b"{") + 1], front]
        comma = bool(front)
        run: int | None = None  # where the client's bytes not written yet begin
        for name, span in self._by_name().items():
            if name in dropped:
                if run is not None:
                    pieces.append(raw[run : span.start - 1])
                    run = None
                continue
            if run is None:
                if comma:
                    pieces.append(b",")
                run = span.start
            comma = True
            if name in set:
                pieces += (raw[run : span.value], set[name])
                run = span.value_end
        pieces.append(raw[raw.rindex(b"}") if run is None else run :])
        return tuple(piece for piece in pieces if piece)

    def _by_name(self) -> dict[str, _Span]:
        if self._names is None:
            keys = self._keys
            if keys is None:
                spans = map(_span, self._items)
                self._names = {self._name(span): span for span in spans}
            else:
                ends = (*keys.values(), -1)[1:]
                self._names = {
                    name: _between(self.raw, at, len(name), end)
                    for (name, at), end in zip(keys.items(), ends, strict=True)
                }
        return self._names

    def _name(self, span: _Span) -> str:
        text = self.raw[span.key + 1 : span.key_end - 1]
        name: str = orjson.loads(b'"%b"' % text) if b"\\" in text else text.decode()
        return name


def quote(value: object) -> bytes:
    """`value` as compact JSON, for `JsonBody.edit`."""
    return orjson.dumps(value)


@lru_cache(KEYS)
def _key(name: str) -> bytes:
    return orjson.dumps(name) + b":"


def _front(fields: Mapping[str, bytes]) -> bytes:
    """Fields as they stand in an object."""
    return b",".join([_key(name) + text for name, text in fields.items()])


def _only_keys(raw: bytes, fields: Mapping[str, Any]) -> dict[str, int] | None:
    """Where the key of each field of a valid JSON object begins; None where only a scan can tell.

    Fields are in the order of their first keys, so each key is at or after the first place, past the key
    before it, that reads like it. If no later place does, that one is it, and the field is given once:
    a key of letters and digits can be written otherwise only by escapes of ASCII, and there are none.
    """
    if b"\\" in raw and b"\\u00" in raw:
        return None
    keys: dict[str, int] = {}
    at = 0
    for name in fields:
        if not (name.isascii() and name.isidentifier()):
            return None
        key = b'"%b"' % name.encode()
        at = raw.find(key, at)
        if at < 0 or raw.rfind(key) != at:
            return None
        keys[name] = at
        at += len(key)
    return keys


def _between(raw: bytes, key: int, name_bytes: int, next_key: int) -> _Span:
    """The field whose key is at `key`, if that of the next one is at `next_key`; -1: it is the last."""
    key_end = key + name_bytes + 2
    start = max(raw.rfind(b",", 0, key), raw.rfind(b"{", 0, key)) + 1
    end = raw.rindex(b"}") if next_key < 0 else raw.rindex(b",", key_end, next_key)
    value = raw.index(b":", key_end) + 1
    while raw[value] in _BLANKS:
        value += 1
    value_end = end
    while raw[value_end - 1] in _BLANKS:
        value_end -= 1
    return _Span(start, key, key_end, value, value_end, end)


def _scan(raw: bytes) -> list[_Span | re.Match[bytes]]:
    """The top-level fields of a valid JSON object in their order; `_span` says where each lies."""
    at = raw.index(b"{") + 1
    items: list[_Span | re.Match[bytes]] = []
    if len(raw) < _SPARSE_BYTES or not _sparse(raw):
        while found := _ITEM.match(raw, at):
            at = found.end()
            items.append(found)
    while not items or raw[at - 1] != 0x7D:
        item = _item(raw, at)
        if item is None:
            break
        items.append(item)
        at = item.end + 1
    return items


def _sparse(raw: bytes) -> bool:
    """Whether strings seem to be long: a guess by three places, on which nothing but time depends."""
    quarter = len(raw) // 4
    return all(raw.find(b'"', at, at + _BYTES_PER_MARK) < 0 for at in (quarter, 2 * quarter, 3 * quarter))


def _span(item: _Span | re.Match[bytes]) -> _Span:
    if isinstance(item, _Span):
        return item
    (start, end), (key, key_end), (value, value_end) = item.regs
    return _Span(start, key, key_end, value, value_end, end - 1)


def _item(raw: bytes, at: int) -> _Span | None:
    """The field that begins at `at`, whatever its size and depth; None in an empty object."""
    key = _KEY.match(raw, at)
    if key is None:
        return None
    end = _end_of_value(raw, key.end())
    tail = _TAIL.match(raw, end)
    assert tail is not None
    return _Span(at, *key.span(1), key.end(), end, tail.end() - 1)


def _end_of_value(raw: bytes, at: int) -> int:
    first = raw[at]
    if first == 0x22:
        return _end_of_string(raw, at)
    if first not in b"[{":
        scalar = _SCALAR.match(raw, at)
        assert scalar is not None
        return scalar.end()
    end = _walk(raw, at, 16 + (len(raw) - at) // _BYTES_PER_MARK)
    if end is None:
        found = _NESTED.match(raw, at)
        end = found.end() if found else _walk(raw, at, len(raw))
    assert end is not None
    return end


def _walk(raw: bytes, at: int, marks: int) -> int | None:
    """Where the array or object at `at` ends; None if that is more than `marks` brackets and strings away."""
    depth = 0
    for _ in range(marks):
        mark = _MARK.search(raw, at)
        assert mark is not None
        at = mark.end()
        byte = raw[at - 1]
        if byte == 0x22:
            at = _end_of_string(raw, at - 1)
        elif byte in b"[{":
            depth += 1
            if byte == 0x5B and raw[at] in b"-0123456789":
                at = _end_of_numbers(raw, at)
        else:
            depth -= 1
            if not depth:
                return at
    return None


def _end_of_numbers(raw: bytes, at: int) -> int:
    """Where the array whose first number is at `at` has its bracket, if it is all numbers; else `at`."""
    close = raw.index(b"]", at)
    if any(raw.find(mark, at, close) >= 0 for mark in (b'"', b"[", b"{")):
        return at
    return close


def _end_of_string(raw: bytes, at: int) -> int:
    close = raw.index(b'"', at + 1)
    if raw[close - 1] != 0x5C:
        return close + 1
    string = _FAST_STRING.match(raw, at) or _SLOW_STRING.match(raw, at)
    assert string is not None
    return string.end()


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is repeated")
