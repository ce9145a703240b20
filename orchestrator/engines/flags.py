"""Flags and environment from their layers (an adapter's own settings, the user's above), then words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from orchestrator.engines.base import FlagValue, Setting, Word

_SECRET_NAME = re.compile(r"(^|[-_])(key|token|secret|password|keyfile-password)$", re.IGNORECASE)


class Settings(dict[str, Setting]):
    """An adapter's own flags or variables by name, each with its origin."""

    def put(self, origin: str, /, **values: FlagValue) -> None:
        """Set flags under `origin`; underscores in the names stand for hyphens. None is left out."""
        for name, value in values.items():
            if value is not None:
                self[name.replace("_", "-")] = Setting(value, origin)

    def env(self, origin: str, values: Mapping[str, FlagValue]) -> None:
        """Set variables under `origin`, by their very names. None is left out."""
        self.update({name: Setting(value, origin) for name, value in values.items() if value is not None})


def plain(name: str, aliases: Mapping[str, str]) -> str:
    """A flag's one name, however it was written: no leading hyphens, no underscores, no alias."""
    name = name.lstrip("-").replace("_", "-")
    return aliases.get(name, name)


def merge(
    own: Mapping[str, Setting], user: Mapping[str, Setting], aliases: Mapping[str, str]
) -> dict[str, Setting]:
    """`user` over `own`. Objects are merged key by key, so that one more key does not drop the others;
    an object that the user wrote as JSON text counts as one."""
    merged = dict(own)
    for written, setting in user.items():
        name = plain(written, aliases)
        below = merged.get(name)
        if below is not None and isinstance(below.value, dict):
            above = as_object(setting.value)
            if above is not None:
                origin = f"{below.origin} + {setting.origin}"
                merged[name] = Setting(_deep(below.value, above), origin)
                continue
        merged[name] = setting
    return merged


def as_object(value: FlagValue) -> dict[str, Any] | None:
    """The object that a flag's value is, or is the JSON text of; else None."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    return value if isinstance(value, dict) else None


def words(settings: Mapping[str, Setting]) -> tuple[Word, ...]:
    """The settings as words of a command line."""
    return tuple(word for name, setting in settings.items() for word in _flag(name, setting))


def variables(settings: Mapping[str, Setting]) -> dict[str, Word]:
    """The settings as environment variables: True is `1`, False `0`, None leaves the variable out."""
    return {
        name: Word(_variable(setting.value), setting.origin, secret=is_secret(name))
        for name, setting in settings.items()
        if setting.value is not None
    }


def is_secret(name: str) -> bool:
    """Whether a flag or variable of that name holds what must not be printed."""
    return _SECRET_NAME.search(name) is not None


def number(setting: Setting | None) -> int | None:
    """The whole number that a setting gives, if it does."""
    if setting is None or isinstance(setting.value, bool):
        return None
    try:
        return int(str(setting.value))
    except ValueError:
        return None


def _deep(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _flag(name: str, setting: Setting) -> Iterable[Word]:
    value, origin = setting.value, setting.origin
    if value is None or value is False:
        return
    yield Word(f"--{name}", origin)
    if value is True:
        return
    for item in value if isinstance(value, list) else [value]:
        yield Word(as_text(item), origin, secret=is_secret(name))


def as_text(value: object) -> str:
    """A flag's value, or one of its items, as one word."""
    if isinstance(value, dict | list | bool) or value is None:
        return orjson.dumps(value).decode()
    return str(value)


def _variable(value: FlagValue) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return as_text(value)
