"""What has to change to get from what runs to what a plan wants, in which order, as a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role

ROUTER = "router"
"""The router's role among the units."""

_KEPT = frozenset({State.PENDING, State.STARTING, State.READY})
"""States of a life that is left alone. One in BACKOFF is started at once: who says `up` has mended it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A unit that the plan wants; `instance` is the one that it is a process of, empty for its own name."""

    role: str
    digest: str
    ports: frozenset[int] = frozenset()
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Current:
    """A unit that the supervisor has."""

    role: str
    digest: str
    state: State
    ports: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do, by unit name. `start` begins at once; `remove` ends at once; each wave of `waves` is
    stopped and started anew in its new form, the next one only after all of it is ready."""

    start: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    waves: tuple[tuple[str, ...], ...] = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """The units that will be started in some form."""
        return (*self.start, *(name for wave in self.waves for name in wave))


def reconcile(
    want: Mapping[str, Target], have: Mapping[str, Current], *, one_by_one: bool = False
) -> Changes:
    """The changes from `have` to `want`; a unit whose digest is the same and whose life goes on is kept.

    The router goes first, for the one that runs may not be able to serve by the new plan. What serves nobody
    (still starting, failed) is replaced at once. Of what is ready, one instance is
    replaced at a time, so that its pool serves on. But all go in one wave where instances of several roles
    change together, for old and new ones may not understand each other (page size, engine version), and
    where one takes over a port of another. The processes of one instance always go together.

    `one_by_one`: instances of several roles take turns instead, so that both revisions, if they do not go
    with each other, have both sides for as long as can be.
    """
    start: list[str] = []
    idle: list[str] = []
    serving: list[str] = []
    for name, target in want.items():
        current = have.get(name)
        if current is None or current.state is State.STOPPED:
            start.append(name)
        elif current.digest != target.digest:
            (serving if current.state is State.READY else idle).append(name)
        elif current.state not in _KEPT:
            # Failing, given up, or on its way out: a new life, which waits for the end of the old one.
            start.append(name)
    remove = tuple(name for name in have if name not in want)
    first = [
        (name,) for name in serving if want[name].role == ROUTER and not _shares(name, serving, want, have)
    ]
    serving = [name for name in serving if (name,) not in first]
    roles = {role for name in serving for role in (have[name].role, want[name].role)}
    several = len(roles & {Role.PREFILL, Role.DECODE, Role.ENCODE}) > 1
    swap = any(_shares(name, serving, want, have) for name in serving)
    together = swap or (several and not one_by_one)
    rolling = [tuple(serving)] if together else _in_turn(_by_instance(serving, want), want)
    waves = tuple(wave for wave in (*first, tuple(idle), *rolling) if wave)
    return Changes(tuple(start), remove, waves)


def _by_instance(names: Sequence[str], want: Mapping[str, Target]) -> list[tuple[str, ...]]:
    waves: dict[str, list[str]] = {}
    for name in names:
        waves.setdefault(want[name].instance or name, []).append(name)
    return [tuple(wave) for wave in waves.values()]


def _in_turn(waves: Sequence[tuple[str, ...]], want: Mapping[str, Target]) -> list[tuple[str, ...]]:
    """`waves` with one of each role after the other."""
    by_role: dict[str, list[tuple[str, ...]]] = {}
    for wave in waves:
        by_role.setdefault(want[wave[0]].role, []).append(wave)
    return [wave for turn in zip_longest(*by_role.values()) for wave in turn if wave is not None]


def _shares(
    name: str, others: Iterable[str], want: Mapping[str, Target], have: Mapping[str, Current]
) -> bool:
    """Whether `name` is to have a port that one of `others` has now."""
    return any(want[name].ports & have[other].ports for other in others if other != name)
