"""How a process ended, asked of the kernel by somebody who is not its parent."""

from __future__ import annotations

import fcntl
import os
import struct

from orchestrator.launch.process import Identity, read_stat

_GET_INFO = 0xC040FF0B
"""`PIDFD_GET_INFO` of linux/pidfd.h with its first, 64-byte form of `struct pidfd_info`."""
_INFO_EXIT = 1 << 3
"""`PIDFD_INFO_EXIT`: the exit status is asked for, or given. Linux 6.15 and later."""
_INFO_SIZE = 64
_STATUS_AT = 60


def hold(identity: Identity) -> int | None:
    """A descriptor of that very process, also when it has ended and was not yet reaped; None if it is gone.

    Whoever holds it before the process is reaped can read its exit status after that.
    """
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    stat = read_stat(identity.pid)
    if stat is None or stat.identity != identity:
        os.close(fd)
        return None
    return fd


def exit_code(identity: Identity, fd: int | None) -> int | None:
    """The exit code of a process that has ended (negative: killed by that signal); None if nobody tells.

    Until its parent reaps it, /proc shows the status; after that the kernel tells it to holders of `fd`, if
    it is new enough.
    """
    status = _unreaped(identity)
    if status is None and fd is not None:
        status = _reaped(fd)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _unreaped(identity: Identity) -> int | None:
    """The wait status of a zombie of ours; of another user's, /proc would show nought."""
    stat = read_stat(identity.pid)
    if stat is None or stat.identity != identity or stat.alive:
        return None
    try:
        owner = os.stat(f"/proc/{identity.pid}").st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.status if os.geteuid() in (0, owner) else None


def _reaped(fd: int) -> int | None:
    """The wait status that a kernel of 6.15 or later keeps for the holders of a pidfd."""
    info = bytearray(_INFO_SIZE)
    struct.pack_into("Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info)
    except OSError:
        # An older kernel: it knows no such question, or cannot answer it for one that is gone.
        return None
    (given,) = struct.unpack_from("Q", info)
    (status,) = struct.unpack_from("i", info, _STATUS_AT)
    return int(status) if given & _INFO_EXIT else None
