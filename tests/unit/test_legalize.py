"""Legalized integer ops, conversions, bools and narrow floats, against NumPy and ml_dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from linear_eval import evaluate, variable

from retarget.codegen.legalize import Legalizer, constant_value
from retarget.errors import DTypeError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import ARRAY_DTYPES, DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.uop import UOp, const, toposort
from retarget.registry.capabilities import Capabilities, Entry, Support
from retarget_numpy.semantics import ELEMENTWISE, quiet

INTEGERS = [d for d in ARRAY_DTYPES if d.is_int]
NARROW = [dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2]
RNG = np.random.default_rng(2024)


def capabilities(**changes: Any) -> Capabilities:
    """Return a target that computes in everything but narrow floats."""
    supported, emulated = Entry(Support.SUPPORTED), Entry(Support.EMULATED, "in float32")
    arithmetic = {d.name: emulated if d in NARROW else supported for d in ARRAY_DTYPES}
    storage = {d.name: supported for d in ARRAY_DTYPES}
    return Capabilities("test", storage, **{"arithmetic": arithmetic, **changes})


LEGALIZE = Legalizer(capabilities())


def run(op: Op, dtype: DType, *operands: Any, legalize: Legalizer = LEGALIZE, fast_math: bool = False) -> Any:
    """Legalize `op` on variables of the operands' types, on vectors, and evaluate it; UOps stand for
    themselves.
    """
    types = [dtypes.as_dtype(a.dtype) if not isinstance(a, UOp) else a.dtype for a in operands]
    src = tuple(
        a if isinstance(a, UOp) else variable(t.vector(4), f"x{i}")
        for i, (a, t) in enumerate(zip(operands, types, strict=True))
    )
    root = legalize(op, dtype.vector(4), src, fast_math)
    assert root.dtype is dtype.vector(4)
    for u in toposort([root]):
        if any(s.dtype.scalar in NARROW for s in u.src) and u.op not in (
            ops.WHERE,
            ops.BITCAST,
            ops.BROADCAST,
        ):
            assert u.op is ops.CAST and u.src[0].dtype.name in legalize.caps.conversions
    values = {s: a for s, a in zip(src, operands, strict=True) if not isinstance(a, UOp)}
    return np.asarray(evaluate(root, values))


def broadcast(value: Any, dtype: DType) -> UOp:
    return UOp(ops.BROADCAST, dtype.vector(4), (const(value, dtype),))


def same(got: Any, want: Any) -> None:
    """Assert equal values, NaN equal to NaN and zeros of equal sign."""
    assert got.dtype == want.dtype
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    with quiet():
        wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(wide_got, wide_want)
    number = ~np.isnan(wide_want)
    np.testing.assert_array_equal(np.signbit(wide_got[number]), np.signbit(wide_want[number]))


def integers(dtype: DType) -> tuple[Any, Any]:
    """Return pairs of operands: all of int8, otherwise boundaries against each other and random numbers."""
    lo, hi = int(dtype.min), int(dtype.max)
    if dtype.bits == 8:
        every = np.arange(lo, hi + 1).astype(to_numpy(dtype))
        return tuple(a.ravel() for a in np.meshgrid(every, every))
    edges = [lo, lo + 1, lo // 2, -8, -7, -3, -2, -1, 0, 1, 2, 3, 7, 8, dtype.bits, hi // 2, hi - 1, hi]
    edges = [v for v in edges if lo <= v]
    x, y = np.array(list(itertools.product(edges, edges)), dtype=object).T
    random = [RNG.integers(lo, hi, 2000, dtype=to_numpy(dtype), endpoint=True) for _ in range(2)]
    random[1][::2] >>= dtype.bits // 2
    return (
        np.concatenate([x.astype(to_numpy(dtype)), random[0]]),
        np.concatenate([y.astype(to_numpy(dtype)), random[1]]),
    )


# -- integers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@pytest.mark.parametrize(
    "op", [ops.FLOORDIV, ops.MOD, ops.SHL, ops.SHR, ops.POW, ops.MAXIMUM, ops.MINIMUM], ids=repr
)
def test_integer_ops_with_any_operands(op: Op, dtype: DType) -> None:
    x, y = integers(dtype)
    if op in (ops.SHL, ops.SHR):
        x, y = x[y >= 0], y[y >= 0]
    with quiet():
        want = ELEMENTWISE[op](dtype, x, y)
    same(run(op, dtype, x, y), want)


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@pytest.mark.parametrize("op", [ops.FLOORDIV, ops.MOD, ops.SHL, ops.SHR, ops.POW], ids=repr)
def test_constant_second_operand_gives_what_a_variable_one_does(op: Op, dtype: DType) -> None:
    x, _ = integers(dtype)
    candidates = {
        int(dtype.min),
        -128,
        -7,
        -4,
        -3,
        -2,
        -1,
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        13,
        31,
        32,
        63,
        64,
        100,
        int(dtype.max),
    }
    for value in sorted(candidates):
        if not dtype.min <= value <= dtype.max or (value < 0 and op in (ops.SHL, ops.SHR)):
            continue
        with quiet():
            want = ELEMENTWISE[op](dtype, x, np.full_like(x, value))
        same(np.broadcast_to(run(op, dtype, x, broadcast(value, dtype)), want.shape), want)


def test_division_rounds_down_and_never_traps() -> None:
    a, b = np.array([7, -7, 7, -7, -1, 1], np.int32), np.array([2, 2, -2, -2, 2, -2], np.int32)
    assert run(ops.FLOORDIV, dtypes.int32, a, b).tolist() == [3, -4, -4, 3, -1, -1]
    assert run(ops.MOD, dtypes.int32, a, b).tolist() == [1, 1, -1, -1, 1, -1]
    for dtype in (dtypes.int8, dtypes.int32, dtypes.int64):
        least = np.array([dtype.min, 10, 10], to_numpy(dtype))
        divisor = np.array([-1, 0, 5], to_numpy(dtype))
        assert run(ops.FLOORDIV, dtype, least, divisor).tolist() == [dtype.min, 0, 2]
        assert run(ops.MOD, dtype, least, divisor).tolist() == [0, 0, 0]


def test_constant_powers_of_two_divide_without_dividing() -> None:
    x = variable(dtypes.int32)
    for op, cheap in ((ops.FLOORDIV, ops.USHR), (ops.MOD, ops.AND)):
        root = LEGALIZE(op, dtypes.int32, (x, const(8, dtypes.int32)))
        assert root.op is cheap and root.src[0] is x


def test_constant_value_looks_through_broadcast() -> None:
    assert constant_value(broadcast(3, dtypes.int32)) == 3
    assert constant_value(variable(dtypes.int32)) is None


@pytest.mark.parametrize("op", [ops.ADD, ops.MUL, ops.MAXIMUM, ops.MINIMUM, ops.AND, ops.OR, ops.XOR,
ops.CMPLT,
                                ops.CMPLE, ops.CMPEQ, ops.CMPNE], ids=repr)  # fmt: skip
def test_bool_ops(op: Op) -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    same(run(op, dtypes.bool_, x, y), ELEMENTWISE[op](dtypes.bool_, x, y))


# -- conversions ---------------------------------------------------------------------------------------------


def patterns(dtype: DType) -> Any:
    """Return every value of a type of up to 16 bits; boundaries and random bit patterns of a wider one."""
    numpy = to_numpy(dtype)
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.bits <= 16:
        return np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}").view(numpy)
    random = RNG.integers(0, 1 << dtype.bits, 20000, dtype=f"u{dtype.itemsize}").view(numpy)
    if dtype.is_int:
        powers = np.array([1 << i for i in range(dtype.bits - 1)], dtype=numpy)
        near = np.concatenate([powers - numpy.type(1), powers, powers + numpy.type(1)])
        # What lies halfway between narrow floats, and just beside it.
        ties = np.concatenate([(near >> numpy.type(8)) * numpy.type(257) + numpy.type(d) for d in (0, 1)])
        sized = random >> RNG.integers(0, dtype.bits, random.size, dtype=numpy)
        small = np.arange(0, 5000, dtype=numpy)
        found = np.concatenate([near, ties, random, sized, small])
        return np.concatenate([found, -found, ~found])
    values = [
        random,
        np.array([0.0, np.inf, np.nan, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 3e9, 255.9, 2.9, 0.5], numpy),
    ]
    for narrow in NARROW:  # every narrow value, halfway to the next, and what is next to that
        bits = np.arange(1 << narrow.bits, dtype=f"u{narrow.itemsize}")
        with quiet():
            every = bits.view(to_numpy(narrow)).astype(np.float64)
        every = np.unique(every[np.isfinite(every)])
        values.append(every.astype(numpy))
        middle = ((every[1:] + every[:-1]) / 2).astype(numpy)
        values += [
            middle,
            np.nextafter(middle, numpy.type(np.inf)),
            np.nextafter(middle, numpy.type(-np.inf)),
        ]
    with quiet():
        whole = (RNG.integers(0, 1 << 24, 20000) * 2.0 ** RNG.integers(-30, 45, 20000)).astype(numpy)
    values += [whole, np.array([65504, 65519, 65520, 65536, 448, 464, 465, 480, 57344, 61439, 61440], numpy)]
    found = np.concatenate(values)
    return np.concatenate([found, -found])


@pytest.mark.parametrize(
    "conversions", [frozenset(), frozenset({"float16", "bfloat16"})], ids=["bits", "native"]
)
@pytest.mark.parametrize("target", ARRAY_DTYPES, ids=repr)
@pytest.mark.parametrize("start", ARRAY_DTYPES, ids=repr)
def test_cast(start: DType, target: DType, conversions: frozenset[str]) -> None:
    x = patterns(start)
    legalize = Legalizer(capabilities(conversions=conversions))
    with quiet():
        same(run(ops.CAST, target, x, legalize=legalize), np.asarray(ELEMENTWISE[ops.CAST](target, x)))


def test_cast_policy() -> None:
    floats = np.array([-3, -0.5, 2.9, 255.9], np.float32)
    assert run(ops.CAST, dtypes.uint8, floats).tolist() == [253, 0, 2, 255]
    assert run(ops.CAST, dtypes.uint32, np.array([3e9], np.float32)).tolist() == [3000000000]
    ends = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32)
    assert run(ops.CAST, dtypes.int64, ends).tolist() == [0, 2**63 - 1, -(2**63), 2**63 - 1]
    assert run(ops.CAST, dtypes.int32, ends).tolist() == [0, -1, 0, -1]
    assert run(ops.CAST, dtypes.uint64, np.array([2.0**63, 2.0**64])).tolist() == [2**63, 2**64 - 1]
    truths = np.array([0.5, 2, 0, -0.0, np.nan, -1], np.float32)
    assert run(ops.CAST, dtypes.bool_, truths).tolist() == [True, True, False, False, True, True]


# -- narrow floats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NARROW, ids=repr)
@pytest.mark.parametrize(
    "op",
    [ops.ADD, ops.SUB, ops.MUL, ops.FDIV, ops.MAXIMUM, ops.MINIMUM, ops.FLOORDIV, ops.MOD, ops.CMPLT,
    ops.CMPLE,
     ops.CMPEQ, ops.CMPNE, ops.SQRT, ops.NEG, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT],
    ids=repr,
)  # fmt: skip
def test_narrow_floats_round_after_each_op(op: Op, dtype: DType) -> None:
    bits = RNG.integers(0, 1 << dtype.bits, (2, 50000), dtype=f"u{dtype.itemsize}")
    x, y = bits.view(to_numpy(dtype))
    operands = (x, y)[: len(op.operands)]
    with quiet():
        if op in (ops.FLOORDIV, ops.MOD):  # exact while the quotient fits float32's significand
            quotient = np.abs(x.astype(np.float64) / y.astype(np.float64))
            inside = (quotient < 2.0**22) | ~np.isfinite(quotient)
            operands = tuple(a[inside] for a in operands)
        want = ELEMENTWISE[op](dtype, *operands)
    result = dtypes.bool_ if op in ops.COMPARISONS else dtype
    got = run(op, result, *operands)
    if op in (ops.MAXIMUM, ops.MINIMUM):  # which of two zeros is chosen is another test's
        zero = np.zeros(got.shape, got.dtype)
        got, want = (np.where(a.astype(np.float32) == 0, zero, a) for a in (got, want))
    same(got, np.asarray(want))


def test_float16_sum_overflows_between_ops() -> None:
    a = variable(dtypes.float16)
    total = LEGALIZE(ops.SUB, dtypes.float16, (LEGALIZE(ops.ADD, dtypes.float16, (a, a)), a))
    assert evaluate(total, {a: np.array([60000], np.float16)}).tolist() == [np.inf]


def test_a_constant_operand_is_widened_at_compile_time() -> None:
    x = variable(dtypes.bfloat16)
    root = LEGALIZE(ops.MUL, dtypes.bfloat16, (x, const(0.5, dtypes.bfloat16)))
    assert const(0.5, dtypes.float32) in toposort([root])


# -- floats and targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=repr)
def test_maximum_and_minimum_keep_nan(dtype: DType) -> None:
    values = np.array([0.0, 1, -1, np.inf, -np.inf, np.nan], to_numpy(dtype))
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    same(run(ops.MAXIMUM, dtype, x, y), np.maximum(x, y))
    same(run(ops.MINIMUM, dtype, x, y), np.minimum(x, y))
    zeros, others = np.array([0.0, -0.0], to_numpy(dtype)), np.array([-0.0, 0.0], to_numpy(dtype))
    for op in (ops.MAXIMUM, ops.MINIMUM):
        same(run(op, dtype, zeros, others), others)


def test_basic_ops_stay() -> None:
    x, y = variable(dtypes.float32, "x"), variable(dtypes.float32, "y")
    for op in (ops.ADD, ops.FDIV, ops.SQRT, ops.MULACC, ops.NEG):
        src = (x, y, x)[: len(op.operands)]
        assert LEGALIZE(op, dtypes.float32, src) is UOp(op, dtypes.float32, src)


def test_division_by_a_constant_is_multiplication_only_where_exact() -> None:
    x = variable(dtypes.float32)
    for divisor, fast, expected in ((4.0, False, ops.MUL), (3.0, False, ops.FDIV), (3.0, True, ops.MUL),
                                    (2.0**127, False, ops.FDIV), (0.0, True, ops.FDIV)):  # fmt: skip
        root = LEGALIZE(ops.FDIV, dtypes.float32, (x, const(divisor, dtypes.float32)), fast)
        assert root.op is expected


def test_native_functions_are_used_when_accurate_enough() -> None:
    x = variable(dtypes.float32)
    for bound, native in ((0.5, True), (20.0, False)):
        legalize = Legalizer(capabilities(functions={"EXP": {"float32": bound}}))
        root = legalize(ops.EXP, dtypes.float32, (x,))
        assert (root is UOp(ops.EXP, dtypes.float32, (x,))) is native
    legalize = Legalizer(capabilities(functions={"MAXIMUM": {"int32": 0.0}}))
    y = variable(dtypes.int32)
    assert legalize(ops.MAXIMUM, dtypes.int32, (y, y)).op is ops.MAXIMUM


def test_without_float64_nothing_uses_it_and_its_own_ops_are_refused() -> None:
    arithmetic = {d.name: Entry(Support.SUPPORTED) for d in (dtypes.float32, *INTEGERS, dtypes.bool_)}
    legalize = Legalizer(capabilities(arithmetic=arithmetic))
    x = variable(dtypes.float32)
    for op in (*ops.UNARY_FUNCTIONS, ops.POW, ops.ATAN2, ops.MOD, ops.FLOORDIV):
        root = legalize(op, dtypes.float32, (x,) * len(op.operands))
        assert all(u.dtype.scalar is not dtypes.float64 for u in toposort([root]))
    with pytest.raises(DTypeError, match="does not compute in float64"):
        legalize(ops.ADD, dtypes.float64, (variable(dtypes.float64),) * 2)


def test_native_float16_computes_functions_in_float32() -> None:
    arithmetic = {d.name: Entry(Support.SUPPORTED) for d in ARRAY_DTYPES}
    legalize = Legalizer(capabilities(arithmetic=arithmetic))
    x = variable(dtypes.float16)
    assert legalize(ops.ADD, dtypes.float16, (x, x)).op is ops.ADD
    values = patterns(dtypes.float16)
    with quiet():
        want = np.exp(values.astype(np.float64)).astype(np.float16)
    got = evaluate(legalize(ops.EXP, dtypes.float16, (x,)), {x: values})
    off = got[np.isfinite(want)].view(np.int16).astype(int) - want[np.isfinite(want)].view(np.int16)
    assert np.abs(off).max() <= 1
