"""`pdctl reload` on a running deployment: policies change, nothing restarts, and the last good one stays."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import COMPLETION, WORDS
from deployment import MODEL, Deployment, eventually, sim

from orchestrator.launch.paths import controller_pid
from orchestrator.topology.plan import parse

pytestmark = pytest.mark.integration

ASK = {"model": MODEL, "prompt": WORDS * 4, "max_tokens": 2}

FUSSY = """
class Fussy:
    def filter(self, request, candidates, context):
        {body}
"""


MADE_UP = "request.prompt_tokens in (10, 1000, 30000)"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    pools = {"prefill": sim("prefill", instances=2), "decode": sim("decode")}
    first = {"profile": "priced"}
    with Deployment(tmp_path_factory.mktemp("reload"), pools, scheduling=first) as made:
        made.up()
        for _ in range(5):
            assert made.client.post(COMPLETION, json=ASK).status_code == 200
        yield made


def profile(deployment: Deployment, **role: Any) -> None:
    """Give the topology a profile of its own for prefill."""
    own = {"mine": {"prefill": role}}
    deployment.topology["scheduling"] = {"profile": "mine", "profiles": own}
    deployment.write()


def in_plan(deployment: Deployment) -> Any:
    router = parse(deployment.state.plan.read_bytes()).router
    assert router is not None
    return router.scheduling["prefill"]


def test_a_new_profile_is_tried_taken_up_and_kept(deployment: Deployment) -> None:
    before, pids = in_plan(deployment), deployment.pids()
    profile(deployment, picker="round-robin")
    dry = deployment.pdctl("reload", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.startswith("tried on 5 recorded requests: ")
    assert in_plan(deployment) == before
    done = deployment.pdctl("reload")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("reloaded; tried on 5 recorded requests: ")
    assert in_plan(deployment) == {"picker": "round-robin"}
    again = deployment.pdctl("reload")
    assert again.stdout == "reloaded; the profile is the one in use\n"
    assert deployment.client.post(COMPLETION, json=ASK).status_code == 200
    assert deployment.pids() == pids


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"return candidates if {MADE_UP} else request.rack", "recorded requests policy ./fussy.py:Fussy: "),
        (f"return candidates[:int({MADE_UP})]", "it would refuse"),
        ("return candidates.nearest()", "made-up requests policy ./fussy.py:Fussy: AttributeError"),
        ("return []", "it would refuse 12 of 12 made-up requests"),
    ],
)
def test_a_policy_that_fails_leaves_the_last_good_one(deployment: Deployment, body: str, says: str) -> None:
    """On what was recorded, or already on what is made up."""
    deployment.client.post(COMPLETION, json=ASK)
    before = in_plan(deployment)
    (deployment.folder / "fussy.py").write_text(FUSSY.format(body=body))
    profile(deployment, filters=["./fussy.py:Fussy"])
    done = deployment.pdctl("reload")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert in_plan(deployment) == before
    assert deployment.client.post(COMPLETION, json=ASK).status_code == 200


def test_one_that_does_not_load_is_told_with_its_line(deployment: Deployment) -> None:
    (deployment.folder / "fussy.py").write_text("import no_such_module\n")
    profile(deployment, filters=["./fussy.py:Fussy"])
    done = deployment.pdctl("reload")
    assert done.returncode == 2
    assert "fussy.py:1: " in done.stderr


def test_it_can_be_insisted_on(deployment: Deployment) -> None:
    (deployment.folder / "fussy.py").write_text(FUSSY.format(body="raise LookupError('no rack')"))
    profile(deployment, filters=["./fussy.py:Fussy"])
    done = deployment.pdctl("reload", "--force")
    assert done.returncode == 0, done.stderr
    assert "LookupError: no rack" in done.stdout
    assert deployment.client.post(COMPLETION, json=ASK).status_code == 200
    assert deployment.metric(r"pdctl_policy_errors_total.*fussy") > 0
    profile(deployment, picker="max-score")
    assert deployment.pdctl("reload").returncode == 0


def test_what_needs_a_restart_is_left_and_said(deployment: Deployment) -> None:
    pools = deployment.topology["pools"]
    deployment.topology["pools"] = {**pools, "decode": sim("decode", instances=2)}
    profile(deployment, picker="max-score")
    try:
        done = deployment.pdctl("reload")
        assert done.returncode == 0, done.stderr
        assert "not reloaded: decode-1 is new; `pdctl up` applies that" in done.stderr.replace("\n", " ")
        assert "decode-1" not in deployment.endpoints()
    finally:
        deployment.topology["pools"] = pools


def test_without_a_controller_it_works_as_well(deployment: Deployment) -> None:
    pid = controller_pid(deployment.state)
    assert pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: controller_pid(deployment.state) is None)
    profile(deployment, picker="weighted-random")
    done = deployment.pdctl("reload")
    assert done.returncode == 0, done.stderr
    assert in_plan(deployment) == {"picker": "weighted-random"}
    deployment.up()
    assert in_plan(deployment) == {"picker": "weighted-random"}


def test_a_late_profile(deploy: Callable[..., Deployment]) -> None:
    deployment = deploy(scheduling={"profile": "slo"})
    deployment.up()
    for _ in range(3):
        assert deployment.client.post(COMPLETION, json=ASK).status_code == 200
    (deployment.folder / "mine.py").write_text(
        "class Mine:\n    def key(self, waiting):\n        return waiting.no\n"
    )
    mine = {"mode": "late", "order": {"use": "./mine.py:Mine"}}
    deployment.topology["scheduling"] = {"profile": "mine", "profiles": {"mine": mine}}
    deployment.write()
    done = deployment.pdctl("reload")
    assert done.returncode == 2
    assert "policy ./mine.py:Mine: AttributeError" in done.stderr
    deployment.topology["scheduling"] = {"profile": "slo-edf"}
    deployment.write()
    done = deployment.pdctl("reload")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "reloaded; tried on 3 recorded requests: 0 would go elsewhere, 0 be refused"
    )
    assert deployment.client.post(COMPLETION, json=ASK).status_code == 200
    deployment.topology["scheduling"] = {"profile": "priced"}
    deployment.write()
    done = deployment.pdctl("reload")
    assert done.returncode == 2
    assert "runs a profile of mode 'late', and this one is 'immediate'" in done.stderr


def test_nothing_runs(deploy: Callable[..., Deployment], tmp_path: Path) -> None:
    done = deploy().pdctl("reload")
    assert done.returncode == 3
    assert "nothing runs in" in done.stderr
    assert json.loads((tmp_path / "d0" / "topology.yaml").read_text())
