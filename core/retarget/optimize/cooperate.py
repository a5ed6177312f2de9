"""Reductions that the threads of a block share: a stage of partial results, and a loop over it.

A reduction over block axes becomes an array in local memory with one element for each of its threads, and a
late loop in which every thread folds all of them: each has the result then, so that a second reduction may
depend on it (the softmax of a row that a block shares).  Values that several accumulators of a thread hold
all go through the array at once.  Where barriers are needed is found when the loops are there
(`linearize/barriers.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..ir import dtypes, ops
from ..ir.index import TRUE, combine, irange, range_size
from ..ir.uop import UOp, toposort
from .schedule import PARALLEL
from .stages import Staged, replaced

_LATE = 1 << 24


def cooperate(
    stores: list[UOp], stages: list[Staged], order: dict[UOp, int]
) -> tuple[list[UOp], list[Staged]]:
    """Return the stores and stages without reductions over block axes; extends `order` by the late loops."""
    number = 0
    while True:
        found = next(
            (
                u
                for u in toposort([*[t.fill for t in stages], *stores])
                if u.op is ops.REDUCE and u.src[1].arg[2] == "block"
            ),
            None,
        )
        if found is None:
            return stores, stages
        new, staged = _partial(found, order, number)
        stores = replaced(stores, found, new)
        fills = replaced([t.fill for t in stages], found, new)
        stages = [replace(t, fill=f) for t, f in zip(stages, fills, strict=True)] + [staged]
        number += 1


def _partial(u: UOp, order: dict[UOp, int], number: int) -> tuple[UOp, Staged]:
    """Return the late loop that a reduction becomes, and the stage of partial results that it reads."""
    value, axes = u.src[0], sorted(u.src[1:], key=order.__getitem__)
    outer, dims, at = _around(value, order)
    blocks = sorted((r for r in value.ranges if r.arg[2] == "grid"), key=order.__getitem__)
    others = [
        r
        for r in sorted(value.ranges, key=order.__getitem__)
        if r.arg[2] in PARALLEL and r.arg[2] != "grid" and r not in axes
    ]
    count = math.prod(range_size(r) for r in axes)
    stride, pairs = 1, []
    for r in reversed(axes):
        pairs.append((r, stride))
        stride *= range_size(r)
    late = irange(count, f"{axes[0].arg[0]}k{number}")
    order[late] = _LATE + number
    shape = (
        *[0] * (len(blocks) + len(outer)),
        *[range_size(r) for r in others],
        count,
        *[range_size(r) for r in dims],
    )
    array = UOp(ops.LOCAL, value.dtype, (), (f"part{number}", shape, "local"))
    before, behind = (*blocks, *outer, *others), tuple(dims)
    fill = UOp(ops.STORE, dtypes.void, (array, TRUE, value, *before, combine(pairs), *behind))
    read = UOp(ops.LOAD, value.dtype, (array, TRUE, *before, late, *behind))
    loops = tuple([r for r in dims if r.arg[2] != "vector"])
    staged = Staged(array, fill, loops, at, shared=True)
    return UOp(ops.REDUCE, u.dtype, (read, late), u.arg), staged


def _around(value: UOp, order: dict[UOp, int]) -> tuple[list[UOp], list[UOp], int]:
    """Return (loops around the array of partial results, its other dimensions, position of the last loop).

    The array stands outside of the loops of the reductions that it takes the results of; where there are
    none, outside of the unrolled loops further in than any other.
    """
    free = sorted((r for r in value.ranges if r.arg[2] not in PARALLEL), key=order.__getitem__)
    loops = [r for r in free if r.arg[2] != "vector"]
    inside = [
        order[x]
        for v in toposort([value])
        if v.op is ops.REDUCE
        for x in v.src[1:]
        if x.arg[2] not in PARALLEL and x.arg[2] != "vector"
    ]
    if inside:
        first = min(inside)
    else:
        first = max([order[r] for r in loops if r.arg[2] != "unroll"], default=-1) + 1
    outer: Sequence[UOp] = [r for r in loops if order[r] < first]
    dims = [r for r in free if r not in outer]
    return list(outer), dims, max([order[r] for r in outer], default=-1)
