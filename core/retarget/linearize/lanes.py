"""Transposing n vectors of n lanes in registers: log2(n) steps of n shuffles, each of two vectors.

While units are smaller than 16 bytes, a step interleaves those of two vectors inside each 16 bytes; then it
parts even from odd units.  x86 (UNPCK, VPERM2F128, VSHUFF32X4) and Arm (ZIP, UZP) have one instruction for
each of these shuffles, unlike for the swaps across a diagonal that textbooks draw.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..ir import ops
from ..ir.uop import UOp

#: Bytes inside which shuffles cost one cycle.
_CHUNK = 16


def transposed(rows: Sequence[UOp]) -> list[UOp]:
    """Return n linear vectors of n lanes, a power of two, transposed: vector i has lane i of each."""
    steps, order = network(len(rows), rows[0].dtype.scalar.itemsize)
    values = list(rows)
    dtype = rows[0].dtype
    for distance, low, high in steps:
        for i, j in _pairs(len(rows), distance):
            pair = (values[i], values[j])
            values[i], values[j] = (UOp(ops.GEP, dtype, pair, lanes) for lanes in (low, high))
    return [values[n] for n in order]


@functools.cache
def network(
    n: int, itemsize: int
) -> tuple[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...], tuple[int, ...]]:
    """Return how to transpose n vectors of n lanes.

    Returns
    -------
    For each step the distance of the vectors that it combines, the lanes of the lower result and of the
    higher; and for each row of the transposed matrix the number of the vector that has it in the end.
    """
    chunk = min(n, max(_CHUNK // itemsize, 1))
    steps = []
    distance = 1
    while distance < n:
        low: list[int] = []
        high: list[int] = []
        if distance < chunk:  # interleave units of `distance` lanes
            for start in range(0, n, chunk):
                for unit in range(start, start + chunk // 2, distance):
                    for half, shift in ((low, 0), (high, chunk // 2)):
                        half += range(unit + shift, unit + shift + distance)
                        half += range(n + unit + shift, n + unit + shift + distance)
        else:  # part even from odd chunks
            for unit in range(0, 2 * n, 2 * chunk):
                low += range(unit, unit + chunk)
                high += range(unit + chunk, unit + 2 * chunk)
        steps.append((distance, tuple(low), tuple(high)))
        distance *= 2
    held = [[(row, lane) for lane in range(n)] for row in range(n)]
    for distance, low_, high_ in steps:
        for i, j in _pairs(n, distance):
            both = held[i] + held[j]
            held[i], held[j] = [both[lane] for lane in low_], [both[lane] for lane in high_]
    order = tuple([held.index([(row, lane) for row in range(n)]) for lane in range(n)])
    return tuple(steps), order


def _pairs(n: int, distance: int) -> list[tuple[int, int]]:
    return [(i, i + distance) for i in range(n) if not i & distance]
