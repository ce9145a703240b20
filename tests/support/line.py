"""`pdctl route` over engines that run already, a recorder before each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from asking import CHAT, COMPLETION, GENERATE
from deployment import FLEETS, GIVE_UP, MODEL, SPEED, Deployment
from recorder import Recorded, Recorder

from orchestrator.sim.testing import SimProcess


@dataclass
class Line:
    """One prefill and one decode engine, each behind its recorder, the router in front, and a unified engine
    of the same dialect beside them."""

    name: str
    deployment: Deployment
    engines: list[SimProcess]
    prefill: Recorder
    decode: Recorder
    unified: httpx.Client

    @property
    def dialect(self) -> str:
        """What the engines speak."""
        return FLEETS[self.name][0]

    def generated(self) -> list[Recorded]:
        """The generation requests that arrived at either engine."""
        both = (*self.prefill.requests, *self.decode.requests)
        return [one for one in both if one.path in (CHAT, COMPLETION, GENERATE)]

    def last(self) -> tuple[Recorded, Recorded]:
        """The newest generation request at prefill, and at decode."""
        legs = ([r for r in one.requests if r.method == "POST"] for one in (self.prefill, self.decode))
        prefill, decode = (leg[-1] for leg in legs)
        return prefill, decode

    def post(self, path: str, body: dict[str, Any] | bytes, **more: Any) -> httpx.Response:
        """Ask the router."""
        content = body if isinstance(body, bytes) else json.dumps(body)
        return self.deployment.client.post(path, content=content, **more)


@contextmanager
def open_line(name: str, folder: Path, unified: httpx.Client) -> Iterator[Line]:
    """A line for one of the FLEETS."""
    dialect, more = FLEETS[name]
    flags = ("--dialect", dialect, "--speed", str(SPEED), "--served-model-name", MODEL, "--lease-s", "60")
    flags += ("--transfer", more["transfer"]) if more else ()
    roles = [("--role", role) for role in ("prefill", "decode")]
    with ExitStack() as stack:
        engines = [stack.enter_context(SimProcess(*role, *flags, env=GIVE_UP)) for role in roles]
        recorders = [stack.enter_context(Recorder(engine.port)) for engine in engines]
        urls: list[dict[str, Any]] = [{"url": one.url} for one in recorders]
        if "bootstrap" in engines[0].ports:
            urls[0]["bootstrap_port"] = engines[0].ports["bootstrap"]
        pools = {
            role: {"role": role, "engine": dialect, "external": [url], **more}
            for role, url in zip(("prefill", "decode"), urls, strict=True)
        }
        router = {"pass_headers": ["x-team"]}
        made = Deployment(folder, pools, router=router, model={"served_name": MODEL})
        deployment = stack.enter_context(made)
        stack.enter_context(deployment.route())
        deployment.serves()
        yield Line(name, deployment, engines, recorders[0], recorders[1], unified)
