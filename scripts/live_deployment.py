"""A topology of simulated engines brought up for a live run: faster by a factor, and watched meanwhile."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from orchestrator.analysis.targets import parse_slo
from orchestrator.cli.app import load_plan
from orchestrator.core.slo import SloClass, Target
from orchestrator.errors import PdctlError
from orchestrator.fabric.ports import taken
from orchestrator.topology.plan import Plan
from orchestrator.topology.slo import slo_classes

PDCTL = Path(sys.executable).with_name("pdctl")
CLASS = "live"
"""The SLO class that a run's own targets make."""

DOWN_S = 60.0


def settings(args: argparse.Namespace) -> list[str]:
    """The overrides that turn the topology into what is run: speed, targets, profile, a full decision log."""
    found = list(args.set or ())
    plan = load_plan(args.topology, found, ask_versions=False)
    if plan.router is None or plan.router.kind != "pdctl":
        raise PdctlError("a live run needs pdctl's own router: --set router.kind=pdctl", reason="no-router")
    for pool in dict.fromkeys(i.pool for i in plan.instances):
        one = next(i for i in plan.instances if i.pool == pool)
        words = [word.text for word in one.argv]
        if one.engine != "sim" or not words:
            raise PdctlError(
                f"pool {pool!r} is not simulated: its speed cannot be set", reason="not-simulated"
            )
        own = float(words[words.index("--speed") + 1]) if "--speed" in words else 1.0
        found.append(f"pools.{pool}.options.speed={own * args.speed:g}")
    if args.profile:
        found.append(f"scheduling.profile={args.profile}")
    found.append("scheduling.decisions={record: full, keep: 1GiB}")
    classes = slo_classes(plan.router)
    if args.slo:
        classes = {CLASS: parse_slo(args.slo, CLASS)}
        found.append(f"scheduling.default_class={CLASS}")
    for name, slo in classes.items():
        found += tightened(name, slo, args.speed)
    return found


def tightened(name: str, slo: SloClass, speed: float) -> Iterator[str]:
    """Targets for engines `speed` times as fast; what grows with the prompt does by itself."""
    for what in ("ttft", "itl", "tpot", "e2e"):
        target: Target | None = getattr(slo, what)
        if target is not None:
            told: dict[str, Any] = {f"p{target.quantile * 100:g}": f"{target.seconds / speed:.9f}s"}
            if target.per_cold_prefill:
                told["per_cold_prefill"] = target.per_cold_prefill
            yield f"slo_classes.{name}.{what}={json.dumps(told)}"


def placed(topology: Path, chosen: Sequence[str]) -> list[str]:
    """`chosen`, and where its ports are in use, others. Raises PdctlError when there are none."""
    for first in (None, *range(12_000, 32_000, 1000)):
        more: list[str] = []
        if first is not None:
            more = [
                f"router.listen=127.0.0.1:{first}",
                f"nodes=[{{name: local, address: 127.0.0.1, ports: {first + 2}-{first + 999}}}]",
            ]
        plan = load_plan(topology, [*chosen, *more], ask_versions=False)
        assert plan.router is not None
        wanted = {port for instance in plan.instances for port in instance.ports.values()}
        if not any(taken("127.0.0.1", port) for port in wanted | {plan.router.port, plan.router.admin_port}):
            return [*chosen, *more]
    raise PdctlError("no free range of ports between 12000 and 32000", reason="no-ports")


@contextmanager
def deployed(topology: Path, chosen: Sequence[str]) -> Iterator[None]:
    """The deployment, up for as long as the context is open, however it is left."""
    words = [word for setting in chosen for word in ("--set", setting)]
    try:
        subprocess.run([PDCTL, "up", topology, "--detach", *words], check=True, stdout=subprocess.DEVNULL)
        yield
    except subprocess.CalledProcessError as error:
        raise PdctlError("the deployment did not come up", reason="launch-failed") from error
    finally:
        # In a session of its own: an impatient second Ctrl-C is for us, and must not end the clearing up.
        down: list[str | Path] = [PDCTL, "down", topology, "--force", *words]
        subprocess.run(down, check=False, start_new_session=True, stderr=subprocess.DEVNULL, timeout=DOWN_S)


class Gauge:
    """CPU seconds of the deployment's processes, and the router's own account of its loop's lag."""

    def __init__(self, args: argparse.Namespace, plan: Plan, chosen: Sequence[str]) -> None:
        assert plan.router is not None
        self._router = plan.router
        words = [word for setting in chosen for word in ("--set", setting)]
        listed = subprocess.run(
            [PDCTL, "ps", args.topology, "--json", *words], check=False, capture_output=True, text=True
        )
        rows = json.loads(listed.stdout or "[]") if not args.url else []
        self._pids = {
            kind: [r["pid"] for r in rows if r["pid"] and (r["role"] == "router") is (kind == "router")]
            for kind in ("router", "engines")
        }
        self._cpu_s = self._cpu()
        self._lag = self._lags()

    def since(self) -> tuple[dict[str, float], float | None]:
        """CPU seconds by kind, and the P99 of the router's lag, since this was made."""
        before, self._cpu_s = self._cpu_s, self._cpu()
        lag = self._lags()
        counts = sorted((bound, count - self._lag.get(bound, 0.0)) for bound, count in lag.items())
        total = counts[-1][1] if counts else 0.0
        p99_s = next((bound for bound, count in counts if count >= 0.99 * total), None) if total else None
        return {kind: cpu_s - before[kind] for kind, cpu_s in self._cpu_s.items()}, p99_s

    def _cpu(self) -> dict[str, float]:
        times = {k: [psutil.Process(pid).cpu_times() for pid in pids] for k, pids in self._pids.items()}
        return {kind: sum(t.user + t.system for t in each) for kind, each in times.items()}

    def _lags(self) -> dict[float, float]:
        key = self._router.credentials.admin_key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            text = httpx.get(f"{self._router.admin_url}/metrics", headers=headers, trust_env=False).text
        except httpx.TransportError:
            return {}
        found = re.findall(r'^pdctl_loop_lag_s_bucket\{le="([^"]+)"\} (\S+)$', text, re.M)
        return {float(bound): float(count) for bound, count in found}
