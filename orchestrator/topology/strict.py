"""The base of every settings model: frozen, refusing the unknown, reporting several findings at once."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.topology.values import Text

Findings = list[tuple[tuple[str | int, ...], str]]
"""Places below a model, and what is wrong there."""


class Strict(BaseModel):
    """Refuses fields it does not know, and never changes once made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def findings(found: Findings) -> PydanticCustomError:
    """An error of several findings, which `problems` takes apart again."""
    return PydanticCustomError("findings", "{found}", {"found": found})


class Runtime(Strict):
    """The environment a process is started in: at most one of `python` and `command`."""

    python: Text | None = Field(
        None, description="An interpreter, such as a virtual environment's `bin/python`; runs `-m ...`."
    )
    command: tuple[Text, ...] | None = Field(
        None, min_length=1, description="A prefix such as a container runner; `python3 -m ...` follows it."
    )
    version: Text | None = Field(
        None, description="The engine's version, where it is known; else asked of the environment."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.python is not None and self.command is not None:
            raise findings([(("command",), "give `python` or `command`, not both")])
        return self


class EngineRuntime(Runtime):
    """The environment an engine is started in: at most one of `python` and `command`."""

    table: Text | None = Field(
        None,
        description="A file of the flags and variables that its version knows, as `pdctl engines inspect` "
        "writes it. Default: the shipped one nearest to its version.",
    )
