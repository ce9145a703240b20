"""Very short prompts keep their throughput under late binding: they go as units of an efficient chunk."""

from __future__ import annotations

from random import Random

import pytest

from orchestrator.analysis.trials import Trials
from orchestrator.sim.replay.fleet import published
from orchestrator.sim.replay.requests import Requests
from orchestrator.sim.replay.schedulers import Recipe
from orchestrator.sim.replay.workload import uniform

PROMPT, OUTPUT = 100, 8


def throughput(profile: str, dialect: str, predictor: str) -> float:
    """Requests a second that 8 prefill and 2 decode engines get through when offered far more (simulated)."""
    requests = Requests(uniform("short", [(10.0, 600.0)], PROMPT, OUTPUT, Random(3)))
    fleet = published(8, 2, dialect=dialect, block_tokens=requests.block_tokens)
    recipe = Recipe(profile, predictor={"use": predictor})
    run = Trials(profile, recipe, requests, fleet, {}).run(1.0)
    ended = [life.last_s for life in run.lives if life.last_s is not None]
    assert len(ended) == run.offered, "nothing was refused"
    return len(ended) / max(ended)


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("predictor", ["told", "stages"])
def test_100_token_prompts_keep_the_throughput_of_round_robin(dialect: str, predictor: str) -> None:
    base = throughput("round-robin", dialect, "told")
    assert throughput("default", dialect, predictor) >= 0.95 * base
