"""What stands in for the launcher on another node: starts, finds and ends units, and hands on their logs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.launch import logs
from orchestrator.launch.local import LocalLauncher, LocalProcess
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import Identity, Mark
from orchestrator.launch.unit import Unit

CHUNK_BYTES = 256 * 1024
"""The most of a log that one answer carries."""

Life = tuple[str, int]
"""A unit's name and the number of its incarnation."""


@dataclass(frozen=True, slots=True)
class Born:
    """How a start went: the leader, or why there is none (`number` is the system's error number)."""

    identity: Identity | None = None
    number: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """What has come of a unit since it was last asked for: more of its log, and whether its leader has ended,
    with the exit code if that can be told."""

    text: bytes = b""
    over: bool = False
    code: int | None = None


@dataclass(slots=True)
class _Log:
    """How far a log was handed on."""

    path: Path
    position: int = 0

    def take(self) -> bytes:
        """What has come since; after the file was emptied, what stands there now."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.position:
                    self.position = 0
                file.seek(self.position)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        self.position += len(data)
        return data


@dataclass(slots=True)
class Agent:
    """The units of one deployment on the node where this runs; `root` is the folder for them there.

    It may die: its units live on, and another one with the same `root` finds them by their marker. All calls
    are made from one event loop.
    """

    root: str
    _state: StateDir = field(init=False)
    _launcher: LocalLauncher = field(init=False)
    _lives: dict[Life, LocalProcess] = field(init=False, default_factory=dict)
    _logs: dict[str, _Log] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._state = StateDir(self.root)
        self._state.create()
        self._launcher = LocalLauncher(self._state)

    def refusals(self, units: Sequence[Unit], replacing: bool) -> list[str]:
        """Why any of `units` cannot be started here now; `replacing`: what is ours makes way for them."""
        return list(self._launcher.refusals(units, list(self._lives.values()) if replacing else []))

    def start(self, unit: Unit, incarnation: int) -> Born:
        """Start it."""
        log = self._logs.setdefault(unit.name, _Log(self._state.log(unit.name)))
        try:
            process = self._launcher.start(unit, incarnation)
        except OSError as error:
            what = error.filename or unit.argv[0].text
            return Born(None, error.errno or errno.EIO, f"{what}: {error.strerror or error}")
        log.path = self._state.log(unit.name)
        self._lives[unit.name, incarnation] = process
        return Born(process.identity)

    def find(self) -> list[tuple[Life, Identity, str]]:
        """The living leaders here, each with the digest of what was launched."""
        found = self._launcher.find()
        return [((f.mark.name, f.mark.incarnation), f.identity, f.digest) for f in found]

    async def news(self, life: Life, leader: Identity, wait_s: float) -> News:
        """What has come of a unit, once its leader has ended, or after `wait_s`."""
        log = self._logs.get(life[0])
        if log is None:
            # Of one that another agent has started: its log was handed on as far as it was.
            path = self._state.log(life[0])
            size = path.stat().st_size if path.exists() else 0
            log = self._logs[life[0]] = _Log(path, size)
        ending = asyncio.create_task(self._life(life, leader).exited())
        await asyncio.wait({ending}, timeout=wait_s)
        over = ending.done()
        code = ending.result() if over else None
        ending.cancel()
        text = log.take()
        # The rest of a long log comes first, for it tells why.
        return News(text) if len(text) == CHUNK_BYTES else News(text, over, code)

    def terminate(self, life: Life, leader: Identity) -> None:
        """Ask a leader to end (TERM)."""
        self._life(life, leader).terminate()

    async def sweep(self, life: Life, leader: Identity, grace_s: float) -> list[str]:
        """See `Process.sweep`."""
        stuck = list(await self._life(life, leader).sweep(grace_s))
        if not stuck:
            self._lives.pop(life, None)
        return stuck

    async def sweep_strays(self, keep: Collection[Life]) -> list[str]:
        """End all that is none of `keep`; see `Launcher.sweep_strays`."""
        for life in [life for life in self._lives if life not in keep]:
            del self._lives[life]
        kept = {Mark(self._state.id, name, incarnation) for name, incarnation in keep}
        return list(await self._launcher.sweep_strays(kept))

    def keep_house(self, log_max_bytes: int) -> None:
        """Learn who belongs to which tree, and keep logs small. Called every few seconds."""
        self._launcher.remember(list(self._lives.values()))
        for path in list(self._state.logs.glob("*.log")):
            logs.rotate(path, log_max_bytes)

    def _life(self, life: Life, leader: Identity) -> LocalProcess:
        if life not in self._lives:
            self._lives[life] = self._launcher.adopt(leader, Mark(self._state.id, *life))
        return self._lives[life]
