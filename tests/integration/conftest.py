"""Deployments that the tests of a session share, and the unified engines that their answers are held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from deployment import FLEETS, GUARD_S, MODEL, SPEED, Deployment, Fleet, sim
from line import Line, open_line

from orchestrator.sim.testing import spawn


@pytest.fixture(scope="session")
def references() -> Iterator[dict[str, httpx.Client]]:
    """A unified engine of each dialect, which nobody of pdctl has a part in."""
    dialects = ("sglang", "vllm")
    flags = [("--dialect", dialect) for dialect in dialects]
    with spawn(*flags, common=("--speed", str(SPEED), "--served-model-name", MODEL)) as engines:
        clients = {
            dialect: httpx.Client(base_url=engine.url, timeout=GUARD_S, trust_env=False)
            for dialect, engine in zip(dialects, engines, strict=True)
        }
        yield clients
        for client in clients.values():
            client.close()


def _fleet(name: str, folder: Path, references: Mapping[str, httpx.Client]) -> Iterator[Fleet]:
    dialect, more = FLEETS[name]
    pools = {role: sim(role, dialect, 2, **more) for role in ("prefill", "decode")}
    with Deployment(folder, pools) as deployment:
        yield Fleet(name, dialect, deployment.up(), references[dialect])


@pytest.fixture(scope="session", params=FLEETS)
def fleet(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    references: Mapping[str, httpx.Client],
) -> Iterator[Fleet]:
    """One deployment per hand-off, up for as long as its tests run."""
    yield from _fleet(request.param, tmp_path_factory.mktemp(f"fleet-{request.param}"), references)


@pytest.fixture(scope="session", params=FLEETS)
def line(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    references: Mapping[str, httpx.Client],
) -> Iterator[Line]:
    """Recorded engines that somebody else runs, for each hand-off."""
    folder = tmp_path_factory.mktemp(f"line-{request.param}")
    with open_line(request.param, folder, references[FLEETS[request.param][0]]) as line:
        yield line


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Makes deployments of a test's own; what is not said is one SGLang prefill and one decode."""
    made: list[Deployment] = []

    def make(pools: Mapping[str, Any] | None = None, **more: Any) -> Deployment:
        pools = {"prefill": sim("prefill"), "decode": sim("decode")} if pools is None else pools
        made.append(Deployment(tmp_path / f"d{len(made)}", pools, **more))
        return made[-1]

    yield make
    for deployment in made:
        deployment.close()
