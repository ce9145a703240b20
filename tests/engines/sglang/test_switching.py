"""Which SGLang instances can switch roles, by which call, and how they tell of their role then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.core.types import Role
from orchestrator.engines.base import HttpCall, InstanceSpec, NotYet, Shape
from orchestrator.engines.sglang import SGLang

Spec = Callable[..., InstanceSpec]
ON = {"enable-pd-role-switch": True}


def test_it_is_told_its_new_role(spec: Spec) -> None:
    for role, to in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        call = SGLang().switch(spec(role, flags=ON), to)
        assert isinstance(call, HttpCall)
        assert (call.method, call.path) == ("POST", "/pd_role_switch")
        body = {"new_role": to.value, "decode_cuda_graph_memory_gb": 0, "prepare_only": False}
        assert orjson.loads(call.body) == body


@pytest.mark.parametrize(
    ("role", "to", "more", "why"),
    [
        (Role.UNIFIED, Role.DECODE, {"flags": ON}, "only between prefill and decode"),
        (Role.PREFILL, Role.ENCODE, {"flags": ON}, "only between prefill and decode"),
        (Role.PREFILL, Role.DECODE, {}, "not started with `flags: {enable-pd-role-switch: true}`"),
        (Role.PREFILL, Role.DECODE, {"flags": ON, "shape": Shape(nnodes=2)}, "on several nodes"),
    ],
)
def test_why_another_cannot(spec: Spec, role: Role, to: Role, more: dict[str, Any], why: str) -> None:
    assert why in str(SGLang().switch(spec(role, **more), to))


def test_one_that_can_is_asked_which_role_it_has_now() -> None:
    engine = SGLang()
    calls = engine.discover(Role.DECODE, {"started_as": "prefill"})
    assert list(calls) == ["prefill-info", "models", "decode-mode"]
    assert calls["decode-mode"].path == "/model_info"
    # What /server_info says is how it was started.
    assert not isinstance(engine.learn("prefill-info", 200, b'{"disaggregation_mode":"prefill"}'), NotYet)
    assert engine.learn("decode-mode", 200, b'{"disaggregation_mode":"decode"}') == {}
    still = engine.learn("decode-mode", 200, b'{"disaggregation_mode":"prefill"}')
    assert still == NotYet("its role is prefill now, and should be decode")
