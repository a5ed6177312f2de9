"""Evaluating linear expressions on NumPy arrays, one element for each lane, and measuring errors in ULP.

The meaning of each op is the reference backend's; its linear CAST, shifts and divisions raise where they are
undefined.  MULACC is evaluated with one rounding or with two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retarget.ir import ops
from retarget.ir.dtypes import DType
from retarget.ir.uop import UOp, toposort
from retarget_numpy.semantics import ELEMENTWISE, cast_in_range, constant, quiet

Array = Any

#: What an expression given to a target may be made of.
BASIC_OPS = frozenset({
    ops.ADD, ops.SUB, ops.MUL, ops.FDIV, ops.NEG, ops.SQRT, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT,
    ops.MULACC,
    ops.AND, ops.OR, ops.XOR, ops.NOT, ops.USHL, ops.USHR, ops.TRUNCDIV, ops.TRUNCMOD, ops.CMPLT, ops.CMPLE,
    ops.CMPEQ,
    ops.CMPNE, ops.WHERE, ops.CAST, ops.BITCAST,
})  # fmt: skip


def variable(dtype: DType, name: str = "x") -> UOp:
    """Return a placeholder for an operand."""
    return UOp(ops.VAR, dtype, (), (name, 0, 0))


def evaluate(root: UOp, operands: dict[UOp, Array], fused: bool = False) -> Array:
    """Return the value of `root` for the operands' values."""
    values: dict[UOp, Array] = dict(operands)
    with quiet():
        for u in toposort([root]):
            if u in values:
                continue
            src = [values[s] for s in u.src]
            if u.op is ops.CONST:
                values[u] = constant(u.arg, u.dtype)
            elif u.op is ops.BROADCAST:
                values[u] = src[0]
            elif u.op is ops.CAST:
                values[u] = cast_in_range(u.dtype.scalar, src[0])
            elif u.op is ops.MULACC and fused:
                values[u] = fused_multiply_add(*src)
            else:
                assert u.op in BASIC_OPS, f"{u.op} is not basic"
                rule = u.op.rule(u.dtype, u.src, u.arg)
                assert rule is None, f"{u.op}: {rule}"
                values[u] = ELEMENTWISE[u.op](u.dtype.scalar, *src)
    return values[root]


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z rounded once, but for rare ties: in twice the precision (float32), or by error-free
    sums.
    """
    dtype = np.result_type(x, y, z)
    if dtype == np.float32:
        return (np.asarray(x, np.float64) * y + z).astype(np.float32)
    x, y, z = (np.asarray(a, np.longdouble) for a in (x, y, z))
    x_hi = x.astype(np.float32).astype(
        np.longdouble
    )  # 24 + 40 bits: products of parts with y are exact or nearly so
    return ((x_hi * y + z) + (x - x_hi) * y).astype(np.float64)


def ulp_error(got: Array, exact: Array) -> Array:
    """Return |got - exact| in units in the last place of `exact` rounded to the type of `got`; 0 where both
    are NaN.

    Infinite where only one is NaN or infinite; `exact` has a wider type.
    """
    with np.errstate(all="ignore"):
        near = exact.astype(got.dtype)
        spacing = np.spacing(np.minimum(np.abs(near), np.finfo(got.dtype).max)).astype(exact.dtype)
        error = (np.abs(got.astype(exact.dtype) - exact) / spacing).astype(np.float64)
        same = (got == near) | (np.isnan(got) & np.isnan(near))
        comparable = np.isfinite(got) & np.isfinite(exact)
        return np.where(comparable, error, np.where(same, 0.0, np.inf))
