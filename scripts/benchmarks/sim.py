"""What simulated engines cost: CPU per output token, with 16 instances at 5,000 tokens/s in all."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

from benchmarks import cpu
from orchestrator.sim.testing import SimProcess, spawn


async def stream(port: int, body: bytes) -> int:
    """One streamed completion; the bytes it was."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    writer.write(head % len(body) + body)
    size = 0
    while data := await reader.read(1 << 16):
        size += len(data)
    writer.close()
    return size


async def load(engines: list[SimProcess], streams: int, tokens: int) -> float:
    """Run `streams` on every engine at once; the real seconds it took."""
    body = json.dumps(
        {"model": "sim", "prompt": "benchmark", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    ).encode()
    began = time.monotonic()
    await asyncio.gather(*(stream(engine.port, body) for engine in engines for _ in range(streams)))
    return time.monotonic() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per dialect."""
    p = argparse.ArgumentParser(prog="bench sim", description=__doc__)
    p.add_argument("--instances", type=int, default=16)
    p.add_argument("--streams", type=int, default=4, help="per instance; one token per 12 to 15 ms each")
    p.add_argument("--tokens", type=int, default=700)
    a = p.parse_args(argv)
    for dialect in ("sglang", "vllm"):
        with spawn(*([("--dialect", dialect)] * a.instances)) as engines:
            before = [cpu.spent_s(engine.process.pid) for engine in engines]
            took_s = asyncio.run(load(engines, a.streams, a.tokens))
            used_s = sum(cpu.spent_s(e.process.pid) - b for e, b in zip(engines, before, strict=True))
            tokens = a.instances * a.streams * a.tokens
            print(
                f"{dialect}: {a.instances} instances, {tokens / took_s:,.0f} tokens/s in all, "
                f"{used_s / tokens * 1e6:.1f} us of CPU per token, {used_s / took_s:.2f} cores"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
