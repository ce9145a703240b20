"""What has to change between what runs and what is wanted, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.lifecycle import State
from orchestrator.launch.reconcile import Changes, Current, Target, reconcile

R, S = State.READY, State.STARTING


def want(**units: str) -> dict[str, Target]:
    """`p1="prefill a"`: role and digest by name."""
    return {n: Target(*text.split()) for n, text in units.items()}


def have(state: State = R, **units: str) -> dict[str, Current]:
    return {n: Current(*text.split(), state) for n, text in units.items()}


def test_first_start_begins_all_at_once() -> None:
    found = reconcile(want(p1="prefill a", d1="decode b", router="router r"), {})
    assert found == Changes(start=("p1", "d1", "router"))


@pytest.mark.parametrize("state", [State.PENDING, State.STARTING, State.READY])
def test_what_is_the_same_and_lives_is_kept(state: State) -> None:
    same = {"p1": "prefill a", "d1": "decode b"}
    assert reconcile(want(**same), have(state, **same)) == Changes()


@pytest.mark.parametrize("state", [State.BACKOFF, State.FATAL, State.STOPPED, State.DRAINING, State.STOPPING])
def test_what_is_the_same_but_ended_or_ending_gets_a_new_life(state: State) -> None:
    assert reconcile(want(p1="prefill a"), have(state, p1="prefill a")) == Changes(start=("p1",))


def test_what_is_wanted_no_more_is_removed() -> None:
    assert reconcile(want(p1="prefill a"), have(p1="prefill a", p2="prefill a")) == Changes(remove=("p2",))


def test_one_role_is_rolled_one_instance_at_a_time() -> None:
    found = reconcile(
        want(p1="prefill b", p2="prefill b", d1="decode x"),
        have(p1="prefill a", p2="prefill a", d1="decode x"),
    )
    assert found == Changes(waves=(("p1",), ("p2",)))


def test_several_roles_change_together() -> None:
    found = reconcile(want(p1="prefill b", d1="decode b"), have(p1="prefill a", d1="decode a"))
    assert found == Changes(waves=(("p1", "d1"),))


def test_the_router_is_no_role_of_that_kind_and_goes_by_itself() -> None:
    found = reconcile(want(p1="prefill b", router="router s"), have(p1="prefill a", router="router r"))
    assert found == Changes(waves=(("router",), ("p1",)))


def test_what_serves_nobody_is_replaced_at_once() -> None:
    running = have(p1="prefill a", p2="prefill a") | have(State.BACKOFF, p3="prefill a", p4="prefill a")
    found = reconcile(want(p1="prefill b", p2="prefill b", p3="prefill b", p4="prefill b"), running)
    assert found == Changes(waves=(("p3", "p4"), ("p1",), ("p2",)))


def test_instances_that_swap_ports_go_together() -> None:
    found = reconcile(
        {"p1": Target("prefill", "b", frozenset({2})), "p2": Target("prefill", "b", frozenset({3}))},
        {"p1": Current("prefill", "a", R, frozenset({1})), "p2": Current("prefill", "a", R, frozenset({2}))},
    )
    assert found.waves == (("p1", "p2"),)


def test_a_change_of_role_counts_for_both() -> None:
    found = reconcile(want(x="decode b", y="decode b"), have(x="prefill a", y="decode a"))
    assert found.waves == (("x", "y"),)


NAMES = st.sampled_from(["p1", "p2", "d1", "d2", "u1", "router"])
ROLES = st.sampled_from(["prefill", "decode", "unified", "router"])
PORTS = st.frozensets(st.integers(1, 5), max_size=2)


@given(
    st.dictionaries(NAMES, st.builds(Target, ROLES, st.sampled_from("ab"), PORTS)),
    st.dictionaries(NAMES, st.builds(Current, ROLES, st.sampled_from("ab"), st.sampled_from(State), PORTS)),
)
def test_every_unit_is_dealt_with_exactly_once(
    wanted: dict[str, Target], current: dict[str, Current]
) -> None:
    found = reconcile(wanted, current)
    assert len(set(found.touched)) == len(found.touched)
    assert set(found.touched) <= set(wanted)
    assert set(found.remove) == set(current) - set(wanted)
    for name in set(wanted) - set(found.touched):
        assert current[name].digest == wanted[name].digest
        assert current[name].state in (State.PENDING, State.STARTING, State.READY)
    assert (
        reconcile(wanted, {n: Current(t.role, t.digest, R, t.ports) for n, t in wanted.items()}) == Changes()
    )


def test_the_processes_of_an_instance_go_in_one_wave() -> None:
    wanted = {
        "p0": Target("prefill", "b"),
        "p0.1": Target("prefill", "b.1", instance="p0"),
        "p1": Target("prefill", "b"),
    }
    found = reconcile(wanted, have(**{"p0": "prefill a", "p0.1": "prefill a.1", "p1": "prefill a"}))
    assert found.waves == (("p0", "p0.1"), ("p1",))


def test_one_by_one_the_roles_take_turns() -> None:
    names = {"p1": "prefill", "p2": "prefill", "d1": "decode", "d2": "decode", "d3": "decode"}
    new, old = ({n: f"{role} {digest}" for n, role in names.items()} for digest in "ba")
    assert len(reconcile(want(**new), have(**old)).waves) == 1
    found = reconcile(want(**new), have(**old), one_by_one=True)
    assert found.waves == (("p1",), ("d1",), ("p2",), ("d2",), ("d3",))
