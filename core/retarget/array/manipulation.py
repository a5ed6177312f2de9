"""Shape manipulation: movement nodes, and masks with WHERE where arrays are put together.

Joining never adds or multiplies by zero, so NaN, infinities and signed zeros come through as they are.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any, cast

from ..errors import ShapeError
from ..ir import dtypes, ops
from ..ir.dtypes import DType, bool_
from ..ir.uop import Shape, UOp
from . import movement
from .array import Array, Axis, Scalar, common_device, require_array
from .array import cast as cast_node
from .creation import normal_shape

#: From how many arrays on `concat` stores intermediate results, so that an element is not chosen from all
#: of them.
JOIN_WIDTH = 32


def normal_axis(name: str, axis: int, rank: int) -> int:
    """Return `axis` as a number in [0, rank)."""
    try:
        number = operator.index(axis)
    except TypeError:
        raise ShapeError(f"{name} needs an int axis, got {axis!r}") from None
    if not -rank <= number < rank:
        allowed = f"[{-rank}, {rank - 1}]" if rank else "none: the array has no axis"
        raise ShapeError(f"{name}: axis {number} is out of range for {rank} axes; allowed: {allowed}")
    return number % rank


def normal_axes(name: str, axis: Axis, rank: int) -> tuple[int, ...]:
    """Return `axis`, None meaning all, as ascending distinct numbers in [0, rank)."""
    if axis is None:
        return tuple(range(rank))
    if type(axis) is int and -rank <= axis < rank:
        return (axis % rank,)
    if isinstance(axis, Sequence):
        axes = sorted([normal_axis(name, a, rank) for a in axis])
        if len(set(axes)) != len(axes):
            raise ShapeError(f"{name}: an axis occurs twice in {axis}")
        return tuple(axes)
    return (normal_axis(name, axis, rank),)


def broadcast_to(x: Array, /, shape: int | Sequence[int]) -> Array:
    """Return x repeated along new and length-1 axes to `shape`, without copying."""
    x = require_array("broadcast_to", x)
    return Array(movement.broadcast_to(x.node, normal_shape(shape, "broadcast_to")), x._device)


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """Return the shape that arrays of `shapes` broadcast to."""
    return movement.broadcast_shapes(*[normal_shape(s, "broadcast_shapes") for s in shapes])


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Return the arrays broadcast against each other."""
    found = [require_array("broadcast_arrays", a) for a in arrays]
    shape = movement.broadcast_shapes(*[a.shape for a in found])
    return [Array(movement.broadcast_to(a.node, shape), a._device) for a in found]


def reshape(x: Array, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """Return the elements of x, in row-major order, in another shape; one length may be -1, to be worked out.

    Arrays are values, so a reshape is neither seen as a copy nor as a view: any `copy` is honoured.
    """
    x = require_array("reshape", x)
    try:
        wanted = [shape] if not isinstance(shape, Sequence) else shape
        dims = [n if isinstance(n, UOp) else operator.index(n) for n in wanted]
    except TypeError:
        raise ShapeError(f"reshape needs a tuple of ints, got {shape!r}") from None
    if dims.count(-1) > 1 or builtins.any(n < -1 for n in dims):
        raise ShapeError(f"reshape to {tuple(dims)}: lengths are not negative, but for one that may be -1")
    if -1 in dims:
        rest = math.prod([n for n in dims if n != -1])
        if not rest or x.size % rest:
            raise ShapeError(f"shape {x.shape} of {x.size} elements cannot be reshaped to {tuple(dims)}")
        dims[dims.index(-1)] = x.size // rest
    if math.prod(dims) != x.size:
        raise ShapeError(f"shape {x.shape} has {x.size} elements, {tuple(dims)} would have {math.prod(dims)}")
    return Array(movement.reshape(x.node, tuple(dims)), x._device)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """Return x with its axes in the order `axes`."""
    x = require_array("permute_dims", x)
    order = [normal_axis("permute_dims", a, x.ndim) for a in axes]
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(f"permute_dims needs each of {x.ndim} axes once, got {tuple(axes)}")
    return Array(movement.permute(x.node, order), x._device)


def matrix_transpose(x: Array, /) -> Array:
    """Return x with its last two axes swapped."""
    x = require_array("matrix_transpose", x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose needs at least two axes, got shape {x.shape}")
    rank = x.ndim
    return Array(movement.permute(x.node, [*range(rank - 2), rank - 1, rank - 2]), x._device)


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Return x with axes `source` at the places `destination`, and the others in their order."""
    x = require_array("moveaxis", x)
    sources = [source] if isinstance(source, int) else list(source)
    places = [destination] if isinstance(destination, int) else list(destination)
    old = [normal_axis("moveaxis", a, x.ndim) for a in sources]
    new = [normal_axis("moveaxis", a, x.ndim) for a in places]
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise ShapeError(
            f"moveaxis needs as many distinct destinations as sources, got {source} and {destination}"
        )
    order = [a for a in range(x.ndim) if a not in old]
    for place, axis in sorted(zip(new, old, strict=True)):
        order.insert(place, axis)
    return Array(movement.permute(x.node, order), x._device)


def expand_dims(x: Array, /, *, axis: int | Sequence[int] = 0) -> Array:
    """Return x with an axis of length 1 inserted at each place `axis` of the result."""
    x = require_array("expand_dims", x)
    wanted = [axis] if isinstance(axis, int) else list(axis)
    axes = normal_axes("expand_dims", wanted, x.ndim + len(wanted))
    return Array(movement.insert_axes(x.node, axes), x._device)


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Return x without the axes `axis`, which have length 1."""
    x = require_array("squeeze", x)
    axes = normal_axes("squeeze", axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeError(
                f"squeeze: axis {a} of shape {x.shape} has length {x.shape[a]}, only 1 can be dropped"
            )
    return Array(movement.drop_axes(x.node, axes), x._device)


def flip(x: Array, /, *, axis: Axis = None) -> Array:
    """Return x with the order of elements reversed along `axis`, or along all axes."""
    x = require_array("flip", x)
    return Array(movement.flip(x.node, normal_axes("flip", axis, x.ndim)), x._device)


def roll(x: Array, /, shift: int | Sequence[int], *, axis: Axis = None) -> Array:
    """Return x with its elements rotated along `axis`; None rotates the flattened array."""
    x = require_array("roll", x)
    if axis is None:
        return reshape(roll(reshape(x, -1), shift, axis=0), x.shape)
    axes = [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    if len(shifts) == 1:
        shifts *= len(axes)
    elif len(axes) == 1:
        axes *= len(shifts)
    if len(shifts) != len(axes):
        raise ShapeError(f"roll needs one shift for each axis, got {shift} and {axis}")
    node = x.node
    for amount, a in zip(shifts, axes, strict=True):
        number = normal_axis("roll", a, x.ndim)
        n = x.shape[number]
        k = operator.index(amount) % n if n else 0
        if k:
            end = movement.shrink(node, movement.axis_window(node.shape, number, n - k, n))
            front = movement.shrink(node, movement.axis_window(node.shape, number, 0, n - k))
            node = join([end, front], number)
    return Array(node, x._device)


def join(nodes: list[UOp], axis: int) -> UOp:
    """Return nodes of one dtype put together along `axis`, as a balanced tree of padded pairs.

    With many nodes every group of `JOIN_WIDTH` is stored first: an element of the result is then chosen from
    few candidates at each of a few levels, not from all nodes.
    """
    nodes = [n for n in nodes if n.shape[axis]] or nodes[:1]
    while len(nodes) > JOIN_WIDTH:
        groups = [nodes[i : i + JOIN_WIDTH] for i in range(0, len(nodes), JOIN_WIDTH)]
        nodes = [UOp(ops.CONTIGUOUS, g[0].dtype, (_join_tree(g, axis),)) for g in groups]
    return _join_tree(nodes, axis)


def _join_tree(nodes: list[UOp], axis: int) -> UOp:
    while len(nodes) > 1:
        pairs = [_join_pair(nodes[i], nodes[i + 1], axis) for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[len(nodes) - len(nodes) % 2 :]
    return nodes[0]


def _join_pair(a: UOp, b: UOp, axis: int) -> UOp:
    rank, first, second = len(a.shape), a.shape[axis], b.shape[axis]
    after, before = movement.axis_pads(rank, axis, 0, second), movement.axis_pads(rank, axis, first, 0)
    mask = movement.pad(movement.full(True, bool_, a.shape), after)
    return UOp(ops.WHERE, a.dtype, (mask, movement.pad(a, after), movement.pad(b, before)))


def _together(name: str, arrays: Sequence[Array], dtype: DType | None = None) -> tuple[list[UOp], str]:
    """Return the arrays' nodes in one promoted dtype, and their device."""
    found = [require_array(name, a) for a in arrays]
    if not found:
        raise ShapeError(f"{name} needs at least one array")
    device, common = "", found[0].dtype
    for a in found:
        device = common_device(name, device, a._device)
        common = dtypes.promote(common, a.dtype)
    return [cast_node(a.node, common) for a in found], device


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Return the arrays put together along `axis`, or flattened for None.  Their dtypes promote."""
    nodes, device = _together("concat", arrays)
    if axis is None:
        nodes = [movement.reshape(n, (math.prod(n.shape),)) for n in nodes]
        axis = 0
    shape = nodes[0].shape
    number = normal_axis("concat", axis, len(shape))
    for n in nodes[1:]:
        if len(n.shape) != len(shape) or [*n.shape[:number], *n.shape[number + 1 :]] != [
            *shape[:number],
            *shape[number + 1 :],
        ]:
            raise ShapeError(
                f"concat along axis {number}: shapes {shape} and {n.shape} differ in another axis"
            )
    return Array(join(nodes, number), device)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Return arrays of one shape put together along a new axis.  Their dtypes promote."""
    nodes, device = _together("stack", arrays)
    shape = nodes[0].shape
    for n in nodes:
        if n.shape != shape:
            raise ShapeError(f"stack needs arrays of one shape, got {shape} and {n.shape}")
    number = normal_axis("stack", axis, len(shape) + 1)
    return Array(join([movement.insert_axes(n, (number,)) for n in nodes], number), device)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices of x along `axis`, without that axis."""
    x = require_array("unstack", x)
    number = normal_axis("unstack", axis, x.ndim)
    windows = [movement.axis_window(x.shape, number, i, i + 1) for i in range(x.shape[number])]
    return tuple(
        [Array(movement.drop_axes(movement.shrink(x.node, w), (number,)), x._device) for w in windows]
    )


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """Return x put together with itself `repetitions` times along each axis, the last of which are x's."""
    x = require_array("tile", x)
    times = normal_shape(repetitions, "tile")
    rank = builtins.max(len(times), x.ndim)
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - x.ndim) + x.shape
    node = movement.reshape(x.node, tuple([n for length in shape for n in (1, length)]))
    node = movement.expand(node, tuple([n for pair in zip(times, shape, strict=True) for n in pair]))
    return Array(movement.reshape(node, tuple([t * n for t, n in zip(times, shape, strict=True)])), x._device)


def repeat_axis(node: UOp, axis: int, times: int) -> UOp:
    """Return `node` with each element of `axis` repeated `times` times."""
    shape = node.shape
    node = movement.insert_axes(node, (axis + 1,))
    node = movement.expand(node, (*shape[: axis + 1], times, *shape[axis + 1 :]))
    return movement.reshape(node, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


def repeat(x: Array, repeats: int | Sequence[int], /, *, axis: int | None = None) -> Array:
    """Return x with each element along `axis` repeated; None flattens x first.

    `repeats` is an int or one int for each element, known now: a lazy array would make the result's shape
    depend on data.
    """
    x = require_array("repeat", x)
    if axis is None:
        x, axis = reshape(x, -1), 0
    number = normal_axis("repeat", axis, x.ndim)
    if isinstance(repeats, Array):
        raise ShapeError(
            "repeat cannot take a lazy array of counts, as the result's shape would depend on its values; "
            "pass repeats.tolist()"
        )
    if not isinstance(repeats, Sequence):
        (times,) = normal_shape(repeats, "repeat")
        return Array(repeat_axis(x.node, number, times), x._device)
    counts = normal_shape(repeats, "repeat")
    if len(counts) == 1:
        return repeat(x, counts[0], axis=number)
    if len(counts) != x.shape[number]:
        raise ShapeError(f"repeat needs one count for each of {x.shape[number]} elements, got {len(counts)}")
    pieces = []
    for i, times in enumerate(counts):
        piece = movement.shrink(x.node, movement.axis_window(x.shape, number, i, i + 1))
        pieces.append(repeat_axis(piece, number, times))
    return Array(join(pieces, number) if pieces else x.node, x._device)


def pad(
    x: Array,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    /,
    *,
    mode: str = "constant",
    constant_values: Scalar = 0,
) -> Array:
    """Return x with `constant_values` around it.

    `pad_width` is one int for all sides, (before, after) for all axes, or a pair for each axis.
    """
    x = require_array("pad", x)
    if mode != "constant":
        raise ShapeError(f"pad knows the mode 'constant' alone, got {mode!r}")
    if not isinstance(pad_width, Sequence):
        pairs: list[Any] = [(pad_width, pad_width)] * x.ndim
    elif not builtins.any(isinstance(p, Sequence) for p in pad_width):
        both = tuple(cast("Sequence[int]", pad_width))
        pairs = [both * 2 if len(both) == 1 else both] * x.ndim
    else:
        pairs = list(cast("Sequence[Sequence[int]]", pad_width))
        pairs = pairs * x.ndim if len(pairs) == 1 else pairs
    if len(pairs) != x.ndim:
        raise ShapeError(f"pad needs (before, after) for each of {x.ndim} axes, got {len(pairs)} pairs")
    widths = [normal_shape(p, "pad") for p in pairs]
    if builtins.any(len(w) != 2 for w in widths):
        raise ShapeError(f"pad needs pairs (before, after), got {pad_width}")
    pads = tuple([(w[0], w[1]) for w in widths])
    return Array(pad_with(x.node, pads, constant_values), x._device)


def pad_with(node: UOp, pads: movement.Pads, value: Scalar) -> UOp:
    """Return `node` with `value` around it."""
    padded = movement.pad(node, pads)
    if padded is node:
        return node
    fill = movement.full(value, node.dtype, padded.shape)
    if fill is movement.full(0, node.dtype, padded.shape):
        return padded
    mask = movement.pad(movement.full(True, bool_, node.shape), pads)
    return UOp(ops.WHERE, node.dtype, (mask, padded, fill))
