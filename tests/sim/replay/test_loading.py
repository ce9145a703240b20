"""Traces from files: both public formats, pdctl's own log (`recorded`), and each way to be wrong, by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.errors import TraceError
from orchestrator.sim.replay.loading import load
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.trace import Trace, ceiling

DATA = Path(__file__).resolve().parents[2] / "data" / "traces"


def write(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def lines(tmp_path: Path, *objects: object) -> Path:
    return write(tmp_path, "\n".join(json.dumps(o) for o in objects), "t.jsonl")


def problems(path: Path) -> list[str]:
    with pytest.raises(TraceError) as caught:
        load(path)
    return [str(problem) for problem in caught.value.problems]


def test_mooncake() -> None:
    trace = load(DATA / "mooncake_synthetic_400.jsonl")
    first = trace.entries[0]
    assert (trace.name, trace.block_tokens, len(trace.entries)) == ("mooncake_synthetic_400", 512, 400)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 40160, 6)
    assert first.ids == tuple(range(79))
    assert trace.entries[2].at_s == 0.04
    hit, total = ceiling(trace.entries, 512)
    assert hit / total == pytest.approx(0.0543, abs=1e-4)


def test_azure() -> None:
    trace = load(DATA / "azure_2023_code_400.csv")
    assert trace.block_tokens is None
    assert [(e.prompt_tokens, e.output_tokens) for e in trace.entries[:2]] == [(4808, 10), (3180, 8)]
    assert trace.entries[1].at_s == pytest.approx(0.052, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01.51+00:00,10,7\n",
        "GeneratedTokens,TIMESTAMP,ContextTokens\n5,2023-11-16 18:17:03.0099300,2162\n"
        "7,2023-11-16 18:17:04.51,10\n",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n17.00993,2162,5\n18.51,10,7\n",
        "\ufeffTimestamp, Request tokens, Response tokens, Model\n5, 2162, 5, m\n6.50007,10,7,m\n\n",
    ],
    ids=["zone", "columns", "seconds", "spaces"],
)
def test_other_columns_and_times(tmp_path: Path, text: str) -> None:
    entries = load(write(tmp_path, text)).entries
    assert [(e.prompt_tokens, e.output_tokens) for e in entries] == [(2162, 5), (10, 7)]
    assert entries[1].at_s == pytest.approx(1.50007, abs=1e-6)


def test_out_of_order_and_empty_requests_are_noted(tmp_path: Path) -> None:
    text = "time,input_tokens,output_tokens\n5,10,3\n2,20,4\n3,0,4\n4,5,0\n"
    trace = load(write(tmp_path, text))
    assert [(e.at_s, e.prompt_tokens) for e in trace.entries] == [(0.0, 20), (3.0, 10)]
    assert trace.notes == ("2 requests left out: no prompt or no output", "sorted by time of arrival")


def test_bad_csv_says_where(tmp_path: Path) -> None:
    text = "time,input_tokens,output_tokens\n1,10,3\nsoon,10,3\n2,many,3\n3,10\n"
    path = write(tmp_path, text)
    assert problems(path) == [
        f"{path}:3: time: is neither a number of seconds nor a time: 'soon'",
        f"{path}:4: input_tokens: is no count of tokens: 'many'",
        f"{path}:5: output_tokens: is no count of tokens: ''",
    ]


def test_columns_that_could_be_two_things_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "time,timestamp,tokens\n1,2,3\n")
    found = problems(path)
    assert found[0].startswith(f"{path}:1: several columns for the time of arrival")
    assert found[1].startswith(f"{path}:1: no column for the prompt tokens (name it 'contexttokens'")
    assert len(found) == 3


def test_bad_lines_say_where(tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}
    path = lines(
        tmp_path,
        good,
        {**good, "input_length": "long"},
        {**good, "hash_ids": [1.5]},
        {"timestamp": 1, "input_length": 3, "output_lenght": 4},
        [1, 2],
    )
    assert problems(path) == [
        f"{path}:2: input_length: is no number: 'long'",
        f"{path}:3: hash_ids: is no list of whole numbers",
        f"{path}:4: output_length: is missing (did you mean 'output_lenght'?)",
        f"{path}:5: is no JSON object",
    ]
    cut = write(tmp_path, '{"timestamp": 0, "input_length": 5', "cut.jsonl")
    assert problems(cut)[0].startswith(f"{cut}:1: is no JSON: ")


def test_what_is_no_trace(tmp_path: Path) -> None:
    assert problems(tmp_path / "gone.csv") == [
        f"{tmp_path / 'gone.csv'}: cannot be read: No such file or directory"
    ]
    assert problems(write(tmp_path, "")) == [f"{tmp_path / 't.csv'}: is empty"]
    assert "holds no request" in problems(write(tmp_path, "time,input_tokens,output_tokens\n"))[0]
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    assert problems(binary) == [f"{binary}: cannot be read: it is no text in UTF-8"]


DECIDED = {
    "v": 1, "request_id": "ab", "recorded": "full", "arrived_s": 1764540000.25, "path": "chat",
    "slo_class": "interactive", "prompt_tokens": 400, "estimated_tokens": 400, "output_tokens": 20,
    "max_tokens": 256, "end": "completed", "block_tokens": 128,
    "block_hashes": ["00000000000000aa", "ffffffffffffffff"],
}  # fmt: skip


def decided(tmp_path: Path, *changes: dict[str, object]) -> Trace:
    return load(lines(tmp_path, *({**DECIDED, **change} for change in changes)))


def test_a_decision_log(tmp_path: Path) -> None:
    trace = decided(
        tmp_path, {"tenant": "acme"}, {"arrived_s": 1764540001.0, "slo_class": None, "tenant": None}
    )
    assert (trace.block_tokens, trace.notes) == (128, ())
    first, second = trace.entries
    assert (first.at_s, second.at_s) == (0.0, 0.75)
    assert (first.ids, first.slo_class, first.max_tokens) == ((0xAA, 2**64 - 1), "interactive", 256)
    assert second.slo_class is None
    assert (first.tenant, second.tenant) == ("acme", None)
    assert Requests(trace).view(0, 0.0).tenant == "acme"


def test_requests_that_were_refused_were_offered_all_the_same(tmp_path: Path) -> None:
    """With the usual output of their class: what it would have been is not known."""
    refused = {"end": "refused", "output_tokens": 0}
    trace = decided(
        tmp_path,
        {},
        {"output_tokens": 40},
        {"output_tokens": 90},
        {"slo_class": "batch", "output_tokens": 500},
        refused,
        {**refused, "slo_class": "batch", "max_tokens": 100},
        {**refused, "slo_class": "new"},
    )
    assert [e.output_tokens for e in trace.entries[4:]] == [40, 100, 40]
    assert trace.notes == ("3 requests that got no whole answer are given their class's median output",)


def test_a_sampled_log_says_so(tmp_path: Path) -> None:
    trace = decided(tmp_path, {"recorded": "sample"}, {"path": "embed"})
    assert len(trace.entries) == 1
    assert trace.notes == (
        "the log is a sample (scheduling.decisions.record): the true rate was higher",
        "1 requests that generate nothing are left out",
    )


def test_blocks_of_a_wrong_estimate_stand_for_their_share_of_the_prompt(tmp_path: Path) -> None:
    """The router took 1,024 tokens to be 2,048: two of its blocks are one of the prompt's, or the reverse."""
    hashes = [f"{n:016x}" for n in range(16)]
    (more,) = decided(
        tmp_path, {"prompt_tokens": 1024, "estimated_tokens": 2048, "block_hashes": hashes}
    ).entries
    assert more.ids == (1, 3, 5, 7, 9, 11, 13, 15)
    (less,) = decided(
        tmp_path, {"prompt_tokens": 1024, "estimated_tokens": 512, "block_hashes": hashes[:4]}
    ).entries
    assert less.ids == (0, 0, 1, 1, 2, 2, 3, 3)


def test_logs_of_different_blocks_cannot_be_joined(tmp_path: Path) -> None:
    path = lines(tmp_path, DECIDED, {**DECIDED, "block_tokens": 64})
    assert problems(path) == [f"{path}: has blocks of 64 and 128 tokens: they cannot be compared"]
    assert problems(lines(tmp_path, {**DECIDED, "block_hashes": [None]})) == [
        f"{path}:1: block_hashes: is no list of hashes"
    ]
    assert problems(lines(tmp_path, {**DECIDED, "prompt_tokens": -1}))[0].endswith(
        "is no count of tokens: -1"
    )
