"""Deployments with what is known of them: a unified server's answers, and a pair to hold against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx
import psutil
from asks import SIZES, Answer, Ask, answer, ask_for, completion, text, tokens
from families import Family, Held, metric, scrape
from running import GUARD_S, Deployment, Ended, eventually, living

from orchestrator.launch.paths import controller_pid

UNIFIED = ("pools.unified.instances=1", "pools.prefill.instances=0", "pools.decode.instances=0")
DEFAULT_ROOT = Path("~/.cache/pdctl/real-engines").expanduser()
"""Where the examples expect the engines."""

TEXTS = tuple(text(words, seed=1) for words in (3, 40, 90))
"""Prompts of a batch as text."""
SAMPLES = completion(tokens(33), temperature=0.8, n=2, seed=11)
"""Two samples of one prompt."""


@dataclass(frozen=True)
class Stopped:
    """What `down` did, and which processes were left: by their marker, and of those seen before it."""

    ended: Ended
    marked: Mapping[int, str]
    left: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """What a unified server answered, and how it came and went."""

    ps: Mapping[str, Mapping[str, object]]
    answers: Mapping[tuple[str, int], Answer]
    texts: tuple[Answer, ...]
    samples: Answer
    stopped: Stopped


class Pair:
    """A running prefill and decode engine behind the router. `processes` holds each instance's main process
    as it was at first, `urls` where each answers."""

    def __init__(self, family: Family, reference: Reference, deployment: Deployment) -> None:
        self.family = family
        self.reference = reference
        self.deployment = deployment
        found = deployment.ps()
        self.processes = {name: psutil.Process(one["pid"]) for name, one in found.items()}
        self.urls = {name: one["url"] for name, one in found.items()}

    @cached_property
    def client(self) -> httpx.Client:
        """Of the router."""
        return httpx.Client(base_url=self.deployment.url, trust_env=False)

    def ask(self, ask: Ask) -> Answer:
        """The router's answer, which must be a good one."""
        return answer(self.client, ask)

    def assert_serves(self) -> None:
        """The same processes as at first serve on, and the next answer is right."""
        gone = [name for name, process in self.processes.items() if not process.is_running()]
        assert not gone, f"ended: {gone}"
        told, expected = self.ask(ask_for("completion", 33)), self.reference.answers["completion", 33]
        assert told.agrees(expected), f"{told}\nunified: {expected}"

    def held(self) -> dict[str, Held]:
        """What prefill and decode hold now."""
        return {name: self.family.held(self.urls[name]) for name in ("prefill-0", "decode-0")}

    def router(self, name: str, **labels: str) -> float:
        """The sum of a metric of the router; 0 before its first sample."""
        return metric(scrape(self.deployment.admin), name, **labels)

    def wait_until_idle(self, within_s: float = GUARD_S) -> None:
        """Until neither engine holds a request or KV, nor the router a request."""
        seen: dict[str, object] = {}

        def idle() -> bool:
            held = self.held()
            inflight = self.router("pdctl_inflight_requests") + self.router(
                "pdctl_endpoint_inflight_requests"
            )
            seen.update(held, router=inflight)
            return not inflight and all(one.nothing for one in held.values())

        try:
            eventually(idle, "nothing held", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {seen}") from None


def settings(family: Family, installed: Mapping[str, Path]) -> tuple[str, ...]:
    """What `--set` must say beyond the example: the paths, where they are not the default."""
    if installed["model"] == DEFAULT_ROOT / "models" / "tiny":
        return family.settings
    python = installed[family.engine] / "bin" / "python"
    pools = ("prefill", "decode", "unified")
    own = (f"pools.{pool}.runtime.python={python}" for pool in pools)
    return (f"model.path={installed['model']}", *own, *family.settings)


@contextmanager
def start(family: Family, installed: Mapping[str, Path], folder: Path, *more: str) -> Iterator[Deployment]:
    """A deployment that is up; whatever happens inside, nothing of it runs afterwards."""
    deployment = Deployment(family.example, folder, (*settings(family, installed), *more))
    try:
        up = deployment.up()
        assert up.code == 0, deployment.told("pdctl up", up)
        assert up.out.split() == [deployment.url]
        yield deployment
    finally:
        if deployment.marked() or controller_pid(deployment.state) is not None:
            deployment.down()
        deployment.kill()


def stop(deployment: Deployment) -> Stopped:
    """`pdctl down`, and what it left."""
    processes = deployment.processes()
    ended = deployment.down()
    return Stopped(ended, deployment.marked(), tuple(living(processes)))


def record(family: Family, installed: Mapping[str, Path], folder: Path) -> Reference:
    """Start the unified server, ask it everything, and stop it."""
    with start(family, installed, folder, *UNIFIED) as deployment:
        with httpx.Client(base_url=deployment.url, trust_env=False) as client:
            answers = {
                (way, size): answer(client, ask_for(way, size)) for way in family.ways for size in SIZES
            }
            texts = tuple(answer(client, completion(one)) for one in TEXTS)
            samples = answer(client, SAMPLES)
        return Reference(deployment.ps(), answers, texts, samples, stop(deployment))
