"""Installs Ray, which the tests of `launcher: ray` put on the path beside pdctl's own environment."""

from pathlib import Path

from real_engines import recipe
from real_engines.runner import Runner
from real_engines.venvs import Venv

VERSIONS = {"ray": "2.60.0"}


def wanted_recipe() -> str:
    return recipe.recipe_hash(("ray_venv.py", "venvs.py", "requirements/ray.txt"))


def install(root: Path, runner: Runner) -> None:
    """Install into root/ray, or do nothing if that is current."""
    folder = root / "ray"
    wanted = wanted_recipe()
    if recipe.is_current(folder, wanted):
        runner.say(f"ray: up to date in {folder}")
        return
    recipe.begin(folder, wanted)
    venv = Venv(folder)
    venv.create(runner)
    venv.install(runner, "ray.txt")
    check(root)
    recipe.finish(folder, wanted)


def check(root: Path) -> None:
    """Raise InstallError unless the venv holds what the tests rely on."""
    Venv(root / "ray").expect(VERSIONS)
