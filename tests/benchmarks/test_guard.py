"""What the guard makes of figures, and that its relay passes bytes on both ways (relay)."""

from __future__ import annotations

import asyncio

from benchmarks import guard, relay
from benchmarks.guard import EXPECTED, Verdict, verdicts
from benchmarks.processes import free_port


def taken(factor: float) -> dict[tuple[str, str], list[float]]:
    """Rounds in which pdctl costs `factor` times what is expected at best, and more in others."""
    found = {}
    for load, ratio in EXPECTED.items():
        found["relay", load] = [30.0, 20.0, 25.0]
        found["pdctl", load] = [90.0 * factor * ratio, 20.0 * factor * ratio]
    return found


def test_the_least_of_the_rounds_counts() -> None:
    assert all(abs(v.ratio - EXPECTED[v.load]) < 1e-6 for v in verdicts(taken(1.0)))


def test_what_is_well_outside_noise_is_above() -> None:
    inside, outside = 1 + guard.NOISE, guard.ALLOWED * 1.01
    assert inside < guard.ALLOWED
    assert all(v.ratio <= v.most and "within" in v.line() for v in verdicts(taken(inside)))
    assert all(v.ratio > v.most and "ABOVE" in v.line() for v in verdicts(taken(outside)))


def test_a_verdict_tells_both_sides() -> None:
    assert "500 us, relay 20.0 us: 25.0 times" in Verdict("request", 500.0, 20.0).line()


async def test_the_relay_passes_bytes_on_both_ways() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(4)).upper())
        await writer.drain()
        writer.close()

    engine = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = free_port()
    serving = asyncio.create_task(relay.serve(port, engine.sockets[0].getsockname()[1]))
    try:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        writer.write(b"word")
        assert await reader.read() == b"WORD"  # the engine hung up, and so did the relay
        writer.close()
    finally:
        serving.cancel()
        engine.close()
