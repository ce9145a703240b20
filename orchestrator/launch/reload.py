"""What `pdctl reload` does: take a changed topology's scheduling up without touching engines or streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.types import Endpoint, PathKind, RequestView, Role, Snapshot
from orchestrator.errors import LaunchError, Problem, TopologyError
from orchestrator.launch import control
from orchestrator.launch.paths import Lock, StateDir, controller_pid, reaching, write_private
from orchestrator.launch.routerask import ask_router
from orchestrator.launch.state import Store
from orchestrator.policy.build import build
from orchestrator.policy.dryrun import dry_run, take
from orchestrator.topology.plan import Plan, RouterPlan, dump, parse

ANSWER_S = 30.0
"""How long the router may take: it builds every policy, and tries them for a quarter of a second at most."""

WRITTEN_S = 15.0
POLL_S = 0.05

PROCESS = (
    "argv", "env", "probes", "host", "port", "admin_host", "admin_port", "url", "admin_url", "limits", "tls",
    "cwd", "digest",
)  # fmt: skip
"""Fields of the router's plan that belong to its process, and stay until it is started anew."""

TOKENS = (10, 1_000, 30_000)
"""Prompt lengths of the requests that are made up."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """How a reload went: what the router said of the policies, and what of the topology it leaves undone."""

    policies: str
    left: tuple[str, ...] = ()


async def reload(plan: Plan, *, dry_run: bool = False, force: bool = False) -> Reloaded:
    """Have the router of a deployment serve by the scheduling of `plan`; engines stay as they run.

    The profile is tried before: here on made-up requests, so that one that hangs hangs nobody else, then by
    the router on those it has recorded. Raises TopologyError for a profile that is refused, which leaves the
    last good one in use, and LaunchError when no router answers. `dry_run`: nothing is changed; `force`: a
    profile that did badly is used all the same.
    """
    state = StateDir(plan.state_dir)
    running = running_plan(state)
    merged, left = merge(plan, running)
    assert merged.router is not None
    scheduling = merged.router.scheduling
    if not force:
        rehearse(merged)
    try_out = {"dry_run": True, "force": force, "scheduling": scheduling}
    told = await _ask(state, try_out)
    if dry_run:
        return Reloaded(str(told["policies"]), left)
    await _publish(state, merged)
    await _ask(state, {"force": force})
    return Reloaded(str(told["policies"]), left)


def merge(plan: Plan, running: Plan) -> tuple[Plan, tuple[str, ...]]:
    """`running` with all of `plan` that needs no process to be started or stopped; and what is left to do.

    Raises TopologyError where either has no router of pdctl's.
    """
    router, old = _own(plan), _own(running)
    new = {i.name: i for i in plan.instances}
    same = {
        i.name: new[i.name].as_running(i)
        for i in running.instances
        if i.name in new and new[i.name].digest == i.digest
    }
    instances = tuple(same.get(i.name, i) for i in running.instances)
    left = [f"{i.name} differs or is gone" for i in running.instances if i.name not in same]
    left += [f"{name} is new" for name in new.keys() - {i.name for i in running.instances}]
    if router.digest != old.digest:
        left.append("the router's own addresses, limits, environment or mode differ")
    process = {name: getattr(old, name) for name in PROCESS}
    return replace(plan, instances=instances, router=replace(router, **process)), tuple(left)


def rehearse(plan: Plan) -> None:
    """Try the scheduling of `plan` on made-up requests and idle engines, none of which should be refused.

    Raises TopologyError if a policy fails, or most of them would be.
    """
    new = build(_own(plan).scheduling, plan.base_dir)
    samples = take(_made_up(plan), _idle(plan), _serves, _NothingCached(), now_s=0.0)
    report = dry_run(build("least-requests"), new, samples, time.monotonic)
    why = report.why_not("made-up requests")
    if why is not None:
        problem = Problem(
            why, file=plan.file, field="scheduling.profile", hint="it is not used; `--force` would"
        )
        raise TopologyError([problem], reason="profile-refused")


def _own(plan: Plan) -> RouterPlan:
    if plan.router is None or plan.router.kind != "pdctl":
        kind = "none" if plan.router is None else plan.router.kind
        problem = Problem(
            f"is {kind!r}: only pdctl's own router reloads", file=plan.file, field="router.kind"
        )
        raise TopologyError([problem])
    return plan.router


def running_plan(state: StateDir) -> Plan:
    """The plan that is meant to run now. Raises LaunchError when there is none that can be read."""
    try:
        with reaching(state.plan):
            return parse(state.plan.read_bytes())
    except FileNotFoundError:
        raise LaunchError(
            f"nothing runs in {state.root}; `pdctl up` starts it (`pdctl route` reloads at SIGHUP)",
            reason="not-running",
        ) from None
    except ValueError as error:
        raise LaunchError(
            f"{state.plan} is no plan of this version of pdctl; run `pdctl up`", reason="state-damaged"
        ) from error


async def _ask(state: StateDir, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The router's answer to a reload. Raises TopologyError if it refuses, LaunchError if there is none."""
    status, told = await ask_router(state, "/reload", body, ANSWER_S)
    if status == 200:
        return told
    raise TopologyError([Problem(str(told.get("message")))], reason=str(told.get("code")))


async def _publish(state: StateDir, plan: Plan) -> None:
    """Make `plan` the one that is meant to run: by the controller, or without one by hand."""
    if controller_pid(state) is None:
        lock = Lock(state)
        if lock.acquire():
            try:
                with closing(Store(state.db)) as store:
                    store.put_plan(dump(plan))
                write_private(state.plan, dump(plan))
            finally:
                lock.release()
            return
    await control.call(state, "apply", plan=dump(plan).decode())
    give_up_s = time.monotonic() + WRITTEN_S
    while running_plan(state).router != plan.router:
        if time.monotonic() > give_up_s:
            raise LaunchError(
                f"the controller did not write the plan; see {state.log('controller')}",
                reason="controller-mute",
            )
        await asyncio.sleep(POLL_S)


def _made_up(plan: Plan) -> Iterator[RequestView]:
    """A few requests of each model and SLO class."""
    router = _own(plan)
    for model in sorted({i.model for i in plan.instances}):
        for slo_class in (None, *router.slo_classes):
            for tokens in TOKENS:
                yield RequestView(
                    id=f"{tokens:032x}",
                    model=model,
                    path=PathKind.CHAT,
                    arrived_s=0.0,
                    prompt_tokens=tokens,
                    max_tokens=512,
                    slo_class=slo_class,
                    block_hashes=tuple(range(1, tokens // 128 + 1)),
                )


def _idle(plan: Plan) -> Snapshot:
    """The plan's instances as endpoints that have nothing to do."""
    endpoints = (
        Endpoint(
            id=i.name,
            pool=i.pool,
            role=i.role,
            engine=i.engine,
            model=i.model,
            url=i.url,
            ready=True,
            labels=i.labels,
            facts=i.facts,
        )
        for i in plan.instances
        if i.role is not Role.ENCODE
    )
    return Snapshot(0.0, tuple(endpoints))


def _serves(kind: PathKind, endpoint: Endpoint) -> bool:
    return True


class _NothingCached:
    def cached_blocks(self, endpoint_id: str, block_hashes: Any) -> int:
        """None."""
        return 0
