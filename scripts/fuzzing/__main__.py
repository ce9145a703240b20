"""Mutated inputs for the targets, guided by coverage where atheris is installed."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

MAX_BYTES = 4096


def mutate(rng: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """A seed with a few pieces put in, taken out, repeated, changed or taken from another seed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice((0, 1, 2, 8, 40)))
        how = rng.randrange(6)
        if how == 0:
            data[at:at] = rng.choice(words)
        elif how == 1:
            data[at:end] = rng.choice(words)
        elif how == 2:
            del data[at:end]
        elif how == 3:
            data[at:at] = data[at:end] * rng.choice((1, 1, 2, 9))
        elif how == 4:
            data[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
        else:
            other = rng.choice(seeds)
            data[at:] = other[rng.randint(0, len(other)) :]
    return bytes(data[:MAX_BYTES])


def _blind(name: str, seed: int, seconds: float) -> int:
    from fuzzing.targets import TARGETS

    target, rng, done = TARGETS[name], Random(seed), 0
    give_up_s = time.monotonic() + seconds
    while time.monotonic() < give_up_s:
        data = mutate(rng, target.seeds, target.words)
        try:
            target.check(data)
        except BaseException:
            print(f"{name}: finding: {data!r}", file=sys.stderr)
            raise
        done += 1
    return done


def _guided(name: str, seed: int, seconds: float, corpus: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["orchestrator"]):
        from fuzzing.targets import TARGETS
    target = TARGETS[name]
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(target.seeds):
        (folder / f"seed-{index}").write_bytes(data)
    words = corpus / f"{name}.dict"
    quoted = ["".join(f"\\x{byte:02x}" for byte in word) for word in target.words]
    words.write_text("".join(f'"{word}"\n' for word in quoted))
    options = [
        sys.argv[0], str(folder), f"-dict={words}", f"-seed={seed}", f"-max_total_time={int(seconds)}",
        f"-max_len={MAX_BYTES}", "-rss_limit_mb=2000", "-timeout=30", f"-artifact_prefix={corpus}/{name}-",
        "-verbosity=0", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(options, target.check)
    atheris.Fuzz()


async def _main(given: argparse.Namespace) -> None:
    if importlib.util.find_spec("atheris") is not None and not given.blind:
        corpus = given.corpus or Path(tempfile.mkdtemp(prefix="pdctl-fuzz-corpus-"))
        _guided(given.target, given.seed, given.seconds, corpus)
    done = _blind(given.target, given.seed, given.seconds)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{given.target}: {done} inputs, {used.ru_utime:.0f} s CPU, {used.ru_maxrss // 1024} MiB, no finding"
    )


def main() -> None:
    """Parse the command line and run one target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="request, server, answer, stream, engine, body or topology")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="where inputs that reach something new are kept")
    parser.add_argument("--blind", action="store_true", help="without coverage, though atheris is there")
    # Targets of the wire look at the time of a running loop.
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
