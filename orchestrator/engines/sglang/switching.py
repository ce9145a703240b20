"""SGLang's live change of roles, from prefill to decode and back, without loading the model anew (0.5.23)."""

from __future__ import annotations

import orjson

from orchestrator.core.types import Role
from orchestrator.engines import flags
from orchestrator.engines.base import HttpCall, InstanceSpec
from orchestrator.engines.sglang.command import ALIASES

FLAG = "enable-pd-role-switch"

TIMEOUT_S = 120.0
"""It lets go of one side's KV machinery and builds the other's, decode's CUDA graphs with it."""

_SIDES = (Role.PREFILL, Role.DECODE)


def switch(spec: InstanceSpec, to: Role) -> HttpCall | str:
    """The call that gives the instance the role `to`, or why there is none.

    It refuses while any request is in it. Graph memory has to be named for a switch to decode; 0 sets none
    aside beyond what is free.
    """
    if spec.role not in _SIDES or to not in _SIDES:
        return "it changes only between prefill and decode"
    given = {flags.plain(name, ALIASES): setting.value for name, setting in spec.flags.items()}
    if given.get(FLAG) is not True:
        return f"its pool was not started with `flags: {{{FLAG}: true}}`"
    if spec.shape.nnodes > 1:
        return "an instance on several nodes cannot"
    body = {"new_role": to.value, "decode_cuda_graph_memory_gb": 0, "prepare_only": False}
    headers = (("content-type", "application/json"),)
    return HttpCall("POST", "/pd_role_switch", orjson.dumps(body), timeout_s=TIMEOUT_S, headers=headers)
