"""Where each job of one engine is: its queues, in the order they are served."""

from __future__ import annotations

from orchestrator.sim.jobs import Job, Load
from orchestrator.sim.memory import KvMemory

Queue = dict[str, Job]
"""Jobs by id in order of arrival: a queue that anything can leave from the middle of at no cost."""


class Queues:
    """Every live job is in `jobs` and in exactly one of the others (named after `State`)."""

    __slots__ = (
        "gated", "held", "jobs", "prealloc", "preempted", "prefilling", "reserved", "running", "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self.jobs: Queue = {}
        self.gated: Queue = {}
        self.preempted: Queue = {}
        self.waiting: Queue = {}
        self.prealloc: Queue = {}
        self.prefilling: Queue = {}
        self.reserved: Queue = {}
        self.running: Queue = {}
        self.held: Queue = {}

    def occupied(self) -> int:
        """Places taken of the most requests an engine runs at once."""
        return len(self.running) + len(self.prefilling) + len(self.reserved)

    def drop(self, job: Job) -> None:
        """Take a job out of wherever it is."""
        for name in self.__slots__:
            getattr(self, name).pop(job.id, None)

    def load(self, memory: KvMemory) -> Load:
        """The queues and the memory as they are."""
        todo = (*self.waiting.values(), *self.preempted.values(), *self.prefilling.values())
        return Load(
            gated=len(self.gated),
            waiting=len(self.waiting) + len(self.preempted),
            prealloc=len(self.prealloc),
            prefilling=len(self.prefilling),
            reserved=len(self.reserved),
            running=len(self.running),
            held=len(self.held),
            waiting_tokens=sum(job.context - job.computed for job in todo),
            used_tokens=memory.pool.used * memory.block_tokens,
            cached_tokens=memory.pool.cached * memory.block_tokens,
            total_tokens=memory.tokens,
        )
