"""Elementary functions as expressions of basic linear ops, with their measured accuracy.

Every formula is without branches, uses no float wider than its operand's, is right for the whole range of
arguments including subnormal numbers, infinities and NaN, and meets its bound whether MULACC rounds once or
twice. docs/accuracy.md says how the bounds were measured.
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
    ops.LOG: exponential.log, ops.LOG2: exponential.log2, ops.LOG10: exponential.log10,
    ops.LOG1P: exponential.log1p,
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

_NARROW = dict.fromkeys(("float16", "bfloat16", "float8_e4m3", "float8_e5m2"), 0.51)  # a float32, rounded


def _bounds(single: float, double: float) -> dict[str, float]:
    return {"float32": single, "float64": double, **_NARROW}


#: The largest error of each formula: op name -> dtype name -> units in the last place of the exact result.
#: A native function is used in place of the formula when its own bound is within this one.  Floored
#: division is exact while the quotient fits the significand.
ULP_BOUNDS: Mapping[str, Mapping[str, float]] = {
    "EXP": _bounds(1.05, 1.05), "EXP2": _bounds(1.25, 1.25), "EXPM1": _bounds(1.6, 2.1),
    "LOG": _bounds(0.9, 0.9), "LOG2": _bounds(0.8, 0.8), "LOG10": _bounds(0.75, 0.75),
    "LOG1P": _bounds(0.95, 0.95),
    "SIN": _bounds(0.9, 0.9), "COS": _bounds(0.9, 0.9), "TAN": _bounds(2.3, 2.3),
    "ASIN": _bounds(2.4, 2.4), "ACOS": _bounds(1.25, 1.25), "ATAN": _bounds(2.0, 2.0),
    "ATAN2": _bounds(2.2, 2.2),
    "SINH": _bounds(1.7, 1.7), "COSH": _bounds(1.6, 1.6), "TANH": _bounds(1.5, 1.5),
    "ASINH": _bounds(2.0, 2.0), "ACOSH": _bounds(2.3, 2.3), "ATANH": _bounds(2.1, 2.1),
    "ERF": _bounds(1.2, 1.2), "POW": _bounds(1.5, 1.6),
    "FLOORDIV": {"float32": 0.0, "float64": 0.0}, "MOD": {"float32": 0.0, "float64": 0.0},
}  # fmt: skip

#: The same for the fast formulas, on the arguments that docs/accuracy.md names.
FAST_ULP_BOUNDS: Mapping[str, Mapping[str, float]] = {
    "EXP": _bounds(1.05, 1.05), "LOG": _bounds(0.9, 0.9),
    "SIN": _bounds(2.5, 2.5), "COS": _bounds(2.5, 2.5), "TAN": _bounds(4.0, 4.0),
}  # fmt: skip
