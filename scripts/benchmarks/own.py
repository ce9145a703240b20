"""pdctl's router over engines that a benchmark has started: interpreted, or compiled if there is a wheel."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.machine import ROOT
from benchmarks.mock import MODEL, Engine
from benchmarks.native import CACHE
from benchmarks.processes import free_port
from orchestrator.core.slo import SloClass, Target

PDCTL = Path(sys.executable).with_name("pdctl")

EVERYTHING: Mapping[str, Any] = {"default_class": "interactive", "decisions": {"record": "full"}}
"""What router benchmarks run with: SLO profile, predictor, queue, prefix index, full decision log."""


def topology(
    folder: Path,
    name: str,
    engines: Sequence[Engine],
    port: int,
    *,
    engine: str,
    options: Mapping[str, Any] | None = None,
    scheduling: Mapping[str, Any] = EVERYTHING,
    more: Mapping[str, Any] | None = None,
    router_more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a topology of external `engines` (JSON is YAML); its path. `engine` is the adapter, with its
    `options`; `more` are further top-level fields, `router_more` those of the router."""
    pools: dict[str, Any] = {}
    for one in engines:
        pool = pools.setdefault(one.role, {"role": one.role, "engine": engine, "external": []})
        pool["options"] = dict(options or {})
        told: dict[str, Any] = {"url": one.url}
        if one.role == "prefill" and one.bootstrap_port:
            told["bootstrap_port"] = one.bootstrap_port
        pool["external"].append(told)
    router = {
        "listen": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{free_port()}", "canaries": False,
        "credentials": {"client_keys": ["bench"]}, **(router_more or {}),
    }  # fmt: skip
    whole = {
        "name": name, "model": {"path": MODEL, "served_name": MODEL}, "pools": pools, "router": router,
        "scheduling": dict(scheduling), "state_dir": str(folder / f"state-{name}"), **(more or {}),
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(whole))
    return path


def targets(slo: SloClass, speed: float) -> dict[str, Any]:
    """A class as a topology writes it, for engines `speed` times as fast; what a target adds for a request's
    own cold prefill shrinks by itself."""
    told: dict[str, Any] = {}
    for name in ("ttft", "tpot", "itl", "e2e"):
        target: Target | None = getattr(slo, name)
        if target is not None:
            told[name] = {
                f"p{target.quantile * 100:g}": f"{target.seconds / speed:.9f}s",
                **({"per_cold_prefill": target.per_cold_prefill} if target.per_cold_prefill else {}),
            }
    return told


def contender(name: str, path: Path, port: int, engine: str, *, compiled: Path | None = None) -> Contender:
    """pdctl's router on a topology; with the modules of an unpacked wheel in place of the checkout's."""
    env = {"PYTHONPATH": str(compiled)} if compiled else {}
    return Contender(name, engine, port, (str(PDCTL), "route", str(path)), env)


def compiled_wheel(folder: Path = ROOT / "dist" / "compiled", cache: Path = CACHE) -> Path | None:
    """The newest compiled wheel, unpacked into the cache; None if `scripts/compiled` has made none."""
    wheels = sorted(folder.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    if not wheels:
        return None
    wheel = wheels[-1]
    place = cache / "compiled" / hashlib.sha256(wheel.read_bytes()).hexdigest()[:12]
    if not place.exists():
        part = place.with_suffix(".part")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(part)
        part.rename(place)
    return place
