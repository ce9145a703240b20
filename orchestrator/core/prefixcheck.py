"""Each request's believed hit, against what its engine reports and what could have been at most."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from orchestrator.core.contracts import PrefixReader
from orchestrator.core.frozen import record
from orchestrator.core.kvindex import Coming, KvIndex
from orchestrator.core.prefix import PrefixIndex, Sent
from orchestrator.core.types import End, Outcome, PathKind, RequestView, Snapshot

SEEN_BITS = 20
"""2^20 blocks are remembered as seen, of which each stands for up to four: 134 to 536 M tokens, several times
what a fleet's caches hold, in 8 MB."""

FIRST, STRIDE = 8, 4
"""Of a prompt's blocks the first eight are looked up, where short prompts part, and every fourth beyond: a
random access to so large a table costs more than anything else here."""

TOLERANCE = 0.05
"""Share by which a report may differ from what was believed before it says anything: tokens of a text are
estimated from its length, and no two parts of it have equally many to the byte."""


def cached_tokens(request: RequestView, blocks: int, block_tokens: int, page: int | None = None) -> int:
    """Tokens of the prompt, on the scale of its `prompt_tokens`, that `blocks` cached blocks save.

    Engines find whole pages of `page` tokens (None: single tokens), and always compute the last token anew,
    as nothing else gives them the next: the page that it is in is computed too.
    """
    return _found(request, int(blocks * _tokens_each(request, block_tokens)), page)


def _found(request: RequestView, tokens: int, page: int | None) -> int:
    """What an engine with pages of `page` tokens finds of the `tokens` that it holds."""
    tokens = min(tokens, request.prompt_tokens - 1)
    if page:
        tokens -= tokens % page
    return max(0, tokens)


def _tokens_each(request: RequestView, block_tokens: int) -> float:
    """Tokens of one block; fewer than `block_tokens` where the text is wordy (token ids, say)."""
    whole = len(request.block_hashes)
    if whole * block_tokens <= request.prompt_tokens:
        return block_tokens
    return request.prompt_tokens / whole


class Seen:
    """Which blocks anybody has sent: what one endless cache shared by all endpoints would hold.

    A table with one place per hash, where a newer block displaces an older one: bounded, and the older a
    block the likelier it is forgotten, so that what it tells is rather too low than too high.
    """

    def __init__(self, bits: int = SEEN_BITS) -> None:
        self._mask = (1 << bits) - 1
        self._table: array[int] = array("Q")

    def leading(self, blocks: Sequence[int], least: int = 0) -> int:
        """How many leading blocks were seen before, `least` being known; all are seen from now on."""
        table, mask = self._table, self._mask
        if not table:
            table = self._table = array("Q", bytes(8 * (mask + 1)))
        marks = (*blocks[:FIRST], *blocks[FIRST + STRIDE - 1 :: STRIDE])
        low, high = 0, len(marks)
        while low < high:
            middle = (low + high + 1) >> 1
            block = marks[middle - 1]
            if table[block & mask] == block:
                low = middle
            else:
                high = middle - 1
        for block in marks[low:]:
            table[block & mask] = block
        return max(least, low if low <= FIRST else FIRST + STRIDE * (low - FIRST))


@record(slots=True)
class Checked:
    """Prompt tokens of an endpoint's requests whose engine reported its hits, as the engine counts them.

    `wrong` adds up the differences between what was predicted and what was reported, without their signs.
    """

    requests: int = 0
    prompt: float = 0.0
    predicted: float = 0.0
    reported: float = 0.0
    wrong: float = 0.0


@record(slots=True)
class Hits:
    """Prompt tokens of all requests, those found cached, and those an endless shared cache would have had."""

    prompt: float = 0.0
    hit: float = 0.0
    ceiling: float = 0.0


@record(slots=True, eq=False)
class _Open:
    request: RequestView
    sent: Sent
    endpoint: str
    page: int
    cached_tokens: int
    ceiling_tokens: int
    told_tokens: int | None
    """What the engine's own events said of it; None where they do not, or not yet."""
    coming: Coming | None


class Exact:
    """A PrefixReader for one request, by what engines tell where they do and by `index` elsewhere."""

    __slots__ = ("_check", "_found", "_request")

    def __init__(self, check: PrefixCheck, request: RequestView) -> None:
        self._check = check
        self._request = request
        self._found: Mapping[str, int] | None = None

    def cached_blocks(self, endpoint_id: str, block_hashes: Sequence[int]) -> int:
        """How many leading blocks of the prompt `endpoint_id` is believed to hold."""
        check, request = self._check, self._request
        if block_hashes is not request.block_hashes or not check.exact.exact(endpoint_id):
            return check.index.cached_blocks(endpoint_id, block_hashes)
        if self._found is None:
            self._found = check.tokens(request)
        # A page may be a fraction of a block, and a token is what was not found.
        each = _tokens_each(request, check.block_tokens)
        return int((self._found.get(endpoint_id, 0) + 1) / each)


class PrefixCheck:
    """Keeps a PrefixIndex true to the requests that are sent: each goes `sent`, `computed`, `ended`.

    `checked` is by endpoint, `hits` by model; both only grow. Where `exact` has an endpoint in use, by what
    its engine tells, that is what counts; `index` goes on beside it, for when it is not, and tells what is
    still being computed.
    """

    def __init__(self, index: PrefixIndex, block_tokens: int) -> None:
        self.index = index
        self.exact = KvIndex()
        self.block_tokens = block_tokens
        self.checked: dict[str, Checked] = {}
        self.hits: dict[str, Hits] = {}
        self._seen = Seen()
        self._open: dict[str, _Open] = {}
        self._incarnations: dict[str, str] = {}
        self._before: dict[str, tuple[int, int]] = {}
        """Of requests that are computed in slices: cached tokens before the first, and at most possible."""

    def observe(self, snapshot: Snapshot) -> tuple[Sequence[str], bool]:
        """Forget what endpoints held that left or are a new process; bound the others by their memory.

        The endpoints that are new processes, and whether any came, left or is one.
        """
        restarted = []
        for endpoint in snapshot.endpoints:
            if self._incarnations.get(endpoint.id, endpoint.incarnation) != endpoint.incarnation:
                self.index.drop(endpoint.id)
                restarted.append(endpoint.id)
            total = endpoint.kv_total_tokens
            self.index.resize(endpoint.id, None if total is None else total // self.block_tokens)
        incarnations = {e.id: e.incarnation for e in snapshot.endpoints}
        for endpoint_id in self._incarnations.keys() - incarnations.keys():
            self.index.drop(endpoint_id)
        changed = incarnations != self._incarnations
        self._incarnations = incarnations
        return restarted, changed

    def tokens(self, request: RequestView) -> Mapping[str, int]:
        """Leading tokens of the prompt by endpoint, of those that hold any or will by when it is theirs."""
        hashes, each = request.block_hashes, self.block_tokens
        blocks = self.index.hits(hashes)
        found = {e: cached_tokens(request, held, each) for e, held in blocks.items()}
        if request.chains is not None and self.exact.holders:
            self.exact.correct(request, found)
        return found

    def reader(self, request: RequestView) -> PrefixReader:
        """What policies may ask of this request."""
        return self.index if request.chains is None else Exact(self, request)

    def sent(self, request: RequestView, endpoint_id: str, page: int | None = None) -> int:
        """The prompt goes to an endpoint whose cache has pages of `page` tokens, and will be held there.

        Returns how many of its tokens the endpoint is believed to hold before that.
        """
        blocks, each = request.block_hashes, self.block_tokens
        if not blocks or request.path is PathKind.TOKENIZE:
            return 0
        told = self.exact.held(endpoint_id, request)
        sure = self.exact.held(endpoint_id, request, sure=True)
        coming = None if told is None else self.exact.sent(endpoint_id, request)
        sent = self.index.sent(endpoint_id, blocks)
        # One tried again was seen at its first attempt.
        ceiling = sent.anywhere if request.avoid else self._seen.leading(blocks, sent.anywhere)
        tokens = cached_tokens(request, sent.believed, each, page)
        if told is not None:
            tokens = _found(request, told, page) if self.exact.exact(endpoint_id) else tokens
            # What is still being computed may be there in time, or not: no word of the engine's to check.
            told = _found(request, told, page) if told == sure else None
        most = cached_tokens(request, ceiling, each, page)
        most = max(tokens, most)
        self._open[request.id] = _Open(request, sent, endpoint_id, page or 1, tokens, most, told, coming)
        return tokens

    def slicing(self, request: RequestView) -> None:
        """It is going to be computed slice by slice, each `sent` under a name of its own; what they leave for
        its own last one is no hit."""
        blocks, each = request.block_hashes, self.block_tokens
        held = max(self.tokens(request).values(), default=0)
        anywhere = max(self.index.hits(blocks).values(), default=0)
        ceiling = cached_tokens(request, self._seen.leading(blocks, anywhere), each)
        self._before[request.id] = held, max(held, ceiling)

    def sliced(self, name: str, done: bool) -> None:
        """A slice is over: it has been computed, or never will be."""
        was = self._open.pop(name, None)
        if was is None:
            return
        if done:
            self._computed(was)
        else:
            self._lost(was)

    def computed(self, request_id: str) -> None:
        """The prompt is computed. May be told more than once, and of requests never sent."""
        found = self._open.get(request_id)
        if found is not None:
            self._computed(found)

    def _computed(self, was: _Open) -> None:
        was.sent.computed()
        if was.coming is not None:
            self.exact.computed(was.endpoint, was.coming)

    def _lost(self, was: _Open) -> None:
        self.index.lost(was.sent)
        if was.coming is not None:
            self.exact.lost(was.endpoint, was.coming)

    def ended(self, outcome: Outcome) -> None:
        """The request is over, however: what it tells of the cache is learned."""
        was = self._open.pop(outcome.request_id, None)
        before = self._before.pop(outcome.request_id, None) if self._before else None
        if was is None:
            return
        if outcome.end is End.COMPLETED:
            self._computed(was)
        elif not was.sent.use.computed:
            self._lost(was)
            return
        request = was.request
        told, prompt = outcome.cached_tokens, outcome.prompt_tokens or request.prompt_tokens
        scale = prompt / max(1, request.prompt_tokens)
        predicted = was.cached_tokens * scale
        hits = self.hits.setdefault(request.model, Hits())
        hits.prompt += prompt
        hit, ceiling = predicted if told is None else told, max(was.ceiling_tokens * scale, told or 0)
        if before is not None:
            hit, ceiling = min(hit, before[0] * scale), min(ceiling, before[1] * scale)
        hits.hit += hit
        hits.ceiling += ceiling
        # Of several prompts in one request, nobody tells which was found.
        if told is None or request.n > 1 or prompt <= 0:
            return
        checked = self.checked.setdefault(was.endpoint, Checked())
        checked.requests += 1
        checked.prompt += prompt
        checked.predicted += predicted
        checked.reported += told
        checked.wrong += abs(predicted - told)
        if was.told_tokens is not None:
            self.exact.check(was.endpoint, was.told_tokens, told, prompt)
        self.index.reported(was.sent, self._blocks(was, told / scale))

    def _blocks(self, was: _Open, told: float) -> int:
        """The leading blocks that a report of `told` tokens (our scale) stands for; as believed if near."""
        each, believed = _tokens_each(was.request, self.block_tokens), was.sent.believed
        least = int(told * (1 - TOLERANCE) / each)
        # The engine had up to a page more than it tells, and our last block may reach beyond that.
        most = int((told * (1 + TOLERANCE) + was.page) / each) + 1
        return min(max(believed, least), most)


def share(checked: Mapping[str, Checked]) -> float | None:
    """The share of all checked prompt tokens by which predictions were wrong; None before any was checked."""
    prompt = sum(c.prompt for c in checked.values())
    return sum(c.wrong for c in checked.values()) / prompt if prompt else None
