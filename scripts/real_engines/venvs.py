"""What the installers of the two engines share: a venv, pip in it, our files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from real_engines.recipe import HERE
from real_engines.runner import InstallError, Runner, query

TORCH = "torch==2.13.0+cpu"
TORCH_WHEEL_VARIABLE = "PDCTL_TORCH_WHEEL"
PAYLOAD = HERE / "payload"


class Venv:
    """A virtual environment that an engine is installed into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        major, minor = sys.version_info[:2]
        return self.path / "lib" / f"python{major}.{minor}" / "site-packages"

    def create(self, runner: Runner) -> None:
        if self._has_pip():
            return
        runner.run(
            f"creating {self.path}",
            [sys.executable, "-m", "venv", "--clear", str(self.path)],
            advice="The venv module is needed (Debian: apt-get install python3-venv).",
        )

    def _has_pip(self) -> bool:
        # pip comes last when a venv is made; one cut short has a Python without it.
        if not self.python.exists():
            return False
        command = [str(self.python), "-m", "pip", "--version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def pip(self, runner: Runner, title: str, arguments: Sequence[str], advice: str) -> None:
        command = [str(self.python), "-m", "pip", *arguments]
        runner.run(title, command, advice=advice)

    def install_torch(self, runner: Runner) -> None:
        """Install the CPU build first: nothing later may then fetch a CUDA one."""
        wheel = os.environ.get(TORCH_WHEEL_VARIABLE)
        if wheel and not Path(wheel).is_file():
            raise InstallError(f"{TORCH_WHEEL_VARIABLE}={wheel} is not a file")
        self.pip(
            runner,
            f"installing {wheel or TORCH}",
            ["install", wheel or TORCH],
            f"{TORCH} must come from an index or a wheel folder that pip is "
            f"configured with (pip config set global.find-links FOLDER), or from "
            f"{TORCH_WHEEL_VARIABLE}=/path/to/torch-2.13.0+cpu-....whl.",
        )

    def install(self, runner: Runner, requirements: str, *, deps: bool = True) -> None:
        """Install one of this package's requirements files."""
        options = [] if deps else ["--no-deps"]
        file = HERE / "requirements" / requirements
        self.pip(
            runner,
            f"installing {requirements}",
            ["install", *options, "-r", str(file)],
            "Run the same command again to continue; pip keeps what it has.",
        )

    def copy_payload(self, *names: str) -> None:
        """Copy files or folders of payload/ into site-packages."""
        for name in names:
            source = PAYLOAD / name
            target = self.site_packages / source.name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
            else:
                shutil.copyfile(source, target)

    def add_distribution(self, name: str, version: str, entry_points: str = "") -> None:
        """Make importlib.metadata know a distribution that pip did not install."""
        folder = self.site_packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
        (folder / "RECORD").write_text("", encoding="utf-8")
        if entry_points:
            (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")

    def versions(self, names: Sequence[str]) -> dict[str, str]:
        """Return the installed versions of the named distributions."""
        code = "import importlib.metadata as m, sys\nfor name in sys.argv[1:]: print(m.version(name))"
        lines = query([str(self.python), "-c", code, *names]).splitlines()
        return dict(zip(names, lines, strict=True))

    def expect(self, wanted: dict[str, str]) -> None:
        """Raise unless exactly the wanted versions are installed."""
        found = self.versions(list(wanted))
        wrong = [f"{k} {found[k]} (want {v})" for k, v in wanted.items() if found[k] != v]
        if wrong:
            raise InstallError(f"{self.path}: {', '.join(wrong)}")
