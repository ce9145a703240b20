"""Requests that are given up while a hand-off needs one leg to go on: nothing stays pinned for minutes."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from asking import COMPLETION, limited
from deployment import Deployment, eventually, sim

pytestmark = pytest.mark.integration

FOR_EVER = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "1000000"}
"""What a simulated decode engine waits for a prefill that was aborted. Its own seconds."""


def test_a_client_that_leaves_during_prefill_leaves_nothing_pinned(deploy: Callable[..., Deployment]) -> None:
    """Over Mooncake decode's memory is prefill's to write to until prefill has answered."""
    settings = {"transfer": "mooncake", "env": FOR_EVER}
    pools = {role: sim(role, "vllm", **settings) for role in ("prefill", "decode")}
    made = deploy(pools).up()
    made.serves()
    # Else the canary through the pair may be under way too.
    eventually(lambda: made.endpoint_pairs()["counts"]["good"] == 1, made.unrest)
    request = limited(COMPLETION, {"prompt": "hello"}, 8)
    with made.fault("prefill-0", "slow", factor=3000):
        with pytest.raises(httpx.ReadTimeout):
            made.client.post(COMPLETION, json=request, timeout=httpx.Timeout(20.0, read=0.5))
        made.at_work("decode-0", 0)
        made.at_work("prefill-0", 1)
    eventually(lambda: made.metric(r'pdctl_legs_total\{.*leg="prefill".*result="unwanted"'), made.unrest)
    made.at_rest()
    assert made.client.post(COMPLETION, json=request).status_code == 200
