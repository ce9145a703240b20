"""Messages between engines survive any split of the bytes, and a lost peer is told to whoever waits."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.sim.frames import FrameConnection, Message, connect, listen


async def test_questions_are_answered_and_a_lost_peer_is_told() -> None:
    served: list[FrameConnection] = []

    def heard(connection: FrameConnection, message: Message) -> None:
        served.append(connection)
        if message.get("op") == "echo":
            connection.answer(message, {"said": message["text"]})

    server, port = await listen("127.0.0.1", 0, heard, lambda _: None)
    lost = asyncio.Event()
    client = await connect("127.0.0.1", port, lambda c, m: None, lambda _: lost.set(), 5.0)
    big = "x" * 200_000
    assert (await client.ask({"op": "echo", "text": big}, 5.0))["said"] == big
    waiting = asyncio.ensure_future(client.ask({"op": "never"}))
    await client.ask({"op": "echo", "text": ""}, 5.0)
    served[0].close()
    with pytest.raises(ConnectionResetError):
        await waiting
    await asyncio.wait_for(lost.wait(), 5.0)
    assert not client.alive
    with pytest.raises(ConnectionResetError):
        await client.ask({"op": "echo", "text": ""})
    client.send({"dropped": True})
    server.close()


async def test_a_question_nobody_answers_times_out() -> None:
    server, port = await listen("127.0.0.1", 0, lambda c, m: None, lambda _: None)
    client = await connect("127.0.0.1", port, lambda c, m: None, lambda _: None, 5.0)
    with pytest.raises(TimeoutError):
        await client.ask({"op": "x"}, 0.01)
    client.close()
    server.close()


async def test_nobody_there_is_an_error() -> None:
    server, port = await listen("127.0.0.1", 0, lambda c, m: None, lambda _: None)
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError):
        await connect("127.0.0.1", port, lambda c, m: None, lambda _: None, 5.0)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_any_split_of_the_bytes_is_the_same_messages(size: int) -> None:
    got: list[Message] = []
    connection = FrameConnection(lambda _, message: got.append(message), lambda _: None)
    data = b"".join(len(b).to_bytes(4, "big") + b for b in (b'{"a":1}', b'{"b":[2,3]}', b"{}"))
    for at in range(0, len(data), size):
        connection.data_received(data[at : at + size])
    assert got == [{"a": 1}, {"b": [2, 3]}, {}]


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\0\0\0\1x", b"\0\0\0\2[]"])
async def test_what_is_no_message_ends_the_connection(garbage: bytes) -> None:
    lost = asyncio.Event()
    server, port = await listen("127.0.0.1", 0, lambda c, m: None, lambda _: lost.set())
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(garbage)
    await asyncio.wait_for(lost.wait(), 5.0)
    writer.close()
    server.close()
