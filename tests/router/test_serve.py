"""How the router's parts are wired together, without a process: what is drawn from where, what is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.contracts import Assign
from orchestrator.core.types import PathKind, RequestView, Role
from orchestrator.engines.base import HttpCall, Probes
from orchestrator.policy.profiles import PROFILES, complete
from orchestrator.router.health import Answer
from orchestrator.router.serve import Router
from orchestrator.topology.plan import InstancePlan, Plan

MakePlan = Callable[..., Plan]


class Counting(Random):
    """Counts its draws, each a system call in service."""

    draws = 0

    def getrandbits(self, k: int) -> int:
        self.draws += 1
        return super().getrandbits(k)


def instance(name: str, role: Role) -> InstancePlan:
    probe = HttpCall("GET", "/ready")
    return InstancePlan(
        name=name,
        pool=str(role),
        role=role,
        engine="./stub.py:Stub",
        model="m",
        node="local",
        url="http://127.0.0.1:1",
        argv=(),
        env={},
        ports={"http": 1},
        probes=Probes(ready=(probe,), live=probe),
        facts={"bootstrap_port": 8998},
    )


@pytest.fixture
def plan(make_plan: MakePlan) -> Plan:
    """One prefill and three equal decode endpoints, taken by lot."""
    decodes = [instance(f"d{n}", Role.DECODE) for n in range(3)]
    return make_plan(instance("p0", Role.PREFILL), *decodes, scheduling=PROFILES["random"])


def joined(router: Router) -> Router:
    """The router with every endpoint ready."""
    for state in tuple(router.registry.states()):
        while not router.registry.answered(state.plan.name, Answer.OK, ""):
            pass
        router.registry.join(state.plan.name, {})
    return router


def decode_of(router: Router, request_id: str) -> str:
    view = RequestView(request_id, "m", PathKind.CHAT, 0.0, prompt_tokens=5, max_tokens=5)
    (decision,) = router.scheduler.submit(view, 0.0)
    assert isinstance(decision, Assign)
    return decision.route.decode


async def test_rooms_are_drawn_from_the_secret_source_and_lots_are_not(plan: Plan) -> None:
    secret = Counting(7)
    router = joined(Router(plan, clock=FakeClock(), rng=secret))
    drawn = secret.draws
    assert {decode_of(router, str(n)) for n in range(100)} == {"d0", "d1", "d2"}
    assert secret.draws == drawn
    rooms = [router.app.rooms.take(1).start for _ in range(20)]
    assert secret.draws >= drawn + 20
    assert max(room.bit_length() for room in rooms) in (62, 63)
    await router.close()


async def test_two_routers_draw_other_lots(plan: Plan) -> None:
    lots = []
    for _ in range(2):
        router = joined(Router(plan, clock=FakeClock()))
        lots.append([decode_of(router, str(n)) for n in range(100)])
        await router.close()
    assert lots[0] != lots[1]


async def test_a_policy_that_fails_at_every_request_does_not_fill_the_log(
    plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"mode": "immediate", "decode": {"scorers": [{"use": "./broken.py:Broken"}]}}
    assert plan.router is not None
    plan = replace(plan, router=replace(plan.router, scheduling=complete(broken)))
    clock = FakeClock()
    router = joined(Router(plan, clock=clock))
    with caplog.at_level(logging.WARNING):
        for n in range(50):
            decode_of(router, str(n))
        clock.advance(10.0)
        decode_of(router, "last")
    told = [r for r in caplog.records if r.getMessage() == "policy failed; bypassed"]
    assert [getattr(r, "times", None) for r in told] == [1, 50]
    assert "no such table" in str(getattr(told[0], "why", ""))
    assert 'pdctl_policy_errors_total{policy="./broken.py:Broken"} 51.0' in router.metrics.render().decode()
    await router.close()
