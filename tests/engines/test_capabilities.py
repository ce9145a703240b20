"""Tables of what versions know: how they are read and written, and which one stands for a version."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.capabilities import Flag, dump, known, order, parse, release, shipped

ENGINES = ("orchestrator.engines.sglang", "orchestrator.engines.vllm")

TOLD: dict[str, Any] = {
    "version": "1.2.3+cpu",
    "flags": {
        "page-size": {"kind": "int", "default": 1, "also": ["block-size"]},
        "config": {"kind": "json"},
        "old": {"kind": "text", "choices": ["a", "b"], "deprecated": "--new", "gone": True},
    },
    "variables": {"X_TWO": {"default": 2}, "X_ONE": {}},
    "replaced": {"X_ZERO": "it is X_ONE now"},
}


def test_a_table_is_read_as_it_was_written() -> None:
    table = parse(dump(TOLD), {"--gone": "use --page-size"})
    assert table.version == "1.2.3"
    assert table.flags["old"] == Flag("text", None, ("a", "b"), (), False, "--new", True)
    assert table.variables == {"X_ONE": None, "X_TWO": 2}
    assert table.replaced == {"X_ZERO": "it is X_ONE now", "--gone": "use --page-size"}
    assert table.names() == {"page-size", "block-size", "config", "old"}


def test_a_flag_is_found_by_each_of_its_names() -> None:
    table = parse(dump(TOLD))
    for name in ("page-size", "block-size", "no-page-size"):
        assert table.flag(name) is table.flags["page-size"]
    assert table.flag("config.level") is table.flags["config"]
    assert table.flag("page") is None


def test_a_line_a_flag() -> None:
    assert b'\n  "page-size": {"kind":"int","default":1,"also":["block-size"]},\n' not in dump(TOLD)
    assert b'\n  "page-size": {"kind":"int","default":1,"also":["block-size"]}\n' in dump(TOLD)
    assert b'"version": "1.2.3"' in dump(TOLD)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version": "1"}', b'{"version": "1", "flags": {"x": 1}}'])
def test_what_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)


def test_versions_are_sorted_by_their_numbers() -> None:
    assert release("0.32.0+cpu") == "0.32.0"
    assert release("0.5.23.post1") == "0.5.23"
    assert order("0.5") < order("0.5.1") < order("0.5.23") < order("0.10")
    assert order("main") == ()


@pytest.mark.parametrize("package", ENGINES)
def test_what_is_shipped(package: str) -> None:
    tables = shipped(package)
    assert tables
    assert [order(t.version) for t in tables] == sorted(order(t.version) for t in tables)
    for table in tables:
        assert len(table.flags) > 300
        assert len(table.variables) > 300
        assert "kv-cache-dtype" in table.flags
        # Nothing of the machine that it was made on.
        assert not [d for d in table.variables.values() if isinstance(d, str) and d.startswith("/")]
        # What replaced a name is not itself unknown, and what is gone is not there.
        assert not [name for name in table.replaced if table.flag(name.removeprefix("--")) is not None]


@pytest.mark.parametrize("package", ENGINES)
def test_the_nearest_version_below_stands_in(package: str) -> None:
    newest = shipped(package)[-1]
    assert known(package, newest.version).exact
    assert known(package, newest.version + "+local").exact
    assert known(package, None) == known(package, newest.version)
    later = known(package, "99.0")
    assert (later.table, later.exact) == (newest, False)
    earlier = known(package, "0.0.1")
    assert (earlier.table, earlier.exact) == (shipped(package)[0], False)


def test_what_replaced_what() -> None:
    sglang, vllm = (shipped(package)[-1].replaced for package in ENGINES)
    assert "lease" in vllm["VLLM_NIXL_ABORT_REQUEST_TIMEOUT"]
    assert "bootstrap" in sglang["--disaggregation-decode-tp"]
    assert "num_prefill_bootstrap_queue_reqs" in sglang["sglang:num_prefill_prealloc_queue_reqs"]
