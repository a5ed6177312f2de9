"""Legalization: one elementwise kernel op becomes an expression of basic linear ops that the target computes.

Basic are, on integers and native floats, ADD SUB MUL FDIV NEG SQRT FLOOR CEIL TRUNC RINT MULACC AND OR XOR
NOT, the comparisons, WHERE and BITCAST; TRUNCDIV, TRUNCMOD, USHL and USHR with safe operands; CAST of a value
in range; and whatever the target lists in `Capabilities.functions` with an accuracy at least that of the
expansion.  On floats that the target does not compute in only WHERE and BITCAST remain: they are computed in
float32 and rounded after every op.

Rounding to float32 first and to the narrow type then is rounding once for + - * / and sqrt, because 24 bits
are at least twice the narrow type's significand plus two (Figueroa, "When is double rounding innocuous?",
1995).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import DTypeError, InternalError
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.ops import Op
from ..ir.uop import UOp, const
from ..registry.capabilities import Capabilities, Support
from . import conversions, integers
from .functions import EXPANSIONS, FAST_EXPANSIONS, FAST_ULP_BOUNDS, ULP_BOUNDS, Formula, Value, expand
from .functions.builder import select
from .functions.power import SHORT_EXPONENTS, power_constant

__all__ = ["Legalizer", "constant_value"]

_BASIC_FLOAT = frozenset({
    ops.ADD, ops.SUB, ops.MUL, ops.FDIV, ops.NEG, ops.SQRT, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT,
    ops.MULACC,
    *ops.COMPARISONS,
})  # fmt: skip
_BASIC_INTEGER = frozenset({
    ops.ADD, ops.SUB, ops.MUL, ops.NEG, ops.AND, ops.OR, ops.XOR, ops.NOT, ops.TRUNCDIV, ops.TRUNCMOD,
    ops.USHL, ops.USHR,
    *ops.COMPARISONS,
})  # fmt: skip


def float_maximum(x: Value, y: Value) -> Value:
    """The larger; NaN if either is NaN; of two zeros the second."""
    return select((x > y) | x.is_nan(), x, y)


def float_minimum(x: Value, y: Value) -> Value:
    """The smaller; NaN if either is NaN; of two zeros the second."""
    return select((x < y) | x.is_nan(), x, y)


_FLOAT: Mapping[Op, Formula] = {**EXPANSIONS, ops.MAXIMUM: float_maximum, ops.MINIMUM: float_minimum}
_FLOAT_FAST: Mapping[Op, Formula] = {**_FLOAT, **FAST_EXPANSIONS}

_INTEGER: Mapping[Op, Formula] = {
    ops.FLOORDIV: integers.floor_divide, ops.MOD: integers.remainder, ops.POW: integers.power,
    ops.SHL: integers.shift_left, ops.SHR: integers.shift_right,
    ops.MAXIMUM: integers.maximum, ops.MINIMUM: integers.minimum,
}  # fmt: skip
#: Cheaper forms for a constant second operand.
_INTEGER_CONSTANT: Mapping[Op, Formula] = {
    ops.FLOORDIV: integers.floor_divide_constant, ops.MOD: integers.remainder_constant,
    ops.POW: integers.power_constant, ops.SHL: integers.shift_left_constant,
    ops.SHR: integers.shift_right_constant,
}  # fmt: skip

_BOOL: Mapping[Op, Formula] = {
    ops.ADD: lambda x, y: x | y, ops.MUL: lambda x, y: x & y,
    ops.MAXIMUM: lambda x, y: x | y, ops.MINIMUM: lambda x, y: x & y,
    ops.AND: lambda x, y: x & y, ops.OR: lambda x, y: x | y, ops.XOR: lambda x, y: x ^ y,
    ops.NOT: lambda x: ~x,
    ops.CMPLT: lambda x, y: ~x & y, ops.CMPLE: lambda x, y: ~x | y,
    ops.CMPEQ: lambda x, y: ~(x ^ y), ops.CMPNE: lambda x, y: x ^ y,
}  # fmt: skip


def constant_value(u: UOp) -> bool | int | float | None:
    """Return the number that every lane of `u` is, if it is a constant."""
    if u.op is ops.BROADCAST:
        u = u.src[0]
    return u.arg if u.op is ops.CONST else None


def _exact_reciprocal(c: float, dtype: DType) -> bool:
    """Whether c and 1 / c are normal powers of two in `dtype`, so that multiplying by one is dividing by the
    other.
    """
    limit = (1 << (dtype.exponent - 1)) - 2
    return (
        c != 0.0 and math.isfinite(c) and abs(math.frexp(c)[0]) == 0.5 and abs(math.frexp(c)[1] - 1) <= limit
    )


class Legalizer:
    """Expands elementwise ops for one target.

    Parameters
    ----------
    caps
        What the target computes in, converts and has functions for.
    fast_math
        Allow shorter formulas, with the bounds of `FAST_ULP_BOUNDS`, and multiplication by a constant's
        reciprocal in place of division.
    """

    def __init__(self, caps: Capabilities, fast_math: bool = False) -> None:
        self.caps = caps
        self.fast_math = fast_math
        self._computes = frozenset(
            name for name, entry in caps.arithmetic.items()
            if entry.support is Support.SUPPORTED or (entry and name == "float64")
        )  # fmt: skip
        self._converts = caps.conversions | self._computes

    def computes(self, scalar: DType) -> bool:
        """Return whether the target computes in a dtype itself; if not, float32 stands in."""
        return scalar.kind != "float" or scalar.name in self._computes

    def __call__(self, op: Op, dtype: DType, src: tuple[UOp, ...], fast_math: bool | None = None) -> UOp:
        """Return the value of `op` with result `dtype` on legal operands, all of the same number of lanes.

        Parameters
        ----------
        op
            An elementwise op, CAST or BITCAST, with its meaning at kernel level.
        dtype
            The result's type, with lanes.
        src
            The operands, linear uops.
        fast_math
            For this op, instead of what the legalizer was made with.

        Raises
        ------
        DTypeError
            If the target computes in neither the operands' type nor one that stands in for it.
        """
        if op is ops.WHERE or op is ops.BITCAST:
            return UOp(op, dtype, src)
        if op is ops.CAST:
            return self.cast(src[0], dtype)
        if fast_math is None:
            fast_math = self.fast_math
        scalar = src[-1].dtype.scalar
        if scalar.kind == "bool":
            if op in _BOOL:
                return expand(_BOOL[op], src)
        elif scalar.kind != "float":
            if op in _BASIC_INTEGER or self._native(op, scalar, fast_math):
                return UOp(op, dtype, src)
            if op in _INTEGER:
                return self._integer(op, src)
        elif scalar.bits < 32 and scalar.name not in self._computes:
            return self._emulate(op, dtype, src, fast_math)
        else:
            return self._float(op, dtype, scalar, src, fast_math)
        raise InternalError(f"{op} has no meaning on {scalar} that could be legalized")

    def _native(self, op: Op, scalar: DType, fast_math: bool) -> bool:
        """Whether the target's own function is at least as accurate as the expansion."""
        claimed = self.caps.functions.get(op.name, {}).get(scalar.name)
        if claimed is None:
            return False
        bound = ULP_BOUNDS.get(op.name, {}).get(scalar.name, 0.0)
        if fast_math:
            bound = max(bound, FAST_ULP_BOUNDS.get(op.name, {}).get(scalar.name, 0.0))
        return claimed <= bound

    def _integer(self, op: Op, src: tuple[UOp, ...]) -> UOp:
        value = constant_value(src[1]) if op in _INTEGER_CONSTANT else None
        if value is not None and not (value < 0 and op in (ops.SHL, ops.SHR)):
            return expand(_INTEGER_CONSTANT[op], src[:1], value)
        return expand(_INTEGER[op], src)

    def _float(self, op: Op, dtype: DType, scalar: DType, src: tuple[UOp, ...], fast_math: bool) -> UOp:
        if scalar.name not in self._computes:
            raise DTypeError(
                f"{self.caps.target} does not compute in {scalar} ({op}); cast the operands to float32 first"
            )
        if op in _BASIC_FLOAT:
            if op is ops.FDIV:
                c = constant_value(src[1])
                if c is not None and c != 0.0 and (_exact_reciprocal(c, scalar) or fast_math):
                    return UOp(ops.MUL, dtype, (src[0], _constant(1.0 / c, dtype)))
            return UOp(op, dtype, src)
        if self._native(op, scalar, fast_math):
            return UOp(op, dtype, src)
        formula = (_FLOAT_FAST if fast_math else _FLOAT).get(op)
        if formula is None:
            raise InternalError(f"{op} has no meaning on {scalar} that could be legalized")
        if scalar.bits < 32 and op not in (ops.MAXIMUM, ops.MINIMUM):
            return self._through_float32(op, dtype, src, fast_math)
        if op is ops.POW:
            exponent = constant_value(src[1])
            if exponent in SHORT_EXPONENTS:
                return expand(power_constant, src[:1], exponent)
        return expand(formula, src)

    # -- narrow floats ---------------------------------------------------------------------------------------

    def _emulate(self, op: Op, dtype: DType, src: tuple[UOp, ...], fast_math: bool) -> UOp:
        """Return an op on floats that the target does not compute in."""
        if op is ops.NEG:
            return expand(conversions.negate, src)
        if op in (ops.MAXIMUM, ops.MINIMUM):
            # Chosen by the float32 values, but the operand itself is taken: nothing to round.
            picked = expand(_pick_first, (self._widen(src[0]), self._widen(src[1])), op)
            return UOp(ops.WHERE, dtype, (picked, *src))
        if op in ops.COMPARISONS:
            return UOp(op, dtype, tuple([self._widen(s) for s in src]))
        return self._through_float32(op, dtype, src, fast_math)

    def _through_float32(self, op: Op, dtype: DType, src: tuple[UOp, ...], fast_math: bool) -> UOp:
        wide = self(op, dtypes.float32.vector(dtype.lanes), tuple([self._widen(s) for s in src]), fast_math)
        return self._narrow(wide, dtype.scalar)

    def _widen(self, x: UOp) -> UOp:
        """Return a narrow float as float32."""
        wide = dtypes.float32.vector(x.dtype.lanes)
        value = constant_value(x)
        if value is not None:
            return _constant(value, wide)
        if x.dtype.name in self._converts:
            return UOp(ops.CAST, wide, (x,))
        return expand(conversions.widen, (x,))

    def _narrow(self, x: UOp, scalar: DType) -> UOp:
        """Return a float32 rounded to a narrow float."""
        if scalar.name in self._converts:
            return UOp(ops.CAST, scalar.vector(x.dtype.lanes), (x,))
        return expand(conversions.narrow, (x,), scalar)

    # -- conversions -----------------------------------------------------------------------------------------

    def cast(self, x: UOp, dtype: DType) -> UOp:
        """Return `x` converted to `dtype` (see `conversions`)."""
        start, target = x.dtype.scalar, dtype.scalar
        if start is target:
            return x
        if target.kind == "bool":
            return expand(conversions.truth, (x,))
        if conversions.is_narrow(target):
            if start.kind == "bool":
                return expand(conversions.truth_to_narrow, (x,), target)
            if start is dtypes.float64:
                x = expand(conversions.to_odd_float32, (x,))
            elif start.kind != "float":
                x = expand(conversions.integer_to_odd_float32, (x,))
            elif start is not dtypes.float32:
                x = self._widen(x)
            return self._narrow(x, target)
        if conversions.is_narrow(start):
            x = self._widen(x)
        if x.dtype.kind == "float" and target.kind != "float":
            return expand(conversions.truncate, (x,), target)
        return x if x.dtype is dtype else UOp(ops.CAST, dtype, (x,))


def _pick_first(x: Value, y: Value, op: Op) -> Value:
    """Return whether the maximum or minimum of x and y is x."""
    return (x > y if op is ops.MAXIMUM else x < y) | x.is_nan()


def _constant(value: float, dtype: DType) -> UOp:
    """Return a number in every lane of `dtype`."""
    scalar = const(value, dtype)
    return scalar if dtype.lanes == 1 else UOp(ops.BROADCAST, dtype, (scalar,))
