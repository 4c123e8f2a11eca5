"""System calls that the standard library does not have: namespaces, mounts, capabilities. Used inside the sandbox and by the
thread that starts it. Invariant: every call either did what it says or raised OSError. Standard library only; Linux."""

import ctypes
import os
import struct
from functools import cache

NEW_MOUNTS, NEW_IPC, NEW_PROCESSES = 0x00020000, 0x08000000, 0x20000000
NEW_NAMES = 0x04000000
NO_SUID, NO_DEVICES, NO_PROGRAMS, BIND, RECURSIVE, SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
SET_PARENT_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVILEGES, AMBIENT = 1, 4, 22, 38, 47

# Made once, before all runs: of version 3, this process; no effective, permitted or inheritable ones.
_CAPABILITIES, _NONE = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0)), ctypes.create_string_buffer(24)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; see unshare(2)."""
    _checked(_libc().unshare(flags), "unshare")


def enter(descriptor: int, kind: int) -> None:
    """Move to the namespace of a descriptor; see setns(2)."""
    _checked(_libc().setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """See mount(2)."""
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _checked(result, f"mount {kind or source} on {target}")


def control(option: int, first: int, second: int = 0) -> None:
    """See prctl(2)."""
    _checked(_libc().prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), 0, 0), f"prctl {option}")


def peek(descriptor: int, size: int) -> bytes:
    """The next message of a socket, which stays there; see recv(2)."""
    buffer = ctypes.create_string_buffer(size)
    count = _checked(_libc().recv(descriptor, buffer, ctypes.c_size_t(size), 2), "recv")
    return buffer.raw[:count]


def drop_capabilities() -> None:
    """Give up every capability for good, in this process and in whatever it starts."""
    control(SET_NO_NEW_PRIVILEGES, 1)
    control(AMBIENT, 4)
    _checked(_libc().capset(_CAPABILITIES, _NONE), "capset")
