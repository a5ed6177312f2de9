"""How far a correct result may be from the reference: a running error analysis of a graph.

Every node gets the reference's value and a bound on the distance at which another correct evaluation may be.
A bound of 0 asks for equality, infinity lets anything pass (a comparison of numbers that rounding may have
swapped, and what depends on it).  Operations that round correctly keep exact operands exact, so that a
single bad bit is found; where an operation loses digits the bound grows as they do, so that no tolerance
needs guessing.

Zeros of either sign are equal here; where the sign may differ, what tells them apart (1 / x) is unbounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..codegen.functions import ULP_BOUNDS
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.uop import UOp, toposort
from .execute import Values, placeholder, reference

_FUNCTIONS = frozenset((*ops.UNARY_FUNCTIONS, ops.POW, ops.ATAN2))
_MONOTONE = frozenset({ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT})
#: What a kernel may compute as a product, and then fuse with a sum over it.
_PRODUCTS = frozenset({ops.MUL, ops.FDIV, ops.POW})
#: Largest slope where it is bounded on the whole line: the sampled ends would miss what lies between them.
_SLOPE = {ops.SIN: 1.0, ops.COS: 1.0}
#: Factor over differences at the ends of an interval, for curvature.
_CURVATURE = 2.0


def wide(x: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return numbers of any dtype as float64."""
    x = np.asarray(x)
    with np.errstate(invalid="ignore"):  # NaN of the narrow types
        narrow = x.dtype.itemsize < 4 and x.dtype.kind not in "biu"
        found: np.ndarray[Any, np.dtype[np.float64]] = (x.astype(np.float32) if narrow else x).astype(
            np.float64
        )
        return found


def largest(dtype: DType) -> float:
    """Return the largest finite number of a float dtype."""
    if dtype is dtypes.float8_e4m3:
        return 448.0
    return math.ldexp(2.0 - 2.0**-dtype.mantissa, (1 << (dtype.exponent - 1)) - 1)


def spacing(magnitude: Any, dtype: DType) -> Any:
    """Return the distance between neighbours of a float dtype at some magnitudes: one ULP."""
    lowest = 2 - (1 << (dtype.exponent - 1))
    _, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, 0.0))
    return np.ldexp(1.0, np.maximum(exponent - 1, lowest) - dtype.mantissa)


def evaluate(roots: Sequence[UOp], data: Mapping[UOp, Values]) -> tuple[list[Values], list[Values]]:
    """Return the reference values of graph nodes, and for each how far off a correct result may be."""
    order = toposort(roots)
    value = dict(zip(order, reference(order, data), strict=True))
    bound: dict[UOp, Values] = {}
    with np.errstate(all="ignore"):
        for u in order:
            found = np.broadcast_to(_bound(u, value, bound), u.shape)
            bound[u] = np.where(np.isnan(found), math.inf, found)
    return [value[r] for r in roots], [bound[r] for r in roots]


def mismatches(values: Values, expected: Values, bound: Values) -> Values:
    """Return which elements are farther from the expected ones than their bounds."""
    a, b = wide(values), wide(expected)
    with np.errstate(all="ignore"):
        near = (np.abs(a - b) <= bound * (1 + 1e-9)) | (a == b) | (np.isnan(a) & np.isnan(b))
    if values.dtype.kind in "iu":
        near &= (values == expected) | (bound > 0)  # float64 does not tell large integers apart
    return np.asarray(~near & ~np.isposinf(bound))


def _bound(u: UOp, value: Mapping[UOp, Values], bound: Mapping[UOp, Values]) -> Any:
    op, src = u.op, u.src
    if not src:
        return np.zeros(u.shape)
    errors = [bound[s] for s in src]
    if op in ops.MOVEMENT_OPS or op in (ops.CONTIGUOUS, ops.COPY):
        return _moved(u, errors[0])
    if op is ops.GATHER:
        return _gathered(u, value, errors)
    if op is ops.REDUCE_AXIS:
        bounds = _reduced(u, wide(value[src[0]]), errors[0])
        unsure = _overflowed(src[0], value).any(u.arg[1], keepdims=True) if u.arg[0] is ops.ADD else False
        return np.where(unsure, math.inf, bounds)
    if op is ops.WHERE:
        return _selected(u, value, errors)
    if op is ops.BITCAST:
        magnitude = _magnitude_of(u)
        if magnitude is not None:
            return bound[magnitude]
        free = np.isnan(wide(value[src[0]]))  # the bits of a NaN are anyone's choice
        return np.where((errors[0] > 0) | free, math.inf, 0.0)
    operands = [wide(value[s]) for s in src]
    if op in ops.COMPARISONS:
        apart = np.abs(operands[0] - operands[1]) > errors[0] + errors[1]
        exact = (errors[0] == 0) & (errors[1] == 0)
        return np.where(exact | apart, 0.0, math.inf)
    if op is ops.CAST:
        return _converted(u, value, errors[0])
    if u.dtype.kind != "float":
        return np.where(sum(e > 0 for e in errors), math.inf, 0.0)
    return _computed(u, value, operands, errors)


def _magnitude_of(u: UOp) -> UOp | None:
    """Return x if `u` is |x| written as operations on its bits."""
    inner = u.src[0]
    if inner.op is ops.AND and inner.src[0].op is ops.BITCAST and inner.src[0].src[0].dtype is u.dtype:
        return inner.src[0].src[0]
    return None


def _moved(u: UOp, x: Values) -> Values:
    """Return what a node that only moves its operand's elements makes of others."""
    buffer = placeholder(0, dtypes.float64, u.src[0].shape)
    return reference([UOp(u.op, dtypes.float64, (buffer,), u.arg)], {buffer: x})[0]


def _overflowed(u: UOp, value: Mapping[UOp, Values]) -> Any:
    """Return which terms of a sum are products that overflow, though their factors are finite.

    A multiply-accumulate does not round the product on its own: what it adds is finite, and so may be the
    sum, or an infinity where the reference has NaN.
    """
    if u.op in ops.MOVEMENT_OPS:
        return _moved(u, _overflowed(u.src[0], value).astype(np.float64)) != 0
    if u.op not in _PRODUCTS or u.dtype.kind != "float":
        return np.zeros(u.shape, np.bool_)
    finite = np.logical_and.reduce([np.isfinite(wide(value[s])) for s in u.src])
    return finite & np.isinf(wide(value[u]))


def _gathered(u: UOp, value: Mapping[UOp, Values], errors: list[Values]) -> Any:
    x = placeholder(0, dtypes.float64, u.src[0].shape)
    indices = [placeholder(n + 1, s.dtype, s.shape) for n, s in enumerate(u.src[1:])]
    data = {x: errors[0], **{i: value[s] for i, s in zip(indices, u.src[1:], strict=True)}}
    found = reference([UOp(ops.GATHER, dtypes.float64, (x, *indices))], data)[0]
    unsure = np.broadcast_to(
        np.any(np.broadcast_arrays(*[e > 0 for e in errors[1:]]), axis=0), u.src[1].shape
    )
    return np.where(unsure.reshape(unsure.shape + (1,) * (found.ndim - unsure.ndim)), math.inf, found)


def _reduced(u: UOp, x: Values, error: Values) -> Any:
    op, axes = u.arg
    dtype = u.dtype
    if dtype.kind != "float":
        return np.where((error > 0).any(axes, keepdims=True), math.inf, 0.0)
    if op in (ops.MAXIMUM, ops.MINIMUM):
        zeros = [((x == 0) & (np.signbit(x) == sign)).any(axes, keepdims=True) for sign in (False, True)]
        tiny = np.where(zeros[0] & zeros[1], spacing(0.0, dtype), 0.0)
        return np.maximum(error.max(axes, keepdims=True, initial=0.0), tiny)
    n = math.prod([x.shape[a] for a in axes])
    unit = 2.0**-dtype.mantissa
    settled = error.max(axes, keepdims=True, initial=0.0) == 0
    if op is ops.ADD:
        total = np.abs(x).sum(axes, keepdims=True)
        finite = np.where(np.isfinite(x), np.abs(x), 0.0).sum(axes, keepdims=True)
        spread = error.sum(axes, keepdims=True) * (1 + n * unit) + n * (unit * total + spacing(0.0, dtype))
        infinite = ~np.isfinite(total) & (finite < largest(dtype) / 4)
        whole = (x == np.trunc(x)).all(axes, keepdims=True) & (total <= 2.0 ** (dtype.mantissa + 1))
        fixed = settled & (infinite | whole)  # the same in any order
    else:
        total = (np.abs(x) + error).prod(axes, keepdims=True)
        spread = total - np.abs(x).prod(axes, keepdims=True) + n * (unit * total + spacing(0.0, dtype))
        # Partial products, whatever the order, lie between the products of what shrinks and of what grows.
        high = np.maximum(np.abs(x) + error, 1.0).prod(axes, keepdims=True)
        low = np.minimum(np.maximum(np.abs(x) - error, 0.0), 1.0).prod(axes, keepdims=True)
        sure = (high < largest(dtype) / 2) & (low > 2.0 ** (4 - (1 << (dtype.exponent - 1))))
        spread = np.where(sure, spread, math.inf)
        fixed = np.zeros_like(sure)
    return np.where(
        fixed | (n <= 1) & settled, 0.0, np.where(total + spread < largest(dtype), spread, math.inf)
    )


def _selected(u: UOp, value: Mapping[UOp, Values], errors: list[Values]) -> Any:
    condition, x, y = u.src
    chosen = np.where(value[condition], errors[1], errors[2])
    between = np.abs(wide(value[x]) - wide(value[y])) + np.maximum(errors[1], errors[2])
    same = (wide(value[x]) == wide(value[y])) & (errors[1] == 0) & (errors[2] == 0)
    return np.where(errors[0] > 0, np.where(same, 0.0, between), chosen)


def _converted(u: UOp, value: Mapping[UOp, Values], error: Values) -> Any:
    source, dtype = u.src[0], u.dtype
    x = wide(value[source])
    if dtype.kind == "bool":
        return np.where((error > 0) & (np.abs(x) <= error), math.inf, 0.0)
    if dtype.kind == "float":
        grown = error + spacing(np.abs(x) + error, dtype)
        return np.where(error > 0, np.where(np.abs(x) + grown < largest(dtype), grown, math.inf), 0.0)
    if source.dtype.kind != "float":
        return np.where(error > 0, math.inf, 0.0)
    low, high = np.trunc(x - error), np.trunc(x + error)
    inside = (low >= float(dtype.min)) & (high <= float(dtype.max)) & (np.abs(x) < 2.0**52)
    return np.where(error == 0, 0.0, np.where(inside, high - low, math.inf))


def _computed(u: UOp, value: Mapping[UOp, Values], operands: list[Values], errors: list[Values]) -> Any:
    """Bound a float operation with operands that have errors."""
    op, dtype = u.op, u.dtype
    result = wide(value[u])
    e = errors
    exact = np.logical_and.reduce(np.broadcast_arrays(*[x == 0 for x in e]))
    if op is ops.NEG:
        return e[0]
    if op in (ops.MAXIMUM, ops.MINIMUM):
        zeros = (operands[0] == 0) & (operands[1] == 0) & (np.signbit(operands[0]) != np.signbit(operands[1]))
        return np.maximum(np.maximum(e[0], e[1]), np.where(zeros, spacing(0.0, dtype), 0.0))
    ulps = ULP_BOUNDS.get(op.name, {}).get(dtype.name, 0.0) + 1.0 if op in _FUNCTIONS else 0.0
    rounding = spacing(np.abs(result), dtype) * np.where(exact, ulps, ulps + 1.0)
    if op in (ops.ADD, ops.SUB):
        spread = e[0] + e[1]
    elif op is ops.MUL:
        spread = np.abs(operands[0]) * e[1] + np.abs(operands[1]) * e[0] + e[0] * e[1]
        spread = np.where(exact, 0.0, spread)
    else:
        spread = _sampled(u, operands, e, result)
    if op in (ops.FLOORDIV, ops.MOD):
        quotient = np.abs(operands[0] / operands[1])
        rounding = np.where(quotient < 2.0**dtype.mantissa, rounding, math.inf)
    total = spread + rounding
    total = np.where(exact, np.where(np.isfinite(result), rounding, 0.0), total)
    return np.where(exact | (np.abs(result) + total < largest(dtype)), total, math.inf)


def _sampled(u: UOp, operands: list[Values], errors: list[Values], result: Values) -> Any:
    """Bound the change of a function by its changes at the corners of the operands' intervals."""
    op = u.op
    if op in _SLOPE:
        return np.minimum(errors[0] * _SLOPE[op], 2.0)
    if not any((e > 0).any() for e in errors):
        return 0.0
    nodes = [placeholder(n, dtypes.float64, u.shape) for n in range(len(operands))]
    node = UOp(op, dtypes.float64, tuple(nodes))
    spread = np.zeros(u.shape)
    for corner in range(2 ** len(operands)):
        moved = [
            x + (e if corner >> n & 1 else -e) for n, (x, e) in enumerate(zip(operands, errors, strict=True))
        ]
        data = {b: np.array(np.broadcast_to(m, u.shape)) for b, m in zip(nodes, moved, strict=True)}
        there = reference([node], data)[0]
        change = np.abs(there - result)
        spread = np.maximum(spread, np.where(np.isnan(change), math.inf, change))
    if op is ops.FDIV:  # a pole between the corners
        spread = np.where((errors[1] > 0) & (np.abs(operands[1]) <= errors[1]), math.inf, spread)
    if op is ops.TAN:
        spread = np.where(errors[0] > 0.1, math.inf, spread)
    if op is ops.MOD or op is ops.FLOORDIV:
        floor = UOp(ops.FLOORDIV, dtypes.float64, tuple(nodes))
        base = None
        for corner in range(2 ** len(operands)):
            moved = [
                x + (e if corner >> n & 1 else -e)
                for n, (x, e) in enumerate(zip(operands, errors, strict=True))
            ]
            data = {b: np.array(np.broadcast_to(m, u.shape)) for b, m in zip(nodes, moved, strict=True)}
            there = reference([floor], data)[0]
            if base is not None:
                spread = np.where(there == base, spread, math.inf)
            base = there
    return spread if op in _MONOTONE else spread * _CURVATURE
