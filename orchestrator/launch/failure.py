"""What is said of an instance that failed: how it ended, its last words, and the likely cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.engines.base import LogHint
from orchestrator.launch.logs import strike
from orchestrator.launch.oom import Oom

SEARCHED_LINES = 400
"""How many of the last log lines are searched for known causes."""
SEARCHED_CHARACTERS = 2000
"""How much of each line is: a pattern may be slow, and a log line may be a whole tensor."""
SHOWN_LINES = 12

_EXIT_HINTS = {
    -signal.SIGKILL: "something killed it from outside; if that was the kernel for want of memory, "
    "`dmesg | grep -i oom` says so",
    -signal.SIGSEGV: "it crashed in native code; a library built for another CPU, CUDA or driver is usual",
    -signal.SIGILL: "it used an instruction this CPU lacks; the wheel was built for another CPU",
    126: "its program cannot be executed; look at the file's mode",
    127: "a shell found no such program; look at `runtime` of its pool",
    137: "its container was killed (137 = 128 + KILL), usually for want of memory",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """`text` in one line, the `lines` of the log that led to it, and a `hint` (empty: nothing is known).
    `hopeless`: no further try can end otherwise."""

    text: str
    lines: tuple[str, ...] = ()
    hint: str = ""
    hopeless: bool = False

    @property
    def full(self) -> str:
        """The text with its hint."""
        return f"{self.text} ({self.hint})" if self.hint else self.text


def exit_text(code: int | None) -> str:
    """An exit code in words; None is an adopted process's of which the kernel told nothing."""
    if code is None:
        return "ended (code or signal not known: an earlier controller was its parent)"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exited with code {code}"


_KERNEL_DID = (
    "the kernel killed it, or a process of it, for want of memory: give the host or the container more, or "
    "the engine less"
)
_KERNEL_MAY_HAVE = (
    "just then the kernel killed a process of this host for want of memory, most likely one of it; "
    "`dmesg | grep -i oom` says which"
)
_SOMEBODY_DID = "somebody or something sent it; the kernel has killed nothing for want of memory"
_NOT_KNOWN = "a kill, also one for want of memory, leaves no word in a log; `dmesg | grep -i oom` may know"


def _hint(code: int | None, exited: bool, oom: Oom, adapters: str) -> str:
    """The likely cause: what is proven first, then what the adapter knows, then what the exit tells."""
    if oom is Oom.PROVEN:
        return _KERNEL_DID
    if adapters:
        return adapters
    if oom is Oom.LIKELY:
        return _KERNEL_MAY_HAVE
    if code == -signal.SIGKILL and oom is Oom.RULED_OUT:
        return _SOMEBODY_DID
    if code is None:
        return _NOT_KNOWN if exited and oom is Oom.UNKNOWN else ""
    return _EXIT_HINTS.get(code, "")


def lacks_module(argv: Sequence[str], lines: Iterable[str]) -> bool:
    """Whether the log says that Python has no such module as `argv` runs with `-m`, or no package of it.

    Another module that is missing proves nothing: many imports are tried and done without.
    """
    if "-m" not in argv[:-1]:
        return False
    module = argv[argv.index("-m") + 1]
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    pattern = re.compile(rf"No module named '?({'|'.join(map(re.escape, names))})(?![\w.])")
    return any(pattern.search(line[:SEARCHED_CHARACTERS]) for line in lines)


def explain(
    text: str,
    code: int | None,
    lines: Sequence[str],
    hints: Iterable[LogHint],
    secrets: Iterable[str],
    starting: Sequence[str] = (),
    *,
    exited: bool = False,
    oom: Oom = Oom.UNKNOWN,
) -> Failure:
    """The failure from the log's last `lines`; secrets are struck out of all that is shown. `starting` is
    the command line of one that was never ready, empty otherwise. `exited`: its process has ended, `code`
    or no code; `oom` is what the kernel says of it.

    A hint is looked for from the adapter's own (in their order), then by exit code.
    """
    hopeless = lacks_module(starting, lines)
    searched = [line[:SEARCHED_CHARACTERS] for line in lines]
    hint = next((h.hint for h in hints if any(re.search(h.pattern, line) for line in searched)), "")
    hint = _hint(code, exited, oom, hint)
    if hopeless and not hint:
        hint = f"what it runs is not installed for {starting[0]}; see `runtime` of its pool"
    secrets = tuple(secrets)
    shown = tuple(strike(line, secrets) for line in lines[-SHOWN_LINES:])
    return Failure(strike(text, secrets), shown, hint, hopeless)
