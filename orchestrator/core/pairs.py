"""Which pairs of endpoints give right answers: who is tried next, and who is kept apart meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from orchestrator.core.breaker import Breaker
from orchestrator.core.types import Endpoint, Role

MAX_PAIRS = 64
"""Of more pairs of one model than this, so many are tried that every endpoint is in one; others once used."""

TRIES = 3
"""Tries in a row without a right answer that make a pair bad: greedy output depends on the batch, so one may
differ by chance. Also the requests in a row that must fail between two endpoints to raise suspicion."""

KNOWN = 4
"""Right answers kept for a model."""

HOLD_S = 10.0
"""How long a pair with a new process is kept from work until it has been tried, where others do the work."""

FIRST_S = 2.0
"""The same where no pair is known to be good and requests can wait: a try that tells anything takes less."""

DOUBT_S = 30.0
"""How long all pairs must contradict what was known until they are believed: the model may be another one."""

NOTHING_S = 5.0
"""When a pair is tried again that told nothing: an engine was busy, or away."""

Pair = tuple[str, str]
"""Prefill and decode; an endpoint that serves alone is the second, and the first is empty."""


class Standing(StrEnum):
    """What is thought of a pair."""

    UNTRIED = "untried"
    GOOD = "good"
    SUSPECT = "suspect"
    BAD = "bad"


class Found(StrEnum):
    """What a try has found, where it is no answer."""

    FAILED = "failed"
    """The pair failed at it."""
    NOTHING = "nothing"
    """It tells nothing of the pair: no time, no connection, a refusal."""


@dataclass(slots=True)
class Known:
    """One pair as it stands. `lives` are the incarnations it is true of; `wrong` the tries in a row without a
    right answer, `failures` the requests in a row that failed over it."""

    model: str
    lives: tuple[str, str]
    since_s: float
    ready: bool = False
    wanted: bool = True
    standing: Standing = Standing.UNTRIED
    why: str = ""
    answer: str | None = None
    garbage: bool = False
    """Its text is or may be wrong, rather than that it fails: no work at all is better than its own."""
    wrong: int = 0
    failures: int = 0
    nothing: int = 0
    due_s: float = 0.0
    trying: bool = False
    breaker: Breaker = field(default_factory=Breaker)


class Pairs:
    """Decides what is tried next and what follows; a shell performs the tries. Times are the caller's clock.

    An answer is right for a model once an endpoint that serves alone has given it, or two pairs, or the only
    one there is. What was known before (`right`, by model) is given up for what two pairs say that share no
    endpoint, or all of them for long. `failing` is whether requests have failed over any pair since something
    went well there. `waits`: requests wait where no pair may be used; then none is used before it is tried.
    """

    def __init__(self) -> None:
        self.waits = False
        self.pairs: dict[Pair, Known] = {}
        self.failing: set[Pair] = set()
        self.lazy = False
        """Some are tried only once they are used."""
        self.right: dict[str, list[str]] = {}
        self._doubted_s: dict[str, float] = {}

    @property
    def untried(self) -> bool:
        """Whether a pair that may be used is still to be tried for the first time."""
        return any(
            k.ready and k.wanted and k.standing is Standing.UNTRIED and not k.nothing
            for k in self.pairs.values()
        )

    def observe(self, endpoints: Iterable[Endpoint], now_s: float) -> None:
        """Take the endpoints as they are now: a new one, or a new process, has to be tried."""
        seen: dict[Pair, Known] = {}
        for pair, one, two, wanted in _pairs(endpoints):
            lives = (one.incarnation, two.incarnation)
            known = self.pairs.get(pair)
            if known is None or known.lives != lives:
                known = Known(two.model, lives, now_s, wanted=wanted)
            ready = one.ready and two.ready
            if ready and not known.ready and known.standing is Standing.UNTRIED:
                known.since_s = now_s
            known.ready = ready
            known.wanted |= wanted
            seen[pair] = known
        self.pairs = seen
        self.lazy = not all(known.wanted for known in seen.values())
        self.failing &= seen.keys()

    def next(self, now_s: float) -> Pair | None:
        """The pair to try now, those under suspicion first; `tried` must follow."""
        best: tuple[tuple[int, float], Pair] | None = None
        for pair, known in self.pairs.items():
            due = known.ready and known.wanted and not known.trying and known.due_s <= now_s
            if not due or known.standing is Standing.GOOD:
                continue
            rank = (_URGENCY[known.standing] - (not pair[0]), known.due_s)
            if best is None or rank < best[0]:
                best = (rank, pair)
        if best is None:
            return None
        self.pairs[best[1]].trying = True
        return best[1]

    def tried(self, pair: Pair, lives: tuple[str, str], found: str | Found, now_s: float) -> None:
        """What came of a try: an answer, or why there is none. Nothing if it was of another life."""
        known = self.pairs.get(pair)
        if known is None or known.lives != lives:
            return
        known.trying = False
        if found is Found.NOTHING:
            self._nothing(known, now_s)
        elif found is Found.FAILED:
            known.answer, known.garbage = None, False
            # If none was ever right, it may be the question.
            self._miss(known, "its tries fail", now_s, counts=known.model in self.right)
        else:
            known.answer = str(found)
            self._answered(pair, known, str(found), now_s)

    def failed(self, pair: Pair, now_s: float) -> None:
        """A request has failed over this pair."""
        known = self.pairs.get(pair)
        if known is not None:
            self.failing.add(pair)
            known.failures += 1
            if known.failures >= TRIES:
                known.failures = 0
                self._suspect(known, "requests fail over it", now_s)

    def well(self, pair: Pair) -> None:
        """A request has gone well over this pair."""
        self.failing.discard(pair)
        known = self.pairs.get(pair)
        if known is not None:
            known.failures = 0

    def suspect(self, endpoint: str, why: str, now_s: float, *, garbage: bool = False) -> None:
        """Every pair with this endpoint is under suspicion; `garbage`: of wrong text."""
        for pair, known in self.pairs.items():
            if endpoint in pair:
                known.garbage |= garbage
                self._suspect(known, why, now_s)

    def used(self, pair: Pair) -> None:
        """A request has been sent over this pair."""
        known = self.pairs.get(pair)
        if known is not None:
            known.wanted = True

    def apart(self, now_s: float) -> Mapping[str, frozenset[str]]:
        """By endpoint, those whom it must not be paired with now: prefill's decode sides, or itself."""
        good = Counter(known.model for known in self.pairs.values() if known.standing is Standing.GOOD)
        found: dict[str, set[str]] = {}
        for (prefill, decode), known in self.pairs.items():
            held = False
            if known.standing is Standing.UNTRIED and known.wanted:
                # Who serves alone says what is right, and what it alone can serve would be refused.
                first_s = FIRST_S if self.waits and prefill and not known.nothing else 0.0
                held = now_s - known.since_s < (HOLD_S if good[known.model] else first_s)
            doubted = known.standing in (Standing.SUSPECT, Standing.BAD)
            # One that fails is kept apart where others are left to do the work; else clients are told.
            if held or (doubted and (known.garbage or good[known.model] > 0)):
                found.setdefault(prefill or decode, set()).add(decode)
        return {name: frozenset(others) for name, others in found.items()}

    def restarts(self) -> dict[str, int]:
        """Endpoints that should be started anew, each with its bad pairs: two at least, and none that is
        good. Of a bad side the other sides' pairs are as bad, so that only the one with most counts."""
        bad: Counter[str] = Counter()
        good: set[str] = set()
        for pair, known in self.pairs.items():
            for name in pair:
                if name and known.standing is Standing.BAD:
                    bad[name] += 1
                elif known.standing is Standing.GOOD:
                    good.add(name)
        return {name: count for name, count in bad.items() if count >= 2 and name not in good}

    # -- what follows from a try

    def _answered(self, pair: Pair, known: Known, answer: str, now_s: float) -> None:
        right = self.right.get(known.model)
        if right is None:
            votes = sum(k.answer == answer for k in self.pairs.values() if k.model == known.model)
            alone = sum(k.wanted for k in self.pairs.values() if k.model == known.model) == 1
            if not pair[0] or votes >= 2 or alone:
                self.right[known.model] = [answer]
                self._recheck(known.model, now_s)
        elif not pair[0] and answer not in right and known.standing is Standing.GOOD and len(right) < KNOWN:
            right.append(answer)
        right = self.right.get(known.model)
        if right is not None and answer not in right and self._believed(known.model, answer, now_s):
            self.right[known.model] = right = [*right[1 - KNOWN :], answer]
            self._recheck(known.model, now_s)
        if right is None or answer in right:
            self._doubted_s.pop(known.model, None)
            known.standing, known.why = Standing.GOOD, ""
            known.wrong = known.failures = known.nothing = 0
            known.garbage = False
            known.breaker.reset()
        else:
            known.garbage = True
            self._miss(known, "its answer to a known question is wrong", now_s, counts=True)

    def _believed(self, model: str, answer: str, now_s: float) -> bool:
        """Whether an answer is right though another one was: nobody gives that one any more."""
        mine = {pair: known for pair, known in self.pairs.items() if known.model == model}
        if any(known.standing is Standing.GOOD for known in mine.values()):
            return False
        same = [pair for pair, known in mine.items() if known.answer == answer]
        if any(set(one).isdisjoint(two) for one, two in combinations(same, 2)):
            return True
        if any(known.answer not in (None, answer) for known in mine.values()):
            return False
        return now_s - self._doubted_s.setdefault(model, now_s) >= DOUBT_S

    def _recheck(self, model: str, now_s: float) -> None:
        """What is right has just been found out: those that had said otherwise are asked again."""
        for known in self.pairs.values():
            if known.model == model and known.answer not in (None, *self.right[model]):
                self._suspect(known, "it answers a known question differently", now_s)

    def _miss(self, known: Known, why: str, now_s: float, *, counts: bool) -> None:
        known.wrong += 1
        known.why = why
        if not counts:
            known.due_s = now_s + NOTHING_S
        elif known.wrong >= TRIES:
            known.standing = Standing.BAD
            known.breaker.trip(now_s)
            known.due_s = known.breaker.until_s
        else:
            known.standing, known.due_s = Standing.SUSPECT, now_s

    def _nothing(self, known: Known, now_s: float) -> None:
        known.nothing += 1
        known.due_s = now_s + NOTHING_S
        if known.standing is Standing.SUSPECT and known.nothing >= TRIES:
            # It cannot be found out: better a doubtful pair than none.
            known.standing, known.since_s, known.nothing = Standing.UNTRIED, now_s - HOLD_S, 0
            known.garbage = False

    def _suspect(self, known: Known, why: str, now_s: float) -> None:
        if known.standing is not Standing.BAD:
            known.standing, known.why, known.due_s = Standing.SUSPECT, why, now_s
            known.wrong = known.nothing = 0
            known.wanted = True


_URGENCY = {Standing.SUSPECT: 0, Standing.UNTRIED: 2, Standing.BAD: 4, Standing.GOOD: 6}


def _pairs(endpoints: Iterable[Endpoint]) -> Iterator[tuple[Pair, Endpoint, Endpoint, bool]]:
    """Every pair there may be, and whether it is to be tried before it is used."""
    sides: dict[tuple[str, str], dict[Role, list[Endpoint]]] = {}
    for endpoint in endpoints:
        of = sides.setdefault((endpoint.model, endpoint.engine), {})
        of.setdefault(endpoint.role, []).append(endpoint)
    for of in sides.values():
        prefill, decode = of.get(Role.PREFILL, []), of.get(Role.DECODE, [])
        few = len(prefill) * len(decode) <= MAX_PAIRS
        cover = set()
        if not few:
            cover = {(n % len(prefill), n % len(decode)) for n in range(max(len(prefill), len(decode)))}
        for i, one in enumerate(prefill):
            for j, two in enumerate(decode):
                yield (one.id, two.id), one, two, few or (i, j) in cover
        for alone in of.get(Role.UNIFIED, []):
            yield ("", alone.id), alone, alone, True
