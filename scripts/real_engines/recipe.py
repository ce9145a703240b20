"""Tells whether an installed part is what the present recipe would install."""

import ast
import hashlib
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
DONE = ".pdctl-recipe"


def recipe_hash(names: Iterable[str]) -> str:
    """Hash the files (or folders) of this package that a part is made from."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name in sorted(names):
        path = HERE / name
        files = sorted(p for p in path.rglob("*") if p.is_file()) or [path]
        for file in files:
            if "__pycache__" in file.parts:
                continue
            digest.update(str(file.relative_to(HERE)).encode())
            digest.update(_meaning(file))
    return digest.hexdigest()


def _meaning(file: Path) -> bytes:
    """What a file says, for Python without layout and comments: they need no re-install."""
    content = file.read_bytes()
    if file.suffix == ".py":
        return ast.dump(ast.parse(content)).encode()
    return content


def is_current(folder: Path, wanted: str) -> bool:
    """Whether folder was completely installed from the wanted recipe."""
    stamp = folder / DONE
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted


def _started(folder: Path) -> Path:
    # Beside the folder: making a venv empties the folder itself.
    return folder.with_name(f".{folder.name}-started")


def begin(folder: Path, wanted: str) -> None:
    """Make folder ready for an install that may continue an interrupted one.

    What another recipe left is removed: pip can only add to a venv, so a package
    that the recipe no longer names would stay.
    """
    started = _started(folder)
    same = started.is_file() and started.read_text(encoding="utf-8") == wanted
    if folder.exists() and not same:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    started.write_text(wanted, encoding="utf-8")


def finish(folder: Path, wanted: str) -> None:
    """Mark folder as completely installed."""
    (folder / DONE).write_text(wanted, encoding="utf-8")
    _started(folder).unlink(missing_ok=True)
