"""YAML with positions: what the text means, the line of each key, every syntax fault in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.topology.source import MAX_BYTES, dotted, parse, parse_value, read


def told(text: str) -> list[str]:
    return [str(p) for p in parse(text, "t.yaml").problems]


def test_lines_of_keys_and_items() -> None:
    source = parse("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "t.yaml")
    assert source.data == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert source.line(("a", "b")) == 2
    assert source.line(("a", "c", 1)) == 5
    assert source.line(("a", "c", 1, "y")) == 5
    assert source.line(("a", "c", 7, "z")) == 3, "the nearest place that has a line"
    assert source.line(("nowhere",)) is None


def test_words_stay_words() -> None:
    text = "on: no\noff: yes\ntime: 12:30\ndate: 2030-01-01\nint: 1_000\nempty:\ntilde: ~\n"
    assert parse(text + "hex: 0x1f\nexp: 1e3\nlead: 017", "t").data == {
        "on": "no",
        "off": "yes",
        "time": "12:30",
        "date": "2030-01-01",
        "int": "1_000",
        "empty": None,
        "tilde": None,
        "hex": 31,
        "exp": 1000.0,
        "lead": "017",
    }


def test_anchors_and_merge_keys() -> None:
    source = parse(
        "base: &b\n  x: 1\n  y: {k: 2}\nlist: &l [1]\nuse:\n  <<: *b\n  x: 9\nalso: *l\n"
        "both:\n  <<: [*b, {z: 3}]\n",
        "t",
    )
    assert source.data["use"] == {"x": 9, "y": {"k": 2}}
    assert source.data["also"] == [1]
    assert source.data["both"] == {"x": 1, "y": {"k": 2}, "z": 3}
    assert source.line(("use", "x")) == 7
    assert source.line(("use", "y")) == 3, "an inherited key is where it was written"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "t.yaml: is empty"),
        ("# only a comment\n", "t.yaml: is empty"),
        ("- a\n", "t.yaml:1: must be a mapping of settings, not a list"),
        ("just words", "t.yaml:1: must be a mapping of settings, not 'just words'"),
        ("a: 1\nb: 2\na: 3\n", "t.yaml:3: a: is given twice (first on line 1)"),
        ("a:\n\tb: 1\n", "t.yaml:2: a tab where YAML wants spaces (indent with spaces)"),
        ("a: *nope\n", "t.yaml:1: is not valid YAML: no anchor has the name of the alias 'nope'"),
        ("a: 1\n---\nb: 2\n", "t.yaml:2: holds more than one YAML document"),
        ("a: &a [*a]\n", "t.yaml:1: a.0: contains itself through an alias"),
        (
            "a: !!python/object:os.system x\n",
            "t.yaml:1: a: the YAML tag tag:yaml.org,2002:python/object:os.system",
        ),
        ("[a, b]: 1\n", "t.yaml:1: a key must be a word, not a list"),
        ("a:\n  <<: 3\n", "t.yaml:2: a: << takes a mapping, not '3'"),
        ("a: 1e999\n", "t.yaml:1: a: '1e999' is not a number pdctl can read"),
        ("a: " + "9" * 5000, "is not a number pdctl can read"),
        ("a: b: c\n", "is the indentation right"),
        ("a: [1\n", "t.yaml:2: is not valid YAML"),
        ("a\x00: 1\n", "t.yaml: holds a character that YAML forbids (U+0000)"),
        ("a: " + "[" * 3000, "t.yaml: is nested too deeply"),
    ],
)
def test_faults_in_plain_words(text: str, expected: str) -> None:
    assert any(expected in line for line in told(text)), told(text)


def test_all_duplicates_are_told_at_once() -> None:
    assert len(told("a: 1\na: 2\nb: {c: 1, c: 2}\n")) == 2


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert told("\n".join(layers)) == ["t.yaml: unfolds to more than 100000 values"]


def test_reading_files(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_bytes("﻿name: ä\n".encode())
    assert read(file).data == {"name": "ä"}
    file.write_bytes(b"a: 1\nb: \xff\n")
    assert str(read(file).problems[0]) == f"{file}:2: is not UTF-8 text"
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    assert "is larger than" in read(file).problems[0].message
    assert str(read(tmp_path).problems[0]) == f"{tmp_path}: is a directory, not a file"
    assert str(read(tmp_path / "no").problems[0]) == f"{tmp_path / 'no'}: no such file"
    assert "cannot be read" in read(tmp_path / ("x" * 300)).problems[0].message


def test_values_of_set_are_yaml() -> None:
    assert parse_value("3") == 3
    assert parse_value("[a, {b: 1}]") == ["a", {"b": 1}]
    assert parse_value("") is None
    assert parse_value("127.0.0.1:8000") == "127.0.0.1:8000"
    with pytest.raises(ValueError, match="not valid YAML"):
        parse_value("[1")
    with pytest.raises(ValueError, match="given twice"):
        parse_value("{a: 1, a: 2}")


def test_origins_name_file_and_line() -> None:
    source = parse("a:\n  b: 1\n", "/somewhere/t.yaml")
    assert source.origin(("a", "b")) == "t.yaml:2"
    source.overridden[("a", "b")] = "a.b"
    assert source.origin(("a", "b")) == "--set"
    assert str(source.problem(("a", "b"), "is wrong")) == "--set a.b: is wrong"
    assert dotted(("x", 0, "y")) == "x.0.y"


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text("abc: #-'\"\n{}[]&*!|>%@`0159.eE", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcxyz-", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=4), json_like, min_size=1, max_size=4))
def test_json_is_yaml(data: dict[str, object]) -> None:
    source = parse(json.dumps(data), "t.yaml")
    assert source.problems == []
    assert source.data == data


@given(st.text(max_size=60))
def test_any_text_gives_findings_and_never_a_traceback(text: str) -> None:
    source = parse(text, "t.yaml")
    assert source.data or source.problems or text.strip(" ﻿{}\n\r\t")
