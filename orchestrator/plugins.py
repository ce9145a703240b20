"""The one resolver of plug-ins: a registered name, `module:Class`, or `./file.py:Class`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from orchestrator.errors import PluginError, Problem

_FILE = re.compile(r"(?P<path>.+\.py):(?P<attr>[A-Za-z_][\w.]*)")
_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<attr>[A-Za-z_][\w.]*)")


def resolve(group: str, reference: str, base_dir: str | os.PathLike[str] = ".") -> object:
    """What `reference` names.

    A registered name is looked up among the installed entry points of `group` (`pdctl.policies`, ...);
    `module:Class` imports an installed module; `./file.py:Class` loads a file, relative to `base_dir`
    (the topology's folder), whose content it runs under a module name of its own, so that neither
    the file nor its folder can shadow a package. An unchanged file loads once; a changed one anew.
    Raises PluginError, which names the nearest known name or the line at fault.
    """
    if match := _FILE.fullmatch(reference):
        module = _load_file(reference, Path(base_dir, os.path.expanduser(match["path"])).resolve())
        return _attribute(reference, module, match["attr"])
    if match := _MODULE.fullmatch(reference):
        return _attribute(reference, _import(reference, match["module"]), match["attr"])
    return _load_registered(group, reference)


def known(group: str) -> tuple[str, ...]:
    """The names registered in `group`, sorted."""
    return tuple(sorted(_registered(group)))


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` is most likely a misspelling of, if any is close."""
    close = difflib.get_close_matches(word, sorted(candidates), n=1, cutoff=0.6)
    return close[0] if close else None


@cache
def _registered(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of `group` by name; two packages may claim one name, which `resolve` refuses."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {}).setdefault(point.value, point)
    return {name: tuple(points.values()) for name, points in found.items()}


def _load_registered(group: str, name: str) -> object:
    points = _registered(group).get(name, ())
    if not points:
        raise _unknown(group, name)
    if len(points) > 1:
        owners = " and ".join(f"{p.value} ({p.dist.name if p.dist else 'unknown package'})" for p in points)
        raise _refused(f"{name!r} is registered twice: {owners}", hint="write module:Class for one of them")
    point = points[0]
    module = _import(name, point.module)
    return _attribute(name, module, point.attr) if point.attr else module


def _unknown(group: str, name: str) -> PluginError:
    names = known(group)
    close = nearest(name, names)
    if close:
        hint = f"did you mean {close!r}?"
    elif name.endswith(".py"):
        hint = f"a file reference names the class too: {name}:ClassName"
    elif names:
        hint = f"known: {', '.join(names)}; or write module:Class or ./file.py:Class"
    else:
        hint = "nothing is registered in this group: is pdctl itself installed (pip install pdctl)?"
    return _refused(f"no plug-in named {name!r} in {group}", hint=hint)


def _import(reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(reference, error) from error
        top = sys.modules.get(name.split(".", 1)[0])
        if top is None:
            hint = "is it installed here? to load a file write ./file.py:Class"
        else:
            where = top.__file__ or ", ".join(top.__path__)
            hint = f"{top.__name__!r} was found at {where}; is another package of that name in the way?"
        raise _refused(f"{reference!r}: there is no module {error.name!r}", hint=hint) from error
    except (Exception, SystemExit) as error:  # whatever a plug-in's own import raises is its author's to read
        raise _broken(reference, error) from error


def _load_file(reference: str, path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        message = f"{reference!r}: cannot read {path}: {error.strerror}"
        raise _refused(message, hint="paths are relative to the topology's folder") from error
    digest = hashlib.blake2b(os.fsencode(path) + b"\0" + source, digest_size=8).hexdigest()
    name = f"pdctl_plugin_{re.sub(r'[^0-9a-zA-Z]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise _refused(f"{reference!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic and dataclasses look a class's module up here while it is defined
    try:
        # Compiled from the bytes that were hashed: the import system's cache tells edits apart by whole
        # seconds only, and would write into the user's folder.
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # as in _import
        del sys.modules[name]
        raise _broken(reference, error, path) from error
    return module


def _attribute(reference: str, module: ModuleType, dotted: str) -> object:
    value: object = module
    for name in dotted.split("."):
        if not hasattr(value, name):
            close = nearest(name, (n for n in dir(value) if not n.startswith("_")))
            where = module.__file__ or module.__name__
            hint = f"did you mean {close!r}?" if close else None
            raise _refused(f"{reference!r}: {where} defines no {dotted!r}", hint=hint)
        value = getattr(value, name)
    return value


def _broken(reference: str, error: BaseException, path: Path | None = None) -> PluginError:
    """The error for code that raised while it was loaded, at the line of it that a reader should look at."""
    file, line = None, None
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename == str(path)] if path else frames
        if own:
            file, line = own[-1].filename, own[-1].lineno
    what = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    return PluginError([Problem(f"{reference!r} does not load: {what}", file=file, line=line)])


def _refused(message: str, *, hint: str | None = None) -> PluginError:
    return PluginError([Problem(message, hint=hint)])
