"""Bounds of integer arithmetic, by which renderers know that it does not overflow."""

from __future__ import annotations

from ..ir import ops
from ..ir.ops import Op

#: The least and the largest value.
Bounds = tuple[int, int]


def interval(op: Op, x: Bounds, y: Bounds) -> Bounds | None:
    """Return the bounds of an op on bounded integers, None where nothing useful is known.

    >>> interval(ops.MUL, (-1, 2), (0, 10)), interval(ops.TRUNCDIV, (0, 9), (2, 3))
    ((-10, 20), (0, 4))
    """
    if op is ops.ADD:
        return x[0] + y[0], x[1] + y[1]
    if op is ops.SUB:
        return x[0] - y[1], x[1] - y[0]
    if op is ops.MUL:
        corners = [a * b for a in x for b in y]
        return min(corners), max(corners)
    if x[0] >= 0 and y[0] > 0:
        if op is ops.TRUNCDIV:
            return x[0] // y[1], x[1] // y[0]
        if op is ops.TRUNCMOD:
            return 0, min(x[1], y[1] - 1)
    return None
