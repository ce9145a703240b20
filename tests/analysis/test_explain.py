"""A record in words: what each kind of request and of end says, and that figures are those of the record."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.explain import HEAD, columns, lines, row

PREDICTION = {
    "waited_s": 0.4,
    "wait_s": 0.0,
    "prefill_s": 0.18,
    "handoff_s": 0.05,
    "ttft_s": 0.63,
    "tail_s": 0.9,
    "quantile": 0.99,
    "itl_s": 0.02,
    "cached_tokens": 6016,
    "due_s": 1.86,
}
SCORED = [
    {
        "endpoint": "p1",
        "total": 0.41,
        "parts": {"wait": 0.0, "prefill": 0.18, "hand-off": 0.05, "others": 0.18},
    },
    {
        "endpoint": "p0",
        "total": 0.73,
        "parts": {"wait": 0.32, "prefill": 0.18, "hand-off": 0.05, "others": 0.18},
    },
    {"endpoint": "p2", "total": 100_002.0, "parts": {"wait": 1.5, "others": 0.5, "late": 1e5}},
]
CHOICE = {
    "role": "prefill",
    "chosen": "p1",
    "runner_up": "p0",
    "unit": "seconds",
    "scored": SCORED,
    "filtered": {"p3": "warm-up", "p4": "warm-up"},
    "fallbacks": ["odd"],
}
RECORD: dict[str, Any] = {
    "v": 1,
    "request_id": "5f" * 16,
    "client_request_id": "mine",
    "recorded": "sample",
    "arrived_s": 1_800_000_000.25,
    "model": "m",
    "path": "chat",
    "tenant": "acme",
    "slo_class": "interactive",
    "clamped_from": "realtime",
    "prompt_tokens": 8123,
    "estimated_tokens": 8000,
    "output_tokens": 301,
    "cached_tokens": 6144,
    "max_tokens": 512,
    "n": 1,
    "stream": True,
    "end": "completed",
    "status": 200,
    "reason": "",
    "message": "",
    "route": {"prefill": "p1", "decode": "d0"},
    "tries": [],
    "ttft_s": 0.66,
    "e2e_s": 6.66,
    "stages": {
        "queue": 0.4,
        "connect": 0.01,
        "prefill": 0.2,
        "bind": 0.01,
        "first_token": 0.04,
        "decode": 6.0,
    },
    "promise": {
        "verdict": "kept",
        "quantile": 0.99,
        "ttft_bound_s": 1.86,
        "tpot_bound_s": 0.04,
        "e2e_bound_s": None,
        "tpot_s": 0.02,
    },
    "admitted": {**PREDICTION, "waited_s": 0.0, "wait_s": 0.35, "ttft_s": 0.58},
    "predicted": PREDICTION,
    "choices": [CHOICE],
}


def said(**changes: Any) -> str:
    """The explanation as a text, runs of spaces made one."""
    text = "\n".join(lines({**RECORD, **changes}))
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))


def test_what_was_asked() -> None:
    text = said()
    assert f"Request {'5f' * 16} (its client calls it mine)" in text
    assert "chat for m, streamed, tenant acme; arrived 2027-01-15 08:00:00.250 UTC" in text
    assert "class interactive; it asked for realtime, which its tenant may not use" in text
    assert "8,123 tokens (estimated at 8,000), 6,144 of them cached (6,016 were expected)" in text
    assert "at most 512 tokens to generate" in text
    assert "recorded because it fell into the sample" in text


def test_where_it_could_have_gone_and_by_how_much_the_choice_won() -> None:
    text = said()
    assert "Sent to p1 > d0" in text
    assert "> p1 410 ms = wait 0.0 ms + prefill 180 ms + hand-off 50.0 ms + others 180 ms" in text
    assert "p2 2,000 ms = wait 1,500 ms + others 500 ms (too late for its promise)" in text
    assert "p3, p4: kept out by warm-up" in text
    assert "the policy odd failed and was passed over" in text
    assert "320 ms better than p0" in text


def test_scores_are_the_better_the_higher() -> None:
    scored = [{"endpoint": e, "total": t, "parts": {"load": t}} for e, t in (("p0", 0.5), ("p1", 0.75))]
    share = {**CHOICE, "unit": "share", "scored": scored, "filtered": {}, "fallbacks": []}
    text = said(choices=[share])
    assert text.index("> p1 0.750") < text.index("p0 0.500")
    assert "0.250 better than p0" in text
    assert "p1 was 0.250 better, and was not picked" in said(
        choices=[{**share, "chosen": "p0", "runner_up": "p1"}]
    )
    even = [{**one, "total": 0.5} for one in scored]
    assert "as good as p0" in said(choices=[{**share, "scored": even}])


def test_of_many_candidates_the_first_are_shown() -> None:
    scored = [{"endpoint": f"p{i}", "total": float(i), "parts": {}} for i in range(64)]
    text = said(choices=[{**CHOICE, "chosen": "p0", "runner_up": "p1", "scored": scored}])
    assert "p7 7,000 ms" in text
    assert "p8" not in text
    assert "and 56 more behind them" in text


def test_what_was_predicted_beside_what_happened() -> None:
    text = said()
    for expected in (
        "when queued when sent happened",
        "waiting in the router 350 ms 400 ms 400 ms",
        "reaching the engine 10.0 ms",
        "prefill 180 ms 180 ms 200 ms",
        "reaching the decode side 10.0 ms",
        "transfer and first token 50.0 ms 50.0 ms 40.0 ms",
        "first token after 580 ms 630 ms 660 ms",
        "99% within 900 ms 900 ms",
        "each token more 20.0 ms 20.0 ms 20.0 ms",
        "whole answer after 6,660 ms",
    ):
        assert expected in text.split("\n"), expected


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({"queue": 0.1, "prefill": 0.4, "first_token": 0.01}, "prefill and transfer 230 ms 230 ms 400 ms"),
        ({"queue": 0.1, "connect": 0.0, "first_token": 0.41}, "prefill to first token 230 ms 230 ms 410 ms"),
        ({"queue": 0.1, "connect": 0.0, "answer": 2.41}, "prefill to whole answer 230 ms 230 ms 2,410 ms"),
        ({"retry": 0.5, "queue": 0.1}, "attempts that failed 500 ms"),
    ],
)  # fmt: skip
def test_each_way_has_its_stages(stages: dict[str, float], expected: str) -> None:
    assert expected in said(stages=stages).split("\n")


def test_media_that_whoever_computes_the_prompt_encodes_are_predicted_with_it() -> None:
    told = {**PREDICTION, "encode_s": 0.3}
    text = said(admitted=told, predicted=told).split("\n")
    assert "of the next, encoding media 300 ms 300 ms" in text
    assert "prefill 480 ms 480 ms 200 ms" in text


def test_without_predictions_there_is_one_column() -> None:
    text = said(admitted=None, predicted=None)
    assert "waiting in the router 400 ms" in text.split("\n")
    assert "when queued" not in text
    assert "6,144 of them cached;" in text


def test_whether_the_promise_was_kept() -> None:
    text = said()
    assert "Promised by class interactive, to 99% of its requests: kept" in text
    assert "first token within 1,860 ms: kept, with 1,200 ms to spare" in text
    missed = {**RECORD["promise"], "verdict": "missed-ttft", "ttft_bound_s": 0.5}
    assert "first token within 500 ms: MISSED by 160 ms" in said(promise=missed)
    assert "Promised" not in said(promise=None)
    assert "none to be judged" in said(ttft_s=None)


def test_how_it_ended() -> None:
    assert "Completed: 301 tokens in 6,660 ms" in said()
    assert "The client left after 6,660 ms" in said(end="cancelled")
    failed = said(end="failed", status=502, reason="connect-failed")
    assert "Failed after 6,660 ms: 502 connect-failed" in failed
    assert "Broke off in mid-answer" in said(end="broken", reason="stream-truncated")


def test_a_refusal_says_what_the_router_said_and_predicted() -> None:
    text = said(
        end="refused", status=429, reason="slo-unreachable", message="no endpoint in time", retry_after_s=3.2,
        route=None, choices=None, ttft_s=None, stages={"queue": 0.3}, predicted=None,
    )  # fmt: skip
    assert "429 slo-unreachable" in text
    assert "no endpoint in time" in text
    assert "told to come back in 3 s" in text
    assert "prefill 180 ms" in text
    assert "why was not kept" not in text


def test_attempts_before_the_last_are_told() -> None:
    tries = [{"route": {"decode": "u0"}, "reason": "connect-failed", "at_s": 0.02}]
    assert "Sent to u0 first, which failed after 20.0 ms (connect-failed); tried again" in said(tries=tries)


def test_a_choice_that_nobody_kept_is_said_to_be_so() -> None:
    assert "why was not kept" in said(choices=[])


def test_what_was_refused_at_the_door_has_little_to_tell() -> None:
    door = {
        k: v
        for k, v in RECORD.items()
        if k not in ("max_tokens", "n", "stream", "admitted", "predicted", "choices", "estimated_tokens")
    }
    text = "\n".join(
        lines({**door, "end": "refused", "status": 400, "reason": "bad-json", "route": None, "stages": {}})
    )
    assert "400 bad-json" in text
    assert "prompt" not in text


def test_a_row_of_a_list() -> None:
    assert len(row(RECORD)) == len(HEAD)
    assert row(RECORD)[5:] == ("p1 > d0", "660 ms", "6,660 ms", "completed")
    assert (
        row({**RECORD, "end": "refused", "reason": "queue-full", "promise": None})[-1]
        == "refused: queue-full"
    )
    missed = {**RECORD["promise"], "verdict": "missed-tpot"}
    assert row({**RECORD, "promise": missed})[-1] == "completed, missed-tpot"


def test_columns_stand_under_each_other() -> None:
    assert list(columns([("", "a"), ("xyz", "10")])) == ["      a", "xyz  10"]
