"""Installs SGLang for CPUs with Mooncake's transfer engine over TCP."""

import ctypes
import os
import shutil
from pathlib import Path

from real_engines import recipe
from real_engines.runner import InstallError, Runner
from real_engines.venvs import Venv

VERSIONS = {
    "torch": "2.13.0+cpu",
    "sglang": "0.5.23",
    "mooncake-transfer-engine-non-cuda": "0.3.13.post1",
    "pdctl-sglang-cpu": "1.0",
}
# Mooncake's engine is linked against these even where it moves data over TCP.
DEBIAN_PACKAGES = ("libibverbs1", "ibverbs-providers")
PLUGIN = "[sglang.srt.plugins]\npdctl_cpu = pdctl_sglang_cpu:register_plugin\n"


def wanted_recipe() -> str:
    return recipe.recipe_hash(
        (
            "sglang_venv.py",
            "venvs.py",
            "requirements/sglang.txt",
            "requirements/sglang-no-deps.txt",
            "payload/common",
            "payload/sglang",
        )
    )


def install(root: Path, runner: Runner) -> None:
    """Install into root/sglang, or do nothing if that is current."""
    folder = root / "sglang"
    wanted = wanted_recipe()
    install_verbs(runner)
    if recipe.is_current(folder, wanted):
        runner.say(f"sglang: up to date in {folder}")
        return
    recipe.begin(folder, wanted)
    venv = Venv(folder)
    venv.create(runner)
    venv.install_torch(runner)
    venv.install(runner, "sglang.txt")
    venv.install(runner, "sglang-no-deps.txt", deps=False)
    venv.copy_payload(
        "common/pdctl_import_hooks.py",
        "sglang/pdctl_sglang_cpu.py",
        "sglang/pdctl_sglang_cpu.pth",
        "sglang/sgl_kernel",
    )
    venv.add_distribution("pdctl-sglang-cpu", "1.0", PLUGIN)
    runner.run(
        "trying sglang.launch_server --help (compiles its modules once)",
        [str(venv.python), "-m", "sglang.launch_server", "--help"],
        advice=f"Remove {folder} and run again.",
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
    )
    runner.run(
        "trying Mooncake's engine",
        [str(venv.python), "-c", "import mooncake.engine"],
        advice=f"Remove {folder} and run again.",
    )
    check(root)
    recipe.finish(folder, wanted)


def has_verbs() -> bool:
    """Whether the loader finds the verbs library."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True


def install_verbs(runner: Runner) -> None:
    """Install the Debian packages, which only root can do."""
    if has_verbs():
        return
    packages = " ".join(DEBIAN_PACKAGES)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise InstallError(
            "SGLang's KV transfer needs libibverbs.so.1. Install it first: "
            f"apt-get install {packages} (or your system's packages of it)."
        )
    advice = f"Run apt-get update && apt-get install {packages} by hand."
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    runner.run("apt-get update", ["apt-get", "update"], advice=advice)
    runner.run(
        f"apt-get install {packages}",
        ["apt-get", "install", "--yes", *DEBIAN_PACKAGES],
        advice=advice,
        env=env,
    )


def check(root: Path) -> None:
    """Raise InstallError unless the venv holds what the tests rely on."""
    Venv(root / "sglang").expect(VERSIONS)
    if not has_verbs():
        raise InstallError("libibverbs.so.1 is missing")
