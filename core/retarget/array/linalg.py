"""Products of matrices and vectors: broadcast, multiply, reduce.

float16, bfloat16 and float8 are multiplied and accumulated in float32, and integers narrower than 32 bits in
int32, which gives the same bits as wrapping at every step; the result has the operands' promoted dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ..errors import ShapeError
from ..ir import dtypes, ops
from ..ir.dtypes import DType, float32, int32, uint32
from ..ir.uop import UOp
from . import movement
from .array import Array, Operand, cast, common_device, require_array
from .manipulation import matrix_transpose, normal_axis
from .reduction import reduce

__all__ = ["matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]


def _pair(name: str, x1: Operand, x2: Operand) -> tuple[UOp, UOp, DType, str]:
    """Return two arrays in the dtype to accumulate in, the dtype of the result, and the device."""
    x, y = require_array(name, x1), require_array(name, x2)
    dtype = dtypes.promote(x.dtype, y.dtype)
    work = accumulator(dtype)
    return cast(x.node, work), cast(y.node, work), dtype, common_device(name, x._device, y._device)


def accumulator(dtype: DType) -> DType:
    """Return the dtype that products of `dtype` are summed in."""
    if dtype.is_float:
        return float32 if dtype.bits < 32 else dtype
    if dtype.is_int and dtype.bits < 32:
        return uint32 if dtype.kind == "uint" else int32
    return dtype


def contract(a: UOp, b: UOp, axes: tuple[int, ...], dtype: DType) -> UOp:
    """Return the sums of the products of two nodes that broadcast, over `axes`, which are dropped."""
    shape = movement.broadcast_shapes(a.shape, b.shape)
    product = UOp(ops.MUL, a.dtype, (movement.expand(a, shape), movement.expand(b, shape)))
    return movement.drop_axes(cast(reduce(ops.ADD, product, axes), dtype), axes)


def matmul(x1: Operand, x2: Operand, /) -> Array:
    """Return the matrix product of (..., n, k) and (..., k, m), stacks broadcasting.

    A vector counts as a row at the left and as a column at the right, and its axis of length 1 is dropped
    again.
    """
    a, b, dtype, device = _pair("matmul", x1, x2)
    left, right = a.shape, b.shape
    if not left or not right:
        raise ShapeError(f"matmul needs arrays with axes, got shapes {left} and {right}; use * for scalars")
    if len(left) == 1:
        a = movement.reshape(a, (1, *left))
    if len(right) == 1:
        b = movement.reshape(b, (*right, 1))
    n, k, m = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.shape[-2] != k:
        raise ShapeError(
            f"matmul of shapes {left} and {right}: the last axis of the first has length {k}, "
            f"the {'only' if len(right) == 1 else 'second to last'} one of the second {b.shape[-2]}"
        )
    batch = movement.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rank = len(batch) + 3
    a = movement.reshape(a, (*_lead(a.shape[:-2], batch), n, 1, k))
    b = movement.permute(b, [*range(len(b.shape) - 2), len(b.shape) - 1, len(b.shape) - 2])
    b = movement.reshape(b, (*_lead(b.shape[:-2], batch), 1, m, k))
    node = contract(a, b, (rank - 1,), dtype)
    shape = batch + (() if len(left) == 1 else (n,)) + (() if len(right) == 1 else (m,))
    return Array(movement.reshape(node, shape), device)


def _lead(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(batch) - len(shape)) + shape


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the sums of products over pairs of axes.

    `axes` is a number n (the last n axes of x1 with the first n of x2), or the axes of x1 and those of x2.
    """
    a, b, dtype, device = _pair("tensordot", x1, x2)
    rank_a, rank_b = len(a.shape), len(b.shape)
    if isinstance(axes, int):
        if not 0 <= axes <= min(rank_a, rank_b):
            raise ShapeError(f"tensordot over {axes} axes of arrays with {rank_a} and {rank_b}")
        over_a, over_b = list(range(rank_a - axes, rank_a)), list(range(axes))
    else:
        over_a = [normal_axis("tensordot", i, rank_a) for i in axes[0]]
        over_b = [normal_axis("tensordot", i, rank_b) for i in axes[1]]
    lengths = [a.shape[i] for i in over_a]
    if (
        lengths != [b.shape[i] for i in over_b]
        or len(set(over_a)) != len(over_a)
        or len(set(over_b)) != len(over_b)
    ):
        raise ShapeError(
            f"tensordot of shapes {a.shape} and {b.shape}: axes {tuple(over_a)} and {tuple(over_b)} must be "
            "distinct and of equal lengths"
        )
    kept_a = [i for i in range(rank_a) if i not in over_a]
    kept_b = [i for i in range(rank_b) if i not in over_b]
    shape_a, shape_b = [a.shape[i] for i in kept_a], [b.shape[i] for i in kept_b]
    a = movement.reshape(movement.permute(a, kept_a + over_a), (*shape_a, *([1] * len(shape_b)), *lengths))
    b = movement.reshape(movement.permute(b, kept_b + over_b), (*([1] * len(shape_a)), *shape_b, *lengths))
    rank = len(a.shape)
    return Array(contract(a, b, tuple(range(rank - len(lengths), rank)), dtype), device)


def outer(x1: Array, x2: Array, /) -> Array:
    """Return the products of every element of one vector with every element of another."""
    a, b = require_array("outer", x1), require_array("outer", x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"outer needs arrays of one axis, got shapes {a.shape} and {b.shape}")
    return a[:, None] * b[None, :]


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the sums of products over `axis`, counted from the end, of arrays whose other axes broadcast."""
    a, b, dtype, device = _pair("vecdot", x1, x2)
    number = operator.index(axis)
    shortest = min(len(a.shape), len(b.shape))
    if not -shortest <= number < 0:
        raise ShapeError(f"vecdot needs an axis in [-{shortest}, -1], which counts from the end, got {axis}")
    if a.shape[number] != b.shape[number]:
        raise ShapeError(f"vecdot of shapes {a.shape} and {b.shape}: axis {number} has different lengths")
    shape = movement.broadcast_shapes(a.shape, b.shape)
    a, b = movement.broadcast_to(a, shape), movement.broadcast_to(b, shape)
    return Array(contract(a, b, (len(shape) + number,), dtype), device)
