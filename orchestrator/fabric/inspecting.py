"""An installed engine asked for its flags and variables, by its own interpreter and never in our process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import LaunchError

TIMEOUT_S = 300.0
"""Importing an engine takes ten seconds warm, and minutes from a cold network file system."""

TAIL_LINES = 8
"""How much of what the interpreter said last is shown when it fails."""


def inspect(
    interpreter: Sequence[str], program: str, recipe: Mapping[str, Any], timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What the engine in the environment of `interpreter` knows, as `program` tells it by `recipe`.

    Both are the adapters': `engines.inspected`, and their `recipe` as plain data.

    Raises LaunchError (`inspect-failed`) when the interpreter is missing or fails, the engine is not there or
    is laid out otherwise than the recipe says, or it takes longer than `timeout_s`.
    """
    shown = " ".join(interpreter)

    def failed(why: str) -> LaunchError:
        return LaunchError(f"{shown}: {why}", reason="inspect-failed")

    try:
        done = subprocess.run(
            [*interpreter, "-c", program, json.dumps(recipe)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            # Engines ask a hub, or for usage statistics, when they are imported.
            env={**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise failed(f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise failed(f"{error.strerror or error}") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-TAIL_LINES:]
        raise failed("\n  ".join([f"exit code {done.returncode}", *last]))
    try:
        told = json.loads(done.stdout.rstrip().rpartition(b"\n")[2])
        return {name: told[name] for name in ("version", "flags", "variables", "replaced")}
    except (ValueError, KeyError, TypeError) as error:
        raise failed("did not answer as a Python interpreter would") from error
