"""What a policy's parameters are declared as: a frozen pydantic model that refuses what it does not know."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from orchestrator.core.duration import parse_duration

RESERVED = frozenset({"use", "weight", "worth"})
"""Keys of a profile's step that are not parameters."""


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be more than zero")
    return seconds


DurationOrZero = Annotated[float, BeforeValidator(parse_duration)]
"""Written as `40ms` or `1.5s`, read as seconds."""

Duration = Annotated[float, AfterValidator(_positive), BeforeValidator(parse_duration)]
"""The same, above zero."""


class Params(BaseModel):
    """Base of a policy's parameters; the fields are the keys beside `use` in the scheduling profile.

    Raises TypeError when a subclass names a field `use`, `weight` or `worth`, which the profile keeps for
    itself.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        taken = sorted(RESERVED & cls.model_fields.keys())
        if taken:
            raise TypeError(f"{cls.__name__}: {' and '.join(taken)} cannot be a parameter's name")
