"""Splicing: what an edit means is JSON's business, what it leaves alone is the client's to the byte."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.engines.splice import JsonBody, _between, _only_keys, _scan, _span, quote
from orchestrator.errors import BadRequest

# Text that hurts scanners: quotes and backslashes in runs, brackets and colons within strings.
nasty_text = st.text(st.sampled_from('ab"\\{}[],: \n\té\u2028\U0001f600'), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | nasty_text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(nasty_text, inner, max_size=4),
    max_leaves=12,
)
names = nasty_text | st.sampled_from(["model", "prompt", "stream", "bootstrap_room"])
objects = st.dictionaries(names, values, max_size=6)


@st.composite
def spelled(draw: st.DrawFn) -> bytes:
    """An object in one of the ways a client may write it."""
    body = draw(objects)
    text = json.dumps(
        body,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.none() | st.integers(0, 2)),
        separators=draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])),
    )
    return (
        draw(st.sampled_from(["", " ", "\n\t"])).encode()
        + text.encode()
        + draw(st.sampled_from([b"", b"\n"]))
    )


def joined(pieces: tuple[bytes, ...]) -> bytes:
    return b"".join(pieces)


@settings(max_examples=300)
@given(raw=spelled(), set_=st.dictionaries(names, values, max_size=4), data=st.data())
def test_an_edit_means_what_the_same_change_of_the_parsed_object_means(
    raw: bytes, set_: dict[str, Any], data: st.DataObject
) -> None:
    body = JsonBody(raw)
    drop = data.draw(st.lists(names | st.sampled_from(list(body.fields) or ["x"]), max_size=4))
    edited = joined(body.edit({name: quote(value) for name, value in set_.items()}, drop))
    want = {k: v for k, v in json.loads(raw).items() if k not in drop} | set_
    assert json.loads(edited) == want
    assert JsonBody(edited).fields.keys() == want.keys()


def test_a_name_with_a_backslash_is_not_mistaken_for_anothers_escape() -> None:
    raw = json.dumps({"": 0, '"é': 1, '\\"é': 2}, ensure_ascii=False).encode()
    assert JsonBody(raw).text('\\"é') == b"2"


@settings(max_examples=300)
@given(raw=spelled(), data=st.data())
def test_untouched_fields_keep_their_bytes_and_their_order(raw: bytes, data: st.DataObject) -> None:
    body = JsonBody(raw)
    touched = data.draw(st.sets(st.sampled_from(list(body.fields) or ["x"])))
    edited = JsonBody(joined(body.edit(dict.fromkeys(touched, b"0") | {"added": b"1"})))
    for name in body.fields.keys() - touched:
        if name != "added":
            assert edited.text(name) == body.text(name)
    kept = [name for name in body.fields if name != "added"]
    assert [name for name in edited.fields if name in kept] == kept


@given(raw=spelled())
def test_the_text_of_each_field_is_its_value(raw: bytes) -> None:
    body = JsonBody(raw)
    assert {name: json.loads(body.text(name)) for name in body.fields} == json.loads(raw)


@given(raw=spelled())
def test_the_walk_of_large_bodies_agrees_with_the_pattern_of_small_ones(raw: bytes) -> None:
    small = JsonBody(raw)
    large = JsonBody(joined(small.edit({"filler": b'"' + b"f" * 70_000 + b'"'})))
    assert [large.text(name) for name in small.fields] == [small.text(name) for name in small.fields]


@given(raw=spelled())
def test_no_change_gives_the_clients_own_object(raw: bytes) -> None:
    body = JsonBody(raw)
    assert body.edit({}, ["absent"])[0] is raw


@given(raw=spelled(), value=values)
def test_a_new_field_is_put_in_front_of_untouched_bytes(raw: bytes, value: Any) -> None:
    body = JsonBody(raw)
    edited = joined(body.edit({"\x01new": quote(value)}))
    assert edited.endswith(raw[raw.index(b"{") + 1 :])


def test_what_a_client_wrote_survives_to_the_byte() -> None:
    raw = (
        rb'{ "temperature":0.7 ,"big":12345678901234567890, "s":"\u00e9\/\"}{","x":{"a":[1]},"stream" :true }'
    )
    edited = joined(JsonBody(raw).edit({"stream": b"false", "rid": b'"r"'}, ["x"]))
    assert edited == (
        rb'{"rid":"r", "temperature":0.7 ,"big":12345678901234567890, "s":"\u00e9\/\"}{","stream" :false }'
    )


@pytest.mark.parametrize("drop", [["a"], ["b"], ["c"], ["a", "b"], ["b", "c"], ["a", "c"], ["a", "b", "c"]])
@pytest.mark.parametrize("added", [{}, {"n": b"0"}])
def test_dropping_leaves_no_stray_comma(drop: list[str], added: dict[str, bytes]) -> None:
    edited = joined(JsonBody(b'{"a":1, "b":2, "c":3}').edit(added, drop))
    want = {"n": 0} if added else {}
    assert json.loads(edited) == want | {k: v for k, v in {"a": 1, "b": 2, "c": 3}.items() if k not in drop}


def test_an_escaped_spelling_of_a_name_is_the_same_name() -> None:
    raw = rb'{"bootstrap\u005froom":7,"p":1}'
    assert JsonBody(raw).has("bootstrap_room")
    assert joined(JsonBody(raw).edit({}, ["bootstrap_room"])) == b'{"p":1}'


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a":1,"a":1}',
        rb'{"a":1,"b":2,"a":3}',
        rb'{"a":{"a":1},"b":[],"a":"x"}',
        rb'{"bootstrap_room":1,"x":[{"y":"\\\\\""}],"bootstrap\u005froom":2}',
        b'{"a":' + b"[" * 40 + b"]" * 40 + b',"a":1}',
        b'{"a":"' + b"x" * 200_000 + b'","b":{"c":["' + b"y" * 200_000 + b'"]},"a":1}',
    ],
)
def test_a_field_given_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        JsonBody(raw)
    assert refused.value.reason == "duplicate-field"
    assert refused.value.param in {"a", "bootstrap_room"}


# Names that come again inside of values, where they are no fields.
words = st.sampled_from(["a", "b", "model", "x_1"])
wordy = st.recursive(
    st.integers(0, 9) | words | st.sampled_from(['say "model', '"a":', "\\", "\x7f"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(
    fields=st.lists(st.tuples(words, wordy), max_size=5),
    gap=st.sampled_from(["", " ", "\n\t"]),
)
def test_keys_that_are_searched_for_are_found_where_a_scan_finds_them(
    fields: list[tuple[str, Any]], gap: str
) -> None:
    texts = [f"{gap}{json.dumps(name)}{gap}:{gap}{json.dumps(value)}{gap}" for name, value in fields]
    raw = f"{gap}{{{','.join(texts)}{gap}}}{gap}".encode()
    keys = _only_keys(raw, orjson.loads(raw))
    if len({name for name, _ in fields}) < len(fields):
        assert keys is None
        with pytest.raises(BadRequest, match="given twice"):
            JsonBody(raw)
    elif keys is not None:
        ends = [*keys.values(), -1][1:]
        found = [
            _between(raw, at, len(name), end) for (name, at), end in zip(keys.items(), ends, strict=True)
        ]
        assert found == list(map(_span, _scan(raw)))


def test_a_name_in_ascii_escapes_is_left_to_the_scan() -> None:
    plain, escaped = rb'{"model": "a"}', rb'{"model": 1, "mod\u0065l": "a"}'
    assert _only_keys(plain, orjson.loads(plain)) == {"model": 1}
    assert _only_keys(escaped, orjson.loads(escaped)) is None


@settings(max_examples=300)
@given(body=st.dictionaries(names, values, min_size=1, max_size=5), value=values, data=st.data())
def test_any_repeated_name_is_found(body: dict[str, Any], value: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(body)))
    items = [*body.items()]
    items.insert(data.draw(st.integers(0, len(items))), (name, value))
    escape = data.draw(st.booleans())
    raw = "{" + ",".join(f"{json.dumps(k, ensure_ascii=escape)}: {json.dumps(v)}" for k, v in items) + "}"
    with pytest.raises(BadRequest, match="given twice"):
        JsonBody(raw.encode())


def test_equal_names_at_different_depths_are_no_repetition() -> None:
    assert JsonBody(b'{"a":{"a":1,"b":{"a":2}},"b":[{"a":1},{"a":1}]}').fields["a"]["a"] == 1


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"a":}', b"nope", b"[1]", b'"x"', b"1", b"null", b'{"a":NaN}', b"\xff{}"]
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        JsonBody(raw)
    assert refused.value.http_status == 400


@pytest.mark.parametrize("backslashes", range(9))
@pytest.mark.parametrize("filler", ["", "f" * 70_000])
def test_any_run_of_backslashes_before_a_quote_is_counted(backslashes: int, filler: str) -> None:
    value = "\\" * (backslashes // 2) + ('"' if backslashes % 2 else "") + "}],"
    body = {"k" + value: value, "deep": [{"x": [value, {"y": value}]}], "filler": [filler], "last": 1}
    raw = json.dumps(body).encode()
    assert json.loads(joined(JsonBody(raw).edit({"last": b"2"}, ["deep"]))) == {
        "k" + value: value,
        "filler": [filler],
        "last": 2,
    }


@pytest.mark.parametrize("depth", [1, 11, 12, 13, 14, 60])
@pytest.mark.parametrize("filler", ["", "f" * 70_000])
def test_nesting_of_any_depth_is_passed_over(depth: int, filler: str) -> None:
    value: Any = filler
    for level in range(depth):
        value = {"k": value} if level % 2 else [value, 1]
    raw = json.dumps({"v": value, "last": 1}).encode()
    body = JsonBody(raw)
    assert orjson.loads(body.text("v")) == value
    assert joined(body.edit({}, ["v"])) == b'{ "last": 1}'


@pytest.mark.parametrize(
    "value",
    [
        list(range(100_000)),
        [[1, 2], list(range(50_000)), [-3.5]],
        [1, "x", [2], {"y": [3]}] * 20_000,
        [{"type": "text", "text": 'a "quoted" word\n' * 3}] * 2_000,
        {"url": "data:image/png;base64," + "A" * 1_000_000},
    ],
    ids=["tokens", "token-lists", "mixed", "chat", "data-url"],
)
def test_large_values_are_measured_right(value: Any) -> None:
    body = JsonBody(json.dumps({"a": 1, "v": value, "z": None}).encode())
    assert orjson.loads(body.text("v")) == value
    assert re.fullmatch(rb'\{"n":0,"a": 1, "z": null\}', joined(body.edit({"n": b"0"}, ["v"])))
