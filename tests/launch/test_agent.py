"""The agent of a node: long logs come in parts and whole, before the news of the end."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.core.types import Role
from orchestrator.launch import testing
from orchestrator.launch.agent import CHUNK_BYTES, Agent
from orchestrator.launch.unit import of_instance


async def test_a_long_log_comes_whole_before_the_end_is_told(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path / "node"))
    code = f"import sys; sys.stdout.write('x' * {3 * CHUNK_BYTES}); sys.exit(3)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    born = agent.start(of_instance(testing.instance("u-0", Role.UNIFIED, 1, argv), None), 1)
    assert born.identity is not None
    parts: list[bytes] = []
    while True:
        news = await agent.news(("u-0", 1), born.identity, 0.05)
        parts.append(news.text)
        if news.over:
            break
    assert news.code == 3
    assert b"".join(parts).count(b"x") == 3 * CHUNK_BYTES
    assert len(parts) > 3

    # Emptied, it is told from the beginning again; a new agent does not tell the old words twice.
    agent.keep_house(0)
    (tmp_path / "node" / "logs" / "u-0.log").write_bytes(b"after")
    assert (await agent.news(("u-0", 1), born.identity, 0.0)).text == b"after"
    other = Agent(str(tmp_path / "node"))
    assert (await other.news(("u-0", 1), born.identity, 0.0)).text == b""
    assert await agent.sweep(("u-0", 1), born.identity, 0.0) == []
