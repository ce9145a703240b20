"""Which tokens of a prompt each endpoint holds by its engine's account, and whether that can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from orchestrator.core.frozen import record
from orchestrator.core.kvblocks import KvBlocks, common
from orchestrator.core.kvevents import BlocksRemoved, BlocksStored, KvEvent, Tier
from orchestrator.core.types import RequestView

MAX_BLOCKS = 2_000_000
"""Blocks remembered for one endpoint at most, 0.3 GB: 32 M tokens in blocks of 16."""

SLACK = 1.25
"""An engine tells of more blocks than its memory has only where events are lost, or tiers counted together:
beyond this factor the index takes in nothing more."""

MEMORY = 64.0
"""Reports that count: each weighs a 64th less with each that follows."""

ENOUGH = 16.0
"""Reports by which an index is judged."""

PROVEN_SHARE = 0.5
"""An index comes (back) into use once it is wrong by no more than this share of what it is dropped for."""

SLOW = (Tier.HOST, Tier.STORAGE)
"""Tiers whose blocks must be brought back, the faster first."""

EXACT, UNPROVEN, WRONG, OVERFULL = "exact", "unproven", "wrong", "overfull"
"""In use; not known from its beginning, and being checked; dropped after it was wrong; beyond its bound."""


def _nobody(endpoint_id: str) -> None:
    """Nobody wants to hear of it."""


@record(slots=True, eq=False)
class Coming:
    """A prompt that was sent to an endpoint, which has not told of its blocks yet.

    `told` is how often it had told anything by when the prompt was computed: what it tells next is of it too.
    """

    chain: Sequence[int]
    computed: bool = False
    told: int = 0


@record(slots=True, eq=False)
class Behind:
    """Tokens of a prompt that an endpoint has on its device, and those that follow on slower tiers."""

    held: int
    slow: Sequence[tuple[Tier, int]]


@record(slots=True, eq=False)
class Holder:
    """One endpoint's blocks, and how its reports agreed with them of late.

    `told` is how often it told something, `coming` what was sent there and it has not told of. `checked`,
    `prompt` and `wrong` are reports, their prompt tokens and the differences, older ones fading.
    """

    blocks: KvBlocks
    state: str
    told: int = 0
    coming: list[Coming] = field(default_factory=list)
    checked: float = 0.0
    prompt: float = 0.0
    wrong: float = 0.0
    drops: int = 0
    group: int = -1
    """The group of layers that is listened to, the first that told of whole prefixes."""
    slow: dict[Tier, KvBlocks] = field(default_factory=dict)
    """Blocks that must be brought back before a prompt can use them, by where they are."""

    @property
    def error(self) -> float | None:
        """The share of prompt tokens by which it was wrong of late; None: too little was reported."""
        return self.wrong / self.prompt if self.checked >= ENOUGH / 2 and self.prompt else None

    def leading(self, chain: Sequence[int], *, sure: bool = False) -> int:
        """Leading blocks of a prompt that are there, or (unless `sure`) will be once they are computed."""
        found = self.blocks.leading(chain)
        for one in self.coming:
            if sure and not one.computed:
                continue
            if found < len(chain) and found < len(one.chain) and one.chain[found] == chain[found]:
                found = common(one.chain, chain, found + 1)
        return found

    def behind(self, chain: Sequence[int], held: int) -> tuple[tuple[Tier, int], ...]:
        """Blocks that follow the leading `held` on slower tiers, the faster one first."""
        found = []
        for tier in SLOW:
            blocks = self.slow.get(tier)
            if blocks is not None:
                end = blocks.reach(chain, held)
                if end > held:
                    found.append((tier, end - held))
                    held = end
        return tuple(found)

    def table(self, tier: Tier) -> KvBlocks:
        """The blocks on a tier."""
        if tier is Tier.DEVICE:
            return self.blocks
        found = self.slow.get(tier)
        if found is None:
            found = self.slow[tier] = KvBlocks(self.blocks.seed, self.blocks.block_tokens, MAX_BLOCKS)
        return found

    def beside(self, tier: Tier) -> Sequence[KvBlocks]:
        """The blocks on the other tiers, where there are slow ones."""
        if tier is Tier.DEVICE and not self.slow:
            return ()
        return [blocks for at, blocks in ((Tier.DEVICE, self.blocks), *self.slow.items()) if at is not tier]

    def empty(self) -> None:
        """Nothing is held."""
        self.blocks.clear()
        self.slow.clear()

    def forget(self, state: str) -> None:
        """Start anew with nothing held and nothing checked."""
        self.empty()
        self.coming = [one for one in self.coming if not one.computed]
        self.state = state
        self.checked = self.prompt = self.wrong = 0.0


class KvIndex:
    """What endpoints hold, by the events of their engines.

    An endpoint is opened when its events are read, and closed when they are not any more. What is known of it
    is used while it is EXACT; in any other state it is kept and checked all the same, and the caller has its
    approximate index. `max_error` is the share of prompt tokens by which reports may differ before an index
    is dropped: all that it says is forgotten, and `on_drop` is called, which may have it told again.
    """

    def __init__(self, seed: int = 0, max_error: float = 0.1) -> None:
        self.max_error = max_error
        self.on_drop: Callable[[str], None] = _nobody
        self.version = 0
        """Grows with everything that is told."""
        self.sizes: tuple[int, ...] = ()
        """Tokens of a block of those that are open: a request's `chains` are made for these."""
        self.holders: dict[str, Holder] = {}
        self.seed = seed
        self.tiers = False
        """Whether anybody has told of blocks on a slower tier."""

    def open(self, endpoint_id: str, block_tokens: int, capacity_tokens: int | None) -> None:
        """Its events are read from now on; nothing is known of it until `reset` says from where."""
        limit = MAX_BLOCKS
        if capacity_tokens:
            limit = min(limit, int(SLACK * capacity_tokens / block_tokens) + 1)
        old = self.holders.get(endpoint_id)
        holder = Holder(KvBlocks(self.seed, block_tokens, limit), UNPROVEN)
        holder.drops = 0 if old is None else old.drops
        self.holders[endpoint_id] = holder
        self._changed()

    def close(self, endpoint_id: str) -> None:
        """Its events are read no more."""
        if self.holders.pop(endpoint_id, None) is not None:
            self._changed()

    def reset(self, endpoint_id: str, *, whole: bool) -> None:
        """All that was told is void; what follows is `whole`, or begins in the middle."""
        holder = self.holders.get(endpoint_id)
        if holder is not None:
            holder.forget(EXACT if whole and holder.state != WRONG else UNPROVEN)
            self.version += 1

    def apply(self, endpoint_id: str, events: Sequence[KvEvent]) -> None:
        """Take in what an engine told in one step. Raises ValueError for what contradicts itself."""
        holder = self.holders.get(endpoint_id)
        if holder is None:
            return
        blocks = holder.blocks
        for event in events:
            if isinstance(event, BlocksStored):
                if holder.group < 0:
                    holder.group = event.group
                if event.group == holder.group:
                    self.tiers = self.tiers or event.tier is not Tier.DEVICE
                    holder.table(event.tier).store(event, holder.beside(event.tier))
            elif isinstance(event, BlocksRemoved):
                if event.group == holder.group and (event.tier is Tier.DEVICE or event.tier in holder.slow):
                    holder.table(event.tier).remove(event)
            else:
                holder.empty()
                holder.coming = [one for one in holder.coming if not one.computed]
        holder.told += 1
        if holder.coming:
            holder.coming = [one for one in holder.coming if not one.computed or one.told >= holder.told]
        self.version += 1
        if blocks.overfull and holder.state != OVERFULL:
            self._drop(endpoint_id, holder, OVERFULL)

    def held(self, endpoint_id: str, request: RequestView, *, sure: bool = False) -> int | None:
        """Leading tokens of the prompt that it holds, wherever, or (unless `sure`) will, in or out of use;
        None: nothing can be said."""
        holder = self.holders.get(endpoint_id)
        if holder is None or request.chains is None:
            return None
        chain = request.chains.get(holder.blocks.block_tokens)
        if chain is None:
            return None
        blocks = holder.leading(chain, sure=sure)
        if holder.slow:
            blocks += sum([count for _, count in holder.behind(chain, blocks)])
        return blocks * holder.blocks.block_tokens

    def behind(self, request: RequestView) -> Mapping[str, Behind]:
        """Where endpoints in use have tokens of the prompt on slower tiers, those."""
        if request.chains is None:
            return {}
        found: dict[str, Behind] = {}
        for endpoint_id, holder in self.holders.items():
            size = holder.blocks.block_tokens
            chain = request.chains.get(size) if holder.slow and holder.state == EXACT else None
            if chain is None:
                continue
            held = holder.leading(chain)
            slow = holder.behind(chain, held)
            if slow:
                found[endpoint_id] = Behind(held * size, [(tier, count * size) for tier, count in slow])
        return found

    def sent(self, endpoint_id: str, request: RequestView) -> Coming | None:
        """The prompt goes there; None where nothing can be said of it."""
        holder = self.holders.get(endpoint_id)
        if holder is None or request.chains is None:
            return None
        chain = request.chains.get(holder.blocks.block_tokens)
        if chain is None:
            return None
        coming = Coming(chain)
        holder.coming.append(coming)
        return coming

    def computed(self, endpoint_id: str, coming: Coming) -> None:
        """It has computed a prompt that was sent."""
        holder = self.holders.get(endpoint_id)
        if holder is not None and not coming.computed:
            coming.computed, coming.told = True, holder.told

    def lost(self, endpoint_id: str, coming: Coming) -> None:
        """It has not computed it, and will not."""
        holder = self.holders.get(endpoint_id)
        if holder is not None and coming in holder.coming:
            holder.coming.remove(coming)

    def exact(self, endpoint_id: str) -> bool:
        """Whether it is in use for this endpoint."""
        holder = self.holders.get(endpoint_id)
        return holder is not None and holder.state == EXACT

    def correct(self, request: RequestView, found: dict[str, int]) -> None:
        """Put into `found` (tokens by endpoint) what endpoints in use hold, or will."""
        chains = request.chains
        if chains is None:
            return
        for endpoint_id, holder in self.holders.items():
            if holder.state != EXACT:
                continue
            blocks = holder.blocks
            chain = chains.get(blocks.block_tokens)
            if chain is None:
                continue
            tokens = holder.leading(chain) * blocks.block_tokens
            if tokens:
                found[endpoint_id] = min(tokens, max(0, request.prompt_tokens - 1))
            else:
                found.pop(endpoint_id, None)

    def check(self, endpoint_id: str, predicted: float, reported: float, prompt: float) -> None:
        """An engine has reported how much of a prompt it found: hold it against what was predicted."""
        holder = self.holders.get(endpoint_id)
        if holder is None or prompt <= 0:
            return
        fade = 1.0 - 1.0 / MEMORY
        holder.checked = holder.checked * fade + 1.0
        holder.prompt = holder.prompt * fade + prompt
        holder.wrong = holder.wrong * fade + abs(predicted - reported)
        if holder.checked < ENOUGH:
            return
        if holder.state == EXACT:
            if holder.wrong > self.max_error * holder.prompt:
                self._drop(endpoint_id, holder, WRONG)
        elif holder.wrong <= PROVEN_SHARE * self.max_error * holder.prompt:
            holder.state = EXACT
            self.version += 1

    def _drop(self, endpoint_id: str, holder: Holder, state: str) -> None:
        holder.drops += 1
        holder.forget(state)
        self.version += 1
        self.on_drop(endpoint_id)

    def _changed(self) -> None:
        self.sizes = tuple(sorted({holder.blocks.block_tokens for holder in self.holders.values()}))
        self.version += 1
