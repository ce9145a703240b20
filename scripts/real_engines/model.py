"""Builds the tiny model that both engines serve."""

from pathlib import Path

from real_engines import recipe
from real_engines.runner import InstallError, Runner
from real_engines.venvs import PAYLOAD, Venv

SCRIPT = "payload/build_model.py"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def wanted_recipe() -> str:
    return recipe.recipe_hash((SCRIPT,))


def install(root: Path, runner: Runner) -> None:
    """Build root/models/tiny, or do nothing if that is current."""
    folder = root / "models" / "tiny"
    wanted = wanted_recipe()
    if recipe.is_current(folder, wanted):
        runner.say(f"model: up to date in {folder}")
        return
    recipe.begin(folder, wanted)
    runner.run(
        "building the tiny model",
        [str(_builder(root).python), str(PAYLOAD / "build_model.py"), str(folder)],
        advice="Run the same command again.",
    )
    check(root)
    recipe.finish(folder, wanted)


def _builder(root: Path) -> Venv:
    for name in ("vllm", "sglang"):
        venv = Venv(root / name)
        if (venv.path / recipe.DONE).is_file():
            return venv
    raise InstallError(
        "The model is built with torch from an engine's venv: "
        "run scripts/real-engines vllm or scripts/real-engines sglang first."
    )


def check(root: Path) -> None:
    """Raise InstallError unless every file the engines read is there."""
    folder = root / "models" / "tiny"
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise InstallError(f"{folder} lacks {', '.join(missing)}")
