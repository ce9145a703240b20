"""The programs of `native/`, compiled into a cache when they are first asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pdctl" / "bench"
"""Programs and peers, kept between runs."""

FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")


def program(name: str, cache: Path = CACHE, compiler: str | None = None) -> Path:
    """The path of a program compiled from `native/NAME.c` by `compiler`, else $CC, else `cc`. Raises
    RuntimeError if it cannot be."""
    sources = [SOURCES / f"{name}.c", SOURCES / "common.h"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    made = cache / "native" / f"{name}-{digest}"
    if made.exists():
        return made
    found = shutil.which(compiler or os.environ.get("CC", "cc"))
    if found is None:
        raise RuntimeError("no C compiler: install one (Debian: gcc), or name it in CC")
    made.parent.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(f".{os.getpid()}")
    built = subprocess.run(
        [found, *FLAGS, "-o", str(part), str(sources[0])], check=False, capture_output=True, text=True
    )
    if built.returncode:
        raise RuntimeError(f"{found} could not compile {sources[0].name}:\n{built.stderr}")
    part.rename(made)
    return made
