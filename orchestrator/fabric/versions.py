"""The version of a package in an environment other than ours, asked of that environment's own interpreter."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from orchestrator.errors import LaunchError

TIMEOUT_S = 30.0
"""A cold interpreter on a network file system takes seconds; a container start may take tens of them."""

_ASK = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print("\\n" + json.dumps(found))
"""


def installed(
    interpreter: Sequence[str], distributions: Sequence[str], timeout_s: float = TIMEOUT_S
) -> dict[str, str]:
    """Version by distribution name, for those of `distributions` that the environment has.

    `interpreter` is what runs its Python (`["/venv/bin/python"]`, or a container prefix ending in one).
    Raises LaunchError (`runtime-broken`) when it is missing, fails, or takes longer than `timeout_s`.
    """
    shown = " ".join(interpreter)

    def broken(why: str) -> LaunchError:
        return LaunchError(f"{shown}: {why}", reason="runtime-broken")

    try:
        done = subprocess.run(
            [*interpreter, "-c", _ASK, *distributions],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise broken(f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise broken(f"{error.strerror or error}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise broken(f"exit code {done.returncode}: {last}")
    try:
        # The last line only: a container's entry point may print before it.
        found = json.loads(done.stdout.rstrip().rpartition(b"\n")[2])
    except ValueError as error:
        raise broken("did not behave like a Python interpreter") from error
    return {str(k): str(v) for k, v in found.items()}
