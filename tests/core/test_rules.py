"""Rules as data: names are unique, and the reference says all of each."""

from __future__ import annotations

import pytest

from orchestrator.core.rules import WARN, Rule, by_name, reference

ONE = Rule("one", "Finds one.", "Why one.", "Mend one.")
TWO = Rule("two", "Finds two.", "Why two.", "Mend two.", WARN, fixed=True, running=True)


def test_two_rules_of_one_name_are_a_mistake() -> None:
    assert by_name([ONE, TWO, ONE]) == {"one": ONE, "two": TWO}
    with pytest.raises(ValueError, match="'one'"):
        by_name([ONE, Rule("one", "Finds another.", "Why.", "Mend.")])


def test_the_reference_is_sorted_and_says_everything() -> None:
    assert reference([TWO, ONE]) == (
        "### one\n*Error.* Finds one.\n\nWhy one.\n\n**Mend:** Mend one.\n\n"
        "### two\n*Warning, cannot be silenced, looked at again after start.* Finds two.\n\nWhy two.\n\n"
        "**Mend:** Mend two.\n"
    )
