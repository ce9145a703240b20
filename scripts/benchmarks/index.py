"""What the index of engines' KV caches takes by its size: memory, and time to keep it up and to ask it."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

from benchmarks.machine import describe
from benchmarks.report import Report, Table
from orchestrator.core import kvindex
from orchestrator.core.kvblocks import token_chain
from orchestrator.core.kvevents import KEY_MASK, BlocksRemoved, BlocksStored
from orchestrator.core.kvindex import KvIndex
from orchestrator.core.types import RequestView
from orchestrator.policy.testing import make_request

SIZE = 16
"""Tokens of a block; the smallest that engines usually have, so that blocks are as many as they can be."""

CHAIN = 32
"""Blocks that an engine tells of at once: a chunk of 512 tokens."""

PROMPT = 500
"""Blocks of the prompts that are looked up: 8,000 tokens."""

ENDPOINTS = 10

MIN_ROUNDS = 200


def memory_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def prompt(number: int) -> bytes:
    """The tokens of the `number`-th prompt, unlike all others from the first block on."""
    return Random(number).randbytes(PROMPT * SIZE * 4)


def told(tokens: bytes, rng: Random) -> Iterator[BlocksStored]:
    """How an engine tells of a prompt, chunk by chunk, under hashes of its own."""
    parent: int | None = None
    width = CHAIN * SIZE * 4
    for start in range(0, len(tokens), width):
        part = tokens[start : start + width]
        hashes = [rng.getrandbits(64) & KEY_MASK for _ in range(len(part) // (SIZE * 4))]
        yield BlocksStored(hashes, parent, part, SIZE)
        parent = hashes[-1]


def cpu_ns(call: Callable[[], object], times: int) -> int:
    """The median CPU time of a call."""
    spent = []
    for _ in range(times):
        begun = time.thread_time_ns()
        call()
        spent.append(time.thread_time_ns() - begun)
    spent.sort()
    return spent[times // 2]


def request(tokens: bytes, index: KvIndex) -> RequestView:
    """A prompt as it is looked up."""
    chains = {SIZE: token_chain(index.seed, tokens, SIZE)}
    return make_request(prompt_tokens=len(tokens) // 4, chains=chains)


def measure(blocks: int, endpoints: int = ENDPOINTS) -> dict[str, float]:
    """Fill an index with `blocks` over `endpoints`, and take what it costs. Nanoseconds of CPU, bytes."""
    gc.collect()
    gc.disable()
    before = memory_bytes()
    index, rng = KvIndex(seed=1), Random(1)
    names = [f"p{n}" for n in range(endpoints)]
    for name in names:
        index.open(name, SIZE, None)
        index.reset(name, whole=True)
    stored, store_ns, number, last = 0, 0, 0, []
    while stored < blocks:
        events = list(told(prompt(number), rng))
        begun = time.thread_time_ns()
        index.apply(names[number % endpoints], events)
        store_ns += time.thread_time_ns() - begun
        stored += PROMPT
        number += 1
        last = events
    held = memory_bytes() - before
    here = request(prompt(number - 1), index)
    nowhere = request(Random(-1).randbytes(PROMPT * SIZE * 4), index)
    half = request(prompt(number - 1)[: PROMPT * SIZE * 2] + Random(-2).randbytes(PROMPT * SIZE * 2), index)
    rounds = MIN_ROUNDS
    found = {
        name: cpu_ns(lambda asked=asked: index.correct(asked, {}), rounds)  # type: ignore[misc]
        for name, asked in (("nowhere", nowhere), ("whole", here), ("half", half))
    }
    gone = [BlocksRemoved([told_as for event in reversed(last) for told_as in reversed(event.hashes)])]
    begun = time.thread_time_ns()
    index.apply(names[(number - 1) % endpoints], gone)
    remove_ns = time.thread_time_ns() - begun
    gc.enable()
    return {
        "blocks": stored,
        "endpoints": endpoints,
        "bytes": held,
        "bytes_per_block": held / stored,
        "store_ns": store_ns / stored,
        "remove_ns": remove_ns / PROMPT,
        "name_ns": cpu_ns(lambda: request(prompt(0), index), 20) / PROMPT,
        **{f"find_{name}_ns": each for name, each in found.items()},
    }


def rows(results: Sequence[dict[str, float]]) -> Iterator[tuple[str, ...]]:
    """The results for people."""
    for one in results:
        yield (
            f"{one['blocks']:,.0f}",
            f"{one['bytes'] / 1e9:.2f} GB",
            f"{one['bytes_per_block']:.0f}",
            f"{one['store_ns'] / 1e3:.2f}",
            f"{one['remove_ns'] / 1e3:.2f}",
            *(f"{one[f'find_{name}_ns'] / 1e3:.1f}" for name in ("nowhere", "whole", "half")),
        )


COLUMNS = (
    "blocks", "memory", "bytes each", "stored, us each", "removed, us each",
    "find: nowhere, us", "one holds all, us", "one holds half, us",
)  # fmt: skip


def report(results: Sequence[dict[str, float]]) -> Report:
    """By number of blocks."""
    kind = "compiled" if kvindex.__file__.endswith(".so") else "interpreted"
    note = (
        f"Blocks of {SIZE} tokens over {ENDPOINTS} endpoints, told in chains of {CHAIN}. `find`: a prompt of "
        f"{PROMPT} blocks at all endpoints, its blocks named already (0.8 us each)."
    )
    return Report(
        f"index-{kind}",
        "What the index of KV caches takes",
        "scripts/bench index --write",
        describe(),
        (f"The exact index ([KV events](../kv-events.md)), {kind}: CPU time and resident memory.",),
        (Table("By size", COLUMNS, list(rows(results)), note),),
        {"results": list(results)},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench index", description=__doc__)
    parser.add_argument(
        "--blocks",
        type=int,
        action="append",
        help="in all; may be repeated (default 100,000, 1 and 10 million)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="write the page under docs/benchmarks")
    args = parser.parse_args(argv)
    sizes = args.blocks or [100_000, 1_000_000, 10_000_000]
    if min(sizes) < PROMPT:
        parser.error(f"--blocks must be at least {PROMPT}")
    # Each in a process of its own: what one has freed would hide what the next takes.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        results = pool.map(measure, sizes, chunksize=1)
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        for row in (COLUMNS, *rows(results)):
            print("  ".join(f"{cell:>18}" for cell in islice(row, len(COLUMNS))))
    if args.write:
        print(f"wrote {report(results).write()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
