"""Runs a function just before or just after a named module is first imported.

pdctl's installer of real engines copies this file into their virtual
environments. The CPU fix-ups beside it hang on it, so that a process that never
imports the module in question pays nothing and sees no change.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Hook = Callable[[ModuleType], None]


class _HookFinder(MetaPathFinder):
    """Stands first on sys.meta_path and decorates the loaders of hooked modules."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Hook] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self.before and fullname not in self.after:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._decorate(fullname, spec)
                return spec
        return None

    def _decorate(self, fullname: str, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            before = self.before.get(fullname)
            if before is not None:
                before()
            execute(module)
            after = self.after.get(fullname)
            if after is not None:
                after(module)

        # Overriding the one method keeps every other ability of the loader
        # (source look-up, package data), which inspect and torch rely on.
        loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _HookFinder()


def _install() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def before_import(name: str, hook: Callable[[], None]) -> None:
    """Call hook right before module `name` runs for the first time."""
    _finder.before[name] = hook
    _install()


def after_import(name: str, hook: Hook) -> None:
    """Call hook with module `name` right after it ran for the first time."""
    _finder.after[name] = hook
    _install()
