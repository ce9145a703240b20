"""The connection between a relay and the scheduler: batches out, frames in, one end (link and hub)."""

from __future__ import annotations

import asyncio
import socket

from orchestrator.router.workers.link import Link
from orchestrator.router.workers.messages import Kind, frame


async def joined() -> tuple[Link, list[tuple[int, bytes]], socket.socket, asyncio.Event]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    heard: list[tuple[int, bytes]] = []
    lost = asyncio.Event()
    link = Link(lambda kind, body: heard.append((kind, body)), lost.set)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    return link, heard, theirs, lost


async def test_what_is_sent_in_one_turn_is_written_at_once() -> None:
    link, _, peer, _ = await joined()
    frames = [frame(Kind.OVER, bytes([n])) for n in range(3)]
    for one in frames:
        link.send(one)
    assert await asyncio.get_running_loop().sock_recv(peer, 1000) == b"".join(frames)
    peer.close()


async def test_what_was_sent_before_the_end_still_goes_out() -> None:
    link, _, peer, lost = await joined()
    link.send(frame(Kind.RETIRE))
    link.close()
    assert await asyncio.get_running_loop().sock_recv(peer, 1000) == frame(Kind.RETIRE)
    await lost.wait()
    link.send(frame(Kind.RETIRE))
    assert link.closed
    peer.close()


async def test_a_broken_peer_is_cut_off() -> None:
    link, _, peer, lost = await joined()
    await asyncio.get_running_loop().sock_sendall(peer, b"\xff" * 8)
    await lost.wait()
    assert link.closed
    peer.close()
