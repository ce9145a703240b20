"""Every asynchronous test of the wire runs on both event loops: production's, and the standard one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """See above."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
