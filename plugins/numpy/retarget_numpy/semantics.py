"""What every elementwise op means, as one table: `ELEMENTWISE[op](dtype, *operands)`.

`dtype` is the scalar `DType` of the result; operands are NumPy arrays or NumPy scalars of their dtype's NumPy
type, and the result has the NumPy type of `dtype`.  Integers wrap.  Floats narrower than 32 bits are computed
in float32, which is wide enough that rounding twice equals rounding once; elementary functions are computed
in float64 and rounded (float64 in long double, where the platform has one that is wider).  Callers silence
NumPy's warnings (`quiet`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from retarget.errors import InternalError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp

#: An array or a NumPy scalar.
Value = Any
Function = Callable[..., Value]


class UndefinedError(InternalError):
    """An operation was executed outside the domain in which it is defined: the lowering is wrong."""


def quiet() -> Any:
    """Return a context in which NumPy does not warn of overflow, division by zero and invalid operands."""
    return np.errstate(all="ignore")


# -- rounding ------------------------------------------------------------------------------------------------


def is_narrow(dtype: DType) -> bool:
    """Whether `dtype` is a float that is computed in float32."""
    return dtype.kind == "float" and dtype.bits < 32


def widen(x: Value) -> Value:
    """Return a float operand in the type that arithmetic on it is done in: float32 or float64."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def round_to(x: Value, dtype: DType) -> Value:
    """Return numbers rounded once, to nearest even, to the float type `dtype`.

    ml_dtypes converts wide numbers by way of float32, rounding twice.  Rounding to odd in that first step
    (the last bit tells that something was cut off) makes the second one exact: Boldo and Melquiond, "When
    double rounding is odd".
    """
    target = to_numpy(dtype)
    if x.dtype == target:
        return x
    if not is_narrow(dtype) or dtype is dtypes.float16 or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return x.astype(target)
    wide = np.asarray(x).astype(np.longdouble)
    near = wide.astype(np.float32)
    back = near.astype(np.longdouble)
    bits = near.view(np.uint32) - (np.abs(back) > np.abs(wide)).astype(np.uint32)
    odd = bits | (back != wide).astype(np.uint32)
    return odd.view(np.float32).astype(target)[()]


def _rounded(f: Function) -> Function:
    """Return an operation that NumPy has, computed in float32 for narrower floats."""

    def apply(dtype: DType, *x: Value) -> Value:
        if is_narrow(dtype):
            return round_to(f(*[a.astype(np.float32) for a in x]), dtype)
        return f(*x)

    return apply


def _elementary(f: Function) -> Function:
    """Return an elementary function that is computed in a wider type and rounded."""

    def apply(dtype: DType, *x: Value) -> Value:
        wide = np.longdouble if dtype is dtypes.float64 else np.float64
        return round_to(f(*[a.astype(wide) for a in x]), dtype)

    return apply


_erf = np.frompyfunc(math.erf, 1, 1)


def _erf_apply(dtype: DType, x: Value) -> Value:
    """The error function by the C library's, whose float64 result is within 1 ULP."""
    return round_to(np.asarray(_erf(x.astype(np.float64)), dtype=np.float64)[()], dtype)


# -- integers ------------------------------------------------------------------------------------------------


def _power(dtype: DType, x: Value, n: Value) -> Value:
    """Integer powers wrap; a negative exponent gives the exact power, truncated (0 but for 1 and -1)."""
    if dtype.kind == "float":
        # Of one number, NumPy makes the power 0.5 a square root, which is NaN for -infinity; of arrays not.
        base, exponent = np.broadcast_arrays(x, n)
        result = _elementary(np.power)(dtype, base.reshape(-1), exponent.reshape(-1))
        return result.reshape(base.shape)[()]
    base, count = np.broadcast_arrays(x, n)
    base, count = base.copy(), count.copy()
    one = base.dtype.type(1)
    if dtype.kind == "int":
        negative = count < 0
        base[negative & (np.abs(base) != 1)] = 0
        count[negative] &= one  # (-1) ** n depends on n's last bit only
        count[negative & (base == 0)] = one
    result = np.ones_like(base)
    while count.any():
        result = np.where(count & one != 0, result * base, result)
        base *= base
        count >>= one
    return result[()]


def _truncdiv(dtype: DType, x: Value, y: Value) -> Value:
    _require_divisor(dtype, x, y)
    return (x - np.fmod(x, y)) // y


def _truncmod(dtype: DType, x: Value, y: Value) -> Value:
    _require_divisor(dtype, x, y)
    return np.fmod(x, y)


def _require_divisor(dtype: DType, x: Value, y: Value) -> None:
    if np.any(y == 0):
        raise UndefinedError("division by 0")
    if dtype.kind == "int" and np.any((y == -1) & (x == dtype.min)):
        raise UndefinedError(f"division of {dtype.min}, the smallest {dtype.scalar}, by -1")


def _require_count(dtype: DType, n: Value) -> None:
    if np.any((n < 0) | (n >= dtype.bits)):
        raise UndefinedError(f"shift of {dtype.scalar} by {n}, which is not in 0 ... {dtype.bits - 1}")


def _ushl(dtype: DType, x: Value, n: Value) -> Value:
    _require_count(dtype, n)
    return x << n


def _ushr(dtype: DType, x: Value, n: Value) -> Value:
    _require_count(dtype, n)
    return x >> n


# -- conversions ---------------------------------------------------------------------------------------------

_TWO63 = 2.0**63


def _truncate(dtype: DType, x: Value) -> np.ndarray[Any, Any]:
    """Float to integer: the fraction is dropped, NaN is 0, and what is beyond int64 is its nearest end.

    The result wraps to `dtype`; uint64 has its own upper half: exact up to 2**64, and the largest beyond.
    """
    wide = np.asarray(widen(x)).astype(np.float64)  # exact: no float is wider
    wide = np.where(np.isnan(wide), 0.0, np.trunc(wide))
    inside = np.where((wide >= -_TWO63) & (wide < _TWO63), wide, 0.0).astype(np.int64)
    whole = np.where(
        wide >= _TWO63, np.int64(2**63 - 1), np.where(wide < -_TWO63, np.int64(-(2**63)), inside)
    )
    if dtype is dtypes.uint64:
        high = np.where((wide >= _TWO63) & (wide < 2 * _TWO63), wide, 0.0).astype(np.uint64)
        high = np.where(wide >= 2 * _TWO63, np.uint64(2**64 - 1), high)
        return np.where(wide >= _TWO63, high, whole.astype(np.uint64))
    return whole.astype(to_numpy(dtype))


def _cast(dtype: DType, x: Value) -> Value:
    if dtype.kind == "bool":
        return x != x.dtype.type(0)
    if dtype.kind == "float":
        return round_to(x, dtype)
    if x.dtype.kind in "iub":
        return x.astype(to_numpy(dtype))
    return _truncate(dtype, x)[()]


def cast_in_range(dtype: DType, x: Value) -> Value:
    """CAST as linear programs have it: the whole part of a float must fit the integer type."""
    if dtype.is_int and x.dtype.kind not in "iub":
        wide = widen(x).astype(np.float64)
        # The largest value plus 1 is a power of two, which float64 holds exactly.
        if not np.all((np.trunc(wide) >= float(dtype.min)) & (wide < float(dtype.max + 1))):
            raise UndefinedError(f"conversion of {x} to {dtype.scalar}, which does not hold it")
    return _cast(dtype, x)


def _bitcast(dtype: DType, x: Value) -> Value:
    if dtype.kind == "bool":
        return x.view(np.uint8) != np.uint8(0)
    return x.view(to_numpy(dtype))


def _mulacc(dtype: DType, x: Value, y: Value, z: Value) -> Value:
    """Multiply and add with two roundings, the less precise of what the op allows."""
    return ELEMENTWISE[ops.ADD](dtype, ELEMENTWISE[ops.MUL](dtype, x, y), z)


def _where(dtype: DType, condition: Value, x: Value, y: Value) -> Value:
    if isinstance(condition, np.bool):
        return x if condition else y
    return np.asarray(np.where(condition, x, y))[()]


_ELEMENTARY: dict[Op, Function] = {
    ops.EXP: np.exp, ops.EXP2: np.exp2, ops.EXPM1: np.expm1,
    ops.LOG: np.log, ops.LOG2: np.log2, ops.LOG10: np.log10, ops.LOG1P: np.log1p,
    ops.SIN: np.sin, ops.COS: np.cos, ops.TAN: np.tan, ops.ASIN: np.arcsin, ops.ACOS: np.arccos,
    ops.ATAN: np.arctan, ops.ATAN2: np.arctan2,
    ops.SINH: np.sinh, ops.COSH: np.cosh, ops.TANH: np.tanh,
    ops.ASINH: np.arcsinh, ops.ACOSH: np.arccosh, ops.ATANH: np.arctanh,
}  # fmt: skip

#: The meaning of every elementwise op.  Operators instead of ufuncs where they agree: quicker on scalars.
ELEMENTWISE: Mapping[Op, Function] = {
    ops.ADD: _rounded(lambda x, y: x + y),
    ops.SUB: _rounded(lambda x, y: x - y),
    ops.MUL: _rounded(lambda x, y: x * y),
    ops.FDIV: _rounded(lambda x, y: x / y),
    ops.NEG: _rounded(lambda x: -x),
    ops.SQRT: _rounded(np.sqrt),
    ops.FLOOR: _rounded(np.floor),
    ops.CEIL: _rounded(np.ceil),
    ops.TRUNC: _rounded(np.trunc),
    ops.RINT: _rounded(np.rint),
    ops.MULACC: _mulacc,
    ops.MAXIMUM: _rounded(np.maximum),
    ops.MINIMUM: _rounded(np.minimum),
    ops.AND: lambda dtype, x, y: x & y,
    ops.OR: lambda dtype, x, y: x | y,
    ops.XOR: lambda dtype, x, y: x ^ y,
    ops.NOT: lambda dtype, x: ~x,
    ops.SHL: lambda dtype, x, n: x << n,  # NumPy defines counts of the width and beyond as the op table does
    ops.SHR: lambda dtype, x, n: x >> n,
    ops.CMPLT: lambda dtype, x, y: x < y,
    ops.CMPLE: lambda dtype, x, y: x <= y,
    ops.CMPEQ: lambda dtype, x, y: x == y,
    ops.CMPNE: lambda dtype, x, y: x != y,
    ops.WHERE: _where,
    ops.FLOORDIV: _rounded(np.floor_divide),  # x // 0 is 0 and MIN // -1 is MIN in NumPy too
    ops.MOD: _rounded(np.remainder),
    ops.TRUNCDIV: _truncdiv,
    ops.TRUNCMOD: _truncmod,
    ops.USHL: _ushl,
    ops.USHR: _ushr,
    ops.POW: _power,
    ops.ERF: _erf_apply,
    ops.CAST: _cast,
    ops.BITCAST: _bitcast,
    **{op: _elementary(f) for op, f in _ELEMENTARY.items()},
}

# -- reductions and constants --------------------------------------------------------------------------------

_FOLDS: dict[Op, np.ufunc] = {
    ops.ADD: np.add, ops.MUL: np.multiply, ops.MAXIMUM: np.maximum, ops.MINIMUM: np.minimum,
    ops.AND: np.bitwise_and, ops.OR: np.bitwise_or, ops.XOR: np.bitwise_xor,
}  # fmt: skip


def reduce(op: Op, dtype: DType, x: np.ndarray[Any, Any], axes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Fold `axes` of `x` to length 1.  Floats are accumulated in a wider type and rounded once."""
    work = to_numpy(dtype)
    if dtype.kind == "float":
        work = np.dtype(np.longdouble if dtype is dtypes.float64 else np.float64)
    start = work.type(ops.identity(op, dtype))
    x = x.astype(work, copy=False)
    folded = _FOLDS[op].reduce(x, axis=axes, keepdims=True, initial=start, dtype=work)
    return np.asarray(round_to(folded, dtype) if dtype.kind == "float" else folded)


def constant(value: bool | int | float, dtype: DType) -> Value:
    """Return the NumPy scalar of a CONST."""
    return to_numpy(dtype.scalar).type(value)


def index_value(x: int | UOp, variables: Mapping[str, int]) -> int:
    """Return the value of a size: an int, or an index expression of variables bound at launch."""
    if isinstance(x, int):
        return x
    match x.op:
        case ops.VAR:
            return variables[x.arg[0]]
        case ops.AFFINE:
            total, coefficients = x.arg
            for k, s in zip(coefficients, x.src, strict=True):
                total += k * index_value(s, variables)
            return int(total)
        case ops.IDIV:
            return int(index_value(x.src[0], variables) // x.arg)
        case ops.IMOD:
            return int(index_value(x.src[0], variables) % x.arg)
        case ops.IMUL:
            return index_value(x.src[0], variables) * index_value(x.src[1], variables)
        case _:
            raise InternalError(f"a size depends on {x.op}; sizes are made of variables and index arithmetic")
