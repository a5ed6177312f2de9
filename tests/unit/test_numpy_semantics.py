"""The NumPy backend's table of elementwise meanings, against exact integers, fractions and `math`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from retarget.ir import dtypes, ops
from retarget.ir.dtypes import ARRAY_DTYPES, DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import wrap
from retarget_numpy.graph import KNOWN_OPS
from retarget_numpy.semantics import ELEMENTWISE, UndefinedError, cast_in_range, quiet, reduce, round_to

INTS = [d for d in ARRAY_DTYPES if d.is_int]
SIGNED = [d for d in INTS if d.kind == "int"]
FLOATS = [d for d in ARRAY_DTYPES if d.is_float]
NARROW = [d for d in FLOATS if d.bits < 32]


def compute(op: Op, dtype: DType, *operands: Any, of: DType | None = None) -> list[Any]:
    """Apply an op to lists of operands; also check that arrays, scalars and the result's type agree."""
    arrays = [np.array(x, to_numpy(of or dtype)) for x in operands]
    with quiet():
        result = ELEMENTWISE[op](dtype, *arrays)
        scalars = [ELEMENTWISE[op](dtype, *[a[n] for a in arrays]) for n in range(len(arrays[0]))]
    assert result.dtype == to_numpy(dtype)
    assert [type(s) for s in scalars] == [to_numpy(dtype).type] * len(scalars)
    assert np.array(scalars, result.dtype).tobytes() == result.tobytes()
    return list(result.astype(np.float64) if dtype in NARROW else result.tolist())


def extremes(dtype: DType) -> list[int]:
    near = [0, 1, 2, 3, 7, dtype.bits - 1, dtype.max, dtype.max - 1, dtype.max // 2]
    return [int(v) for v in near + ([-1, -2, -7, dtype.min, dtype.min + 1] if dtype.kind == "int" else [])]


def pairs(dtype: DType) -> tuple[list[int], list[int]]:
    found = list(itertools.product(extremes(dtype), repeat=2))
    return [x for x, _ in found], [y for _, y in found]


def test_every_op_of_each_level_has_a_meaning() -> None:
    graph = {o for o in ops.OPS.values() if "g" in o.levels}
    assert graph <= KNOWN_OPS
    linear = {o for o in ops.ALU_OPS if "l" in o.levels} | {ops.CAST, ops.BITCAST}
    assert linear <= ELEMENTWISE.keys()
    assert ELEMENTWISE.keys() <= ops.ALU_OPS | {ops.CAST, ops.BITCAST}


@pytest.mark.parametrize("dtype", INTS, ids=repr)
def test_integers_wrap(dtype: DType) -> None:
    xs, ys = pairs(dtype)
    exact: dict[Op, Callable[[int, int], int]] = {
        ops.ADD: lambda x, y: x + y,
        ops.SUB: lambda x, y: x - y,
        ops.MUL: lambda x, y: x * y,
        ops.AND: lambda x, y: x & y,
        ops.OR: lambda x, y: x | y,
        ops.XOR: lambda x, y: x ^ y,
        ops.MAXIMUM: max,
        ops.MINIMUM: min,
        ops.FLOORDIV: lambda x, y: x // y if y else 0,
        ops.MOD: lambda x, y: x % y if y else 0,
    }
    for op, f in exact.items():
        assert compute(op, dtype, xs, ys) == [wrap(f(x, y), dtype) for x, y in zip(xs, ys, strict=True)], op
    values = extremes(dtype)
    assert compute(ops.NEG, dtype, values) == [wrap(-x, dtype) for x in values]
    assert compute(ops.NOT, dtype, values) == [wrap(~x, dtype) for x in values]


@pytest.mark.parametrize("dtype", INTS, ids=repr)
def test_shifts_beyond_the_width_leave_zeros_or_the_sign(dtype: DType) -> None:
    counts = [0, 1, dtype.bits - 1, dtype.bits, dtype.bits + 1, 100, int(dtype.max)]
    for x in extremes(dtype):
        xs = [x] * len(counts)
        assert compute(ops.SHL, dtype, xs, counts) == [
            wrap(x << n, dtype) if n < dtype.bits else 0 for n in counts
        ]
        assert compute(ops.SHR, dtype, xs, counts) == [x >> min(n, dtype.bits) for n in counts]


@pytest.mark.parametrize("dtype", INTS, ids=repr)
def test_integer_powers_wrap(dtype: DType) -> None:
    xs, ns = pairs(dtype)
    kept = [(x, n) for x, n in zip(xs, ns, strict=True) if n >= 0]
    assert compute(ops.POW, dtype, [x for x, _ in kept], [n for _, n in kept]) == [
        wrap(pow(x, n, 1 << dtype.bits), dtype) for x, n in kept
    ]


@pytest.mark.parametrize("dtype", SIGNED, ids=repr)
def test_negative_powers_are_truncated(dtype: DType) -> None:
    bases = [1, 1, -1, -1, 0, 2, -3, dtype.min]
    counts = [-1, dtype.min, -3, -4, -1, -1, -2, dtype.min]
    assert compute(ops.POW, dtype, bases, counts) == [1, 1, -1, 1, 0, 0, 0, 0]


def test_bool_add_is_or_and_multiply_is_and() -> None:
    x, y = [False, False, True, True], [False, True, False, True]
    assert compute(ops.ADD, dtypes.bool_, x, y) == [False, True, True, True]
    assert compute(ops.MUL, dtypes.bool_, x, y) == [False, False, False, True]
    assert compute(ops.XOR, dtypes.bool_, x, y) == [False, True, True, False]
    assert compute(ops.MAXIMUM, dtypes.bool_, x, y) == [False, True, True, True]
    assert compute(ops.NOT, dtypes.bool_, x) == [True, True, False, False]


@pytest.mark.parametrize("dtype", INTS, ids=repr)
def test_machine_division_truncates_and_refuses_what_is_undefined(dtype: DType) -> None:
    xs, ys = pairs(dtype)
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if y and not (y == -1 and x == dtype.min)]
    left, right = [x for x, _ in kept], [y for _, y in kept]
    quotients = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in kept]
    assert compute(ops.TRUNCDIV, dtype, left, right) == quotients
    remainders = [x - q * y for (x, y), q in zip(kept, quotients, strict=True)]
    assert compute(ops.TRUNCMOD, dtype, left, right) == remainders
    for op in (ops.TRUNCDIV, ops.TRUNCMOD):
        with pytest.raises(UndefinedError, match="division by 0"):
            compute(op, dtype, [1, 1], [1, 0])
        if dtype.kind == "int":
            with pytest.raises(UndefinedError, match="by -1"):
                compute(op, dtype, [dtype.min], [-1])


@pytest.mark.parametrize("op", [ops.USHL, ops.USHR])
def test_machine_shifts_refuse_counts_of_the_width(op: Op) -> None:
    assert compute(op, dtypes.int32, [4], [31]) == [0]
    with pytest.raises(UndefinedError, match="shift"):
        compute(op, dtypes.int32, [4], [32])
    with pytest.raises(UndefinedError, match="shift"):
        compute(op, dtypes.int32, [4], [-1])


# -- floats ------------------------------------------------------------------------------------------------


def representable(dtype: DType) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return every finite value of a float type of at most 16 bits, in order."""
    bits = np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}")
    with quiet():
        values = bits.view(to_numpy(dtype)).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def nearest(x: Fraction, dtype: DType, values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the value of `dtype` nearest to a fraction that lies within its range; ties go to even."""
    right = int(np.searchsorted(values, float(x)))
    close = [float(v) for v in values[max(right - 2, 0) : right + 2]]
    distance = min(abs(Fraction(v) - x) for v in close)
    tied = [v for v in close if abs(Fraction(v) - x) == distance]

    def is_even(value: float) -> bool:
        return int(np.float64(value).astype(to_numpy(dtype)).view(f"u{dtype.itemsize}")) % 2 == 0

    return tied[0] if len(tied) == 1 else next(v for v in tied if is_even(v))


@pytest.mark.parametrize("dtype", NARROW, ids=repr)
def test_narrow_arithmetic_is_correctly_rounded(dtype: DType) -> None:
    values = representable(dtype)
    generator = np.random.default_rng(1)
    x, y = generator.choice(values, 400), generator.choice(values, 400)
    exact: dict[Op, Callable[[Fraction, Fraction], Fraction]] = {
        ops.ADD: lambda a, b: a + b,
        ops.SUB: lambda a, b: a - b,
        ops.MUL: lambda a, b: a * b,
        ops.FDIV: lambda a, b: a / b if b else Fraction(10) ** 60,
    }
    for op, f in exact.items():
        results = compute(op, dtype, x, y)
        wanted = [f(Fraction(float(a)), Fraction(float(b))) for a, b in zip(x, y, strict=True)]
        inside = [
            (r, w) for r, w in zip(results, wanted, strict=True) if abs(w) <= Fraction(float(values[-1]))
        ]
        assert len(inside) > 100
        assert [float(r) for r, _ in inside] == [nearest(w, dtype, values) for _, w in inside], op


@pytest.mark.parametrize("dtype", NARROW, ids=repr)
def test_wide_numbers_are_rounded_once(dtype: DType) -> None:
    """A double just beside the middle of two neighbours must not be rounded to the middle first."""
    values = representable(dtype)
    generator = np.random.default_rng(2)
    n = generator.integers(len(values) // 4, len(values) * 3 // 4, 200)
    middle = (values[n] + values[n + 1]) / 2
    for side in (-np.inf, np.inf):
        beside = np.nextafter(middle, side)
        assert np.array_equal(round_to(beside, dtype).astype(np.float64), values[n + (side > 0)])
    tied = round_to(middle, dtype).view(f"u{dtype.itemsize}")
    assert not np.any(tied & 1)


def test_large_integers_are_rounded_once_to_bfloat16() -> None:
    beside = (1 << 40) + (1 << 32) + 1  # one above the middle of two bfloat16 neighbours; float32 loses the 1
    assert compute(ops.CAST, dtypes.bfloat16, [beside], of=dtypes.int64) == [float((1 << 40) + (1 << 33))]


def test_what_overflows_is_infinite_or_nan_as_the_type_has_it() -> None:
    big = [1e30, -1e30, np.inf]
    assert compute(ops.CAST, dtypes.float16, big, of=dtypes.float32) == [np.inf, -np.inf, np.inf]
    assert compute(ops.CAST, dtypes.float8_e5m2, big, of=dtypes.float64) == [np.inf, -np.inf, np.inf]
    assert np.isnan(compute(ops.CAST, dtypes.float8_e4m3, big, of=dtypes.float64)).all()
    assert compute(ops.CAST, dtypes.float8_e4m3, [464.0, -0.0], of=dtypes.float64) == [448.0, 0.0]


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_maximum_and_minimum_propagate_nan(dtype: DType) -> None:
    x, y = [1.0, math.nan, 1.0, -2.0], [2.0, 1.0, math.nan, -3.0]
    assert str(compute(ops.MAXIMUM, dtype, x, y)) == str(
        compute(ops.ADD, dtype, [2, math.nan, math.nan, -2], [0] * 4)
    )
    assert str(compute(ops.MINIMUM, dtype, x, y)) == str(
        compute(ops.ADD, dtype, [1, math.nan, math.nan, -3], [0] * 4)
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_negation_flips_the_sign_bit(dtype: DType) -> None:
    values = np.array([0.0, -0.0, 1.5, math.nan], to_numpy(dtype))
    unsigned = f"u{dtype.itemsize}"
    flipped = ELEMENTWISE[ops.NEG](dtype, values).view(unsigned) ^ values.view(unsigned)
    assert set(flipped.tolist()) == {1 << (dtype.bits - 1)}


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_rounding_to_integers(dtype: DType) -> None:
    x = [-1.5, -0.5, 0.5, 1.5, 2.5]
    assert compute(ops.FLOOR, dtype, x) == [-2, -1, 0, 1, 2]
    assert compute(ops.CEIL, dtype, x) == [-1, 0, 1, 2, 3]
    assert compute(ops.TRUNC, dtype, x) == [-1, 0, 0, 1, 2]
    assert compute(ops.RINT, dtype, x) == [-2, 0, 0, 2, 2]


def test_comparisons_with_nan() -> None:
    x, y = [1.0, math.nan, 1.0], [1.0, math.nan, 2.0]
    results = {op: compute(op, dtypes.bool_, x, y, of=dtypes.float32) for op in ops.COMPARISONS}
    assert results == {
        ops.CMPLT: [False, False, True],
        ops.CMPLE: [True, False, True],
        ops.CMPEQ: [True, False, False],
        ops.CMPNE: [False, True, True],
    }


def test_float_floor_division_and_remainder_are_python_s() -> None:
    x, y = [7.5, -7.5, 7.5, -7.5, 1.0, 5.0, -5.0], [2.0, 2.0, -2.0, -2.0, 0.1, math.inf, math.inf]
    assert compute(ops.FLOORDIV, dtypes.float64, x, y) == [a // b for a, b in zip(x, y, strict=True)]
    assert compute(ops.MOD, dtypes.float64, x, y) == [a % b for a, b in zip(x, y, strict=True)]


_MATH = {
    ops.EXP: math.exp, ops.EXP2: math.exp2, ops.EXPM1: math.expm1, ops.LOG: math.log, ops.LOG2: math.log2,
    ops.LOG10: math.log10, ops.LOG1P: math.log1p, ops.SIN: math.sin, ops.COS: math.cos, ops.TAN: math.tan,
    ops.ASIN: math.asin, ops.ACOS: math.acos, ops.ATAN: math.atan, ops.SINH: math.sinh, ops.COSH: math.cosh,
    ops.TANH: math.tanh, ops.ASINH: math.asinh, ops.ACOSH: math.acosh, ops.ATANH: math.atanh,
    ops.ERF: math.erf, ops.SQRT: math.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("op", _MATH, ids=repr)
def test_functions_agree_with_math(op: Op) -> None:
    x = np.linspace(0.01, 0.99, 100)
    if op is ops.ACOSH:
        x = x + 1
    wide = np.array([_MATH[op](v) for v in x])
    assert np.allclose(compute(op, dtypes.float64, x), wide, rtol=4e-16, atol=0)
    x32 = x.astype(np.float32)
    exact = np.array([_MATH[op](float(v)) for v in x32]).astype(np.float32)
    assert compute(op, dtypes.float32, x32) == exact.tolist()


def test_every_function_is_tested() -> None:
    assert set(ops.UNARY_FUNCTIONS) <= _MATH.keys()


def test_angle_and_power() -> None:
    assert compute(ops.ATAN2, dtypes.float32, [1.0, -0.0], [-1.0, -1.0]) == [
        float(np.float32(3 * math.pi / 4)),
        float(np.float32(-math.pi)),
    ]
    assert compute(ops.POW, dtypes.float32, [2.0, 0.0, -8.0], [0.5, 0.0, 3.0]) == [
        float(np.float32(math.sqrt(2))),
        1.0,
        -512.0,
    ]
    assert compute(ops.POW, dtypes.float32, [-math.inf, -0.0], [0.5, 0.5]) == [math.inf, 0.0]


# -- conversions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", INTS, ids=repr)
@pytest.mark.parametrize("source", INTS, ids=repr)
def test_integers_convert_modulo(source: DType, target: DType) -> None:
    assert compute(ops.CAST, target, extremes(source), of=source) == [
        wrap(x, target) for x in extremes(source)
    ]


@pytest.mark.parametrize("target", INTS, ids=repr)
def test_floats_convert_to_integers_through_int64(target: DType) -> None:
    x = [1.9, -1.9, 0.0, -0.0, 300.7, -300.7, 2.0**31, -(2.0**31), 2.0**40 + 3, 1e19, -1e19, 1e300, math.inf]
    x += [-math.inf, math.nan, -(2.0**63), 2.0**63, float(np.nextafter(2.0**64, 0)), 2.0**64]

    def through_int64(v: float) -> int:
        if v != v:
            return 0
        highest = 2**64 - 1 if target is dtypes.uint64 and v > 0 else 2**63 - 1
        whole = int(max(min(v, 1e300), -1e300))
        return wrap(max(min(whole, highest), -(2**63)), target)

    assert compute(ops.CAST, target, x, of=dtypes.float64) == [through_int64(v) for v in x]


def test_conversion_to_bool_asks_for_nonzero() -> None:
    x = [0.0, -0.0, 0.25, math.nan]
    assert compute(ops.CAST, dtypes.bool_, x, of=dtypes.bfloat16) == [False, False, True, True]
    assert compute(ops.CAST, dtypes.bool_, [0, 256], of=dtypes.int32) == [False, True]
    assert compute(ops.CAST, dtypes.float8_e5m2, [False, True], of=dtypes.bool_) == [0.0, 1.0]


@pytest.mark.parametrize("dtype", INTS, ids=repr)
def test_linear_conversion_refuses_what_does_not_fit(dtype: DType) -> None:
    largest = float(np.nextafter(float(dtype.max + 1), 0))
    least = float(dtype.min)
    inside = cast_in_range(dtype, np.array([0.5, -0.5, largest, least]))
    assert inside.tolist() == [0, 0, int(largest), dtype.min]
    for outside in (float(dtype.max + 1), float(np.nextafter(2 * least - 1, -math.inf)), math.nan):
        with pytest.raises(UndefinedError, match="conversion"):
            cast_in_range(dtype, np.array([outside]))


def test_bits_are_reinterpreted() -> None:
    assert compute(ops.BITCAST, dtypes.uint32, [1.0, -0.0], of=dtypes.float32) == [0x3F800000, 0x80000000]
    assert compute(ops.BITCAST, dtypes.bfloat16, [0x3F80], of=dtypes.uint16) == [1.0]
    assert compute(ops.BITCAST, dtypes.bool_, [0, 1], of=dtypes.uint8) == [False, True]


# -- reductions --------------------------------------------------------------------------------------------


_BITWISE = {ops.AND, ops.OR, ops.XOR}


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(o, d) for o in ops.REDUCE_OPS for d in ARRAY_DTYPES if not (d.is_float and o in _BITWISE)],
    ids=repr,
)
def test_an_empty_axis_folds_to_the_identity(op: Op, dtype: DType) -> None:
    result = reduce(op, dtype, np.zeros((2, 0), to_numpy(dtype)), (1,))
    assert result.dtype == to_numpy(dtype)
    assert result.tolist() == [[ops.identity(op, dtype)]] * 2


def test_sums_stay_in_their_type() -> None:
    ones = np.ones((3, 100), np.int8)
    assert reduce(ops.ADD, dtypes.int8, ones * 2, (1,)).tolist() == [[200 - 256]] * 3
    assert reduce(ops.ADD, dtypes.bool_, np.array([True, True]), (0,)).tolist() == [True]
    assert reduce(ops.MUL, dtypes.bool_, np.array([True, False]), (0,)).tolist() == [False]


def test_float_sums_are_rounded_once() -> None:
    tenth = np.full(100000, 0.1, np.float32)
    exact = float(np.float32(float(tenth[0]) * 100000))
    assert reduce(ops.ADD, dtypes.float32, tenth, (0,)).tolist() == [exact]
    assert reduce(ops.ADD, dtypes.float16, np.ones(4096, np.float16), (0,)).tolist() == [4096.0]


def test_extremes_of_data_with_nan_are_nan() -> None:
    x = np.array([1.0, math.nan, -math.inf], np.float32)
    assert np.isnan(reduce(ops.MAXIMUM, dtypes.float32, x, (0,))).all()
    assert np.isnan(reduce(ops.MINIMUM, dtypes.float32, x, (0,))).all()
