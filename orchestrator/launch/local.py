"""The local launcher: each unit in a session of its own on this host, logging to a file, outliving us."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.core.restart import OUTLIVES
from orchestrator.fabric import ports as fabric_ports
from orchestrator.launch import logs
from orchestrator.launch.base import Found, Process
from orchestrator.launch.ending import exit_code, hold
from orchestrator.launch.paths import StateDir
from orchestrator.launch.process import (
    MARK,
    MARK_DIGEST,
    Identity,
    Mark,
    Table,
    alive,
    describe,
    ended,
    environment,
    parse_mark,
    read_stat,
    send,
)
from orchestrator.launch.unit import Unit
from orchestrator.topology.plan import Plan

INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    )
)
INHERITED_PREFIXES = ("LC_", "XDG_", "HF_")
"""What a unit gets of pdctl's own environment: where things are, never how an engine behaves. All else
comes from the plan, so that the same topology starts the same engines from every shell."""

KILL_LIMIT_S = 10.0
"""How long KILL may take to show before the survivors are reported."""
POLL_S = 0.05


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of `environ` that units inherit."""
    return {k: v for k, v in environ.items() if k in INHERITED or k.startswith(INHERITED_PREFIXES)}


class LocalProcess:
    """A process tree on this host, started here (`child`) or adopted."""

    def __init__(self, identity: Identity, mark: Mark, child: subprocess.Popen[bytes] | None) -> None:
        self.identity = identity
        self.mark = mark
        self._child = child
        self._family: set[Identity] = {identity}
        self._code: int | None = None
        self._held = hold(identity) if child is None else None
        if self._held is not None:
            self._let_go = weakref.finalize(self, os.close, self._held)

    async def exited(self) -> int | None:
        """See `Process`."""
        await ended(self.identity)
        if self._child is not None:
            # The kernel has said that it is over, so this reaps without waiting.
            return self._child.wait()
        if self._held is not None:
            self._code, self._held = exit_code(self.identity, self._held), None
            self._let_go()
        return self._code

    def pids(self) -> Collection[int]:
        """See `Process`."""
        return [self.identity.pid, *(i.pid for i in self._family)]

    def terminate(self) -> None:
        """See `Process`."""
        self.remember(Table.take())
        send(self.identity, signal.SIGTERM)

    def remember(self, table: Table) -> None:
        """Learn from `table` who belongs to the tree."""
        self._family = table.family(self.identity, self._family)

    def _members(self) -> set[Identity]:
        table = Table.take()
        self._family |= {i for i, mark in table.marked(self.mark.state_id).items() if mark == self.mark}
        self.remember(table)
        return {i for i in self._family if i == self.identity or OUTLIVES not in environment(i.pid)}

    async def sweep(self, grace_s: float) -> Sequence[str]:
        """See `Process`."""
        return await _end(self._members, grace_s)


async def _end(members: Callable[[], set[Identity]], grace_s: float) -> Sequence[str]:
    """Wait for `members` to go, kill them after `grace_s`, and describe those that stay.

    All processes are looked at only when those that were found are gone: there may be thousands.
    """
    start_s = time.monotonic()
    while found := members():
        while left := {identity for identity in found if alive(identity)}:
            passed_s = time.monotonic() - start_s
            if passed_s > grace_s + KILL_LIMIT_S:
                return [describe(identity) for identity in sorted(left)]
            if passed_s >= grace_s:
                # Once more each time: one that forked while it was killed has left somebody new.
                left |= members()
                for identity in left:
                    send(identity, signal.SIGKILL)
            await asyncio.sleep(POLL_S)
    return []


class LocalLauncher:
    """Starts units on this host. `environ` is what they inherit from (`INHERITED` of it)."""

    def __init__(self, state: StateDir, environ: Mapping[str, str] | None = None) -> None:
        self._state = state
        self._base = base_environment(os.environ if environ is None else environ)

    async def follow(self, plan: Plan, ours: Sequence[Process]) -> None:
        """Nothing: all of a plan is started here."""

    def refusals(self, units: Sequence[Unit], ours: Sequence[Process]) -> Sequence[str]:
        """See `Launcher`. Found are: a missing program or folder, a foreign address, a taken port."""
        found: list[str] = []
        held = _pids_of(ours)
        for unit in units:
            program = unit.argv[0].text if unit.argv else ""
            path = unit.env["PATH"].text if "PATH" in unit.env else self._base.get("PATH")
            if shutil.which(program, path=path) is None:
                found.append(f"{unit.name}: no program {program!r} here; set `runtime` of pool {unit.pool!r}")
            if unit.cwd is not None and not Path(unit.cwd).is_dir():
                found.append(f"{unit.name}: no folder {unit.cwd!r} to run in")
            found += _port_refusals(unit, held)
        return found

    def start(self, unit: Unit, incarnation: int) -> LocalProcess:
        """See `Launcher`."""
        mark = Mark(self._state.id, unit.name, incarnation)
        env = {**self._base, **{k: w.text for k, w in unit.env.items()}}
        env |= {MARK: str(mark), MARK_DIGEST: unit.digest}
        for name, text in unit.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        log = self._state.log(unit.name)
        fd = logs.open_append(log)
        try:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            with suppress(OSError):
                # On a full disk: an engine that can do without its log need not do without this line.
                os.write(
                    fd, f"{logs.SEPARATOR}{unit.name} incarnation {incarnation}, {started} ---\n".encode()
                )
            child = subprocess.Popen(
                [word.text for word in unit.argv],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                env=env,
                cwd=unit.cwd or self._state.root,
                start_new_session=True,
            )
        finally:
            os.close(fd)
        # Not reaped yet, so it is there to be read even if it has already ended.
        return LocalProcess(_born(child.pid), mark, child)

    def adopt(self, identity: Identity, mark: Mark) -> LocalProcess:
        """See `Launcher`."""
        return LocalProcess(identity, mark, None)

    def find(self) -> Sequence[Found]:
        """See `Launcher`."""
        table = Table.take()
        return [
            Found(mark, identity, environment(identity.pid).get(MARK_DIGEST, ""))
            for identity, mark in table.marked(self._state.id).items()
            if table.stats[identity.pid].session == identity.pid and not _inherited(table, identity, mark)
        ]

    def remember(self, processes: Sequence[Process]) -> None:
        """See `Launcher`."""
        table = Table.take()
        for process in processes:
            if isinstance(process, LocalProcess):
                process.remember(table)

    async def sweep_strays(self, keep: Collection[Mark]) -> Sequence[str]:
        """See `Launcher`."""

        def strays() -> set[Identity]:
            marked = Table.take().marked(self._state.id)
            return {i for i, mark in marked.items() if mark not in keep}

        return await _end(strays, 0.0)


def _inherited(table: Table, identity: Identity, mark: Mark) -> bool:
    """Whether its parent bears the same mark: a child that opened a session of its own, no leader."""
    parent = table.stats[identity.pid].ppid
    return environment(parent).get(MARK) == str(mark)


def _born(pid: int) -> Identity:
    """The identity of an unreaped child."""
    stat = read_stat(pid)
    assert stat is not None, "an unreaped child is always in /proc"
    return stat.identity


def _pids_of(processes: Sequence[Process]) -> set[int]:
    """The pids of all processes of these trees."""
    if not processes:
        return set()
    table = Table.take()
    return {i.pid for p in processes for i in table.family(p.identity)}


def _port_refusals(unit: Unit, held: set[int]) -> list[str]:
    """Why `unit` cannot listen where its plan says."""
    host = unit.host
    for purpose, port in unit.ports.items():
        try:
            if not fabric_ports.taken(host, port):
                continue
        except OSError as error:
            return [f"{unit.name}: {host} is not an address of this host ({error.strerror or error})"]
        holder = fabric_ports.holder(port)
        if holder is None or holder.pid is None or holder.pid not in held:
            who = holder or "an outgoing connection; keep `nodes[].ports` out of the ephemeral range"
            whose = _whose(holder.pid) if holder is not None and holder.pid is not None else ""
            return [f"{unit.name}: port {port} ({purpose}) on {host} is held by {who}{whose}"]
    return []


def _whose(pid: int) -> str:
    """What a process of some deployment's is, and how two deployments keep out of each other's way."""
    mark = parse_mark(environment(pid).get(MARK, ""))
    if mark is None:
        return ""
    return (
        f", {mark.name} of a deployment of pdctl's; stop that one, or give one of the two other ports "
        "(`nodes[].ports`, `router.listen`)"
    )
