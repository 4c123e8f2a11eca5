"""A filter of system calls for the code of a run: what a program does not need and a kernel's bugs are often found behind.

Invariant: it only takes away; the walls (namespaces, no capabilities, limits) stand without it, as they do on a processor
that has no table here. Standard library only; Linux. Numbers: the kernel's tables; format: seccomp(2), linux/filter.h.
"""

import ctypes
import platform
import struct

import strop.sandbox.kernel as kernel

# Name: number on x86_64, number on aarch64.
REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Memory that no limit of a process and no size of a private place counts.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
}
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
NAMESPACES = 0x7E020000  # CLONE_NEW*: mounts, cgroups, names, ipc, users, processes, network
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _ABOVE, _ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _MACHINE, _FIRST = 0, 4, 16  # offsets in struct seccomp_data; low halves, both processors are little-endian


def build_filter(machine: str) -> bytes:
    """Instructions for a processor (`platform.machine()`); empty where it has no table."""
    if machine not in MACHINES:
        return b""
    column, audit = MACHINES[machine]
    no, absent = _ERROR | 1, _ERROR | 38  # EPERM, ENOSYS
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),  # another calling convention would have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, 0x40000000),
        (_RETURN, 0, 0, absent),
        # The C library falls back to clone, whose flags can be seen from here.
        (_EQUAL, 0, 1, CLONE3[column]),
        (_RETURN, 0, 0, absent),
        (_EQUAL, 0, 4, CLONE[column]),
        (_LOAD, 0, 0, _FIRST),
        (_ANY, 0, 1, NAMESPACES),
        (_RETURN, 0, 0, no),
        (_RETURN, 0, 0, _ALLOW),
        # Limits of other processes, the supervisor's above all.
        (_EQUAL, 0, 4, PRLIMIT[column]),
        (_LOAD, 0, 0, _FIRST),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, no),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for numbers in REFUSED.values():
        code += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, no)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


FILTER = build_filter(platform.machine())


def install_filter() -> None:
    """Filter this process and all that it starts, for good. Needs `no new privileges`."""
    if FILTER:
        buffer = ctypes.create_string_buffer(FILTER, len(FILTER))
        # Both buffers need a name until the kernel has read them.
        program = ctypes.create_string_buffer(struct.pack("@HP", len(FILTER) // 8, ctypes.addressof(buffer)))
        kernel.control(kernel.SET_SECCOMP, 2, ctypes.addressof(program))
