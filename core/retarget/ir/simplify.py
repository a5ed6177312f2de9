"""Smart constructors for elementwise nodes: exactly sound local rules, applied while a node is built.

Integers wrap; floats keep NaN, signed zeros and infinities.  What is folded equals bit for bit what a kernel
computes: correctly rounded operations are, elementary functions and operations with freedom (MULACC, the
MAXIMUM of -0.0 and 0.0, the sign of a NaN) never are.  Rules look at no more than the operands and theirs.  A
rule fires only if its result has the shape of the node that it replaces: a constant has shape (), and so it
stands for no node of another shape.

Commutative ops put a constant second.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from . import dtypes, ops
from .dtypes import DType
from .ops import COMMUTATIVE, COMPARISONS, CONST, Op
from .uop import UOp, const, const_value

Scalar = bool | int | float

# -- folding -------------------------------------------------------------------------------------------------

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def _fold_fdiv(dtype: DType, x: float, y: float) -> float:
    if y:
        return x / y
    if x != x or y != y or not x:
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def _fold_neg(dtype: DType, x: Any) -> Scalar | None:
    return -x if x == x else None  # a constant does not hold the sign of a NaN


def _fold_larger(dtype: DType, x: Any, y: Any) -> Scalar | None:
    if x == y:
        return _same_zero(x, y)
    return max(x, y) if x == x and y == y else math.nan


def _fold_smaller(dtype: DType, x: Any, y: Any) -> Scalar | None:
    if x == y:
        return _same_zero(x, y)
    return min(x, y) if x == x and y == y else math.nan


def _same_zero(x: Any, y: Any) -> Scalar | None:
    """Return the value of two equal operands unless they are zeros of both signs: either may win."""
    return x if x or math.copysign(1.0, x) == math.copysign(1.0, y) else None


def _integral(function: Callable[[float], int]) -> Callable[[DType, float], float]:
    def apply(dtype: DType, x: float) -> float:
        return math.copysign(function(x), x) if math.isfinite(x) else x

    return apply


def _fold_sqrt(dtype: DType, x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _fold_shl(dtype: DType, x: int, n: int) -> int | None:
    return None if n < 0 else x << n if n < dtype.bits else 0


def _fold_shr(dtype: DType, x: int, n: int) -> int | None:
    return None if n < 0 else x >> min(n, dtype.bits)


def _fold_floordiv(dtype: DType, x: Any, y: Any) -> int | None:
    if dtype.is_float:
        return None
    return x // y if y else 0


def _fold_mod(dtype: DType, x: Any, y: Any) -> int | None:
    if dtype.is_float:
        return None
    return x % y if y else 0


def _fold_truncdiv(dtype: DType, x: int, y: int) -> int | None:
    if not y:
        return None
    return x // y if (x < 0) == (y < 0) else -(-x // y)


def _fold_truncmod(dtype: DType, x: int, y: int) -> int | None:
    return int(math.copysign(1, x)) * (abs(x) % abs(y)) if y else None


def _fold_pow(dtype: DType, x: Any, n: Any) -> int | None:
    return None if dtype.is_float or n < 0 else pow(x, n, 1 << dtype.bits)


def _fold_cast(dtype: DType, x: Scalar) -> Scalar | None:
    if not isinstance(x, float) or not dtype.is_int:
        return x
    if x != x:
        return 0
    if dtype is dtypes.uint64 and x > _INT64_MAX:  # it has an upper half of its own
        return int(x) if x < 2.0**64 else (1 << 64) - 1
    return _INT64_MIN if x < _INT64_MIN else _INT64_MAX if x > _INT64_MAX else int(x)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda dtype, *x: function(*x)


_FOLD: dict[Op, Callable[..., Scalar | None]] = {
    ops.ADD: _plain(operator.add), ops.SUB: _plain(operator.sub), ops.MUL: _plain(operator.mul),
    ops.FDIV: _fold_fdiv, ops.NEG: _fold_neg, ops.SQRT: _fold_sqrt,
    ops.FLOOR: _integral(math.floor), ops.CEIL: _integral(math.ceil),
    ops.TRUNC: _integral(math.trunc), ops.RINT: _integral(round),
    ops.MAXIMUM: _fold_larger, ops.MINIMUM: _fold_smaller,
    ops.AND: _plain(operator.and_), ops.OR: _plain(operator.or_), ops.XOR: _plain(operator.xor),
    ops.NOT: lambda dtype, x: not x if dtype.kind == "bool" else ~x,
    ops.SHL: _fold_shl, ops.SHR: _fold_shr, ops.USHL: _fold_shl, ops.USHR: _fold_shr,
    ops.CMPLT: _plain(operator.lt), ops.CMPLE: _plain(operator.le),
    ops.CMPEQ: _plain(operator.eq), ops.CMPNE: _plain(operator.ne),
    ops.WHERE: lambda dtype, c, x, y: x if c else y,
    ops.FLOORDIV: _fold_floordiv, ops.MOD: _fold_mod,
    ops.TRUNCDIV: _fold_truncdiv, ops.TRUNCMOD: _fold_truncmod,
    ops.POW: _fold_pow, ops.CAST: _fold_cast,
}  # fmt: skip


def fold(op: Op, dtype: DType, *values: Scalar) -> Scalar | None:
    """Return `op` of constants, in the result's `dtype`, exactly as a kernel computes it; None if that is not
    fixed.

    Each value is one of its operand's dtype, as a CONST holds it: bool, int or float.
    """
    function = _FOLD.get(op)
    value = None if function is None else function(dtype, *values)
    return None if value is None else const_value(value, dtype)


def _fold_bitcast(x: Scalar, source: DType, dtype: DType) -> Scalar | None:
    """Return a reinterpreted constant; None for a NaN, of which a constant holds no payload."""
    import numpy as np

    bits = np.asarray(x, dtypes.to_numpy(source)).view(f"u{source.itemsize}")
    if x != x or (dtype.kind == "bool" and bits > 1):
        return None
    value: Scalar = bits.view(dtypes.to_numpy(dtype)).item()
    return value if value == value else None


# -- rules: one operand constant -----------------------------------------------------------------------------
# Each takes the result's dtype, the first operand, which is no constant, and the value of the second, which
# is; it returns the replacement or None.


def _whole(x: UOp, value: Scalar, dtype: DType) -> UOp | None:
    """Return a constant in place of a node on `x`, if that is a scalar."""
    return const(value, dtype) if not x.shape and dtype.lanes == 1 else None


def _add_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    if dtype.kind == "float":
        return x if c == 0.0 and math.copysign(1.0, c) < 0 else None
    if not c:
        return x
    if dtype.kind == "bool":
        return _whole(x, True, dtype)
    if x.op is ops.ADD and x.src[1].op is CONST:
        return alu(ops.ADD, x.src[0], const(x.src[1].arg + c, dtype))
    return None


def _sub_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return x if c == 0 and math.copysign(1.0, c) > 0 else None


def _mul_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    if c == 1:
        return x
    if dtype.kind == "float":
        return None
    if not c:
        return _whole(x, c, dtype)
    if x.op is ops.MUL and x.src[1].op is CONST:
        return alu(ops.MUL, x.src[0], const(x.src[1].arg * c, dtype))
    return None


def _div_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    """Division whose result is exact by 1: FDIV, TRUNCDIV, and FLOORDIV of integers, which gives 0 by 0."""
    return x if c == 1 else None


def _floordiv_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    if dtype.kind == "float":
        return None
    return x if c == 1 else _whole(x, 0, dtype) if c == 0 else None


def _mod_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return _whole(x, 0, dtype) if dtype.kind != "float" and c in (0, 1) else None


def _truncmod_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return _whole(x, 0, dtype) if c == 1 else None


def _and_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return x if c == ops.identity(ops.AND, dtype) else _whole(x, c, dtype) if not c else None


def _or_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return x if not c else _whole(x, c, dtype) if c == ops.identity(ops.AND, dtype) else None


def _xor_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return x if not c else alu(ops.NOT, x) if dtype.kind == "bool" else None


def _maximum_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    if dtype.kind == "float":
        return None
    return x if c == dtype.min else _whole(x, c, dtype) if c == dtype.max else None


def _minimum_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    if dtype.kind == "float":
        return None
    return x if c == dtype.max else _whole(x, c, dtype) if c == dtype.min else None


def _shift_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return x if c == 0 else None


def _equal_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return None if x.dtype.kind != "bool" else x if c else alu(ops.NOT, x)


def _unequal_const(dtype: DType, x: UOp, c: Any) -> UOp | None:
    return None if x.dtype.kind != "bool" else alu(ops.NOT, x) if c else x


_WITH_CONST: dict[Op, Callable[[DType, UOp, Any], UOp | None]] = {
    ops.ADD: _add_const, ops.SUB: _sub_const, ops.MUL: _mul_const, ops.FDIV: _div_const,
    ops.FLOORDIV: _floordiv_const, ops.MOD: _mod_const, ops.TRUNCDIV: _div_const, ops.TRUNCMOD:
    _truncmod_const, ops.AND: _and_const, ops.OR: _or_const, ops.XOR: _xor_const, ops.MAXIMUM: _maximum_const,
    ops.MINIMUM: _minimum_const, ops.SHL: _shift_const, ops.SHR: _shift_const, ops.USHL: _shift_const,
    ops.USHR: _shift_const, ops.CMPEQ: _equal_const, ops.CMPNE: _unequal_const,
}  # fmt: skip

# -- rules: two operands -------------------------------------------------------------------------------------


def _add(dtype: DType, x: UOp, y: UOp) -> UOp | None:
    if y.op is ops.NEG:
        return alu(ops.SUB, x, y.src[0])
    return alu(ops.SUB, y, x.src[0]) if x.op is ops.NEG else None


def _sub(dtype: DType, x: UOp, y: UOp) -> UOp | None:
    if y.op is ops.NEG:
        return alu(ops.ADD, x, y.src[0])
    return _whole(x, 0, dtype) if x is y and dtype.kind != "float" else None


def _idempotent(dtype: DType, x: UOp, y: UOp) -> UOp | None:
    return x if x is y else None


def _xor(dtype: DType, x: UOp, y: UOp) -> UOp | None:
    return _whole(x, 0, dtype) if x is y else None


def _reflexive(dtype: DType, x: UOp, y: UOp) -> UOp | None:
    return _whole(x, True, dtype) if x is y and x.dtype.kind != "float" else None


def _irreflexive(dtype: DType, x: UOp, y: UOp) -> UOp | None:
    return _whole(x, False, dtype) if x is y and x.dtype.kind != "float" else None


_OF_TWO: dict[Op, Callable[[DType, UOp, UOp], UOp | None]] = {
    ops.ADD: _add, ops.SUB: _sub, ops.XOR: _xor,
    ops.AND: _idempotent, ops.OR: _idempotent, ops.MAXIMUM: _idempotent, ops.MINIMUM: _idempotent,
    ops.CMPEQ: _reflexive, ops.CMPLE: _reflexive, ops.CMPNE: _irreflexive, ops.CMPLT: _irreflexive,
}  # fmt: skip


def _binary(op: Op, dtype: DType, src: tuple[UOp, ...]) -> UOp:
    x, y = src
    found: UOp | None
    if y.op is CONST:
        if x.op is CONST:
            value = fold(op, dtype, x.arg, y.arg)
            if value is not None:
                return const(value, dtype)
        elif op in _WITH_CONST:
            found = _WITH_CONST[op](dtype, x, y.arg)
            if found is not None:
                return found
    elif x.op is CONST and op in COMMUTATIVE:
        return _binary(op, dtype, (y, x))
    rule = _OF_TWO.get(op)
    if rule is not None:
        found = rule(dtype, x, y)
        if found is not None:
            return found
    return UOp(op, dtype, src)


# -- rules: other numbers of operands ------------------------------------------------------------------------

_INVOLUTIONS = frozenset({ops.NEG, ops.NOT})
_INTEGRAL = frozenset({ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT})


def _unary(op: Op, dtype: DType, src: tuple[UOp, ...]) -> UOp:
    x = src[0]
    if x.op is CONST:
        value = fold(op, dtype, x.arg)
        if value is not None:
            return const(value, dtype)
    elif x.op is op and op in _INVOLUTIONS:
        return x.src[0]
    elif op in _INTEGRAL and x.op in _INTEGRAL:
        return x
    return UOp(op, dtype, src)


def _select(op: Op, dtype: DType, src: tuple[UOp, ...]) -> UOp:
    c, x, y = src
    if c.op is CONST:
        chosen, other = (x, y) if c.arg else (y, x)
        if not other.shape or other.shape == chosen.shape:
            return chosen
    elif c.op is ops.NOT:
        return _select(op, dtype, (c.src[0], y, x))
    if x is y and (not c.shape or c.shape == x.shape):
        return x
    if x.op is CONST and y.op is CONST and dtype is dtypes.bool_:
        return c if x.arg else alu(ops.NOT, c)  # the equal arms are gone already
    return UOp(op, dtype, src)


def _cast(op: Op, dtype: DType, src: tuple[UOp, ...]) -> UOp:
    return cast(src[0], dtype)


def _bitcast(op: Op, dtype: DType, src: tuple[UOp, ...]) -> UOp:
    return bitcast(src[0], dtype)


_RULES: dict[Op, Callable[[Op, DType, tuple[UOp, ...]], UOp]] = {
    **{op: _binary for op in (*_FOLD, *_WITH_CONST, *_OF_TWO) if op.arity == (2, 2)},
    **{op: _unary for op in _FOLD if op.arity == (1, 1)},
    ops.WHERE: _select, ops.CAST: _cast, ops.BITCAST: _bitcast,
}  # fmt: skip

# -- constructors --------------------------------------------------------------------------------------------


def alu(op: Op, *src: UOp, dtype: DType | None = None) -> UOp:
    """Return the elementwise node `op` of `src`, or an equal simpler one.

    Without `dtype`, comparisons give bool and everything else the last operand's dtype; CAST and BITCAST need
    it.
    """
    if dtype is None:
        dtype = src[-1].dtype
        if op in COMPARISONS:
            dtype = dtypes.bool_ if dtype.lanes == 1 else dtypes.bool_.vector(dtype.lanes)
    rule = _RULES.get(op)
    return UOp(op, dtype, src) if rule is None else rule(op, dtype, src)


def where(condition: UOp, x: UOp, y: UOp) -> UOp:
    """Return `x` where the condition holds, else `y`."""
    return _select(ops.WHERE, x.dtype, (condition, x, y))


def cast(x: UOp, dtype: DType) -> UOp:
    """Return `x` converted to `dtype`."""
    source = x.dtype
    if source is dtype:
        return x
    if x.op is CONST:
        value = fold(ops.CAST, dtype, x.arg)
        if value is not None:
            return const(value, dtype)
    elif x.op is ops.AFFINE and not x.src:
        return const(x.arg[0], dtype)
    elif x.op is ops.CAST:
        inner = x.src[0]
        if is_lossless(inner.dtype, source):
            # Narrow floats go by way of a wider one on purpose: no machine converts them to everything.
            if inner.dtype is dtype or not (inner.dtype.is_float and inner.dtype.bits < 32):
                return cast(inner, dtype)
        elif source.is_int and dtype.is_int and dtype.bits <= source.bits and not inner.dtype.is_float:
            return cast(inner, dtype)  # wrapping to fewer bits, twice
    return UOp(ops.CAST, dtype, (x,))


def is_lossless(source: DType, dtype: DType) -> bool:
    """Whether every value of `source` has an equal one in `dtype`."""
    if source.kind == "bool" or source is dtype:
        return dtype.kind != "void"
    if source.kind == "float":
        return dtype.is_float and dtype.mantissa >= source.mantissa and dtype.exponent >= source.exponent
    if not source.is_int:
        return False
    if dtype.is_float:
        whole = source.bits - (source.kind == "int")
        return whole <= dtype.mantissa + 1 and source.bits < 1 << (dtype.exponent - 1)
    if dtype.kind == source.kind:
        return dtype.bits >= source.bits
    return dtype.kind == "int" and dtype.bits > source.bits


def bitcast(x: UOp, dtype: DType) -> UOp:
    """Return the bits of `x` as a value of `dtype`, which has the same size."""
    source = x.dtype
    if source is dtype:
        return x
    if x.op is CONST:
        value = _fold_bitcast(x.arg, source, dtype)
        if value is not None:
            return const(value, dtype)
    elif x.op is ops.BITCAST and source.kind != "bool":  # a bool does not keep all bits
        return bitcast(x.src[0], dtype)
    return UOp(ops.BITCAST, dtype, (x,))


# -- lanes ---------------------------------------------------------------------------------------------------


def vectorize(lanes: Sequence[UOp]) -> UOp:
    """Return the vector of some scalars: one that its lanes were taken from, in order, or a broadcast."""
    first = lanes[0]
    if len(lanes) == 1:
        return first
    wide = first.dtype.vector(len(lanes))
    if all(x is first for x in lanes):
        return UOp(ops.BROADCAST, wide, (first,))
    if all(x.op is ops.GEP and x.src == first.src and len(x.src) == 1 for x in lanes):
        return gep(first.src[0], tuple([x.arg[0] for x in lanes]))
    return UOp(ops.VECTORIZE, wide, tuple(lanes))


def gep(x: UOp, lanes: tuple[int, ...]) -> UOp:
    """Return lanes of a vector, as the scalars that it was built from where those are known."""
    if x.dtype.lanes == len(lanes) and lanes == tuple(range(len(lanes))):
        return x
    if x.op is ops.BROADCAST:
        return vectorize([x.src[0]] * len(lanes))
    if x.op is ops.VECTORIZE:
        return vectorize([x.src[n] for n in lanes])
    if x.op is ops.GEP and len(x.src) == 1:
        return gep(x.src[0], tuple([x.arg[n] for n in lanes]))
    return UOp(ops.GEP, x.dtype.scalar.vector(len(lanes)), (x,), lanes)
