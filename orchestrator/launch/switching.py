"""A live switch of an instance's role: drained, told, checked, and given work in the new one."""

from __future__ import annotations

import asyncio
import logging

from orchestrator.core.lifecycle import State
from orchestrator.core.types import Role
from orchestrator.errors import LaunchError
from orchestrator.launch.fleet import Fleet
from orchestrator.launch.keeper import Keeper
from orchestrator.launch.unit import Unit
from orchestrator.topology.plan import OtherRole

log = logging.getLogger(__name__)

TRIES = 10
"""How often it is told: what is drained in the router may be in the engine for a moment longer."""
PAUSE_S = 0.5
READY_S = 30.0
"""How long it may take to be ready in its new role: the model is loaded all the while."""


def check(fleet: Fleet, name: str, to: Role) -> None:
    """Raises LaunchError (`no-instance`, `no-switch`) with the reason why `name` cannot be switched now."""
    instance, keeper = fleet.instances.get(name), fleet.keepers.get(name)
    if instance is None or (keeper is None and not instance.external):
        known = ", ".join(fleet.instances) or "none"
        raise LaunchError(f"no instance {name!r} here; there are: {known}", reason="no-instance")
    plan, other = fleet.plan, instance.other
    router = None if plan is None else plan.router
    why = ""
    if plan is None or router is None or router.kind != "pdctl" or plan.node not in (None, router.node):
        why = "no router of pdctl's runs here, which has to learn of it"
    elif to == instance.role:
        why = f"it is {to} already"
    elif keeper is None or other is None:
        why = instance.no_other or "nothing is known of another role of it; run `pdctl up` first"
    elif other.role != to:
        why = f"it can only become {other.role}"
    elif keeper.state is not State.READY:
        why = f"it is {keeper.state.name}"
    elif not any(
        i.role == instance.role and i.model == instance.model and _serves(fleet, i.name)
        for i in fleet.instances.values()
        if i.name != name
    ):
        why = f"it is the only {instance.role} there is"
    if why:
        raise LaunchError(f"{name} is not switched to {to}: {why}", reason="no-switch")


def _serves(fleet: Fleet, name: str) -> bool:
    keeper = fleet.keepers.get(name)
    return fleet.instances[name].external if keeper is None else keeper.state is State.READY


async def switch(fleet: Fleet, name: str) -> str:
    """Switch `name` to its other role; what did not work out, in a sentence, else an empty one.

    Refused by the engine, it serves on in its old role. If it is not known what it is now, it is started
    anew, in the role of the topology.
    """
    keeper, instance, link = fleet.keepers[name], fleet.instances[name], fleet.shell.router
    other = instance.other
    assert other is not None, "as `check` has seen"
    life = keeper.life.incarnation
    keeper.detail = f"being switched to {other.role}"
    fleet.pulse()
    try:
        await link.drain(name, instance.drain_s)
        refused = await _order(fleet, keeper, other)
        if refused and await _is(fleet, keeper.unit) == "":
            await link.ungate(name, life)
            return f"{name} stays {instance.role}: {refused}"
        switched = instance.in_other_role()
        unit = fleet.unit_of(switched)
        wrong = refused or await _becomes(fleet, unit)
        if wrong:
            why = f"its switch to {other.role} failed: {wrong}"
            keeper.fail(why)
            return f"{name} is started anew: {why}"
    finally:
        keeper.detail = ""
    log.info("%s: switched from %s to %s", name, instance.role, other.role)
    if keeper.state is not State.READY or keeper.life.incarnation != life:
        return f"{name} ended while it was switched"
    fleet.instances[name], keeper.unit = switched, unit
    await fleet.publish()
    await link.ungate(name, life)
    return "; ".join(await fleet.not_joined([keeper])) or fleet.unserved


async def _order(fleet: Fleet, keeper: Keeper, other: OtherRole) -> str:
    """Tell the engine; why it did not do it, else an empty text."""
    refused: str | None = None
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        refused = await fleet.shell.prober.order(keeper.unit, other.call)
        if refused is None or await _is(fleet, keeper.unit):
            break
    return refused or ""


async def _becomes(fleet: Fleet, unit: Unit) -> str:
    """Wait until the engine is `unit`; what it said last if it does not become that."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + READY_S
    while wrong := await _is(fleet, unit):
        if loop.time() > give_up_s:
            return wrong
        await asyncio.sleep(fleet.shell.tuning.door_s)
    return ""


async def _is(fleet: Fleet, unit: Unit) -> str:
    """Why the engine is not (or not ready as) `unit`, which has its role; empty if it is."""
    prober = fleet.shell.prober
    said = await prober.ask(unit, unit.probes.ready)
    if said is None and unit.identity is not None:
        told = await prober.tell(unit)
        wrong = told if isinstance(told, str) else None
        if wrong is None:
            found = fleet.shell.told.learn(unit, told)
            wrong = None if found is None else found.text
        said = wrong
    return said or ""
