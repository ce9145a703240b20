"""How many files the router may have open, and how many streams that is enough for."""

from __future__ import annotations

import resource

STREAM_FDS = 3
"""Sockets of one disaggregated stream: the client's, and one to each engine."""

SPARE_FDS = 128
"""Descriptors for everything but streams: listeners, probes, the log, libraries."""

MAX_FDS = 1_048_576
"""The kernel's usual ceiling, taken where the hard limit is infinite."""


def raise_fd_limit() -> int:
    """Lift the soft limit of open files to the hard one; the disaggregated streams that it is enough for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FDS if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        wanted = MAX_FDS if soft == resource.RLIM_INFINITY else soft
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return _streams(wanted)


def streams_allowed() -> int:
    """The disaggregated streams that the limit as it stands is enough for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _streams(MAX_FDS if soft == resource.RLIM_INFINITY else soft)


def _streams(files: int) -> int:
    return max(0, files - SPARE_FDS) // STREAM_FDS
