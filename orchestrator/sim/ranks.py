"""An engine on several nodes: process 0 serves once the others are there, and ends them; they follow it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from orchestrator.core.address import split_host_port
from orchestrator.sim.dialect import NOT_FOUND
from orchestrator.sim.engine import Die
from orchestrator.sim.host import answer
from orchestrator.sim.options import SimOptions
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.server import serve

_GO, _OVER = b"go\n", b"over\n"
RETRY_S = 0.05


class Head:
    """Process 0's end: waits for the others where they are told to meet. When one is lost, the engine dies,
    as ranks do whose collectives fail."""

    def __init__(self, options: SimOptions, die: Die) -> None:
        self._missing = options.nnodes - 1
        self._where = options.dist_init_addr
        self._die = die
        self._others: list[asyncio.StreamWriter] = []
        self._complete = asyncio.Event()
        self._dismissed = False

    async def gather(self) -> None:
        """Return once all are there. Raises OSError when the port is taken."""
        if not self._missing:
            return
        host, port = split_host_port(self._where)
        server = await asyncio.start_server(self._meet, host, port)
        await self._complete.wait()
        server.close()
        for writer in self._others:
            writer.write(_GO)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = (await reader.readline()).decode().strip()
        self._others.append(writer)
        if len(self._others) == self._missing:
            self._complete.set()
        with suppress(ConnectionError):  # it died with something unread
            await reader.read()
        if not self._dismissed:
            self._die(f"node rank {rank} is gone")

    def dismiss(self) -> None:
        """Tell the others that it is over."""
        self._dismissed = True
        for writer in self._others:
            writer.write(_OVER)
            writer.close()


async def follow(options: SimOptions, say: Callable[[str], None]) -> int:
    """The life of a process other than the first; its exit code. SGLang's answers `/health` and nothing else,
    and ignores TERM: process 0 ends it. vLLM's has no server, and TERM ends it at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    end = told.set if options.dialect == "vllm" else (lambda: None)
    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, told.set)
    life = asyncio.ensure_future(_life(options, say))
    stop = asyncio.ensure_future(told.wait())
    await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
    if life.done():
        return life.result()
    life.cancel()
    return 0


async def _life(options: SimOptions, say: Callable[[str], None]) -> int:
    reader, writer = await _reach(options)
    writer.write(f"{options.node_rank}\n".encode())
    line = await reader.readline()
    server = None
    if line == _GO and options.dialect == "sglang":
        server = await serve(_dummy, host=options.host, port=options.port)
        say(f"node rank {options.node_rank}: /health on port {server.port}")
    if line == _GO:
        with suppress(ConnectionError):
            line = await reader.readline()
    writer.close()
    if server is not None:
        server.close()
    if line == _OVER:
        return 0
    print("process 0 is gone\nThe engine is dead.", file=sys.stderr, flush=True)
    return 1


async def _reach(options: SimOptions) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to process 0, whenever it comes."""
    host, port = split_host_port(options.dist_init_addr)
    while True:
        try:
            return await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(RETRY_S)


def _dummy(exchange: Exchange) -> None:
    if exchange.path in ("/health", "/health_generate", "/ping", "/metrics"):
        answer(exchange, 200, b"")
    else:
        answer(exchange, 404, NOT_FOUND)
