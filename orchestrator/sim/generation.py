"""One sequence being generated: its prompt, the KV it should have, and the output that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import orjson

from orchestrator.sim import text
from orchestrator.sim.calls import Params

if TYPE_CHECKING:
    from orchestrator.sim.jobs import Job


class Owner(Protocol):
    """Whoever wants a generation's tokens."""

    def flush(self, gen: Generation) -> None:
        """`gen` has new tokens, or has ended (`gen.done` says how)."""
        ...


class Generation:
    """One sequence.

    `final` is the state after the whole prompt, which stands for its KV; `states` those at each block's
    end, first of the prompt, then of the output. `tokens` is all the output there will be, `texts` what
    each token adds to it as the inside of a JSON string. `sent` tokens were given to the owner. `done`
    is the finish reason once it has ended; `cached` overrides the cached tokens reported (a peer's count).
    `state`: the KV as it is. `spoiled`: it read KV that is not its own. `hold`: nothing is told before
    its end. `twins` are samples of the same prompt that have no job of their own and share its output.
    """

    __slots__ = (
        "cached", "created_s", "done", "eos", "final", "first_s", "hold", "id", "index", "job", "last_s",
        "limit", "matched", "owner", "params", "prompt", "reason", "room", "sent", "spoiled", "state",
        "states", "texts", "tokens", "twins",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        owner: Owner,
        index: int,
        prompt: tuple[int, ...],
        params: Params,
        *,
        limit: int,
        block_tokens: int,
        now_s: float,
    ) -> None:
        self.id = id
        self.owner = owner
        self.index = index
        self.prompt = prompt
        self.params = params
        self.limit = limit
        self.created_s = now_s
        self.first_s: float | None = None
        self.last_s = now_s
        self.job: Job | None = None
        self.room: int | None = None
        self.hold = False
        self.sent = 0
        self.done: str | None = None
        self.spoiled = False
        self.twins: list[Generation] = []
        self.cached: int | None = None
        whole = len(prompt) // block_tokens * block_tokens
        self.states = text.block_states(prompt, block_tokens)
        last = self.states[-1] if self.states else 1
        self.final = text.fold(last, prompt[whole:])
        self.tokens: list[int] = []
        self.texts: list[bytes] = []
        self.eos = False
        self.reason = "length"
        self.matched: str | int | None = None
        self.plan(self.final)
        self.states += text.block_states((*prompt[whole:], *self.tokens), block_tokens, last)

    def plan(self, state: int) -> int:
        """Let the output follow from `state`; how many tokens it has."""
        params = self.params
        self.state = state
        self.tokens, self.eos = text.generate(
            state, self.limit, ignore_eos=params.ignore_eos, least=params.min_tokens
        )
        self.texts = [text.escaped(token) for token in self.tokens]
        self.reason, self.matched = ("stop", text.EOS) if self.eos else ("length", None)
        if params.stop:
            self._stop_at(params.stop)
        return len(self.tokens)

    def _stop_at(self, stops: tuple[str, ...]) -> None:
        """End the output with the token that completes the first stop string, and its text before it."""
        pieces = [text.piece(token) for token in self.tokens]
        so_far = ""
        for count, one in enumerate(pieces, 1):
            so_far += one
            found = [(at, stop) for stop in stops if (at := so_far.find(stop)) >= 0]
            if found:
                at, self.matched = min(found)
                self.reason, self.eos = "stop", False
                self.tokens = self.tokens[:count]
                self.texts = _cut(pieces[:count], at)
                return

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        return min(self.job.produced, len(self.tokens)) if self.job is not None else 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in a prefix cache, here or where the prompt was computed."""
        if self.cached is not None:
            return self.cached
        return self.job.cached_tokens if self.job is not None else 0

    def output_text(self, end: int | None = None) -> str:
        """The output as text, up to `end` tokens."""
        joined: str = orjson.loads(b'"' + b"".join(self.texts[: self.sent if end is None else end]) + b'"')
        return joined


def _cut(pieces: list[str], visible: int) -> list[bytes]:
    """The pieces as JSON text, with only the first `visible` characters of them all left."""
    cut = []
    for one in pieces:
        cut.append(orjson.dumps(one[:visible])[1:-1])
        visible = max(0, visible - len(one))
    return cut
