"""Taking requests for several answers apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.engines import fan
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest


def body(**fields: Any) -> JsonBody:
    return JsonBody(json.dumps(fields).encode())


@pytest.mark.parametrize("n", ["2", 2.0, True, 0, -1, [2], {}])
def test_an_n_that_engines_read_their_own_way_is_refused(n: object) -> None:
    with pytest.raises(BadRequest) as refused:
        fan.samples({"n": n})
    assert refused.value.param == "n"


def test_n_defaults_to_one() -> None:
    assert [fan.samples(f) for f in ({}, {"n": None}, {"n": 1}, {"n": 3})] == [1, 1, 1, 3]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", None),
        ([1, 2, 3], None),
        ([], None),
        (None, None),
        (["a", "b"], ["a", "b"]),
        (["a"], ["a"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_list_of_token_ids_is_one_prompt(prompt: object, prompts: object) -> None:
    assert fan.batch(prompt) == prompts


def test_items_come_in_the_order_of_the_choices() -> None:
    items = fan.split(body(prompt=["a", "b"], n=2, x=0.5), ["a", "b"], 2, ())
    assert [json.loads(item.raw) for item in items] == [
        {"prompt": p, "n": 1, "x": 0.5} for p in ("a", "a", "b", "b")
    ]


def test_samples_of_a_seeded_request_differ_as_the_engines_make_them_differ() -> None:
    items = fan.split(body(prompt="a", n=3, seed=2**63 - 2), None, 3, ())
    assert [item.fields["seed"] for item in items] == [2**63 - 2, 2**63 - 1, -(2**63)]


def test_lists_with_one_entry_per_prompt_are_taken_apart_too() -> None:
    items = fan.split(body(prompt=["a", "b"], cache_salt=["s", "t"], stop=["x", "y"]), ["a", "b"], 1, ())
    assert [(i.fields["cache_salt"], i.fields["stop"]) for i in items] == [
        ("s", ["x", "y"]),
        ("t", ["x", "y"]),
    ]


def test_dropped_fields_are_in_no_item() -> None:
    (item,) = fan.split(body(prompt="a", rid="x"), None, 1, {"rid"})
    assert "rid" not in item.fields


def test_one_request_cannot_become_any_number() -> None:
    with pytest.raises(BadRequest, match="too many"):
        fan.split(body(prompt="a", n=fan.MAX_ITEMS + 1), None, fan.MAX_ITEMS + 1, ())


@pytest.mark.parametrize("fields", [{}, {"best_of": 1}, {"best_of": 2, "n": 2}, {"best_of": None}])
def test_best_of_without_effect_passes(fields: dict[str, Any]) -> None:
    fan.refuse_best_of(fields)


@pytest.mark.parametrize("fields", [{"best_of": 3}, {"best_of": 3, "n": 2}])
def test_best_of_is_refused_where_it_would_be_ignored(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="best_of"):
        fan.refuse_best_of(fields)
