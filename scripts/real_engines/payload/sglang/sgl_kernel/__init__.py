"""A stand-in for SGLang's kernel package where only its name is ever needed.

SGLang imports names from sgl_kernel when it runs on a CPU, yet on a CPU for
which no kernels were built it computes with plain torch and calls none of them.
Any name can be imported from here and raises when it is called, so a wrong guess
shows as an error and never as a wrong number.
"""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0+pdctl"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build here")

    return missing
