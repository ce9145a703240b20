"""What differs between the engines under test: their example, their paths, their counters."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
from asks import Ask, streamed

ROOT = Path(__file__).resolve().parents[2]

_http = httpx.Client(timeout=30.0, trust_env=False)
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Held:
    """What an engine says it holds: requests running and waiting, KV in use (tokens, or a share)."""

    running: float
    waiting: float
    kv: float

    @property
    def nothing(self) -> bool:
        """Whether it holds nothing at all."""
        return not (self.running or self.waiting or self.kv)


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that bear the labels; 0 before the first. Raises KeyError when nothing
    of that name is exported."""
    if f"# TYPE {name} " not in text:
        raise KeyError(name)
    return sum(
        float(value)
        for sample, label, value in _SAMPLE.findall(text)
        if sample == name and all(f'{n}="{v}"' in label for n, v in labels.items())
    )


def scrape(url: str) -> str:
    """The text of `/metrics`."""
    return _http.get(f"{url}/metrics").raise_for_status().text


class Family(ABC):
    """One engine with one way to hand KV over."""

    engine: ClassVar[str]
    ways: ClassVar[tuple[str, ...]]
    context: ClassVar[int]
    """The longest prompt and output together that the example allows, in tokens."""
    seeded: ClassVar[bool]
    """Whether a seed makes a sample the same again."""
    settings: tuple[str, ...] = ()

    @property
    def example(self) -> Path:
        """The topology."""
        return ROOT / "examples" / f"real-{self.engine}-cpu.yaml"

    def streamed(self, ask: Ask) -> Ask:
        """The same as a stream."""
        return streamed(ask)

    @abstractmethod
    def held(self, url: str) -> Held:
        """What the engine at `url` holds now."""

    @abstractmethod
    def generated(self, url: str) -> float:
        """Tokens that a decode engine has generated so far."""

    @abstractmethod
    def handed_over(self, prefill: str, decode: str) -> tuple[float, float, float]:
        """Prompt tokens computed by prefill, prompt tokens computed by decode, failed transfers; so far."""


class VLLM(Family):
    """vLLM over NIXL, or over Mooncake by `transfer`."""

    engine = "vllm"
    ways = ("completion", "chat")
    context = 4096
    seeded = True

    def __init__(self, transfer: str | None = None) -> None:
        pools = ("prefill", "decode") if transfer else ()
        self.settings = tuple(f"pools.{pool}.transfer={transfer}" for pool in pools)

    def held(self, url: str) -> Held:
        """Of /metrics; the KV is a share of the whole."""
        text = scrape(url)
        return Held(
            metric(text, "vllm:num_requests_running"),
            metric(text, "vllm:num_requests_waiting"),
            metric(text, "vllm:kv_cache_usage_perc"),
        )

    def generated(self, url: str) -> float:
        """Of /metrics."""
        return metric(scrape(url), "vllm:generation_tokens_total")

    def handed_over(self, prefill: str, decode: str) -> tuple[float, float, float]:
        """By the source of prompt tokens; decode recomputes what it could not fetch, and the last token."""
        name, local = "vllm:prompt_tokens_by_source_total", "local_compute"
        ours, theirs = scrape(prefill), scrape(decode)
        failed = "vllm:nixl_num_failed_transfers_total"
        return (
            metric(ours, name, source=local),
            metric(theirs, name, source=local),
            metric(theirs, failed) if f"# TYPE {failed} " in theirs else 0.0,
        )


class SGLang(Family):
    """SGLang over Mooncake's TCP transport."""

    engine = "sglang"
    ways = ("completion", "chat", "generate")
    context = 8192
    seeded = False

    def streamed(self, ask: Ask) -> Ask:
        """A streamed chat cannot tell token ids (0.5.23 refuses that)."""
        ask = streamed(ask)
        return ask.without("return_token_ids") if ask.path == "/v1/chat/completions" else ask

    def held(self, url: str) -> Held:
        """Of /v1/loads; the KV is in tokens."""
        load = _loads(url)
        names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
        return Held(*(float(load[name]) for name in names))

    def generated(self, url: str) -> float:
        """The last of decode's moments; it has none before its first step."""
        return float((_loads(url)["decode_moments"] or [0.0])[-1])

    def handed_over(self, prefill: str, decode: str) -> tuple[float, float, float]:
        """By /v1/loads; a failed transfer fails its request, so that there is nothing to count."""
        by_prefill, by_decode = (_loads(url)["total_prefill_uncached_tokens"] for url in (prefill, decode))
        return (float(by_prefill), float(by_decode), 0.0)


def _loads(url: str) -> dict[str, Any]:
    ranks = _http.get(f"{url}/v1/loads").raise_for_status().json()["loads"]
    assert len(ranks) == 1, ranks
    rank: dict[str, Any] = ranks[0]
    return rank


FAMILIES: dict[str, Family] = {"vllm": VLLM(), "vllm-mooncake": VLLM("mooncake_tcp"), "sglang": SGLang()}
"""In the order in which they are tested."""

EXAMPLES = ("vllm", "sglang")
"""The examples as they are, tested in everything. Over Mooncake, vLLM is tested in its main job alone: what
is left in the middle of a hand-off stays pinned there for minutes, by the engine's own time-out."""
