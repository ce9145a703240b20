"""The decoding batch of one engine: runs of steps that leave it what it is, and the gaps they make."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from orchestrator.sim.jobs import Counters
from orchestrator.sim.replay.job import LeanJob
from orchestrator.sim.replay.steps import Histogram, Noise, Worst
from orchestrator.sim.timing import Timing

FirstToken = Callable[[LeanJob, float], None]


class Batch:
    """Jobs that decode together, each producing one token a step.

    Between two changes of the batch every step takes a little longer than the one before, by the KV that
    one more token of each job adds: so when any of them ends has a closed form, and none is looked at. Times
    are virtual seconds; steps are numbered from the beginning of the engine's life. A `run` of planned steps
    is begun, perhaps cut, and ended; who joins meanwhile decodes from the next run on.
    """

    def __init__(self, timing: Timing, noise: Noise, noise_at: int, counters: Counters) -> None:
        self.jobs: dict[LeanJob, None] = {}
        self.gaps = Histogram()
        self.busy_s = 0.0
        self.planned = 0
        """Steps of the run that is on; 0: none is."""
        self.slowdown = 1.0
        self._timing = timing
        self._kv_s = timing.decode_s(0, 1) - timing.decode_s(0, 0)
        self._noise = noise
        self._noise_at = noise_at % noise.size
        self._counters = counters
        self._ending: list[tuple[int, int, LeanJob]] = []
        self._seq = 0
        self._fresh: list[LeanJob] = []
        self._untold = 0
        self._resident = 0
        self._steps = 0
        self._worst = Worst()
        self._last_s = 0.0
        self._start_s = 0.0
        self._size = 0
        self._factor_at = 0
        self._step_s = 0.0
        self._grows_s = 0.0
        self._counted = 0
        self._grown = 0

    def __len__(self) -> int:
        """Jobs that decode, those included that do only from the next run on."""
        return len(self.jobs)

    def join(self, job: LeanJob) -> None:
        """It decodes from the next run on."""
        job.joined = self._steps + self.planned
        job.ends = job.joined + job.output - job.produced
        self.jobs[job] = None
        self._fresh.append(job)
        if job.token_s is None:
            self._untold += 1
        self._resident += job.context
        self._seq += 1
        heapq.heappush(self._ending, (job.ends, self._seq, job))

    def next_tokens(self) -> int:
        """Memory that the first step of the next run takes: a token each, but of those that have none yet."""
        return len(self.jobs) - self._untold

    def evict(self) -> LeanJob:
        """Take the newest job out, between two runs."""
        job = next(reversed(self.jobs))
        del self.jobs[job]
        self._leave(job)
        if job in self._fresh:
            self._fresh.remove(job)
            self._untold -= job.token_s is None
        else:
            job.token_s = self._last_s
        return job

    def factor(self) -> float:
        """The next factor on a step's duration."""
        at = self._noise_at
        self._noise_at = (at + 1) % self._noise.size
        return self.slowdown * self._noise.factors[at]

    # -- steps that share a chunk's

    def decode_s(self) -> float:
        """What one step of all jobs adds to a chunk's, before any factor."""
        return self._timing.decode_s(len(self.jobs), self._resident)

    def begin_one(self, end_s: float, first_token: FirstToken) -> int:
        """One step of known end; the memory it takes."""
        tokens = self.next_tokens()
        self.planned, self._size, self._untold = 1, len(self.jobs), 0
        self._begin(end_s, first_token)
        return tokens

    def end_one(self, now_s: float) -> list[LeanJob]:
        """It is over; who has produced all."""
        self._counters.generated_tokens += self._size
        return self._end(1, now_s)

    # -- runs

    def begin_run(self, now_s: float, free_tokens: int, first_token: FirstToken) -> float:
        """As many steps as leave the batch what it is and need at most `free_tokens`; when they end."""
        size = self._size = len(self.jobs)
        ending, noise = self._ending, self._noise
        while ending[0][2].ends != ending[0][0]:
            heapq.heappop(ending)
        steps = min(ending[0][0] - self._steps, 1 + (free_tokens - self.next_tokens()) // size, noise.size)
        if self._noise_at + steps > noise.size:
            self._noise_at = 0
        self._factor_at = self._noise_at
        self._step_s = self.slowdown * self._timing.decode_s(size, self._resident)
        self._grows_s = self.slowdown * self._kv_s * size
        self._start_s = now_s
        self._counted = self._grown = 0
        self.planned = steps
        self._begin(now_s + self._lasts_s(1), first_token)
        return self.run_end_s()

    def run_end_s(self) -> float:
        """When the run ends as planned."""
        return self._start_s + self._lasts_s(self.planned)

    def cut(self, now_s: float) -> bool:
        """End the run with the step that is on; whether that is earlier than planned."""
        steps = self.done_by(now_s) + 1
        if steps == self.planned:
            return False
        self.planned = steps
        return True

    def fit(self, free_tokens: int) -> bool:
        """Shorten the run to what `free_tokens` allow beyond what `growth` said; whether that is earlier."""
        steps = self._grown + free_tokens // self._size
        if steps >= self.planned:
            return False
        self.planned = steps
        return True

    def done_by(self, now_s: float) -> int:
        """How many of the planned steps are over, the last of them being not."""
        return self._noise.within(
            self._factor_at,
            self._counted,
            self.planned - 1,
            self._step_s,
            self._grows_s,
            now_s - self._start_s,
        )

    def growth(self, steps: int) -> int:
        """Memory that the first `steps` of the run take and had not taken when last asked."""
        if steps <= self._grown:
            return 0
        tokens = (steps - self._grown) * self._size
        if self._grown == 0:
            tokens -= self._untold
            self._untold = 0
        self._grown = steps
        return tokens

    def count(self, steps: int) -> None:
        """Bring the counters up to so many steps of the run."""
        n = steps - self._counted
        if n <= 0:
            return
        size, c = self._size, self._counters
        seconds = self._lasts_s(steps) - self._lasts_s(self._counted)
        self._counted = steps
        self.busy_s += seconds
        c.decode_steps += n
        c.decode_batch += n * size
        c.decode_us += seconds * 1e6
        c.decode_batch2 += n * size * size
        c.decode_batch_us += size * seconds * 1e6
        c.generated_tokens += n * size

    def end_run(self, now_s: float) -> list[LeanJob]:
        """All planned steps are over, and `growth` and `count` know; who has produced all."""
        steps = self.planned
        if steps > 1:
            self._later_gaps(steps)
        self._noise_at = (self._factor_at + steps) % self._noise.size
        return self._end(steps, now_s)

    def _begin(self, first_s: float, first_token: FirstToken) -> None:
        """The first planned step ends at `first_s`: who joined since the last one has a gap of its own."""
        fresh, self._fresh = self._fresh, []
        old = self._size - len(fresh)
        if old:
            gap_s = first_s - self._last_s
            self.gaps.add(gap_s, old)
            self._worst.add(self._steps + 1, gap_s)
        for job in fresh:
            if job.token_s is None:
                job.token_s = first_s
                first_token(job, first_s)
            else:
                self.own_gap(job, first_s)

    def own_gap(self, job: LeanJob, at_s: float) -> None:
        """A gap of one job alone: since the last token that is known of it."""
        assert job.token_s is not None
        gap_s = at_s - job.token_s
        self.gaps.add(gap_s)
        if gap_s > job.worst_s:
            job.worst_s = gap_s

    def _later_gaps(self, steps: int) -> None:
        """The gaps of all steps of a run but its first, which every job of the batch has."""
        noise, size = self._noise, self._size
        step_s, grows_s = self._step_s, self._grows_s
        if noise.sigma:
            worst = 0.0
            factors = noise.factors[self._factor_at + 1 : self._factor_at + steps]
            for i, factor in enumerate(factors, 1):
                gap_s = factor * (step_s + grows_s * i)
                self.gaps.add(gap_s, size)
                if gap_s > worst:
                    worst = gap_s
        else:
            worst = step_s + grows_s * (steps - 1)
            self.gaps.add_ramp(step_s + grows_s, worst, steps - 1, size)
        self._worst.add(self._steps + steps, worst)

    def _end(self, steps: int, now_s: float) -> list[LeanJob]:
        self.planned = 0
        self._steps += steps
        self._resident += steps * self._size
        self._last_s = now_s
        ending = self._ending
        gone = []
        while ending and ending[0][0] <= self._steps:
            ends, _, job = heapq.heappop(ending)
            if job.ends == ends:
                del self.jobs[job]
                self._leave(job)
                gone.append(job)
        return gone

    def _leave(self, job: LeanJob) -> None:
        made = self._steps - job.joined
        job.context += made
        job.produced += made
        job.ends = -1
        self._resident -= job.context
        worst_s = self._worst.since(job.joined + 2)
        if worst_s > job.worst_s:
            job.worst_s = worst_s

    def _lasts_s(self, steps: int) -> float:
        return self._noise.lasts_s(self._factor_at, steps, self._step_s, self._grows_s)
