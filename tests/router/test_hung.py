"""A loop that hangs is told of with the line it hangs at; one that turns is not."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, sys, time
from orchestrator.router.hung import Watchdog


def hanging_filter(seconds):
    time.sleep(seconds)


async def main():
    watchdog = Watchdog(asyncio.get_running_loop(), after_s=0.3, every_s=0.05)
    await asyncio.sleep(0.6)
    print("turning", file=sys.stderr, flush=True)
    hanging_filter({seconds})
    await asyncio.sleep(0.2)
    watchdog.stop()
    print("back", file=sys.stderr, flush=True)
    time.sleep(0.6)

asyncio.run(main())
"""


def said(seconds: float) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(seconds=seconds)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stderr


def test_where_it_hangs_is_printed_and_it_goes_on_when_it_comes_back() -> None:
    before, _, after = said(2.0).partition("turning\n")
    assert before == ""
    told, _, rest = after.partition("back\n")
    assert "Timeout" in told
    assert "in hanging_filter" in told
    assert rest == ""


def test_a_loop_that_turns_says_nothing() -> None:
    assert said(0.0) == "turning\nback\n"
