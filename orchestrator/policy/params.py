"""What a policy's parameters are declared as: a frozen pydantic model that refuses what it does not know."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

RESERVED = frozenset({"use", "weight"})
"""Keys of a profile's step that are not parameters."""


class Params(BaseModel):
    """Base of a policy's parameters; the fields are the keys beside `use` in the scheduling profile.

    Raises TypeError when a subclass names a field `use` or `weight`, which the profile keeps for itself.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        taken = sorted(RESERVED & cls.model_fields.keys())
        if taken:
            raise TypeError(f"{cls.__name__}: {' and '.join(taken)} cannot be a parameter's name")
