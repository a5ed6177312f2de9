"""Elementwise functions: those of the op table, and the rest composed from them.

Compositions hold for every input, NaN, infinities and signed zeros included, and each states what it does
with them where that is not obvious.  Integers and bool given to a floating-point function become float32
first; `logical_*` take any dtype by comparing with zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..ir import dtypes, ops
from ..ir.dtypes import DType, as_dtype, bool_, float32
from ..ir.ops import Op
from ..ir.uop import UOp
from .array import (
    _FUNCTIONS,
    FLOATS,
    INTS,
    INTS_AND_BOOL,
    NUMERIC,
    Array,
    Operand,
    Unary,
    cast,
    common_device,
    operands,
    refuse_dtype,
    require_array,
)
from .movement import broadcast_shapes, broadcast_to, full

add: Callable[[Operand, Operand], Array] = _FUNCTIONS["add"]
subtract: Callable[[Operand, Operand], Array] = _FUNCTIONS["subtract"]
multiply: Callable[[Operand, Operand], Array] = _FUNCTIONS["multiply"]
divide: Callable[[Operand, Operand], Array] = _FUNCTIONS["divide"]
floor_divide: Callable[[Operand, Operand], Array] = _FUNCTIONS["floor_divide"]
remainder: Callable[[Operand, Operand], Array] = _FUNCTIONS["remainder"]
pow: Callable[[Operand, Operand], Array] = _FUNCTIONS["pow"]
bitwise_and: Callable[[Operand, Operand], Array] = _FUNCTIONS["bitwise_and"]
bitwise_or: Callable[[Operand, Operand], Array] = _FUNCTIONS["bitwise_or"]
bitwise_xor: Callable[[Operand, Operand], Array] = _FUNCTIONS["bitwise_xor"]
bitwise_left_shift: Callable[[Operand, Operand], Array] = _FUNCTIONS["bitwise_left_shift"]
bitwise_right_shift: Callable[[Operand, Operand], Array] = _FUNCTIONS["bitwise_right_shift"]
less: Callable[[Operand, Operand], Array] = _FUNCTIONS["less"]
less_equal: Callable[[Operand, Operand], Array] = _FUNCTIONS["less_equal"]
greater: Callable[[Operand, Operand], Array] = _FUNCTIONS["greater"]
greater_equal: Callable[[Operand, Operand], Array] = _FUNCTIONS["greater_equal"]
equal: Callable[[Operand, Operand], Array] = _FUNCTIONS["equal"]
not_equal: Callable[[Operand, Operand], Array] = _FUNCTIONS["not_equal"]
maximum: Callable[[Operand, Operand], Array] = _FUNCTIONS["maximum"]
minimum: Callable[[Operand, Operand], Array] = _FUNCTIONS["minimum"]
atan2: Callable[[Operand, Operand], Array] = _FUNCTIONS["atan2"]


def _unary(
    name: str, op: Op, accepted: frozenset[DType], identity_for: frozenset[DType] = frozenset()
) -> Unary:
    """Return a function of one array: `op` for the accepted dtypes, x itself for `identity_for`.

    With FLOATS alone accepted, integers and bool become float32.
    """
    to_float = accepted is FLOATS and not identity_for

    def function(x: Operand, /) -> Array:
        if type(x) is not Array:
            x = require_array(name, x)
        node = x.node
        dtype = node.dtype
        if dtype in accepted:
            return Array(UOp(op, dtype, (node,)), x._device)
        if dtype in identity_for:
            return Array(node, x._device)
        if to_float:
            return Array(UOp(op, float32, (cast(node, float32),)), x._device)
        raise refuse_dtype(name, dtype, NUMERIC if identity_for else accepted)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {op.meaning}."
    return function


acos = _unary("acos", ops.ACOS, FLOATS)
acosh = _unary("acosh", ops.ACOSH, FLOATS)
asin = _unary("asin", ops.ASIN, FLOATS)
asinh = _unary("asinh", ops.ASINH, FLOATS)
atan = _unary("atan", ops.ATAN, FLOATS)
atanh = _unary("atanh", ops.ATANH, FLOATS)
bitwise_invert = _unary("bitwise_invert", ops.NOT, INTS_AND_BOOL)
ceil = _unary("ceil", ops.CEIL, FLOATS, INTS)
cos = _unary("cos", ops.COS, FLOATS)
cosh = _unary("cosh", ops.COSH, FLOATS)
erf = _unary("erf", ops.ERF, FLOATS)
exp = _unary("exp", ops.EXP, FLOATS)
exp2 = _unary("exp2", ops.EXP2, FLOATS)
expm1 = _unary("expm1", ops.EXPM1, FLOATS)
floor = _unary("floor", ops.FLOOR, FLOATS, INTS)
log = _unary("log", ops.LOG, FLOATS)
log10 = _unary("log10", ops.LOG10, FLOATS)
log1p = _unary("log1p", ops.LOG1P, FLOATS)
log2 = _unary("log2", ops.LOG2, FLOATS)
negative = _unary("negative", ops.NEG, NUMERIC)
round = _unary("round", ops.RINT, FLOATS, INTS)
sin = _unary("sin", ops.SIN, FLOATS)
sinh = _unary("sinh", ops.SINH, FLOATS)
sqrt = _unary("sqrt", ops.SQRT, FLOATS)
tan = _unary("tan", ops.TAN, FLOATS)
tanh = _unary("tanh", ops.TANH, FLOATS)
trunc = _unary("trunc", ops.TRUNC, FLOATS, INTS)


# -- helpers of compositions -------------------------------------------------------------------------------


def _floating(name: str, *values: Operand) -> list[Array]:
    """Return the operands as arrays of one shape and floating-point dtype."""
    nodes, device = operands(name, *values)
    dtype = nodes[0].dtype if nodes[0].dtype in FLOATS else float32
    return [Array(cast(n, dtype), device) for n in nodes]


def _fill(x: Array, value: bool | int | float, dtype: DType | None = None) -> Array:
    """Return a constant of x's shape, and of its dtype unless told otherwise."""
    return Array(full(value, x.node.dtype if dtype is None else dtype, x.node.shape), x._device)


def _select(condition: Array, x: Array, y: Array) -> Array:
    """`where` for operands that agree already."""
    return Array(
        UOp(ops.WHERE, x.node.dtype, (condition.node, x.node, y.node)), condition._device or x._device
    )


def _bits(x: Array, kind: str) -> Array:
    """Return the bits of floats as integers of the same width; `kind` is "int" or "uint"."""
    dtype = as_dtype(f"{kind}{x.node.dtype.bits}")
    return Array(UOp(ops.BITCAST, dtype, (x.node,)), x._device)


def _from_bits(x: Array, dtype: DType) -> Array:
    return Array(UOp(ops.BITCAST, dtype, (x.node,)), x._device)


def _sign_mask(dtype: DType) -> int:
    return 1 << (dtype.bits - 1)


# -- functions ---------------------------------------------------------------------------------------------


def positive(x: Operand, /) -> Array:
    """Return the numeric array x unchanged."""
    x = require_array("positive", x)
    if x.dtype is bool_:
        raise refuse_dtype("positive", x.dtype, NUMERIC)
    return Array(x.node, x._device)


def abs(x: Operand, /) -> Array:
    """Return the magnitude: the sign bit cleared for floats (-0.0 and NaN too), so |-0.0| is 0.0.

    Unsigned integers and bool are returned as they are; the smallest signed integer stays itself, as in
    NumPy.
    """
    x = require_array("abs", x)
    dtype = x.dtype
    if dtype.kind == "float":
        return _from_bits(_bits(x, "uint") & (_sign_mask(dtype) - 1), dtype)
    return maximum(x, -x) if dtype.kind == "int" else Array(x.node, x._device)


def sign(x: Operand, /) -> Array:
    """Return -1, 0 or 1 in x's dtype; 0.0 for both zeros, NaN for NaN."""
    x = require_array("sign", x)
    dtype = x.dtype
    if dtype is bool_:
        raise refuse_dtype("sign", dtype, NUMERIC)
    zero, one = _fill(x, 0), _fill(x, 1)
    if dtype.kind == "uint":
        return _select(x != zero, one, zero)
    rest = _select(x == zero, zero, x) if dtype.kind == "float" else zero
    return _select(x > zero, one, _select(x < zero, _fill(x, -1), rest))


def signbit(x: Operand, /) -> Array:
    """Return whether the sign bit is set: true for -0.0 and for a NaN with the bit."""
    x = require_array("signbit", x)
    if x.dtype.kind == "float":
        x = _bits(x, "int")
    return x < _fill(x, 0)


def copysign(x1: Operand, x2: Operand, /) -> Array:
    """Return the magnitude of x1 with the sign bit of x2; zeros and NaN keep their bits otherwise."""
    x, y = _floating("copysign", x1, x2)
    mask = _sign_mask(x.dtype)
    return _from_bits((_bits(x, "uint") & (mask - 1)) | (_bits(y, "uint") & mask), x.dtype)


def nextafter(x1: Operand, x2: Operand, /) -> Array:
    """Return the next representable value after x1 toward x2; x2 if they are equal, NaN if either is NaN."""
    x, y = _floating("nextafter", x1, x2)
    bits = _bits(x, "int")
    away = (x < y) == (x > 0.0)  # from zero, for x != 0
    step = _select(away, _fill(bits, 1), _fill(bits, -1))
    smallest = copysign(_from_bits(_fill(bits, 1), x.dtype), y)
    moved = _select(x == 0.0, smallest, _from_bits(bits + step, x.dtype))
    return _select(isnan(x) | isnan(y), x + y, _select(x == y, y, moved))


def square(x: Operand, /) -> Array:
    """Return x * x."""
    x = require_array("square", x)
    return x * x


def reciprocal(x: Operand, /) -> Array:
    """Return 1 / x; infinity of x's sign for zeros."""
    return 1.0 / _floating("reciprocal", x)[0]


def rsqrt(x: Operand, /) -> Array:
    """Return 1 / sqrt(x): infinity of x's sign for zeros, NaN for negative x."""
    return 1.0 / sqrt(x)


def hypot(x1: Operand, x2: Operand, /) -> Array:
    """Return sqrt(x1**2 + x2**2) without overflow or underflow on the way.

    Infinity if either is infinite, even if the other is NaN; otherwise NaN if either is NaN.
    """
    x, y = _floating("hypot", x1, x2)
    x, y = abs(x), abs(y)
    large, small = maximum(x, y), minimum(x, y)
    ratio = small / _select(large == 0.0, _fill(x, 1.0), large)
    finite = large * sqrt(ratio * ratio + 1.0)
    return _select(isinf(x) | isinf(y), _fill(x, math.inf), finite)


def logaddexp(x1: Operand, x2: Operand, /) -> Array:
    """Return log(exp(x1) + exp(x2)) without overflow; exact for infinities, NaN if either is NaN."""
    x, y = _floating("logaddexp", x1, x2)
    # Equal operands apart: the difference of two infinities would be NaN.
    return _select(x == y, x + math.log(2), maximum(x, y) + log1p(exp(-abs(x - y))))


def isnan(x: Operand, /) -> Array:
    """Return whether x is NaN; false for integers and bool."""
    x = require_array("isnan", x)
    return x != x if x.dtype.kind == "float" else _fill(x, False, bool_)


def isinf(x: Operand, /) -> Array:
    """Return whether x is infinite; false for integers, bool and float8_e4m3, which have no infinity."""
    x = require_array("isinf", x)
    if x.dtype.kind != "float" or x.dtype is dtypes.float8_e4m3:
        return _fill(x, False, bool_)
    return abs(x) == math.inf


def isfinite(x: Operand, /) -> Array:
    """Return whether x is neither infinite nor NaN; true for integers and bool."""
    x = require_array("isfinite", x)
    if x.dtype.kind != "float":
        return _fill(x, True, bool_)
    return x == x if x.dtype is dtypes.float8_e4m3 else abs(x) < math.inf


def _truth(name: str, *values: Operand) -> list[Array]:
    arrays = [astype(require_array(name, v), bool_) for v in values]
    nodes, device = operands(name, *arrays)
    return [Array(n, device) for n in nodes]


def logical_and(x1: Operand, x2: Operand, /) -> Array:
    """Return whether both are true; NaN is true, as any value other than zero."""
    x, y = _truth("logical_and", x1, x2)
    return x & y


def logical_or(x1: Operand, x2: Operand, /) -> Array:
    """Return whether either is true; NaN is true, as any value other than zero."""
    x, y = _truth("logical_or", x1, x2)
    return x | y


def logical_xor(x1: Operand, x2: Operand, /) -> Array:
    """Return whether exactly one is true; NaN is true, as any value other than zero."""
    x, y = _truth("logical_xor", x1, x2)
    return x ^ y


def logical_not(x: Operand, /) -> Array:
    """Return whether x is zero or false."""
    return ~_truth("logical_not", x)[0]


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """Limit x to [min, max], whose dtypes promote; NaN stays NaN, and min > max gives max."""
    x = require_array("clip", x)
    if min is not None:
        x = maximum(x, min)
    if max is not None:
        x = minimum(x, max)
    return Array(x.node, x._device)


def where(condition: Operand, x1: Operand, x2: Operand, /) -> Array:
    """Return x1 where the condition holds, else x2.  What is not chosen never matters, not even NaN."""
    if type(condition) is Array and type(x1) is Array and type(x2) is Array:
        c, a, b = condition.node, x1.node, x2.node
        dtype, shape, on = a.dtype, a.shape, x1._device
        agree = c.dtype is bool_ and dtype is b.dtype and shape == b.shape == c.shape
        if agree and on == condition._device == x2._device:
            return Array(UOp(ops.WHERE, dtype, (c, a, b)), on)
    chosen = require_array("where", condition)
    mask = cast(chosen.node, bool_)
    (x, y), device = operands("where", x1, x2)
    shape = broadcast_shapes(mask.shape, x.shape)
    sources = tuple([broadcast_to(n, shape) for n in (mask, x, y)])
    return Array(UOp(ops.WHERE, x.dtype, sources), common_device("where", chosen._device, device))


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Array:
    """Return x converted to `dtype`.

    A float becomes an integer by truncation toward zero and wraps through int64; NaN and infinities have no
    integer value, and what they give is the device's choice.  Anything but zero (NaN too) becomes true.
    `copy=False` returns x itself if its dtype is right already.
    """
    x = require_array("astype", x)
    wanted = as_dtype(dtype)
    if device is not None:
        x = x.to_device(device)
    elif wanted is x.node.dtype and not copy:
        return x
    return Array(cast(x.node, wanted), x._device)


# The operators that are these functions; the type checkers know them from their declarations in `Array`.
for _name, _function in (("__neg__", negative), ("__pos__", positive), ("__invert__", bitwise_invert)):
    setattr(Array, _name, _function)
