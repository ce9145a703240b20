"""Who wants to know of changes among the endpoints, and of which."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Listeners:
    """The callbacks of a registry, called in the order they came."""

    def __init__(self) -> None:
        self._on_change: list[Callable[[], None]] = []
        self._on_incarnation: list[Callable[[str], None]] = []
        self._on_suspect: list[Callable[[str], None]] = []
        self._on_hung: list[Callable[[str, str], None]] = []
        self._on_alarm: list[Callable[[str, str], None]] = []
        self._on_join: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the snapshot."""
        self._on_change.append(callback)

    def on_incarnation(self, callback: Callable[[str], None]) -> None:
        """Call `callback(endpoint_id)` when all that was believed of its process is void."""
        self._on_incarnation.append(callback)

    def on_suspect(self, callback: Callable[[str], None]) -> None:
        """Call `callback(endpoint_id)` when it should be probed right now."""
        self._on_suspect.append(callback)

    def on_hung(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(endpoint_id, why)` when its counters have stood still for too long."""
        self._on_hung.append(callback)

    def on_alarm(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(endpoint_id, alarm)` when an engine counts what must not happen to KV."""
        self._on_alarm.append(callback)

    def on_join(self, callback: Callable[[], None]) -> None:
        """Call `callback` when an endpoint has joined, before anybody may give it work."""
        self._on_join.append(callback)

    @staticmethod
    def _tell(callbacks: Iterable[Callable[[str], None]], endpoint_id: str) -> None:
        for callback in callbacks:
            callback(endpoint_id)
