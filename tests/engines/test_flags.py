"""Layers of flags and variables, and the words they become (flags, words)."""

from __future__ import annotations

import pytest

from orchestrator.engines import flags
from orchestrator.engines.base import Setting, Word


def texts(settings: dict[str, Setting]) -> list[str]:
    return [word.text for word in flags.words(settings)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--x"]),
        (False, []),
        (None, []),
        (0, ["--x", "0"]),
        (0.85, ["--x", "0.85"]),
        ("a b", ["--x", "a b"]),
        (["a", 1], ["--x", "a", "1"]),
        ({"k": {"l": True}}, ["--x", '{"k":{"l":true}}']),
    ],
)
def test_a_value_becomes_its_words(value: object, words: list[str]) -> None:
    assert texts({"x": Setting(value, "o")}) == words  # type: ignore[arg-type]


def test_every_word_has_its_origin() -> None:
    words = flags.words({"a": Setting(1, "role prefill"), "b": Setting(True, "topology t.yaml:3")})
    assert words == (
        Word("--a", "role prefill"),
        Word("1", "role prefill"),
        Word("--b", "topology t.yaml:3"),
    )


@pytest.mark.parametrize("name", ["api-key", "admin-api-key", "hf-token", "ssl-keyfile-password"])
def test_keys_are_not_printed(name: str) -> None:
    flag, value = flags.words({name: Setting("s3cret", "o")})
    assert value.secret
    assert not flag.secret


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET", "DB_PASSWORD"])
def test_variables_with_keys_are_not_printed(name: str) -> None:
    assert flags.variables({name: Setting("s3cret", "o")})[name].secret


def test_plain_variables_are_printed() -> None:
    assert not flags.variables({"TOKENIZERS_PARALLELISM": Setting(False, "o")})[
        "TOKENIZERS_PARALLELISM"
    ].secret


def test_the_users_flag_replaces_the_adapters_whatever_its_spelling() -> None:
    own = {"tp-size": Setting(2, "plan"), "host": Setting("h", "plan")}
    merged = flags.merge(
        own, {"tensor_parallel_size": Setting(4, "user")}, {"tensor-parallel-size": "tp-size"}
    )
    assert texts(merged) == ["--tp-size", "4", "--host", "h"]


def test_a_null_takes_an_adapters_flag_away() -> None:
    assert texts(flags.merge({"a": Setting(True, "adapter")}, {"a": Setting(None, "user")}, {})) == []


@pytest.mark.parametrize("user", [{"x": {"b": 2}}, '{"x": {"b": 2}}'])
def test_objects_are_merged_key_by_key(user: object) -> None:
    own = {"c": Setting({"k": 1, "x": {"a": 1}}, "role prefill")}
    merged = flags.merge(own, {"c": Setting(user, "topology t.yaml:3")}, {})  # type: ignore[arg-type]
    assert merged["c"] == Setting({"k": 1, "x": {"a": 1, "b": 2}}, "role prefill + topology t.yaml:3")


def test_what_is_no_object_replaces_one() -> None:
    merged = flags.merge({"c": Setting({"k": 1}, "role")}, {"c": Setting("{broken", "user")}, {})
    assert merged["c"].value == "{broken"


def test_variables_are_text() -> None:
    settings = {
        "A": Setting(True, "o"),
        "B": Setting(False, "o"),
        "C": Setting(3, "o"),
        "D": Setting(None, "o"),
    }
    assert {name: word.text for name, word in flags.variables(settings).items()} == {
        "A": "1",
        "B": "0",
        "C": "3",
    }


@pytest.mark.parametrize(("value", "number"), [(3, 3), ("30", 30), (True, None), ("x", None), (1.5, None)])
def test_numbers_are_read_where_they_are_whole(value: object, number: int | None) -> None:
    assert flags.number(Setting(value, "o")) == number  # type: ignore[arg-type]
    assert flags.number(None) is None
