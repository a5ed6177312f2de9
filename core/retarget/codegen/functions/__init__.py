"""Elementary functions as expressions of basic linear ops, with their measured accuracy.

Every formula is without branches, uses no float wider than its operand's, is right for the whole range of arguments
including subnormal numbers, infinities and NaN, and meets its bound whether MULACC rounds once or twice.
docs/accuracy.md says how the bounds were measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import ops
from ...ir.ops import Op
from . import exponential, power, trigonometric
from .builder import Formula, Value, expand

__all__ = ["EXPANSIONS", "FAST_EXPANSIONS", "FAST_ULP_BOUNDS", "ULP_BOUNDS", "Formula", "Value", "expand"]

#: The formula of each op for float32 and float64.
EXPANSIONS: Mapping[Op, Formula] = {
    ops.EXP: exponential.exp, ops.EXP2: exponential.exp2, ops.EXPM1: exponential.expm1,
    ops.LOG: exponential.log, ops.LOG2: exponential.log2, ops.LOG10: exponential.log10, ops.LOG1P: exponential.log1p,
    ops.SIN: trigonometric.sin, ops.COS: trigonometric.cos, ops.TAN: trigonometric.tan,
    ops.ASIN: trigonometric.asin, ops.ACOS: trigonometric.acos,
    ops.ATAN: trigonometric.atan, ops.ATAN2: trigonometric.atan2,
    ops.SINH: exponential.sinh, ops.COSH: exponential.cosh, ops.TANH: exponential.tanh,
    ops.ASINH: exponential.asinh, ops.ACOSH: exponential.acosh, ops.ATANH: exponential.atanh,
    ops.ERF: exponential.erf, ops.POW: power.power,
    ops.FLOORDIV: power.floor_divide, ops.MOD: power.remainder,
}  # fmt: skip

#: Shorter formulas for kernels that ask for fast math.
FAST_EXPANSIONS: Mapping[Op, Formula] = {
    ops.EXP: exponential.exp_fast, ops.LOG: exponential.log_fast,
    ops.SIN: trigonometric.sin_fast, ops.COS: trigonometric.cos_fast, ops.TAN: trigonometric.tan_fast,
}  # fmt: skip

#: The largest error of each formula: op name -> dtype name -> units in the last place of the exact result.
#: A native function is used in place of the formula when its own bound is within this one.
ULP_BOUNDS: Mapping[str, Mapping[str, float]] = {}

FAST_ULP_BOUNDS: Mapping[str, Mapping[str, float]] = {}
