"""`bench decide`: the scheduler stays as full as it was, and every kind of call is timed."""

import json

import pytest
from benchmarks import decide


def test_a_turn_leaves_as_many_waiting():
    fleet = decide.Fleet(4, 20)
    before = fleet.scheduler.waiting
    for _ in range(10):
        spent = fleet.turn()
    assert [len(one) for one in spent] == [2, 2, 2, 2]
    assert abs(fleet.scheduler.waiting - before) <= 3, "a unit of short ones may go at once"
    assert fleet.sent


def test_the_page_has_a_row_for_each_case(capsys):
    assert decide.main(["--case", "4,5", "--seconds", "0.05", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert set(results[0]["calls"]) == set(decide.CALLS)
    page = decide.report(results).markdown()
    assert "| 4 | " in page
    assert "scripts/bench decide --write" in page


def test_a_fleet_has_someone_to_prefill_and_someone_to_decode():
    with pytest.raises(SystemExit):
        decide.main(["--case", "1,5"])
