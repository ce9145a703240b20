"""The command line of scripts/real-engines."""

import argparse
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from real_engines import model, ray_venv, recipe, sglang_venv, vllm_venv
from real_engines.runner import InstallError, Runner, fail

ROOT_VARIABLE = "PDCTL_REAL_ENGINES_DIR"
PARTS = ("vllm", "sglang", "ray", "model")
FOLDERS = {"vllm": "vllm", "sglang": "sglang", "ray": "ray", "model": "models/tiny"}
INSTALL: dict[str, Callable[[Path, Runner], None]] = {
    "vllm": vllm_venv.install,
    "sglang": sglang_venv.install,
    "ray": ray_venv.install,
    "model": model.install,
}
CHECK: dict[str, Callable[[Path], None]] = {
    "vllm": vllm_venv.check,
    "sglang": sglang_venv.check,
    "ray": ray_venv.check,
    "model": model.check,
}
RECIPE: dict[str, Callable[[], str]] = {
    "vllm": vllm_venv.wanted_recipe,
    "sglang": sglang_venv.wanted_recipe,
    "ray": ray_venv.wanted_recipe,
    "model": model.wanted_recipe,
}


def install_root() -> Path:
    """Where the engines live: outside every checkout, shared by all of them."""
    explicit = os.environ.get(ROOT_VARIABLE)
    if explicit:
        return Path(explicit).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "pdctl" / "real-engines"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two checkouts never install at once."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="real-engines",
        description="Install real vLLM and SGLang for CPUs, Ray, and a tiny model.",
        epilog=f"They go to {install_root()}; set {ROOT_VARIABLE} to change that.",
    )
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--check", action="store_true", help="only tell whether all is installed")
    return parser.parse_args(arguments)


def check(root: Path, parts: Sequence[str], runner: Runner) -> None:
    """Raise InstallError at the first part that is absent, old or incomplete."""
    for part in parts:
        folder = root / FOLDERS[part]
        if not recipe.is_current(folder, RECIPE[part]()):
            raise InstallError(
                f"{part} is not installed in {folder}, or from an older recipe: "
                f"run scripts/real-engines {part}"
            )
        CHECK[part](root)
        runner.say(f"{part}: installed in {folder}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    parts = PARTS if options.part == "all" else (options.part,)
    root = install_root()
    runner = Runner(root / "logs")
    try:
        if options.check:
            check(root, parts, runner)
            return 0
        with locked(root):
            for part in parts:
                INSTALL[part](root, runner)
        runner.say("done")
    except InstallError as error:
        return fail(error)
    except KeyboardInterrupt:
        runner.say("interrupted; the same command continues")
        return 130
    return 0
