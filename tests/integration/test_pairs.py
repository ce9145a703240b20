"""Real processes that die or send garbage to each other: pairs kept apart, streams that go on elsewhere."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import COMPLETION, WORDS
from deployment import FLEETS, MODEL, Deployment, eventually, sim

pytestmark = pytest.mark.integration

Unified = dict[str, httpx.Client]
EVERY = pytest.mark.parametrize("name", FLEETS)


def two_by_two(folder: Path, name: str, **router: Any) -> Deployment:
    dialect, more = FLEETS[name]
    pools = {role: sim(role, dialect, 2, max_restarts=100, **more) for role in ("prefill", "decode")}
    return Deployment(folder / name, pools, router=router)


def ask(n: int, tokens: int = 12) -> dict[str, Any]:
    prompt = f"{n} of many {WORDS * 3}"
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def text(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post(COMPLETION, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@EVERY
def test_case_16_and_17_a_pair_that_passes_garbage_after_a_restart_gets_no_requests(
    tmp_path: Path, references: Unified, name: str
) -> None:
    with two_by_two(tmp_path, name) as made:
        made.up()
        eventually(lambda: made.endpoint_pairs()["counts"]["good"] == 4, lambda: str(made.endpoint_pairs()))
        with made.fault("decode-1", "garbage"):
            before = made.engine_state("prefill-1")["pid"]
            os.kill(before, signal.SIGKILL)
            made.replaced("prefill-1", before)
            eventually(
                lambda: made.endpoint_pairs()["counts"]["bad"] == 1, lambda: str(made.endpoint_pairs())
            )
            [bad] = made.endpoint_pairs()["doubtful"]
            assert (bad["prefill"], bad["decode"]) == ("prefill-1", "decode-1")
            assert made.endpoints()["prefill-1"]["shuns"] == ["decode-1"]
            shown = "bad pairs: prefill-1 > decode-1: its answer to a known question is wrong"
            assert made.pdctl("ps").stdout.splitlines()[-1] == shown
            told = {
                i["name"]: (i["circuit"], i["bad_pairs"])
                for i in json.loads(made.pdctl("ps", "--json").stdout)
            }
            assert told == {
                "prefill-0": ("closed", []),
                "prefill-1": ("closed", ["decode-1"]),
                "decode-0": ("closed", []),
                "decode-1": ("closed", ["prefill-1"]),
                "router": (None, []),
            }
        # Gated still: that pair answers right again only once a later try has found so.
        bodies = [ask(n) for n in range(16)]
        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(lambda body: text(made.client, body), bodies))
        assert told == [text(references[FLEETS[name][0]], body) for body in bodies]
        eventually(lambda: made.endpoint_pairs()["counts"]["good"] == 4, lambda: str(made.endpoint_pairs()))
        assert made.metric("pdctl_canaries_total.*bad") >= 1
        made.at_rest()


def test_case_17_an_engine_whose_pairs_are_all_bad_is_started_anew(tmp_path: Path) -> None:
    with two_by_two(tmp_path, "sglang") as made:
        made.up()
        eventually(lambda: made.endpoint_pairs()["counts"]["good"] == 4, lambda: str(made.endpoint_pairs()))
        pids = made.pids()
        with made.fault("decode-1", "garbage"):
            for name in ("prefill-0", "prefill-1"):
                os.kill(pids[name], signal.SIGKILL)
                made.replaced(name, pids[name])
            made.replaced("decode-1", pids["decode-1"])
        eventually(lambda: made.endpoint_pairs()["counts"]["good"] == 4, lambda: str(made.endpoint_pairs()))
        why = "2 bad pairs and no good one: its answer to a known question is wrong"
        assert made.ps()["decode-1"]["last_error"].startswith(why)
        assert f"decode-1: started anew: {why}" in made.log("controller")
        assert made.pids()["decode-0"] == pids["decode-0"]
        made.at_rest()


@EVERY
def test_case_26_a_stream_whose_decode_is_killed_goes_on_with_the_right_text(
    tmp_path: Path, references: Unified, name: str
) -> None:
    body = {**ask(1, 150), "stream": True, "stream_options": {"include_usage": True}}
    with two_by_two(tmp_path, name, continuation=True) as made:
        made.up()
        # Else a decode side may be at work on a canary.
        eventually(lambda: made.endpoint_pairs()["counts"]["good"] == 4, lambda: str(made.endpoint_pairs()))
        with (
            made.fault("decode-0", "slow", factor=40),
            made.fault("decode-1", "slow", factor=40),
            made.client.stream("POST", COMPLETION, json=body) as answer,
        ):
            assert answer.status_code == 200
            data = (line[6:] for line in answer.iter_lines() if line.startswith("data: "))
            events = [json.loads(next(data)) for _ in range(3)]
            [busy] = [n for n in ("decode-0", "decode-1") if made.engine_state(n)["generations"]]
            os.kill(made.engine_state(busy)["pid"], signal.SIGKILL)
            rest = list(data)
        assert rest[-1] == "[DONE]", rest[-1]
        events += [json.loads(one) for one in rest[:-1]]
        said = "".join(c["text"] for e in events for c in e["choices"])
        theirs = references[FLEETS[name][0]].post(COMPLETION, json={**body, "stream": False}).json()
        assert said == theirs["choices"][0]["text"]
        assert len({e["id"] for e in events}) == 1
        usage = [e["usage"] for e in events if e.get("usage")][-1]
        assert usage["total_tokens"] == theirs["usage"]["total_tokens"]
        assert made.metrics()['pdctl_retries_total{kind="continuation",result="again"}'] == 1
        made.serves()
        made.at_rest()
