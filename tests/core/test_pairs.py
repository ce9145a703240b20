"""Pairs of endpoints: who is tried, what is a right answer, who is kept apart, who should be started anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.pairs import (
    DOUBT_S,
    FIRST_S,
    HOLD_S,
    KNOWN,
    MAX_PAIRS,
    NOTHING_S,
    TRIES,
    Found,
    Pair,
    Pairs,
    Standing,
)
from orchestrator.core.types import Endpoint, Role

RIGHT, WRONG = " 10 11", " of the"
Says = Callable[[Pair], str | Found]


def endpoint(name: str, *, ready: bool = True, incarnation: str = "1") -> Endpoint:
    role = {"p": Role.PREFILL, "d": Role.DECODE, "u": Role.UNIFIED}[name[0]]
    return Endpoint(name, role.value, role, "e", "m", f"http://{name}", ready, incarnation)


class Fleet:
    """Pairs that answer as `says` has it, tried until nothing is due."""

    def __init__(self, *names: str, says: Says = lambda _: RIGHT) -> None:
        self.pairs = Pairs()
        self.endpoints = {name: endpoint(name) for name in names}
        self.says = says
        self.now_s = 0.0
        self.tries: list[Pair] = []
        self.run()

    def run(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.pairs.observe(self.endpoints.values(), self.now_s)
        while (pair := self.pairs.next(self.now_s)) is not None:
            self.tries.append(pair)
            self.pairs.tried(pair, self.pairs.pairs[pair].lives, self.says(pair), self.now_s)

    def restart(self, name: str) -> None:
        self.endpoints[name] = endpoint(name, incarnation=f"{self.endpoints[name].incarnation}+")

    def standing(self, *pair: str) -> Standing:
        return self.pairs.pairs[(pair[0], pair[1])].standing

    def apart(self) -> dict[str, set[str]]:
        return {name: set(others) for name, others in self.pairs.apart(self.now_s).items()}


def wrong(*pairs: Pair) -> Says:
    return lambda pair: WRONG if pair in pairs else RIGHT


def test_every_pair_is_tried_once_at_join_and_again_with_a_new_process() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    assert sorted(fleet.tries) == [("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1")]
    fleet.run(100.0)
    assert len(fleet.tries) == 4
    fleet.restart("p1")
    fleet.run(1.0)
    assert sorted(fleet.tries[4:]) == [("p1", "d0"), ("p1", "d1")]
    assert set(fleet.pairs.pairs) == {(p, d) for p in ("p0", "p1") for d in ("d0", "d1")}


def test_case_17_a_pair_that_answers_wrongly_three_times_is_kept_apart() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.restart("p1")
    fleet.says = wrong(("p1", "d1"))
    fleet.run(1.0)
    assert fleet.standing("p1", "d1") is Standing.BAD
    assert fleet.tries.count(("p1", "d1")) == 1 + TRIES
    assert fleet.apart() == {"p1": {"d1"}}
    assert fleet.pairs.restarts() == {}, "one bad pair is nobody's fault alone"


def test_one_answer_that_differs_is_not_enough() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.restart("p1")
    answers = iter([WRONG, WRONG])
    fleet.says = lambda pair: next(answers, RIGHT) if pair == ("p1", "d1") else RIGHT
    fleet.run(1.0)
    assert fleet.standing("p1", "d1") is Standing.GOOD
    assert fleet.apart() == {}


def test_case_16_pairs_that_share_a_side_and_all_fail_advise_to_restart_it() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.restart("p1")
    fleet.says = lambda pair: Found.FAILED if pair[0] == "p1" else RIGHT
    fleet.run(1.0)
    assert fleet.apart() == {"p1": {"d0", "d1"}}
    assert fleet.pairs.restarts() == {"p1": 2}
    fleet.restart("p1")
    fleet.says = wrong()
    fleet.run(1.0)
    assert fleet.apart() == {}
    assert fleet.pairs.restarts() == {}


def test_a_bad_pair_is_tried_again_and_again_each_time_later() -> None:
    fleet = Fleet("p0", "p1", "d0")
    fleet.restart("p1")
    fleet.says = wrong(("p1", "d0"))
    fleet.run(1.0)
    before = len(fleet.tries)
    fleet.run(4.0)
    assert len(fleet.tries) == before
    fleet.run(2.0)
    assert len(fleet.tries) == before + 1
    fleet.run(6.0)
    assert len(fleet.tries) == before + 1
    fleet.says = wrong()
    fleet.run(5.0)
    assert fleet.standing("p1", "d0") is Standing.GOOD


def test_a_unified_endpoint_knows_the_answer_before_any_pair() -> None:
    fleet = Fleet("p0", "d0", "u0", says=wrong(("p0", "d0")))
    assert fleet.tries[0] == ("", "u0")
    assert fleet.apart() == {"p0": {"d0"}}


def test_a_bad_unified_endpoint_is_kept_from_work_itself() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.endpoints["u0"] = endpoint("u0")
    fleet.says = wrong(("", "u0"))
    fleet.run(1.0)
    assert fleet.apart() == {"u0": {"u0"}}


def test_without_one_two_pairs_that_agree_know_it() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1", says=wrong(("p0", "d0")))
    assert fleet.standing("p0", "d0") is Standing.BAD
    assert fleet.apart() == {"p0": {"d0"}}


def test_two_pairs_that_differ_tell_nothing_of_who_is_right() -> None:
    fleet = Fleet("p0", "d0", "d1", says=wrong(("p0", "d1")))
    assert fleet.apart() == {}
    assert fleet.pairs.restarts() == {}


def test_the_only_pair_is_right_until_it_says_something_else() -> None:
    fleet = Fleet("p0", "d0")
    fleet.restart("d0")
    fleet.says = wrong(("p0", "d0"))
    fleet.run(1.0)
    assert fleet.standing("p0", "d0") is Standing.BAD


def test_a_question_that_nobody_can_answer_keeps_nobody_apart() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1", says=lambda _: Found.FAILED)
    for _ in range(20):
        fleet.run(NOTHING_S)
    assert fleet.apart() == {}
    assert fleet.pairs.restarts() == {}


def test_a_pair_with_a_new_process_waits_for_its_try_where_others_work() -> None:
    fleet = Fleet("p0", "p1", "d0")
    fleet.restart("p1")
    fleet.pairs.observe(fleet.endpoints.values(), fleet.now_s)
    assert fleet.apart() == {"p1": {"d0"}}
    fleet.says = lambda _: Found.NOTHING
    fleet.run(0.1)
    assert fleet.apart() == {"p1": {"d0"}}
    fleet.run(HOLD_S)
    assert fleet.apart() == {}, "not for ever"
    fleet = Fleet()
    fleet.endpoints = {name: endpoint(name) for name in ("p0", "d0")}
    fleet.pairs.observe(fleet.endpoints.values(), 0.0)
    assert fleet.apart() == {}, "at the start nobody else does the work"


def test_requests_that_fail_over_a_pair_raise_suspicion_and_one_that_does_not_ends_it() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    for _ in range(TRIES - 1):
        fleet.pairs.failed(("p0", "d0"), 1.0)
    fleet.pairs.well(("p0", "d0"))
    fleet.pairs.failed(("p0", "d0"), 1.0)
    assert fleet.standing("p0", "d0") is Standing.GOOD
    assert fleet.pairs.failing == {("p0", "d0")}
    for _ in range(TRIES):
        fleet.pairs.failed(("p0", "d0"), 1.0)
    assert fleet.apart() == {"p0": {"d0"}}
    fleet.run(2.0)
    assert fleet.apart() == {}


def test_alarms_put_every_pair_of_an_endpoint_under_suspicion_until_it_answers() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.pairs.suspect("p1", "KV expired", 1.0)
    assert fleet.apart() == {"p1": {"d0", "d1"}}
    fleet.run(2.0)
    assert fleet.apart() == {}


def test_suspicion_that_cannot_be_cleared_up_ends() -> None:
    fleet = Fleet("p0", "d0")
    fleet.pairs.suspect("d0", "KV expired", 1.0)
    fleet.says = lambda _: Found.NOTHING
    for _ in range(TRIES):
        fleet.run(NOTHING_S + 0.1)
    assert fleet.apart() == {}


def test_an_answer_of_a_process_that_is_gone_is_nobodys() -> None:
    fleet = Fleet("p0", "d0")
    old = fleet.pairs.pairs["p0", "d0"].lives
    fleet.restart("d0")
    fleet.pairs.observe(fleet.endpoints.values(), 1.0)
    fleet.pairs.tried(("p0", "d0"), old, WRONG, 1.0)
    assert fleet.standing("p0", "d0") is Standing.UNTRIED


def test_of_many_pairs_every_endpoint_is_in_one_that_is_tried_and_others_once_used() -> None:
    names = [*(f"p{n}" for n in range(20)), *(f"d{n}" for n in range(7))]
    fleet = Fleet(*names)
    assert len(names) > len(fleet.tries) == 20 < MAX_PAIRS
    assert {name for pair in fleet.tries for name in pair} == set(names)
    assert fleet.pairs.lazy
    untried = next(pair for pair, known in fleet.pairs.pairs.items() if not known.wanted)
    assert fleet.apart() == {}
    fleet.pairs.used(untried)
    fleet.run(1.0)
    assert fleet.tries[-1] == untried


def test_unready_endpoints_are_not_tried_and_their_pairs_not_forgotten() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    fleet.restart("p1")
    fleet.says = wrong(("p1", "d1"))
    fleet.run(1.0)
    fleet.endpoints["p1"] = endpoint("p1", ready=False, incarnation=fleet.endpoints["p1"].incarnation)
    before = len(fleet.tries)
    fleet.run(1000.0)
    assert len(fleet.tries) == before
    assert fleet.standing("p1", "d1") is Standing.BAD


def test_few_answers_are_kept_for_a_model() -> None:
    fleet = Fleet("u0")
    for n in range(10):
        fleet.says = lambda _, n=n: f"answer {n}"  # type: ignore[misc]
        fleet.restart("u0")
        fleet.run(100.0)
    assert len(fleet.pairs.right["m"]) <= KNOWN


@pytest.mark.parametrize("seed", range(3))
@given(data=st.data())
def test_with_a_known_answer_exactly_the_wrong_pairs_are_apart(seed: int, data: st.DataObject) -> None:
    names = [f"p{n}" for n in range(seed + 1)] + [f"d{n}" for n in range(2)]
    every = [(p, d) for p in names for d in names if p[0] == "p" and d[0] == "d"]
    bad = data.draw(st.sets(st.sampled_from(every)))
    fleet = Fleet("u0", *names, says=wrong(*bad))
    assert {(p, d) for p, ds in fleet.apart().items() for d in ds} == bad


def test_a_pair_that_fails_is_kept_apart_only_where_others_are_left() -> None:
    fleet = Fleet("p0", "d0")
    fleet.restart("d0")
    fleet.says = lambda _: Found.FAILED
    fleet.run(1.0)
    assert fleet.standing("p0", "d0") is Standing.BAD
    assert fleet.apart() == {}
    fleet.says = wrong(("p0", "d0"))
    fleet.run(100.0)
    assert fleet.apart() == {"p0": {"d0"}}, "wrong text is worse than none"


def test_case_17_what_an_earlier_router_knew_tells_a_wrong_pair_that_is_the_first_to_answer() -> None:
    fleet = Fleet(says=wrong(("p0", "d0")))
    fleet.pairs.right = {"m": [RIGHT]}
    fleet.endpoints = {"p0": endpoint("p0"), "d0": endpoint("d0"), "d1": endpoint("d1", ready=False)}
    fleet.run()
    assert fleet.standing("p0", "d0") is Standing.BAD
    assert fleet.apart() == {"p0": {"d0"}}


def test_case_17_where_requests_wait_no_pair_is_used_before_it_is_tried() -> None:
    pairs = Pairs()
    both = [endpoint("p0"), endpoint("d0")]
    pairs.observe(both, 0.0)
    assert pairs.apart(0.0) == {}, "where they do not wait, they would be refused"
    pairs.waits = True
    assert (pairs.apart(0.0), pairs.untried) == ({"p0": {"d0"}}, True)
    assert pairs.apart(FIRST_S) == {}, "not for ever"
    pairs.tried(("p0", "d0"), ("1", "1"), Found.NOTHING, 0.0)
    assert (pairs.apart(0.0), pairs.untried) == ({}, False), "it cannot be found out now"


def test_a_pair_waits_for_its_try_from_the_moment_both_sides_are_there() -> None:
    pairs = Pairs()
    pairs.waits = True
    pairs.observe([endpoint("p0"), endpoint("d0", ready=False)], 0.0)
    pairs.observe([endpoint("p0"), endpoint("d0")], 100.0)
    assert pairs.apart(100.0) == {"p0": {"d0"}}


def test_another_answer_is_believed_of_two_pairs_that_share_no_endpoint() -> None:
    fleet = Fleet("p0", "p1", "d0", "d1")
    for name in fleet.endpoints:
        fleet.restart(name)
    fleet.says = lambda pair: WRONG if "p0" in pair else RIGHT
    fleet.run()
    assert fleet.standing("p0", "d0") is Standing.BAD
    fleet.says = lambda _: "another model's"
    for name in fleet.endpoints:
        fleet.restart(name)
    fleet.run()
    fleet.run(NOTHING_S)
    assert {known.standing for known in fleet.pairs.pairs.values()} == {Standing.GOOD}


def test_another_answer_of_the_only_pair_is_believed_after_a_while() -> None:
    fleet = Fleet("p0", "d0")
    fleet.says = lambda _: "another model's"
    fleet.restart("p0")
    fleet.run()
    assert fleet.standing("p0", "d0") is Standing.BAD
    for _ in range(4):
        fleet.run(DOUBT_S / 2)
    assert fleet.standing("p0", "d0") is Standing.GOOD
