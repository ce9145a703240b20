"""`pdctl render`: a plan as files for those who launch by other means."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.app import DEFAULT_TOPOLOGY, Overrides, TopologyFile, app, err, load_plan
from orchestrator.render import kubernetes, scripts, slurm, systemd
from orchestrator.render.files import Deployment, File, write
from orchestrator.topology.load import draft
from orchestrator.topology.values import REFERENCE, placeholder


class Target(StrEnum):
    """What is to launch it."""

    SHELL = "shell"
    SYSTEMD = "systemd"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


_SCRIPTED: dict[Target, Callable[[Deployment], list[File]]] = {
    Target.SHELL: scripts.render,
    Target.SYSTEMD: systemd.render,
    Target.SLURM: slurm.render,
}


@app.command()
def render(
    to: Annotated[Target, typer.Option("--to", help="What is to launch it.")],
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the files there; default: print them.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            metavar="POOL=IMAGE",
            help="Kubernetes: the container image of a pool's engine, or of the `router`.",
        ),
    ] = None,
) -> None:
    """Write what `up` would run as files for shell, systemd, Slurm or Kubernetes; no keys are in them."""
    plan = load_plan(topology, overrides, shown_only=True)
    found = draft(topology, overrides or (), os.environ)
    assert found.topology is not None, "the plan was made from it"
    names = dict.fromkeys(REFERENCE.findall(topology.read_text()))
    beside = Path(sys.executable).with_name("pdctl")
    deployment = Deployment(
        plan=plan,
        addresses={node.name: node.address for node in found.topology.nodes},
        secrets={name: os.environ.get(name) or placeholder(name) for name in names},
        base=(out or Path(f"/etc/pdctl/{plan.name}")).absolute(),
        command=str(beside) if beside.exists() else "pdctl",
        overrides=tuple(overrides or ()),
    )
    files = (
        kubernetes.render(deployment, _images(images))
        if to is Target.KUBERNETES
        else _SCRIPTED[to](deployment)
    )
    if out is not None:
        write(files, out)
        for file in files:
            err.print(str(out / file.path), markup=False)
        return
    for file in files:
        typer.echo(f"# ---- {file.path}")
        typer.echo(file.text)


def _images(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        pool, equals, image = text.partition("=")
        if not pool or not equals or not image:
            raise typer.BadParameter(f"{text!r} is not POOL=IMAGE", param_hint="--image")
        found[pool] = image
    return found
