"""What policies' parameters may be."""

import pytest
from pydantic import ValidationError

from orchestrator.policy import Params


class Sizes(Params):
    size: int = 1


def test_unknown_and_unreal_values_are_refused_and_none_changes():
    assert Sizes(size=2).size == 2
    with pytest.raises(ValidationError):
        Sizes(other=1)
    with pytest.raises(ValidationError):
        Sizes().size = 3

    class Weights(Params):
        x: float = 0.0

    for value in (float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            Weights(x=value)


@pytest.mark.parametrize("name", ["use", "weight"])
def test_names_that_the_profile_keeps(name):
    with pytest.raises(TypeError, match=f"{name} cannot be a parameter's name"):
        type("Bad", (Params,), {"__annotations__": {name: int}})
