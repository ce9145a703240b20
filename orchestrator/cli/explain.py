"""`pdctl explain`: why a request went where it went, from what the router has recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated

import typer

from orchestrator.analysis import explain as words
from orchestrator.analysis.records import Log, Record
from orchestrator.cli.app import DEFAULT_TOPOLOGY, NodeName, Overrides, TopologyFile, app, err, out
from orchestrator.cli.run import state_of
from orchestrator.errors import PdctlError

HOW_TO_RECORD = (
    "refused, failed and late requests are recorded, the first of each second, and a share of the others; "
    "all of them with `scheduling.decisions.record: full`"
)


@app.command()
def explain(
    topology: TopologyFile = DEFAULT_TOPOLOGY,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST_ID", help="Its `x-pdctl-request-id`, or the client's own `x-request-id`."
        ),
    ] = None,
    overrides: Overrides = None,
    node: NodeName = None,
    last: Annotated[bool, typer.Option("--last", metavar="", help="List the newest.")] = False,
    slow: Annotated[bool, typer.Option("--slow", metavar="", help="List those that took longest.")] = False,
    refused: Annotated[
        bool, typer.Option("--refused", metavar="", help="List what was refused or has failed.")
    ] = False,
    missed: Annotated[
        bool, typer.Option("--missed", metavar="", help="List only those whose promise was not kept.")
    ] = False,
    slo_class: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="List only those of this SLO class.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="List only those of this tenant.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many to list.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the records themselves, one a line.")
    ] = False,
) -> None:
    """Say of a recorded request what it was, where it could have gone, and why it went where it did.

    Also what was predicted of it, what happened, and whether its promise was kept. Without an id, list what
    is recorded. It reads the state directory; no router needs to run.
    """
    if request is None and topology.suffix not in (".yaml", ".yml") and not topology.is_file():
        topology, request = DEFAULT_TOPOLOGY, str(topology)
    log = Log(state_of(topology, overrides, node).root / "decisions")
    if request is not None:
        if last or slow or refused or missed or slo_class or tenant:
            raise typer.BadParameter("either a REQUEST_ID or a list of them")
        found = log.find(request)
        if not found:
            raise _unknown(log, request)
    else:
        asked = _asked_for(refused=refused, missed=missed, slo_class=slo_class, tenant=tenant)
        chosen = (record for record in log.newest() if all(wanted(record) for wanted in asked.values()))
        found = sorted(chosen, key=_lasted_s, reverse=True)[:lines] if slow else list(islice(chosen, lines))
        if not found:
            what = ", ".join(asked) or "recorded"
            err.print(f"nothing is {what} in {log.directory}", markup=False)
            return
    if as_json:
        for record in found:
            typer.echo(json.dumps(record))
    elif request is not None:
        _say(found)
    else:
        for line in words.columns([words.HEAD, *map(words.row, found)]):
            out.print(line, markup=False)


def _say(found: Iterable[Record]) -> None:
    for place, record in enumerate(found):
        if place:
            out.print()
        for line in words.lines(record):
            out.print(line, markup=False)


def _asked_for(
    *, refused: bool, missed: bool, slo_class: str | None, tenant: str | None
) -> dict[str, Callable[[Record], bool]]:
    """What a record must meet, in words; nothing: any will do."""
    wanted: dict[str, Callable[[Record], bool]] = {}
    if refused:
        wanted["refused"] = lambda record: record["end"] in ("refused", "failed", "broken")
    if missed:
        fine = ("kept", "unjudged")
        wanted["missed"] = lambda record: (record.get("promise") or {}).get("verdict", "kept") not in fine
    if slo_class is not None:
        wanted[f"of class {slo_class}"] = lambda record: record.get("slo_class") == slo_class
    if tenant is not None:
        wanted[f"of tenant {tenant}"] = lambda record: record.get("tenant") == tenant
    return wanted


def _lasted_s(record: Record) -> float:
    """To its first token; to its end, where none was seen."""
    ttft_s = record.get("ttft_s")
    return float(record.get("e2e_s") or 0.0) if ttft_s is None else float(ttft_s)


def _unknown(log: Log, request: str) -> PdctlError:
    near = log.near(request)
    if near:
        meant = f"did you mean {', '.join(near)}?"
    elif next(log.newest(), None) is None:
        meant = f"nothing is recorded in {log.directory}"
    else:
        meant = HOW_TO_RECORD
    return PdctlError(f"no record of the request {request}: {meant}", reason="not-recorded")
