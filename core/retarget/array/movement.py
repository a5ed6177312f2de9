"""Smart constructors of movement nodes: each returns the simplest node that means the same.

Adjacent nodes of one kind merge, those that change nothing vanish, and moving a constant gives a constant.
The one form of a constant of a shape is a CONST for shape (), else EXPAND(RESHAPE(CONST)), made by `full`;
where every axis has length 1 the EXPAND is left out.  The one form of broadcasting, made by `broadcast_to`,
is a RESHAPE that adds leading axes of length 1 and an EXPAND.  Arguments are trusted here: the functions of
the namespace check what users give.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ..errors import DTypeError, InternalError, ShapeError
from ..ir import ops
from ..ir.dtypes import DType, int64
from ..ir.uop import Shape, UOp, const

Pads = tuple[tuple[int, int], ...]

_FULL_LIMIT = 4096
_full_cache: dict[tuple[object, DType, Shape], UOp] = {}


def full(value: bool | int | float, dtype: DType, shape: Shape) -> UOp:
    """Return the constant `value` (wrapped or rounded to `dtype`) of `shape`."""
    # The dtype decides what equal keys such as 1 and 1.0 become; only zeros need telling apart, by their
    # sign.
    key = (value or str(value), dtype, shape)
    found = _full_cache.get(key)
    if found is None:
        if len(_full_cache) >= _FULL_LIMIT:
            _full_cache.clear()
        try:
            found = _spread(const(value, dtype), shape)
        except OverflowError:
            raise DTypeError(f"the integer {value} is too large for {dtype}") from None
        _full_cache[key] = found
    return found


def full_size(size: int | UOp, dtype: DType, shape: Shape) -> UOp:
    """Return a size, which may be bound at launch only, as a constant of `shape`."""
    return broadcast_to(cast_size(size, dtype), shape) if isinstance(size, UOp) else full(size, dtype, shape)


def cast_size(size: UOp, dtype: DType) -> UOp:
    """Return a size that is bound at launch as a scalar node of `dtype`."""
    node = _size_node(size)
    return node if dtype is node.dtype else UOp(ops.CAST, dtype, (node,))


def _size_node(size: UOp) -> UOp:
    src = [_size_node(s) for s in size.src]
    match size.op:
        case ops.VAR:
            return UOp(ops.VAR, int64, (), size.arg)
        case ops.IMUL:
            return UOp(ops.MUL, int64, tuple(src))
        case ops.IDIV | ops.IMOD:
            op = ops.FLOORDIV if size.op is ops.IDIV else ops.MOD
            return UOp(op, int64, (*src, const(size.arg, int64)))
        case ops.AFFINE:
            total = const(size.arg[0], int64)
            for s, k in zip(src, size.arg[1], strict=True):
                total = UOp(ops.ADD, int64, (total, UOp(ops.MUL, int64, (s, const(k, int64)))))
            return total
    raise InternalError(f"a size depends on {size.op}")


def _spread(scalar: UOp, shape: Shape) -> UOp:
    if not shape:
        return scalar
    ones = (1,) * len(shape)
    node = UOp(ops.RESHAPE, scalar.dtype, (scalar,), ones)
    return node if shape == ones else UOp(ops.EXPAND, scalar.dtype, (node,), shape)


def constant_of(node: UOp) -> UOp | None:
    """Return the CONST that every element of `node` is, or None where that is not evident."""
    if node.op is ops.EXPAND:
        node = node.src[0]
    if node.op is ops.RESHAPE:
        node = node.src[0]
    return node if node.op is ops.CONST else None


def reshape(node: UOp, shape: Shape) -> UOp:
    if node.shape == shape:
        return node
    scalar = constant_of(node)
    if scalar is not None:
        return _spread(scalar, shape)
    if node.op is ops.RESHAPE:
        node = node.src[0]
        if node.shape == shape:
            return node
    return UOp(ops.RESHAPE, node.dtype, (node,), shape)


def permute(node: UOp, axes: Sequence[int]) -> UOp:
    axes = tuple(axes)
    scalar = constant_of(node)
    if scalar is not None:
        return _spread(scalar, tuple([node.shape[a] for a in axes]))
    if node.op is ops.PERMUTE:
        axes = tuple([node.arg[a] for a in axes])
        node = node.src[0]
    if axes == tuple(range(len(axes))):
        return node
    return UOp(ops.PERMUTE, node.dtype, (node,), axes)


def expand(node: UOp, shape: Shape) -> UOp:
    """Repeat axes of length 1 to the lengths of `shape`, which has as many axes."""
    if node.shape == shape:
        return node
    if node.op is ops.EXPAND:
        node = node.src[0]
    elif node.op is ops.CONST or node.op is ops.RESHAPE:
        scalar = constant_of(node)
        if scalar is not None:
            return _spread(scalar, shape)
    return UOp(ops.EXPAND, node.dtype, (node,), shape)


def pad(node: UOp, pads: Pads) -> UOp:
    """Put zeros around."""
    if not any(before or after for before, after in pads):
        return node
    scalar = constant_of(node)
    if scalar is not None and scalar.arg == 0 and math.copysign(1, scalar.arg) > 0:
        return _spread(scalar, tuple([n + b + a for n, (b, a) in zip(node.shape, pads, strict=True)]))
    if node.op is ops.PAD:
        pads = tuple([(b + d, a + e) for (b, a), (d, e) in zip(pads, node.arg, strict=True)])
        node = node.src[0]
    return UOp(ops.PAD, node.dtype, (node,), pads)


def shrink(node: UOp, window: Pads) -> UOp:
    """Take the window `((begin, end), ...)`."""
    if all(b == 0 and e == n for n, (b, e) in zip(node.shape, window, strict=True)):
        return node
    scalar = constant_of(node)
    if scalar is not None:
        return _spread(scalar, tuple([e - b for b, e in window]))
    if node.op is ops.SHRINK:
        window = tuple([(b + c, e + c) for (b, e), (c, _) in zip(window, node.arg, strict=True)])
        node = node.src[0]
    return UOp(ops.SHRINK, node.dtype, (node,), window)


def flip(node: UOp, axes: Sequence[int]) -> UOp:
    """Reverse `axes`, which are distinct."""
    kept = {a for a in axes if node.shape[a] not in (0, 1)}
    if not kept or constant_of(node) is not None:
        return node
    if node.op is ops.FLIP:
        kept ^= set(node.arg)
        node = node.src[0]
        if not kept:
            return node
    return UOp(ops.FLIP, node.dtype, (node,), tuple(sorted(kept)))


def broadcast_to(node: UOp, shape: Shape) -> UOp:
    """Broadcast by the array API's rules: RESHAPE to add leading axes of length 1, then EXPAND.

    Raises
    ------
    ShapeError
        If the node's shape does not broadcast to `shape`.
    """
    if node.shape == shape:
        return node
    return expand(reshape(node, _aligned(node.shape, shape)), shape)


@functools.lru_cache(4096)
def _aligned(old: Shape, shape: Shape) -> Shape:
    """Return `old` with the leading axes of length 1 that it needs to be expanded to `shape`."""
    missing = len(shape) - len(old)
    if missing < 0 or any(n != m and n != 1 for n, m in zip(old, shape[missing:], strict=True)):
        raise ShapeError(
            f"an array of shape {old} does not broadcast to {shape}; axes must be equal or of length 1"
        )
    return (1,) * missing + old


@functools.lru_cache(4096)
def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that arrays of `shapes` broadcast to.

    Raises
    ------
    ShapeError
        If they do not broadcast together; the text shows the shapes.
    """
    rank = max([len(s) for s in shapes], default=0)
    out = [1] * rank
    for shape in shapes:
        for axis, n in enumerate(shape, rank - len(shape)):
            if n != 1 and n != out[axis]:
                if out[axis] != 1:
                    shown = " and ".join(str(s) for s in shapes)
                    raise ShapeError(
                        f"shapes {shown} do not broadcast: axis {axis - rank} has lengths {out[axis]} and "
                        f"{n}; lengths must be equal or 1 (reshape or expand_dims one of the arrays)"
                    )
                out[axis] = n
    return tuple(out)


def insert_axes(node: UOp, axes: Sequence[int]) -> UOp:
    """Insert axes of length 1 whose numbers in the result are `axes` (not negative, ascending)."""
    shape = list(node.shape)
    for axis in axes:
        shape.insert(axis, 1)
    return reshape(node, tuple(shape))


def drop_axes(node: UOp, axes: Sequence[int]) -> UOp:
    """Drop `axes`, each of length 1."""
    return reshape(node, tuple([n for i, n in enumerate(node.shape) if i not in axes]))


def axis_window(shape: Shape, axis: int, begin: int, end: int) -> Pads:
    """Return the window that limits `axis` to [begin, end) and keeps the other axes of `shape` whole."""
    return tuple([(begin, end) if i == axis else (0, n) for i, n in enumerate(shape)])


def axis_pads(rank: int, axis: int, before: int, after: int) -> Pads:
    """Return the padding that lengthens `axis` alone."""
    return tuple([(before, after) if i == axis else (0, 0) for i in range(rank)])


def stride(node: UOp, axis: int, begin: int, count: int, step: int) -> UOp:
    """Take elements begin, begin + step ... (`count` of them, all in range, step > 0) of `axis`."""
    shape = node.shape
    if step == 1 or count <= 1:
        return shrink(node, axis_window(shape, axis, begin, begin + count))
    # As (count, step) blocks of which one column is kept.  A window that fits needs no padding; at the end
    # of the axis the blocks start earlier, and only a step longer than what is left over has to be padded.
    size = shape[axis]
    column = min(begin, max(0, begin + count * step - size))
    first = begin - column
    over = max(0, first + count * step - size)
    node = pad(node, axis_pads(len(shape), axis, 0, over))
    node = shrink(node, axis_window(node.shape, axis, first, first + count * step))
    node = reshape(node, (*shape[:axis], count, step, *shape[axis + 1 :]))
    node = shrink(node, axis_window(node.shape, axis + 1, column, column + 1))
    return reshape(node, (*shape[:axis], count, *shape[axis + 1 :]))


def unstride(node: UOp, axis: int, begin: int, step: int, size: int) -> UOp:
    """Put elements of `axis` at begin, begin + step ... of an axis of length `size` that is 0 elsewhere."""
    shape, count = node.shape, node.shape[axis]
    if step > 1 and count > 1:
        node = reshape(node, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        node = pad(node, axis_pads(len(shape) + 1, axis + 1, 0, step - 1))
        node = reshape(node, (*shape[:axis], count * step, *shape[axis + 1 :]))
        count = (count - 1) * step + 1
        node = shrink(node, axis_window(node.shape, axis, 0, count))
    return pad(node, axis_pads(len(shape), axis, begin, size - begin - count))
