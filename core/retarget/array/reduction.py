"""Reductions, searches and cumulative functions.

Accumulators: sums and products of bool and integers narrower than 64 bits are int64 or uint64; float16,
bfloat16 and float8 accumulate in float32 and are rounded once at the end; float32 and float64 stay.  max and
min give NaN if there is one, argmax and argmin the first place of it.  Where nothing is reduced over, a sum
is 0, a product 1, any false, all true, a mean NaN, and max, min, argmax and argmin are errors unless the
result is empty too.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

from ..errors import DTypeError, ShapeError
from ..ir import ops
from ..ir.dtypes import DType, as_dtype, bool_, float32, int32, int64, uint64
from ..ir.ops import Op
from ..ir.uop import UOp
from . import movement
from .array import Array, Axis, cast, require_array
from .creation import iota
from .elementwise import sqrt
from .manipulation import normal_axes, normal_axis, pad_with

#: Length of the blocks of a cumulative function: work per element, against 1 / length kernels' worth of
#: block totals.
SCAN_BLOCK = 64


def reduce(op: Op, node: UOp, axes: tuple[int, ...]) -> UOp:
    """Fold `axes` to length 1; axes of length 1 are folded already, and an empty fold is the identity."""
    shape = node.shape
    folded = tuple([a for a in axes if shape[a] != 1])
    if not folded:
        return node
    if builtins.any(shape[a] == 0 for a in folded):
        value = ops.identity(op, node.dtype)
        return movement.full(value, node.dtype, tuple([1 if i in folded else n for i, n in enumerate(shape)]))
    return UOp(ops.REDUCE_AXIS, node.dtype, (node,), (op, folded))


def fold(x: Array, op: Op, node: UOp, axes: tuple[int, ...], keepdims: bool, dtype: DType) -> Array:
    """Reduce a node that x led to, cast the result and drop the axes unless they are kept."""
    node = cast(reduce(op, node, axes), dtype)
    return Array(node if keepdims else movement.drop_axes(node, axes), x._device)


def wide_float(dtype: DType) -> DType:
    """Return the dtype that floats of `dtype` accumulate in."""
    return float32 if dtype.bits < 32 else dtype


def _accumulator(name: str, dtype: DType, wanted: Any) -> tuple[DType, DType]:
    """Return the dtypes that a sum or product accumulates in and is returned in."""
    if wanted is not None:
        result = as_dtype(wanted)
        if result is bool_:
            raise DTypeError(f"{name} has no bool result; use rt.any or rt.all")
    elif dtype.kind == "float":
        result = dtype
    else:
        result = uint64 if dtype.kind == "uint" else int64
    return (wide_float(result) if result.is_float else result), result


def _total(name: str, op: Op, x: Array, axis: Axis, dtype: Any, keepdims: bool) -> Array:
    x = require_array(name, x)
    axes = normal_axes(name, axis, x.ndim)
    work, result = _accumulator(name, x.dtype, dtype)
    return fold(x, op, cast(x.node, work), axes, keepdims, result)


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return sums over `axis` (an int, a tuple, or None for all)."""
    return _total("sum", ops.ADD, x, axis, dtype, keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return products over `axis` (an int, a tuple, or None for all)."""
    return _total("prod", ops.MUL, x, axis, dtype, keepdims)


def _extreme(name: str, op: Op, x: Array, axis: Axis, keepdims: bool) -> Array:
    x = require_array(name, x)
    axes = normal_axes(name, axis, x.ndim)
    empty = [a for a in axes if x.shape[a] == 0]
    if empty and 0 not in [n for i, n in enumerate(x.shape) if i not in axes]:
        raise ShapeError(
            f"{name} over axis {empty[0]} of shape {x.shape}, which has no elements: there is no {name}"
        )
    return fold(x, op, x.node, axes, keepdims, x.dtype)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the largest elements over `axis` (an int, a tuple, or None for all); NaN if there is one."""
    return _extreme("max", ops.MAXIMUM, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the smallest elements over `axis` (an int, a tuple, or None for all); NaN if there is one."""
    return _extreme("min", ops.MINIMUM, x, axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether some element over `axis` is true; NaN is, as any value other than zero."""
    x = require_array("any", x)
    return fold(x, ops.OR, cast(x.node, bool_), normal_axes("any", axis, x.ndim), keepdims, bool_)


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether every element over `axis` is true; NaN is, as any value other than zero."""
    x = require_array("all", x)
    return fold(x, ops.AND, cast(x.node, bool_), normal_axes("all", axis, x.ndim), keepdims, bool_)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return how many elements over `axis` are not zero, in int64."""
    x = require_array("count_nonzero", x)
    node = cast(cast(x.node, bool_), int64)
    return fold(x, ops.ADD, node, normal_axes("count_nonzero", axis, x.ndim), keepdims, int64)


def _divide(node: UOp, count: float | UOp) -> UOp:
    """Divide by a number, or by a scalar node."""
    if isinstance(count, UOp):
        divisor = movement.broadcast_to(cast(count, node.dtype), node.shape)
    else:
        divisor = movement.full(count, node.dtype, node.shape)
    return UOp(ops.FDIV, node.dtype, (node, divisor))


def _count(node: UOp, axes: tuple[int, ...], dtype: DType, correction: float = 0.0) -> float | UOp:
    """Return how many elements `axes` have, less a correction: a number, or else a scalar node."""
    count = math.prod([node.shape[a] for a in axes])
    if not isinstance(count, UOp):
        return builtins.max(float(count - correction), 0.0)
    found = movement.cast_size(count, dtype)
    if not correction:
        return found
    found = UOp(ops.SUB, dtype, (found, movement.full(correction, dtype, ())))
    return UOp(ops.MAXIMUM, dtype, (found, movement.full(0.0, dtype, ())))


def _mean_node(node: UOp, axes: tuple[int, ...]) -> UOp:
    """Return means with the axes kept, in float32 or float64; sums of integers up to 32 bits are exact."""
    dtype = node.dtype
    work = wide_float(dtype) if dtype.is_float else int64 if dtype.bits <= 32 else float32
    total = reduce(ops.ADD, cast(node, work), axes)
    total = cast(total, work if work.is_float else float32)
    return _divide(total, _count(node, axes, total.dtype))


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return means over `axis`, in x's dtype, or float32 for integers and bool; NaN of no elements."""
    x = require_array("mean", x)
    axes = normal_axes("mean", axis, x.ndim)
    node = cast(_mean_node(x.node, axes), x.dtype if x.dtype.is_float else float32)
    return Array(node if keepdims else movement.drop_axes(node, axes), x._device)


def _variance(name: str, x: Array, axis: Axis, correction: float, keepdims: bool) -> tuple[Array, DType]:
    """Return variances before rounding to the result's dtype, and that dtype."""
    x = require_array(name, x)
    axes = normal_axes(name, axis, x.ndim)
    center = _mean_node(x.node, axes)
    values = cast(x.node, center.dtype)
    difference = UOp(ops.SUB, values.dtype, (values, movement.expand(center, values.shape)))
    total = reduce(ops.ADD, UOp(ops.MUL, values.dtype, (difference, difference)), axes)
    node = _divide(total, _count(x.node, axes, total.dtype, correction))
    result = x.dtype if x.dtype.is_float else float32
    return Array(node if keepdims else movement.drop_axes(node, axes), x._device), result


def var(x: Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: bool = False) -> Array:
    """Return variances over `axis`, in two passes: mean((x - mean(x))**2) with n - correction for n.

    In x's dtype, or float32 for integers and bool.  With no more elements than the correction, NaN or
    infinity.
    """
    value, dtype = _variance("var", x, axis, correction, keepdims)
    return Array(cast(value.node, dtype), value._device)


def std(x: Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: bool = False) -> Array:
    """Return standard deviations over `axis`: the square roots of `var`."""
    value, dtype = _variance("std", x, axis, correction, keepdims)
    return Array(cast(sqrt(value).node, dtype), value._device)


def _search(name: str, op: Op, x: Array, axis: int | None, keepdims: bool) -> Array:
    """Return the first index of the extreme: the smallest of the indices where x equals it, or x is NaN."""
    x = require_array(name, x)
    rank = x.ndim
    node = x.node
    if axis is None:
        node = movement.reshape(node, (x.size,))
        axis = 0
    else:
        axis = normal_axis(name, axis, rank)
    n = node.shape[axis]
    if n == 0:
        raise ShapeError(f"{name} over an axis without elements (shape {x.shape}): there is no {name}")
    shape = node.shape
    best = movement.expand(reduce(op, node, (axis,)), shape)
    hit = UOp(ops.CMPEQ, bool_, (node, best))
    if node.dtype.is_float:
        hit = UOp(ops.OR, bool_, (hit, UOp(ops.CMPNE, bool_, (node, node))))
    counter = int32 if n < 2**31 else int64
    place = movement.reshape(
        cast(iota(n), counter), tuple([n if i == axis else 1 for i in range(len(shape))])
    )
    index = UOp(
        ops.WHERE, counter, (hit, movement.expand(place, shape), movement.full_size(n - 1, counter, shape))
    )
    found = cast(reduce(ops.MINIMUM, index, (axis,)), int64)
    if keepdims:
        final = (1,) * rank if len(shape) != rank or x.shape != shape else found.shape
    else:
        final = tuple([m for i, m in enumerate(found.shape) if i != axis])
    return Array(movement.reshape(found, final), x._device)


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the first index (int64) of the largest element, or of NaN, along `axis` or in all of x."""
    return _search("argmax", ops.MAXIMUM, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the first index (int64) of the smallest element, or of NaN, along `axis` or in all of x."""
    return _search("argmin", ops.MINIMUM, x, axis, keepdims)


# -- cumulative functions ----------------------------------------------------------------------------------


def _scan(op: Op, node: UOp) -> UOp:
    """Return the folds of all prefixes of the last axis.

    Blocks of `SCAN_BLOCK` are folded directly, each prefix by its own masked reduction; then the scan of the
    blocks' totals, which is stored, is folded in.  Work per element is constant.
    """
    *lead, n = node.shape
    dtype = node.dtype
    neutral = ops.identity(op, dtype)
    block = builtins.min(n, SCAN_BLOCK)
    blocks = -(-n // block)
    pads = movement.axis_pads(len(lead) + 1, len(lead), 0, blocks * block - n)
    rows = movement.reshape(pad_with(node, pads, neutral), (*lead, blocks, block))
    # prefix[..., i] folds rows[..., j] over j <= i
    shape = (*lead, blocks, block, block)
    ones = (1,) * (len(lead) + 1)
    i = movement.expand(movement.reshape(iota(block), (*ones, block, 1)), shape)
    j = movement.expand(movement.reshape(iota(block), (*ones, 1, block)), shape)
    mask = UOp(ops.CMPLE, bool_, (j, i))
    terms = movement.expand(movement.insert_axes(rows, (len(lead) + 1,)), shape)
    chosen = UOp(ops.WHERE, dtype, (mask, terms, movement.full(neutral, dtype, shape)))
    prefix = movement.drop_axes(reduce(op, chosen, (len(shape) - 1,)), (len(shape) - 1,))
    if blocks > 1:
        totals = movement.drop_axes(reduce(op, rows, (len(lead) + 1,)), (len(lead) + 1,))
        before = UOp(ops.CONTIGUOUS, dtype, (_scan(op, totals),))
        rank = len(lead) + 1
        before = movement.shrink(before, movement.axis_window(before.shape, rank - 1, 0, blocks - 1))
        before = pad_with(before, movement.axis_pads(rank, rank - 1, 1, 0), neutral)
        before = movement.expand(movement.insert_axes(before, (rank,)), prefix.shape)
        prefix = UOp(op, dtype, (before, prefix))
    flat = movement.reshape(prefix, (*lead, blocks * block))
    return movement.shrink(flat, movement.axis_window(flat.shape, len(lead), 0, n))


def _cumulative(name: str, op: Op, x: Array, axis: int | None, dtype: Any, include_initial: bool) -> Array:
    x = require_array(name, x)
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"{name} needs an axis for an array of shape {x.shape}")
        axis = 0
    number = normal_axis(name, axis, x.ndim)
    work, result = _accumulator(name, x.dtype, dtype)
    order = [a for a in range(x.ndim) if a != number]
    order.append(number)
    node = movement.permute(cast(x.node, work), order)
    if x.size:
        node = cast(_scan(op, node), result)
    node = cast(node, result)
    node = movement.permute(node, [order.index(a) for a in range(x.ndim)])
    if include_initial:
        node = pad_with(node, movement.axis_pads(x.ndim, number, 1, 0), ops.identity(op, result))
    return Array(node, x._device)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Return the sums of the elements up to and including each; `include_initial` puts a 0 first."""
    return _cumulative("cumulative_sum", ops.ADD, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Return the products of the elements up to and including each; `include_initial` puts a 1 first."""
    return _cumulative("cumulative_prod", ops.MUL, x, axis, dtype, include_initial)


def diff(x: Array, /, *, axis: int = -1, n: int = 1) -> Array:
    """Return the n-th differences of neighbours along `axis`; of bool, whether they differ."""
    x = require_array("diff", x)
    number = normal_axis("diff", axis, x.ndim)
    if n < 0:
        raise ShapeError(f"diff needs n >= 0, got {n}")
    node = x.node
    for _ in range(n):
        length = node.shape[number]
        if length < 2:
            return Array(movement.shrink(node, movement.axis_window(node.shape, number, 0, 0)), x._device)
        later = movement.shrink(node, movement.axis_window(node.shape, number, 1, length))
        earlier = movement.shrink(node, movement.axis_window(node.shape, number, 0, length - 1))
        node = UOp(ops.XOR if node.dtype is bool_ else ops.SUB, node.dtype, (later, earlier))
    return Array(node, x._device)
