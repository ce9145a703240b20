"""The contracts of the core as the kinds that code is told apart by."""

import inspect

import pytest

from orchestrator.core.contracts import Filter, Picker, Scheduler, Scorer
from orchestrator.core.scheduling import ImmediateScheduler
from orchestrator.policy.build import make_policy

KINDS = (Filter, Scorer, Picker)


@pytest.mark.parametrize(
    ("name", "kind"), [("kv-capacity", Filter), ("token-load", Scorer), ("round-robin", Picker)]
)
def test_a_policy_is_of_one_kind(name, kind):
    policy = make_policy(name, {})
    assert [k for k in KINDS if isinstance(policy, k)] == [kind]


def test_the_immediate_scheduler_answers_every_call_of_the_port():
    calls = [n for n, f in vars(Scheduler).items() if inspect.isfunction(f) and not n.startswith("_")]
    assert set(calls) == {"submit", "progress", "cancel", "rebind", "finish", "observe", "due_s", "tick"}
    for name in calls:
        port, ours = (inspect.signature(getattr(c, name)) for c in (Scheduler, ImmediateScheduler))
        assert list(port.parameters) == list(ours.parameters)
