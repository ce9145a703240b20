"""A radix tree of block hashes: runs of blocks, and how far into each run every endpoint holds them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from orchestrator.core.frozen import record


@record(slots=True, eq=False)
class Use:
    """One prompt's use of blocks: `order` counts up; `computed` once the endpoint has computed the prompt."""

    order: int
    computed: bool = False


class Node:
    """A run of blocks that follows `parent`'s, beginning at block `depth` of every prompt that has it.

    `reach` is how many blocks of such a prompt each endpoint holds, up to the end of this run: whoever is in
    it holds all of the parent's. `children` go by their first block.
    """

    __slots__ = ("blocks", "children", "depth", "holds", "parent", "reach")

    def __init__(self, parent: Node | None, depth: int, blocks: array[int]) -> None:
        self.parent = parent
        self.depth = depth
        self.blocks = blocks
        self.children: dict[int, Node] = {}
        self.reach: dict[str, int] = {}
        self.holds: dict[str, Hold] = {}

    @property
    def end(self) -> int:
        """The number of blocks of a prompt that ends with this run."""
        return self.depth + len(self.blocks)

    def match(self, prompt: Sequence[int]) -> int:
        """How many blocks of `prompt`, which has the first of this run, are known by its end.

        Equal hashes mean equal prefixes, so that the last equal one tells; O(1) where all are.
        """
        blocks, depth = self.blocks, self.depth
        high = min(len(blocks), len(prompt) - depth)
        if high == 1 or blocks[high - 1] == prompt[depth + high - 1]:
            return depth + high
        low, high = 1, high - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if blocks[middle - 1] == prompt[depth + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return depth + low

    def split(self, at: int) -> Node:
        """Cut the run before block `at` of the prompt; the upper part, whose only child is the lower one."""
        parent, cut = self.parent, at - self.depth
        assert parent is not None
        upper = Node(parent, self.depth, self.blocks[:cut])
        parent.children[upper.blocks[0]] = upper
        self.blocks = self.blocks[cut:]
        self.parent, self.depth = upper, at
        upper.children[self.blocks[0]] = self
        for name, hold in tuple(self.holds.items()):
            reach = self.reach[name]
            if reach > at:
                upper.reach[name] = at
                upper.holds[name] = hold.copy_after(upper)
            else:
                upper.reach[name] = reach
                upper.holds[name] = hold
                hold.node = upper
                del self.reach[name], self.holds[name]
        if not self.holds:
            self.detach()
        return upper

    def absorb(self, child: Node) -> None:
        """Take over the run of the only child, which the same endpoint holds as whole as this one."""
        self.blocks.extend(child.blocks)
        self.children = child.children
        for grandchild in self.children.values():
            grandchild.parent = self
        [(name, hold)] = child.holds.items()
        hold.unlink()
        self.reach[name] = child.reach[name]

    def detach(self) -> None:
        """Take the run out of the tree: nobody holds it."""
        assert self.parent is not None
        del self.parent.children[self.blocks[0]]


class Hold:
    """One endpoint's part of a run, in a ring of all its parts from the longest unused to the last used."""

    __slots__ = ("next", "node", "prev", "use")

    def __init__(self, node: Node, use: Use) -> None:
        self.node = node
        self.use = use
        self.prev = self.next = self

    def copy_after(self, node: Node) -> Hold:
        """The same use of another run, placed right after this one in the ring."""
        copy = Hold(node, self.use)
        copy.link_before(self.next)
        return copy

    def link_before(self, other: Hold) -> None:
        """Enter the ring before `other`."""
        self.prev, self.next = other.prev, other
        other.prev.next = other.prev = self

    def unlink(self) -> None:
        """Leave the ring."""
        self.prev.next, self.next.prev = self.next, self.prev
        self.prev = self.next = self


class Lru:
    """One endpoint's blocks, evicted like a cache: the longest unused first, a run from its end.

    `told` is its KV capacity in blocks, `capacity` what is modelled of it; `size` the blocks held.
    """

    __slots__ = ("capacity", "name", "ring", "size", "told", "uses")

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.told = self.capacity = capacity
        self.size = 0
        self.uses = 0
        self.ring = Hold(Node(None, 0, array("Q")), Use(0))
        """Its next is the longest unused, its previous the last used."""

    def touch(self, path: Sequence[Node], use: Use) -> None:
        """All blocks of `path` are held and used now, the last first: what follows is never the younger."""
        name, ring = self.name, self.ring
        for node in reversed(path):
            hold = node.holds.get(name)
            if hold is None:
                hold = node.holds[name] = Hold(node, use)
                self.size += len(node.blocks)
            else:
                hold.unlink()
                hold.use = use
                self.size += node.end - node.reach[name]
            node.reach[name] = node.end
            hold.link_before(ring)

    def evict(self, number: int) -> None:
        """Forget the `number` blocks that were not used for longest."""
        name, ring = self.name, self.ring
        while number > 0 and ring.next is not ring:
            node = ring.next.node
            held = node.reach[name] - node.depth
            if held <= number:
                self.release(ring.next)
            else:
                node.reach[name] -= number
                self.size -= number
                if len(node.holds) == 1:
                    # Nobody has the rest, so that nothing follows it either.
                    del node.blocks[held - number :]
            number -= held

    def evict_until(self, order: int) -> None:
        """Forget all that was not used after the use number `order`."""
        ring = self.ring
        while ring.next is not ring and ring.next.use.order <= order:
            self.release(ring.next)

    def release(self, hold: Hold) -> None:
        """Forget a part of a run whose followers are forgotten."""
        node, name = hold.node, self.name
        self.size -= node.reach.pop(name) - node.depth
        del node.holds[name]
        hold.unlink()
        if not node.holds:
            node.detach()

    def known(self, root: Node, prompt: Sequence[int]) -> Iterator[tuple[int, Use]]:
        """The leading blocks of `prompt` that are held, run by run: how many by then, and their last use."""
        name, node, depth = self.name, root, 0
        while depth < len(prompt):
            child = node.children.get(prompt[depth])
            if child is None or (hold := child.holds.get(name)) is None:
                return
            depth = min(child.match(prompt), child.reach[name])
            yield depth, hold.use
            if depth < child.end:
                return
            node = child


def walk(root: Node, prompt: Sequence[int]) -> tuple[list[Node], int]:
    """The runs along `prompt` that anybody holds, and how many of its blocks are known by then."""
    nodes: list[Node] = []
    node, depth, size = root, 0, len(prompt)
    while depth < size:
        child = node.children.get(prompt[depth])
        if child is None:
            break
        nodes.append(child)
        depth = child.match(prompt)
        if depth < child.depth + len(child.blocks):
            break
        node = child
    return nodes, depth


def path(root: Node, prompt: Sequence[int], walked: tuple[list[Node], int] | None = None) -> list[Node]:
    """The runs that make up `prompt` exactly; cut and added as needed. `walked` is what `walk` just gave."""
    nodes, depth = walk(root, prompt) if walked is None else walked
    if nodes and depth < nodes[-1].end:
        nodes[-1] = nodes[-1].split(depth)
    if depth < len(prompt):
        last = nodes[-1] if nodes else root
        new = last.children[prompt[depth]] = Node(last, depth, array("Q", prompt[depth:]))
        nodes.append(new)
    return nodes


def join(nodes: Sequence[Node]) -> None:
    """Make one run of those along a path that one endpoint alone holds and nothing branches off between.

    All of them were just used together, so that they are equally old.
    """
    upper: Node | None = None
    for node in nodes:
        if upper is not None and len(upper.holds) == 1 and len(upper.children) == 1 and len(node.holds) == 1:
            upper.absorb(node)
        else:
            upper = node
