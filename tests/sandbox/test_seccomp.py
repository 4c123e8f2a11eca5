"""The filter of system calls, run by a small machine for its instructions."""

import struct

import pytest

from strop.sandbox.seccomp import CLONE, CLONE3, MACHINES, NAMESPACES, PRLIMIT, REFUSED, build_filter

ALLOWED, REFUSED_, ABSENT, KILLED = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(machine: str, number: int, first: int = 0, audit: int | None = None) -> int:
    """What the filter says to a system call; linux/filter.h."""
    data = struct.pack("=IIQQ", number, AUDIT[machine] if audit is None else audit, 0, first)
    code = list(struct.iter_unpack("=HBBI", build_filter(machine)))
    here, held = 0, 0
    while True:
        operation, yes, no, k = code[here]
        here += 1
        if operation == 0x20:
            (held,) = struct.unpack_from("=I", data, k)
        elif operation == 0x06:
            return k
        else:
            met = {0x15: held == k, 0x35: held >= k, 0x45: bool(held & k)}[operation]
            here += yes if met else no


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_its_list_and_nothing_else(machine: str) -> None:
    column = list(MACHINES).index(machine)
    refused = {numbers[column] for numbers in REFUSED.values()}
    assert len(refused) == len(REFUSED)
    for number in range(600):
        if number != CLONE3[column]:
            assert answer(machine, number) == (REFUSED_ if number in refused else ALLOWED), number


@pytest.mark.parametrize("machine", MACHINES)
def test_a_process_may_be_made_and_a_namespace_not(machine: str) -> None:
    column = list(MACHINES).index(machine)
    thread = 0x3D0F00  # what the C library asks for a thread
    assert answer(machine, CLONE[column], 17) == answer(machine, CLONE[column], thread) == ALLOWED
    for bit in range(32):
        expected = REFUSED_ if NAMESPACES >> bit & 1 else ALLOWED
        assert answer(machine, CLONE[column], 1 << bit | 17) == expected or 1 << bit & 17
    assert answer(machine, CLONE3[column]) == ABSENT


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_may_be_set_for_oneself_only(machine: str) -> None:
    column = list(MACHINES).index(machine)
    assert answer(machine, PRLIMIT[column], 0) == ALLOWED
    assert answer(machine, PRLIMIT[column], 1) == REFUSED_


@pytest.mark.parametrize("machine", MACHINES)
def test_another_calling_convention_is_no_way_around(machine: str) -> None:
    assert answer(machine, 1, audit=0x40000003) == KILLED
    assert answer(machine, 0x40000000 | 101) == ABSENT


def test_an_unknown_processor_has_no_filter() -> None:
    assert build_filter("sparc") == b""
