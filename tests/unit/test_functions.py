"""Elementary functions: measured errors stay within the stated bounds; special values are IEEE 754's and
NumPy's.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from function_accuracy import REFERENCES, expansion_cost, measure
from linear_eval import evaluate, ulp_error, variable

from retarget.codegen.functions import EXPANSIONS, FAST_EXPANSIONS, FAST_ULP_BOUNDS, ULP_BOUNDS, expand
from retarget.codegen.functions.builder import FORMATS, parts
from retarget.codegen.functions.power import SHORT_EXPONENTS, power_constant
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget.ir.ops import Op

FLOATS = [dtypes.float32, dtypes.float64]


def call(op: Op, dtype: DType, *operands: Any, fused: bool = False) -> Any:
    """Evaluate the expansion of `op`."""
    src = tuple(variable(dtype, f"x{i}") for i in range(len(operands)))
    arrays = [np.atleast_1d(np.asarray(a, to_numpy(dtype))) for a in operands]
    return evaluate(expand(EXPANSIONS[op], src), dict(zip(src, arrays, strict=True)), fused)


def same_bits(got: Any, want: Any) -> None:
    """Assert equal values, NaN equal to NaN and zeros of equal sign."""
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


# -- accuracy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("op", REFERENCES, ids=repr)
def test_error_is_within_the_bound(op: Op, dtype: DType) -> None:
    stride = 2**12 + 1 if dtype is dtypes.float32 and len(op.operands) == 1 else 2**15
    error, operands = measure(op, dtype, stride)
    assert error <= ULP_BOUNDS[op.name][dtype.name], f"{op}{operands} is off by {error} ULP"


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("op", FAST_EXPANSIONS, ids=repr)
def test_fast_error_is_within_its_bound(op: Op, dtype: DType) -> None:
    error, operands = measure(op, dtype, 2**14 + 1, fast=True)
    assert error <= FAST_ULP_BOUNDS[op.name][dtype.name], f"{op}{operands} is off by {error} ULP"
    assert expansion_cost(op, dtype, fast=True)[0] < expansion_cost(op, dtype)[0]


def test_every_expansion_has_a_bound_within_what_is_promised() -> None:
    common = {"EXP", "EXP2", "LOG", "LOG2", "LOG10", "LOG1P", "TANH", "SIN", "COS", "ERF"}
    assert set(ULP_BOUNDS) == {op.name for op in EXPANSIONS}
    for name, bounds in ULP_BOUNDS.items():
        assert max(bounds["float32"], bounds["float64"]) <= (2.0 if name in common else 4.0)


# -- special values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("op", ops.UNARY_FUNCTIONS, ids=repr)
def test_zeros_infinities_and_nan(op: Op, dtype: DType) -> None:
    x = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0], to_numpy(dtype))
    with np.errstate(all="ignore"):
        want = REFERENCES[op](x).astype(x.dtype)
    got = call(op, dtype, x)
    limit = ~np.isfinite(want) | (want == 0)
    same_bits(got[limit], want[limit])
    assert np.isfinite(got[~limit]).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("op", [ops.POW, ops.ATAN2], ids=repr)
def test_special_operands_of_pow_and_atan2(op: Op, dtype: DType) -> None:
    """NumPy's functions are the C library's, which follow IEEE 754."""
    numpy = to_numpy(dtype)
    info = np.finfo(numpy)
    values = [0.0, 0.5, 1.0, 2.0, 3.0, 2.5, 1e10, 2.0**24, 2.0**53, math.inf, math.nan,
              info.max, info.tiny, info.smallest_subnormal, 1 + info.eps, 1 - info.epsneg]  # fmt: skip
    special = np.array([*values, *[-v for v in values]], numpy)
    x, y = (a.ravel() for a in np.meshgrid(special, special))
    wide = np.float64 if dtype is dtypes.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = REFERENCES[op](x.astype(wide), y.astype(wide))
        want = exact.astype(numpy)
    got = call(op, dtype, x, y)
    assert ulp_error(got, exact).max() <= ULP_BOUNDS[op.name][dtype.name]
    limit = ~np.isfinite(want) | (want == 0)
    same_bits(got[limit], want[limit])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_powers_of_two_are_exact(dtype: DType, fused: bool) -> None:
    numpy = to_numpy(dtype)
    least = -149 if dtype is dtypes.float32 else -1074
    k = np.arange(least, -least - 20 if dtype is dtypes.float32 else 1024)
    k = k[k < (128 if dtype is dtypes.float32 else 1024)]
    powers = np.ldexp(numpy.type(1), k).astype(numpy)
    same_bits(call(ops.EXP2, dtype, k, fused=fused), powers)
    same_bits(call(ops.LOG2, dtype, powers, fused=fused), k.astype(numpy))
    beyond = [128, 2000] if dtype is dtypes.float32 else [1024, 20000]
    assert call(ops.EXP2, dtype, beyond, fused=fused).tolist() == [math.inf, math.inf]
    assert call(ops.EXP2, dtype, [least - 2], fused=fused).tolist() == [0.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_sine_of_huge_arguments(dtype: DType) -> None:
    x = np.array([1e5, 1e6, 1e9, 1e10, 1e30], np.float32).astype(to_numpy(dtype))
    want = [0.0357488, -0.3499935, 0.5458434, -0.4875060, -0.7911634]
    np.testing.assert_allclose(call(ops.SIN, dtype, x), want, rtol=0, atol=1e-7)
    hardest = 16367173.0 * 2.0**72 if dtype is dtypes.float32 else 6381956970095103.0 * 2.0**797
    tiny = call(ops.COS, dtype, [hardest])[
        0
    ]  # the multiple of pi/2 that a number of the format comes nearest to
    assert 0 < abs(tiny) < 2.0**-28
    x = np.random.default_rng(7).uniform(-100, 100, 100_000)
    for op in (ops.SIN, ops.COS):
        assert np.abs(call(op, dtype, x)).max() <= 1.0


def test_sine_of_a_double() -> None:
    np.testing.assert_allclose(call(ops.SIN, dtypes.float64, [39800.0]), [0.7428572], atol=1e-7)


def test_exponential_of_a_difference_that_must_not_be_fused() -> None:
    """x * s - max(x * s) is 0 at the maximum when every op rounds."""
    x, s = variable(dtypes.float32, "x"), np.float32(0.18033688)
    values = np.array([1134139801600, 1], np.float32) * s
    got = evaluate(expand(EXPANSIONS[ops.EXP], (x,)), {x: values - values.max()})
    assert got.tolist() == [1.0, 0.0]


# -- floored division ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_floored_division_is_exact_while_the_quotient_fits(dtype: DType) -> None:
    numpy = to_numpy(dtype)
    rng = np.random.default_rng(3)
    digits = FORMATS[dtype.name].mantissa + 1
    y = rng.integers(0, 1 << dtype.bits, 4000, f"u{dtype.itemsize}").view(numpy)
    with np.errstate(all="ignore"):
        x = (y * rng.uniform(-2, 2, y.size) * 2.0 ** rng.integers(-3, digits, y.size)).astype(numpy)
        whole = np.round(rng.uniform(-40, 40, (2, 4000))).astype(numpy)
        x, y = np.concatenate([x, whole[0]]), np.concatenate([y, whole[1]])
        inside = np.isfinite(x) & (y != 0) & np.isfinite(y) & (np.abs(x / y) < 2.0**digits)
    x, y = x[inside], y[inside]
    quotients, rests = call(ops.FLOORDIV, dtype, x, y), call(ops.MOD, dtype, x, y)
    for a, b, quotient, rest in zip(x.tolist(), y.tolist(), quotients.tolist(), rests.tolist(), strict=True):
        exact = Fraction(a) // Fraction(b)
        assert Fraction(quotient) == exact
        assert Fraction(rest) == numpy.type(float(Fraction(a) - exact * Fraction(b))).item()
    want = np.remainder(x, y)
    same_bits(rests, want)


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_special_operands_of_floored_division(dtype: DType) -> None:
    values = np.array([0.0, 1.0, 1.5, 3.0, math.inf, math.nan], to_numpy(dtype))
    values = np.concatenate([values, -values])
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        same_bits(call(ops.FLOORDIV, dtype, x, y), np.floor_divide(x, y))
        same_bits(call(ops.MOD, dtype, x, y), np.remainder(x, y))


# -- pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", sorted(SHORT_EXPONENTS))
def test_constant_exponents(exponent: float) -> None:
    x = variable(dtypes.float32)
    values = np.array(
        [0.0, -0.0, 1, -1, 2, -3, 1e-30, 1e30, math.inf, -math.inf, math.nan, 0.1, 7.3], np.float32
    )
    got = evaluate(expand(power_constant, (x,), exponent), {x: values})
    got = np.broadcast_to(got, values.shape)
    with np.errstate(all="ignore"):
        exact = np.power(values.astype(np.float64), np.full(values.shape, exponent))
    assert ulp_error(got, exact).max() <= ULP_BOUNDS["POW"]["float32"]
    limit = ~np.isfinite(exact) | (exact == 0)
    same_bits(got[limit], exact[limit].astype(np.float32))


def test_parts_of_a_constant_add_up() -> None:
    third = "0.3333333333333333333333333333333333333333333333333333333333333333"
    found = parts(third, 11, 11)
    assert abs(sum(Fraction(p) for p in found) - Fraction(1, 3)) < Fraction(1, 2**70)
    for head in found[:2]:  # at most 11 significant bits
        assert (math.frexp(head)[0] * 2**11).is_integer()


def test_expansions_are_short() -> None:
    for op, limit in ((ops.EXP, 30), (ops.LOG, 36), (ops.TANH, 36), (ops.ERF, 48), (ops.SIN, 120)):
        assert expansion_cost(op, dtypes.float32)[0] <= limit
