"""Mock engines and load generator do what they say; the words that start pdctl and its peers.

Covers native, own, contender and peers.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from benchmarks import mock, native, own, peers
from benchmarks.mock import Engine, Load
from benchmarks.processes import ask

ENGINES = [Engine("prefill", 1, 2), Engine("decode", 3, 0)]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_engines_answer_and_stream_what_the_load_generator_counts(tmp_path: Path, dialect: str) -> None:
    with mock.engines(tmp_path, dialect, ("prefill", "decode"), tick_us=1000) as (prefill, decode):
        whole = mock.put(Load("whole", 40, 4, 40_000), decode.port, tmp_path)
        assert (whole.good, whole.failed, whole.chunks) == (40, 0, 0)
        assert 0 < whole.latency_ms["p50"] <= whole.latency_ms["max"]
        streams = mock.put(Load("streams", 6, 3, 2000, tokens=7), decode.port, tmp_path)
        assert (streams.good, streams.failed, streams.chunks) == (6, 0, 42)
        one = mock.put(Load("streams", 1, 1, 2000, tokens=7), prefill.port, tmp_path)
        assert one.chunks == 1
        due = mock.put(Load("due", 5, 2, 1000, rate=1000.0), decode.port, tmp_path)
        assert due.good == 5
        assert ask(decode.port, "GET", "/v1/models")[0] == 200
        assert ask(decode.port, "GET", "/nowhere")[0] == 404
        # A router that tries HTTP/2 first must not end it.
        with pytest.raises(OSError):
            ask(decode.port, "PRI", "*")
        assert ask(decode.port, "GET", "/health")[0] == 200


def test_requests_that_nobody_answers_have_failed(tmp_path: Path) -> None:
    with mock.engines(tmp_path, "vllm", ("unified",)) as (engine,):
        port = engine.port
    told = mock.put(Load("gone", 3, 1, 1000), port, tmp_path)
    assert (told.good, told.failed) == (0, 3)


def test_a_body_has_its_size_and_a_mark_to_make_it_unique() -> None:
    for size in (1024, 32 * 1024):
        body = Load("x", 1, 1, size).body()
        assert len(body) == size
        assert b"@@@@@@@@" in body
    assert json.loads(Load("x", 1, 1, 1024, tokens=5).body())["stream"] is True


def test_without_a_compiler_the_fix_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no C compiler: install"):
        native.program("engine", tmp_path, "no-such-compiler")


def test_peers_are_told_of_engines_in_their_own_words() -> None:
    paired = peers.peer("sglang-router").behind(ENGINES)
    assert paired == [
        "--pd-disaggregation", "--prefill", "http://127.0.0.1:1", "2", "--decode", "http://127.0.0.1:3",
    ]  # fmt: skip
    assert "2" not in peers.peer("vllm-router").behind(ENGINES)
    assert peers.peer("smg").behind([Engine("unified", 5, 0)]) == ["--worker-urls", "http://127.0.0.1:5"]


def test_nginx_passes_on_to_those_who_answer(tmp_path: Path) -> None:
    config = peers.nginx_config(ENGINES, 80, tmp_path)
    assert "server 127.0.0.1:3;" in config
    assert "127.0.0.1:1;" not in config


def test_a_topology_names_engines_by_role(tmp_path: Path) -> None:
    path = own.topology(tmp_path, "x", ENGINES, 9, engine="sglang", more={"slo_classes": {}})
    pools = json.loads(path.read_text())["pools"]
    assert pools["prefill"]["external"] == [{"url": "http://127.0.0.1:1", "bootstrap_port": 2}]
    assert pools["decode"]["external"] == [{"url": "http://127.0.0.1:3"}]
    made = own.contender("pdctl compiled", path, 9, "sglang", compiled=tmp_path)
    assert made.env == {"PYTHONPATH": str(tmp_path)}


def test_the_newest_compiled_wheel_is_unpacked_once(tmp_path: Path) -> None:
    assert own.compiled_wheel(tmp_path / "none", tmp_path) is None
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("orchestrator/x.py", "")
    place = own.compiled_wheel(tmp_path, tmp_path / "cache")
    assert place is not None
    assert (place / "orchestrator" / "x.py").exists()
    assert own.compiled_wheel(tmp_path, tmp_path / "cache") == place
