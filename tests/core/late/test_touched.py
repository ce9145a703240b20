"""Which prompts have to be looked up anew."""

from orchestrator.core.late.touched import TOUCHES, Touched


def test_only_prompts_that_begin_alike_have_changed():
    touched = Touched()
    seen = touched.count
    touched.block(7)
    assert touched.changed((7, 8)) > seen
    assert touched.changed((8, 7)) <= seen


def test_what_was_looked_up_since_has_not():
    touched = Touched()
    touched.block(7)
    assert touched.changed((7,)) <= touched.count
    touched.block(9)
    assert touched.changed((7,)) < touched.count


def test_all_may_change_at_once_but_for_those_without_blocks():
    touched = Touched()
    touched.block(7)
    seen = touched.count
    touched.all()
    assert touched.changed((1,)) > seen
    assert touched.changed(()) == 0


def test_what_is_remembered_is_bounded_and_nothing_forgotten_is_taken_for_unchanged():
    touched = Touched()
    touched.block(-1)
    seen = touched.count
    touched.block(0)
    for block in range(1, 3 * TOUCHES):
        touched.block(block)
    assert len(touched._blocks) <= TOUCHES + 1
    assert touched.changed((0,)) > seen
