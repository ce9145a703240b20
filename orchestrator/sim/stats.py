"""What a simulated engine measures of itself, and the Prometheus text it is exposed as."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Histogram:
    """Counts by upper bound (`edges`, ascending), with the sum of what was seen."""

    __slots__ = ("counts", "edges", "sum", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum = 0.0
        self.total = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times
        self.total += times


@dataclass(slots=True)
class EngineStats:
    """Per-request figures of one engine; seconds are real, as whoever reads them would measure."""

    ttft_s: Histogram
    itl_s: Histogram
    e2e_s: Histogram
    finished: dict[str, int] = field(default_factory=dict)
    """Requests by finish reason (`stop`, `length`, `abort`, `error`)."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    failed_transfers: int = 0
    failed_bootstraps: int = 0
    late_notifications: int = 0

    def finish(self, reason: str) -> None:
        """Count a request that ended."""
        self.finished[reason] = self.finished.get(reason, 0) + 1


class Exposition:
    """Prometheus text, written metric by metric; every sample carries `labels`."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._lines: list[str] = []

    def gauge(self, name: str, value: float, **extra: str) -> None:
        """A gauge's sample."""
        self._sample(name, "gauge", value, extra)

    def counter(self, name: str, value: float, **extra: str) -> None:
        """A counter's sample; `name` without `_total`, which is added."""
        self._sample(f"{name}_total", "counter", value, extra)

    def histogram(self, name: str, histogram: Histogram, **extra: str) -> None:
        """A histogram's buckets, sum and count."""
        self._lines.append(f"# TYPE {name} histogram")
        running = 0
        bounds = [*(repr(float(edge)) for edge in histogram.edges), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            running += count
            self._line(f"{name}_bucket", running, {**extra, "le": bound})
        self._line(f"{name}_sum", histogram.sum, extra)
        self._line(f"{name}_count", histogram.total, extra)

    def bare(self, name: str, value: float) -> None:
        """A gauge of the process, without labels."""
        self._lines += (f"# TYPE {name} gauge", f"{name} {value!r}")

    def text(self) -> bytes:
        """All of it."""
        return ("\n".join(self._lines) + "\n").encode()

    def _sample(self, name: str, kind: str, value: float, extra: Mapping[str, str]) -> None:
        header = f"# TYPE {name} {kind}"
        if header not in self._lines[-64:]:
            self._lines.append(header)
        self._line(name, value, extra)

    def _line(self, name: str, value: float, extra: Mapping[str, str]) -> None:
        labels = ",".join(f'{k}="{_escape(v)}"' for k, v in sorted({**self._labels, **extra}.items()))
        self._lines.append(f"{name}{{{labels}}} {float(value)!r}")


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
