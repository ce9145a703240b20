"""How the Python that runs this was built: without profiles of itself it is slower."""

from __future__ import annotations

import sysconfig
from collections.abc import Collection

OPTIMIZED = "--enable-optimizations"

DEBIAN = "deb_system"
"""The installation scheme of Debian's and Ubuntu's builds. They are optimized, though not by `configure`, and
the configuration that they tell is that of another build."""


def slow_build(configured: str | None, schemes: Collection[str]) -> str | None:
    """What to say of an interpreter that was built without profiles; None if it was not, or does not tell.

    `configured` are the arguments of its `configure`, `schemes` its installation schemes.
    """
    if not configured or OPTIMIZED in configured or DEBIAN in schemes:
        return None
    return f"this Python was built without {OPTIMIZED}, by which the router is slower"


def mine() -> str | None:
    """The same of the interpreter that runs this."""
    return slow_build(sysconfig.get_config_var("CONFIG_ARGS"), sysconfig.get_scheme_names())


if __name__ == "__main__":
    print(mine() or "", end="")
