"""A router in a process of its own, and what it logs."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

GUARD_S = 60.0
"""How long a test waits for what must happen; reached only when it does not."""


class Process:
    """A router process and its log."""

    def __init__(self, process: asyncio.subprocess.Process, state: Path) -> None:
        self.process = process
        self.state = state
        self.lines: list[str] = []
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self._news:
                self.lines.append(line.decode().rstrip())
                self._news.notify_all()

    async def says(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Wait for a log line; fails when the process ends without it."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.lines[after:] if (m := re.search(pattern, line))), None)

        async with asyncio.timeout(GUARD_S), self._news:
            while not (match := found()):
                assert not self._reader.done(), "\n".join(self.lines)
                await self._news.wait()
        return match

    async def urls(self) -> tuple[str, str]:
        """The client URL and the admin URL."""
        match = await self.says(r"msg=serving url=(\S+) admin=(\S+)")
        return match[1], f"http://{match[2]}"

    async def ends(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(GUARD_S):
            code = await self.process.wait()
            await self._reader
        return code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
