"""Functions of neural networks, composed from the namespace, so that they fuse like anything else.

What is narrower than float32 is computed in float32 and rounded once at the end; integers and bool become
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast as typed

from ..errors import DTypeError, ShapeError
from ..ir.dtypes import DType, float32, promote
from . import movement
from .array import Array, Axis, cast, common_device, require_array
from .creation import normal_shape
from .elementwise import erf, exp, maximum, sqrt, tanh
from .linalg import accumulator, contract
from .manipulation import normal_axes, normal_axis
from .reduction import max, mean, sum, wide_float


def _wide(name: str, x: Array) -> tuple[Array, DType]:
    """Return x in the dtype to compute in, and the dtype of the result."""
    x = require_array(name, x)
    result = x.dtype if x.dtype.is_float else float32
    return Array(cast(x.node, wide_float(result)), x._device), result


def _round(x: Array, dtype: DType) -> Array:
    return Array(cast(x.node, dtype), x._device)


def relu(x: Array, /) -> Array:
    """Return the larger of x and 0; NaN stays."""
    return maximum(x, 0)


def sigmoid(x: Array, /) -> Array:
    """Return 1 / (1 + exp(-x))."""
    x, dtype = _wide("sigmoid", x)
    return _round(1.0 / (exp(-x) + 1.0), dtype)


def gelu(x: Array, /, *, approximate: str = "none") -> Array:
    """Return x times the normal distribution's cumulative function of x.

    `approximate="tanh"` uses 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) (Hendrycks and Gimpel
    2016, section 2).
    """
    x, dtype = _wide("gelu", x)
    if approximate == "none":
        return _round(x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0), dtype)
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
        return _round(x * 0.5 * (tanh(inner) + 1.0), dtype)
    raise DTypeError(f"gelu knows approximate='none' and 'tanh', got {approximate!r}")


def softmax(x: Array, /, *, axis: Axis = -1) -> Array:
    """Return exp(x) over its sum along `axis`, the largest x subtracted first, so that nothing overflows."""
    x, dtype = _wide("softmax", x)
    normal_axes("softmax", axis, x.ndim)
    if not x.size:
        return _round(x, dtype)
    powers = exp(x - max(x, axis=axis, keepdims=True))
    return _round(powers / sum(powers, axis=axis, keepdims=True), dtype)


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, /, *, eps: float = 1e-5, axis: Axis = -1
) -> Array:
    """Return (x - mean) / sqrt(variance + eps) along `axis`, times weight plus bias, which broadcast."""
    x, dtype = _wide("layer_norm", x)
    centered = x - mean(x, axis=axis, keepdims=True)
    variance = mean(centered * centered, axis=axis, keepdims=True)
    y = centered / sqrt(variance + eps)
    if weight is not None:
        y = y * require_array("layer_norm", weight)
    if bias is not None:
        y = y + require_array("layer_norm", bias)
    if y.shape != x.shape:
        raise ShapeError(
            f"layer_norm: weight and bias must broadcast to x's shape {x.shape}, got a result of {y.shape}"
        )
    return _round(y, dtype)


def _each(name: str, value: int | Sequence[int], count: int, least: int) -> tuple[int, ...]:
    """Return one int, not below `least`, for each of `count` axes."""
    found = (value,) * count if isinstance(value, int) else tuple(value)
    if len(found) != count or any(not isinstance(v, int) or v < least for v in found):
        raise ShapeError(f"{name} must be an int, or {count} of them, not below {least}; got {value!r}")
    return found


def sliding_window(
    x: Array,
    /,
    sizes: int | Sequence[int],
    *,
    axes: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> Array:
    """Return all windows of x along `axes`: their numbers replace the axes, their elements become last axes.

    Element [..., y, ..., r] is x[..., y * stride + r * dilation, ...].  Nothing is copied: it is all
    movement.

    Parameters
    ----------
    sizes, strides, dilation
        Elements of a window, distance between windows, and between elements of one, for each of `axes`.
    """
    x = require_array("sliding_window", x)
    numbers = [normal_axis("sliding_window", a, x.ndim) for a in ([axes] if isinstance(axes, int) else axes)]
    if len(set(numbers)) != len(numbers):
        raise ShapeError(f"sliding_window: an axis occurs twice in {axes}")
    count, rank = len(numbers), x.ndim
    windows = _each("sizes", sizes, count, 1)
    steps = _each("strides", strides, count, 1)
    gaps = _each("dilation", dilation, count, 1)
    node = x.node
    for number, k, s, d in zip(numbers, windows, steps, gaps, strict=True):
        shape = node.shape
        n = shape[number]
        if d * (k - 1) + 1 > n:
            raise ShapeError(
                f"sliding_window: {k} elements at distance {d} do not fit axis {number} of length {n}"
            )
        out = (n - d * (k - 1) - 1) // s + 1
        lead, rest = shape[:number], shape[number + 1 :]
        # Repeat the axis, and cut it into rows of a multiple of n plus d: row r then starts d * r further,
        # so the flat index r * (n * f + d) + y * s is r * d + y * s modulo n, which is below n.
        factor = 1 + (out * s > n + d)
        row = n * factor + d
        times = -(-k * row // n)
        node = movement.insert_axes(node, (number,))
        node = movement.expand(node, (*lead, times, n, *rest))
        node = movement.reshape(node, (*lead, times * n, *rest))
        node = movement.shrink(node, movement.axis_window(node.shape, number, 0, k * row))
        node = movement.reshape(node, (*lead, k, row, *rest))
        length = out * s
        if length > row:  # a stride far beyond the axis: only the first window is there
            length = out = 1
            s = 1
        node = movement.shrink(node, movement.axis_window(node.shape, number + 1, 0, length))
        node = movement.reshape(node, (*lead, k, out, s, *rest))
        node = movement.shrink(node, movement.axis_window(node.shape, number + 2, 0, 1))
        node = movement.reshape(node, (*lead, k, out, *rest))
        order = [a for a in range(len(node.shape)) if a != number]
        order.append(number)
        node = movement.permute(node, order)
    if len(node.shape) != rank + count:
        raise ShapeError("sliding_window needs at least one axis")
    return Array(node, x._device)


def conv2d(
    x: Array,
    w: Array,
    /,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Return the two-dimensional convolution (cross-correlation) of x and w, with zeros around x.

    Parameters
    ----------
    x
        Shape (batch, channels, height, width).
    w
        Shape (out channels, channels / groups, kernel height, kernel width).
    padding
        An int, one for each axis, or (before, after) for each.

    Returns
    -------
    Array
        Shape (batch, out channels, out height, out width).  Narrow dtypes accumulate as in `matmul`.
    """
    x, w = require_array("conv2d", x), require_array("conv2d", w)
    if x.ndim != 4 or w.ndim != 4:
        raise ShapeError(
            f"conv2d needs shapes (n, c, h, w) and (o, c / groups, kh, kw), got {x.shape} and {w.shape}"
        )
    channels, outs = x.shape[1], w.shape[0]
    if groups < 1 or channels % groups or outs % groups or w.shape[1] * groups != channels:
        raise ShapeError(
            f"conv2d in {groups} groups: x has {channels} channels and w the shape {w.shape}, which must be "
            f"(o, c, kh, kw) with c * groups = {channels} and o a multiple of groups"
        )
    dtype = promote(x.dtype, w.dtype)
    pairs = _padding(padding)
    node = cast(movement.pad(x.node, ((0, 0), (0, 0), *pairs)), accumulator(dtype))
    windows = sliding_window(Array(node), w.shape[2:], axes=(2, 3), strides=stride, dilation=dilation).node
    batch, _, high, wide, kh, kw = windows.shape
    kernel = cast(w.node, accumulator(dtype))
    per_group = channels // groups
    # Axes: batch, (group,) out, channel, y, x, ky, kx
    group = (groups,) if groups > 1 else ()
    lead = 1 + len(group)
    a = movement.reshape(windows, (batch, *group, 1, per_group, high, wide, kh, kw))
    b = movement.reshape(kernel, (1, *group, outs // groups, per_group, 1, 1, kh, kw))
    node = contract(a, b, (lead + 1, lead + 4, lead + 5), dtype)
    return Array(
        movement.reshape(node, (batch, outs, high, wide)), common_device("conv2d", x._device, w._device)
    )


def _padding(padding: int | Sequence[int] | Sequence[Sequence[int]]) -> movement.Pads:
    sides = (padding, padding) if isinstance(padding, int) else tuple(padding)
    if len(sides) != 2:
        raise ShapeError(
            f"padding must be an int, or one int or (before, after) for height and width; got {padding!r}"
        )
    pairs = [
        normal_shape((s, s) if isinstance(s, int) else typed("Sequence[int]", s), "padding") for s in sides
    ]
    if any(len(p) != 2 for p in pairs):
        raise ShapeError(f"padding needs (before, after) for each axis, got {padding!r}")
    return tuple([(p[0], p[1]) for p in pairs])
