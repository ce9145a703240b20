"""Who holds a port, asked with real listeners."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from orchestrator.fabric import ports


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


def test_the_holder_of_a_port_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    holder = ports.holder(port)
    assert holder is not None
    assert holder.pid == os.getpid()
    assert f"pid {os.getpid()} (" in str(holder)
    assert holder.command


def test_a_holder_is_shown_by_what_is_known_of_it() -> None:
    assert str(ports.Holder(1, 2, "python", "python -m http.server")) == "pid 2 (python -m http.server)"
    assert str(ports.Holder(1, 2, "kernel")) == "pid 2 (kernel)"
    assert str(ports.Holder(1)) == "a process that this user may not look at"


def test_a_port_is_taken_while_somebody_listens(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert ports.taken("127.0.0.1", port)
    listener.close()
    assert not ports.taken("127.0.0.1", port)
    assert ports.holder(port) is None


def test_an_address_of_another_host_is_an_error_of_its_own() -> None:
    with pytest.raises(OSError):
        ports.taken("192.0.2.1", 1)


def test_holders_at_an_address(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert [holder.pid for holder in ports.holders("127.0.0.1", port)] == [os.getpid()]
    assert ports.holders("127.0.0.2", port) == []
    assert [holder.pid for holder in ports.holders("localhost", port)] == [os.getpid()]
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        wide = everywhere.getsockname()[1]
        assert [holder.pid for holder in ports.holders("127.0.0.1", wide)] == [os.getpid()]
