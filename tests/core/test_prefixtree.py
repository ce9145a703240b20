"""Runs of blocks are cut where prompts part, and joined again where nothing parts any more."""

from __future__ import annotations

from array import array

from orchestrator.core.prefixtree import Lru, Node, Use, join, path


def root() -> Node:
    return Node(None, 0, array("Q"))


def send(tree: Node, lru: Lru, *prompt: int) -> list[Node]:
    lru.uses += 1
    nodes = path(tree, prompt)
    lru.touch(nodes, Use(lru.uses))
    join(nodes)
    return nodes


def runs(node: Node) -> list[list[int]]:
    """Every run below, top down."""
    return [found for child in node.children.values() for found in ([*child.blocks], *runs(child))]


def test_prompts_part_where_they_differ():
    tree, lru = root(), Lru("a", 100)
    send(tree, lru, 1, 2, 3, 4)
    send(tree, lru, 1, 2, 5)
    assert sorted(runs(tree)) == [[1, 2], [3, 4], [5]]
    assert lru.size == 5


def test_a_conversation_at_one_endpoint_stays_one_run_however_many_turns_it_has():
    tree, lru = root(), Lru("a", 1000)
    for turn in range(1, 50):
        send(tree, lru, *range(3 * turn))
    assert runs(tree) == [list(range(147))]
    assert lru.size == 147
    assert lru.ring.next.next is lru.ring


def test_runs_that_two_endpoints_hold_are_told_apart():
    tree, a, b = root(), Lru("a", 100), Lru("b", 100)
    send(tree, a, 1, 2, 3, 4)
    send(tree, b, 1, 2)
    [upper] = tree.children.values()
    [lower] = upper.children.values()
    assert (upper.reach, lower.reach) == ({"a": 2, "b": 2}, {"a": 4})
    b.evict(2)
    assert upper.reach == {"a": 2}
    a.evict(4)
    assert not tree.children


def test_what_nobody_holds_any_more_is_gone():
    tree, a, b = root(), Lru("a", 100), Lru("b", 100)
    send(tree, a, 1, 2, 3, 4)
    send(tree, b, 1, 2, 3, 4)
    a.evict(2)
    assert runs(tree) == [[1, 2, 3, 4]]
    b.evict(3)
    send(tree, b, 1, 2)
    assert runs(tree) == [[1, 2]]
    assert (a.size, b.size) == (2, 2)


def test_all_that_is_as_old_as_a_use_goes_at_once():
    tree, lru = root(), Lru("a", 100)
    for prompt in ((1, 2), (3, 4), (5, 6), (1, 7)):
        send(tree, lru, *prompt)
    lru.evict_until(2)
    assert sorted(runs(tree)) == [[1], [5, 6], [7]]
    assert lru.size == 4
