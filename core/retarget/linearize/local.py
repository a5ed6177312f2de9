"""Where a kernel's arrays in local memory lie, when they are one piece of memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..ir import ops
from ..ir.uop import UOp

#: Bytes that the start of every array is a multiple of: a line of a cache, and all banks of local memory.
ALIGNMENT = 128


class Placement(NamedTuple):
    """The offset in bytes of each LOCAL in the address space "local", and the size of all of them."""

    offsets: Mapping[UOp, int]
    total: int


def size_in_bytes(array: UOp) -> int:
    """Return the bytes that a LOCAL takes."""
    count: int = math.prod(n for n in array.arg[1] if n)
    return count * array.dtype.itemsize * array.dtype.lanes


def placement(uops: Iterable[UOp]) -> Placement:
    """Return where the arrays of a linear program lie, one after the other in program order."""
    offsets: dict[UOp, int] = {}
    total = 0
    for u in uops:
        if u.op is ops.LOCAL and u.arg[2] == "local" and u not in offsets:
            start = -(-total // ALIGNMENT) * ALIGNMENT
            offsets[u] = start
            total = start + size_in_bytes(u)
    return Placement(offsets, total)
