"""What every rendering starts from: the plan's processes, and words with keys and addresses left open."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.core.address import url_host
from orchestrator.engines.base import HttpCall, Word
from orchestrator.errors import LaunchError, Problem, TopologyError
from orchestrator.topology.plan import FollowerPlan, InstancePlan, Plan

MARK = "pdctl render"
"""In every file that is written, so that no other is overwritten."""
ROUTER = "router"
FILES = "PDCTL_FILES"
"""The variable of the folder that holds the files which processes are given."""


@dataclass(frozen=True, slots=True)
class File:
    """One file to write: its path below the output folder, and its text."""

    path: str
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Var:
    """A part of a word that is filled in from an environment variable where the process is started."""

    name: str


Piece = str | Var


@dataclass(frozen=True, slots=True)
class Process:
    """One process to launch. `words` and `env` have keys and addresses left open; `follows` names process 0
    that ends it, of an instance on several nodes; `drain_s` is how long it may take after TERM."""

    name: str
    pool: str
    role: str
    node: str
    words: tuple[tuple[Piece, ...], ...]
    env: Mapping[str, tuple[Piece, ...]]
    ready: tuple[HttpCall, ...]
    ready_timeout_s: float
    drain_s: float
    url: str
    ports: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    cwd: str | None = None
    follows: str = ""
    model: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that it reads, by their names in the folder of `FILES`, with their text."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that its words and environment are filled in from."""
        parts = [part for pieces in (*self.words, *self.env.values()) for part in pieces]
        return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, Var)))


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is rendered. `addresses` are those of the nodes by name, in the topology's order; `secrets` the
    variables that hold keys; `base` is the folder that the files will lie in, and `command` how `pdctl` is
    called there; `overrides` are those that the plan was made with."""

    plan: Plan
    addresses: Mapping[str, str]
    secrets: Mapping[str, str]
    base: Path
    command: str
    overrides: tuple[str, ...] = ()

    def processes(self) -> list[Process]:
        """Every process, engines in the plan's order, the router last."""
        found = [p for i in self.plan.instances if not i.external for p in self._instance(i)]
        router = self._router()
        return found + ([router] if router else [])

    def address_variables(self) -> dict[str, str]:
        """Variable of each node's address, by node."""
        return {node: f"PDCTL_ADDRESS_{re.sub('[^A-Za-z0-9]', '_', node).upper()}" for node in self.addresses}

    def pieces(self, text: str, *, secret: bool = False, where: str = "") -> tuple[Piece, ...]:
        """A text with keys and addresses left open. Raises TopologyError for a key without a variable."""
        names = {value: name for name, value in self.secrets.items() if value}
        variables = self.address_variables()
        patterns = [re.escape(value) for value in sorted(names, key=len, reverse=True)]
        for folder in self._folders():
            names.setdefault(folder, FILES)
            patterns.append(rf"{re.escape(folder)}(?=/)")
        for node, address in self.addresses.items():
            names.setdefault(address, variables[node])
            patterns.append(rf"(?<![0-9A-Za-z.:])(?:{re.escape(address)})(?![0-9A-Za-z.])")
        made: list[Piece] = []
        open_secret = secret
        for part in re.split(f"({'|'.join(patterns)})", text) if patterns else [text]:
            if part in names and part:
                made.append(Var(names[part]))
                open_secret = open_secret and names[part] not in self.secrets
            elif part:
                made.append(part)
        if open_secret:
            hint = "write it as ${env:NAME}: rendered files must hold no keys"
            raise TopologyError([Problem(f"a key of {where} is written in the topology", hint=hint)])
        return tuple(made) or ("",)

    def _instance(self, instance: InstancePlan) -> Iterator[Process]:
        for process in instance.processes:
            head = process is instance
            yield Process(
                name=process.name,
                pool=instance.pool,
                role=instance.role.value,
                node=process.node,
                words=self._words(process.argv, process.name),
                env=self._env(process),
                ready=process.probes.ready,
                ready_timeout_s=process.probes.ready_timeout_s,
                drain_s=instance.drain_s,
                url=process.url,
                ports=process.ports,
                devices=process.devices,
                cwd=instance.cwd,
                follows="" if head else instance.name,
                model=instance.model,
                files={Path(path).name: text for path, text in process.files.items()},
            )

    def _folders(self) -> set[str]:
        """Where `up` would put the files that processes are given."""
        files = (path for i in self.plan.instances for p in i.processes for path in p.files)
        return {str(Path(path).parent) for path in files}

    def _words(self, argv: Sequence[Word], where: str) -> tuple[tuple[Piece, ...], ...]:
        return tuple(self.pieces(word.text, secret=word.secret, where=where) for word in argv)

    def _env(self, process: InstancePlan | FollowerPlan) -> dict[str, tuple[Piece, ...]]:
        return {
            name: self.pieces(word.text, secret=word.secret, where=f"{name} of {process.name}")
            for name, word in process.env.items()
        }

    def _router(self) -> Process | None:
        router = self.plan.router
        if router is None or not router.argv:
            return None
        words = self._words(router.argv, ROUTER) if router.kind != "pdctl" else self._own_router()
        made = Process(
            name=ROUTER,
            pool=ROUTER,
            role=ROUTER,
            node=router.node,
            words=words,
            env={n: self.pieces(w.text, secret=w.secret, where=n) for n, w in router.env.items()},
            ready=router.probes.ready,
            ready_timeout_s=router.probes.ready_timeout_s,
            drain_s=router.drain_s,
            url=router.url,
            ports={"http": router.port, "admin": router.admin_port},
            cwd=router.cwd,
        )
        if router.kind == "pdctl":
            # It reads the topology itself, keys included.
            needs = {name: (Var(name),) for name in self.secrets}
            made = replace(made, env={**needs, **made.env})
        return made

    def _own_router(self) -> tuple[tuple[Piece, ...], ...]:
        words: list[tuple[Piece, ...]] = [(self.command,), ("route",), (self.plan.file,)]
        for override in self.overrides:
            words += [("--set",), (override,)]
        for index, variable in enumerate(self.address_variables().values()):
            words += [("--set",), (f"nodes.{index}.address=", Var(variable))]
        return tuple(words)


def quoted(pieces: Sequence[Piece]) -> str:
    """A word for a POSIX shell."""
    return "".join(f'"${{{p.name}}}"' if isinstance(p, Var) else shlex.quote(p) for p in pieces if p) or "''"


def grouped(words: Sequence[tuple[Piece, ...]]) -> list[list[tuple[Piece, ...]]]:
    """Words in groups that belong on one line: the command, then each flag with its values."""
    groups: list[list[tuple[Piece, ...]]] = []
    for word in words:
        if not groups or (isinstance(word[0], str) and word[0].startswith("--")):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def host_of(process: Process, addresses: Mapping[str, str]) -> str:
    """The address that a process listens on."""
    return url_host(process.url) if process.url else addresses.get(process.node, "")


def write(files: Sequence[File], out: Path) -> None:
    """Write the files below `out`. Raises LaunchError (`render-refused`) rather than overwrite one that is
    `pdctl render`'s, and (`state-dir`) when it cannot."""
    for file in files:
        path = out / file.path
        try:
            if path.exists() and MARK not in path.read_text(errors="replace"):
                raise LaunchError(
                    f"{path} is not a file that pdctl has rendered; choose another folder",
                    reason="render-refused",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
            path.chmod(0o755 if file.executable else 0o644)
        except OSError as error:
            raise LaunchError(f"{path}: {error.strerror or error}", reason="render-refused") from error
