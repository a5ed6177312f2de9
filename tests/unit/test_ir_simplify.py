"""simplify.py: folding equals the reference bit for bit, and no rule changes a value."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retarget.ir import dtypes, ops
from retarget.ir.dtypes import ARRAY_DTYPES, DType, to_numpy
from retarget.ir.ops import Op
from retarget.ir.simplify import alu, bitcast, cast, fold, is_lossless, where
from retarget.ir.uop import UOp, const, round_float
from retarget_numpy.semantics import ELEMENTWISE, quiet

INTEGERS = [d for d in ARRAY_DTYPES if d.is_int]
FLOATS = [d for d in ARRAY_DTYPES if d.is_float]
FLOAT_EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 2.0, 3.0, 1e-45, 1e-320, 448.0, 65504.0, 3.0e38, 1e300,
    2.0**31, 2.0**53 + 2, 2.0**63, 2.0**64, -(2.0**63), -1e19, math.inf, -math.inf, math.nan,
]  # fmt: skip
#: Where the op table leaves the result open, or restricts the operands more than the dtype does.
RESTRICTED = {ops.TRUNCDIV, ops.TRUNCMOD, ops.USHL, ops.USHR, ops.BITCAST, ops.CAST, ops.WHERE}


def leaf(name: str, dtype: DType) -> UOp:
    """An operand about which nothing is known."""
    return UOp(ops.PARAM, dtype, (), (name, (), False))


def values(dtype: DType) -> st.SearchStrategy[Any]:
    if dtype.kind == "bool":
        return st.booleans()
    if dtype.is_int:
        lo, hi = int(dtype.min), int(dtype.max)
        edges = (0, 1, 2, 3, 7, 8, -1, -2, lo, lo + 1, hi, hi - 1, dtype.bits)
        near = [v for v in edges if lo <= v <= hi]
        return st.one_of(st.sampled_from(near), st.integers(lo, hi))
    numbers = st.one_of(st.sampled_from(FLOAT_EDGES), st.floats(allow_nan=True), st.floats(-100, 100))
    return numbers.map(lambda v: round_float(v, dtype))


def same(a: Any, b: Any) -> bool:
    """Whether two NumPy scalars have the same type and bits; all NaNs count as one."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return False
    return bool(a.tobytes() == b.tobytes() or (a != a and b != b))


def numpy_const(value: Any, dtype: DType) -> Any:
    return to_numpy(dtype).type(value)


def takes(op: Op, dtype: DType) -> bool:
    """Whether operands of `dtype` suit `op`."""
    operands = (leaf("x", dtype),) * op.arity[0]
    result = dtypes.bool_ if op in ops.COMPARISONS else dtype
    return op.rule(result, operands, None) is None


FOLDABLE = [(op, d) for op in ELEMENTWISE if op not in RESTRICTED for d in ARRAY_DTYPES if takes(op, d)]


@given(st.data(), st.sampled_from(FOLDABLE))
@settings(max_examples=800, deadline=None)
def test_fold_equals_the_reference(data: st.DataObject, case: tuple[Op, DType]) -> None:
    op, dtype = case
    operands = [data.draw(values(dtype)) for _ in range(op.arity[0])]
    result = dtypes.bool_ if op in ops.COMPARISONS else dtype
    found = fold(op, result, *operands)
    if found is None:
        return
    with quiet():
        expected = ELEMENTWISE[op](result, *[numpy_const(v, dtype) for v in operands])
    assert same(numpy_const(found, result), expected), (op, dtype, operands, found, expected)


@given(st.data(), st.sampled_from(ARRAY_DTYPES), st.sampled_from(ARRAY_DTYPES))
@settings(max_examples=800, deadline=None)
def test_folded_casts_equal_the_reference(data: st.DataObject, source: DType, dtype: DType) -> None:
    value = data.draw(values(source))
    found = fold(ops.CAST, dtype, value)
    with quiet():
        expected = ELEMENTWISE[ops.CAST](dtype, numpy_const(value, source))
    assert same(numpy_const(found, dtype), expected), (source, dtype, value, found, expected)


EXACT = [ops.ADD, ops.SUB, ops.MUL, ops.FDIV, ops.CMPLT, ops.CMPEQ, ops.SQRT, ops.RINT]


@pytest.mark.parametrize("op", EXACT)
def test_exact_float_operations_always_fold(op: Op) -> None:
    for x in FLOAT_EDGES:
        for y in FLOAT_EDGES:
            assert fold(op, dtypes.float64, *(x, y)[: op.arity[0]]) is not None


def test_what_is_not_fixed_is_not_folded() -> None:
    assert fold(ops.EXP, dtypes.float32, 0.0) is None
    assert fold(ops.SIN, dtypes.float64, 0.0) is None
    assert fold(ops.MULACC, dtypes.float32, 1.0, 1.0, 1.0) is None
    assert fold(ops.POW, dtypes.float32, 1.0, 1.0) is None
    assert fold(ops.MAXIMUM, dtypes.float32, -0.0, 0.0) is None
    assert fold(ops.NEG, dtypes.float32, math.nan) is None
    assert fold(ops.SHL, dtypes.int32, 1, -1) is None
    assert fold(ops.TRUNCDIV, dtypes.int32, 1, 0) is None


def test_integer_corner_cases() -> None:
    low = int(dtypes.int32.min)
    assert fold(ops.FLOORDIV, dtypes.int32, low, -1) == low
    assert fold(ops.FLOORDIV, dtypes.int32, 7, 0) == 0
    assert fold(ops.MOD, dtypes.int32, -7, 0) == 0
    assert fold(ops.MOD, dtypes.int32, -7, 3) == 2
    assert fold(ops.SHL, dtypes.int32, 1, 32) == 0
    assert fold(ops.SHL, dtypes.int32, 1, 31) == low
    assert fold(ops.SHR, dtypes.int32, -5, 77) == -1
    assert fold(ops.SHR, dtypes.uint32, 5, 77) == 0
    assert fold(ops.TRUNCDIV, dtypes.int32, -7, 2) == -3
    assert fold(ops.TRUNCMOD, dtypes.int32, -7, 2) == -1
    assert fold(ops.TRUNCMOD, dtypes.int64, -(2**63) + 1, 2**62) == -(2**62) + 1
    assert fold(ops.CAST, dtypes.uint8, -1.5) == 255
    assert fold(ops.CAST, dtypes.int32, 1e30) == -1
    assert fold(ops.CAST, dtypes.int64, math.nan) == 0
    assert fold(ops.CAST, dtypes.uint64, 1.5e19) == 15 * 10**18
    assert fold(ops.CAST, dtypes.uint64, math.inf) == 2**64 - 1
    assert fold(ops.CAST, dtypes.float32, 2**24 + 1) == 2.0**24
    assert fold(ops.CAST, dtypes.float32, 2**60 + 2**36 + 1) == 2.0**60 + 2.0**37


@given(st.floats(allow_nan=True), st.sampled_from(FLOATS))
@settings(max_examples=500, deadline=None)
def test_round_float_equals_the_reference(value: float, dtype: DType) -> None:
    with quiet():
        expected = ELEMENTWISE[ops.CAST](dtype, np.float64(value))
    assert same(numpy_const(round_float(value, dtype), dtype), expected)


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.bits <= 16])
def test_round_float_keeps_every_value_and_breaks_ties_to_even(dtype: DType) -> None:
    bits = np.arange(1 << dtype.bits, dtype=np.uint32).astype(f"u{dtype.itemsize}")
    with quiet():
        every = np.sort(bits.view(to_numpy(dtype)).astype(np.float64))
    every = every[np.isfinite(every) & (every >= 0)]
    for v in every:
        assert round_float(float(v), dtype) == v
    for low, high in itertools.pairwise(every):
        if low != high:
            middle = (float(low) + float(high)) / 2
            assert round_float(math.nextafter(middle, 0), dtype) == low
            assert round_float(math.nextafter(middle, math.inf), dtype) == high
            assert round_float(middle, dtype) in (low, high)


# -- rules -------------------------------------------------------------------------------------------------

COMPARISONS = [op for op in ELEMENTWISE if op in ops.COMPARISONS]
BINARY = [op for op in ELEMENTWISE if op.arity == (2, 2) and op not in {*RESTRICTED, *COMPARISONS}]
UNARY = [ops.NEG, ops.NOT, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT, ops.SQRT]


@st.composite
def trees(draw: Any, dtype: DType, depth: int) -> tuple[UOp, UOp]:
    """The same random expression twice: simplified and plain."""
    kind = draw(st.integers(0, 7)) if depth else draw(st.integers(0, 1))
    if kind == 0:
        u = leaf(draw(st.sampled_from("xyz")), dtype)
        return u, u
    if kind == 1:
        u = const(draw(values(dtype)), dtype)
        return u, u
    if kind == 2:
        source = draw(st.sampled_from(ARRAY_DTYPES))
        a, b = draw(trees(source, depth - 1))
        return cast(a, dtype), UOp(ops.CAST, dtype, (b,))
    if kind == 3:
        pairs = [draw(trees(d, depth - 1)) for d in (dtypes.bool_, dtype, dtype)]
        return where(*[p[0] for p in pairs]), UOp(ops.WHERE, dtype, tuple(p[1] for p in pairs))
    if kind == 4 and dtype is not dtypes.bool_:
        sizes = [d for d in ARRAY_DTYPES if d.bits == dtype.bits and d is not dtypes.bool_]
        a, b = draw(trees(draw(st.sampled_from(sizes)), depth - 1))
        return bitcast(a, dtype), UOp(ops.BITCAST, dtype, (b,))
    if dtype is dtypes.bool_ and kind == 5:
        source = draw(st.sampled_from(ARRAY_DTYPES))
        op = draw(st.sampled_from(COMPARISONS))
    else:
        choice = [op for op in (UNARY if kind == 6 else BINARY) if takes(op, dtype)]
        source, op = dtype, draw(st.sampled_from(choice or [ops.MUL]))
    pairs = [draw(trees(source, depth - 1)) for _ in range(op.arity[0])]
    if len(pairs) == 2 and draw(st.integers(0, 3)) == 0:
        pairs[1] = pairs[0]
    return alu(op, *[p[0] for p in pairs]), UOp(op, dtype, tuple(p[1] for p in pairs))


def evaluate(u: UOp, environment: dict[UOp, Any]) -> Any:
    if u.op is ops.PARAM:
        return environment[u]
    if u.op is ops.CONST:
        return numpy_const(u.arg, u.dtype)
    src = [evaluate(s, environment) for s in u.src]
    if u.op in (ops.MAXIMUM, ops.MINIMUM) and u.dtype.is_float and src[0] == src[1] == 0:
        # Either zero may win, so that the order of the operands would matter: let 0.0 be the larger.
        bigger = u.op is ops.MAXIMUM
        return max(src, key=lambda v: bool(np.signbit(v)) != bigger)
    return ELEMENTWISE[u.op](u.dtype, *src)


def leaves(u: UOp) -> set[UOp]:
    return {u} if u.op is ops.PARAM else set().union(*[leaves(s) for s in u.src])


def holds_nan_bits(u: UOp) -> bool:
    """Whether the bits of a NaN are looked at: they are not fixed."""
    return u.op is ops.BITCAST or any(holds_nan_bits(s) for s in u.src)


@given(st.data(), st.sampled_from(ARRAY_DTYPES))
@settings(max_examples=400, deadline=None)
def test_no_rule_changes_a_value(data: st.DataObject, dtype: DType) -> None:
    simple, plain = data.draw(trees(dtype, 3))
    assert simple.dtype is plain.dtype
    for _ in range(3):
        environment: dict[UOp, Any] = {}
        for u in sorted(leaves(plain), key=lambda u: (u.arg[0], str(u.dtype))):
            environment[u] = numpy_const(data.draw(values(u.dtype)), u.dtype)
        if holds_nan_bits(plain) and any(v != v for v in environment.values()):
            continue
        with quiet():
            expected, found = evaluate(plain, environment), evaluate(simple, environment)
        if same(expected, found):
            continue
        with quiet():  # NaNs made on the way have no fixed bits either
            free = holds_nan_bits(plain) and has_nan(plain, environment)
        assert free, (str(plain), str(simple), environment)


def has_nan(u: UOp, environment: dict[UOp, Any]) -> bool:
    value = evaluate(u, environment)
    return bool(value != value) or any(has_nan(s, environment) for s in u.src)


X, F, B = leaf("i", dtypes.int32), leaf("f", dtypes.float32), leaf("b", dtypes.bool_)
Y, G = leaf("j", dtypes.int32), leaf("g", dtypes.float32)
TRUE, FALSE = const(True, dtypes.bool_), const(False, dtypes.bool_)


def i32(v: int) -> UOp:
    return const(v, dtypes.int32)


def f32(v: float) -> UOp:
    return const(v, dtypes.float32)


def plain(op: Op, *src: UOp) -> UOp:
    return UOp(op, dtypes.bool_ if op in ops.COMPARISONS else src[-1].dtype, src)


FIRES = [
    (alu(ops.ADD, X, i32(0)), X),
    (alu(ops.ADD, i32(0), X), X),
    (alu(ops.ADD, F, f32(-0.0)), F),
    (alu(ops.ADD, B, TRUE), TRUE),
    (alu(ops.MUL, X, i32(1)), X),
    (alu(ops.MUL, F, f32(1.0)), F),
    (alu(ops.MUL, X, i32(0)), i32(0)),
    (alu(ops.SUB, X, i32(0)), X),
    (alu(ops.SUB, F, f32(0.0)), F),
    (alu(ops.FDIV, F, f32(1.0)), F),
    (alu(ops.SUB, X, X), i32(0)),
    (alu(ops.ADD, F, alu(ops.NEG, G)), plain(ops.SUB, F, G)),
    (alu(ops.ADD, alu(ops.NEG, F), G), plain(ops.SUB, G, F)),
    (alu(ops.SUB, F, alu(ops.NEG, G)), plain(ops.ADD, F, G)),
    (alu(ops.NEG, alu(ops.NEG, F)), F),
    (alu(ops.NOT, alu(ops.NOT, X)), X),
    (alu(ops.FLOOR, alu(ops.RINT, F)), plain(ops.RINT, F)),
    (where(B, X, X), X),
    (where(TRUE, X, Y), X),
    (where(FALSE, X, Y), Y),
    (where(alu(ops.NOT, B), X, Y), plain(ops.WHERE, B, Y, X)),
    (where(B, TRUE, FALSE), B),
    (where(B, FALSE, TRUE), plain(ops.NOT, B)),
    (alu(ops.AND, B, TRUE), B),
    (alu(ops.AND, B, FALSE), FALSE),
    (alu(ops.OR, B, TRUE), TRUE),
    (alu(ops.OR, B, FALSE), B),
    (alu(ops.XOR, B, TRUE), plain(ops.NOT, B)),
    (alu(ops.AND, X, i32(-1)), X),
    (alu(ops.XOR, X, X), i32(0)),
    (alu(ops.CMPEQ, X, X), TRUE),
    (alu(ops.CMPLE, X, X), TRUE),
    (alu(ops.CMPNE, X, X), FALSE),
    (alu(ops.CMPLT, X, X), FALSE),
    (alu(ops.CMPEQ, B, TRUE), B),
    (alu(ops.CMPNE, B, TRUE), plain(ops.NOT, B)),
    (alu(ops.MAXIMUM, F, F), F),
    (alu(ops.MINIMUM, X, i32(2**31 - 1)), X),
    (alu(ops.MAXIMUM, X, i32(2**31 - 1)), i32(2**31 - 1)),
    (alu(ops.FLOORDIV, X, i32(1)), X),
    (alu(ops.FLOORDIV, X, i32(0)), i32(0)),
    (alu(ops.MOD, X, i32(1)), i32(0)),
    (alu(ops.SHL, X, i32(0)), X),
    (alu(ops.ADD, i32(3), X), plain(ops.ADD, X, i32(3))),
    (alu(ops.ADD, alu(ops.ADD, X, i32(2**31 - 1)), i32(1)), plain(ops.ADD, X, i32(-(2**31)))),
    (alu(ops.ADD, alu(ops.ADD, X, i32(5)), i32(-5)), X),
    (alu(ops.MUL, alu(ops.MUL, X, i32(3)), i32(5)), plain(ops.MUL, X, i32(15))),
    (cast(X, dtypes.int32), X),
    (cast(cast(X, dtypes.int64), dtypes.int32), X),
    (cast(cast(leaf("k", dtypes.int8), dtypes.int32), dtypes.int64),
     UOp(ops.CAST, dtypes.int64, (leaf("k", dtypes.int8),))),
    (cast(cast(B, dtypes.float32), dtypes.bool_), B),
    (cast(cast(leaf("h", dtypes.float16), dtypes.float32), dtypes.float16), leaf("h", dtypes.float16)),
    (cast(cast(X, dtypes.int16), dtypes.uint8), UOp(ops.CAST, dtypes.uint8, (X,))),
    (bitcast(bitcast(X, dtypes.float32), dtypes.int32), X),
    (bitcast(f32(1.0), dtypes.uint32), const(0x3F800000, dtypes.uint32)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(FIRES)))
def test_rule_fires(case: int) -> None:
    found, expected = FIRES[case]
    assert found is expected


STANDS = [
    (ops.ADD, F, f32(0.0)), (ops.SUB, F, f32(-0.0)), (ops.MUL, F, f32(0.0)), (ops.SUB, F, F),
    (ops.CMPEQ, F, F), (ops.MUL, X, i32(8)), (ops.MAXIMUM, F, f32(-math.inf)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(STANDS)))
def test_rule_does_not_fire(case: int) -> None:
    op, *src = STANDS[case]
    assert alu(op, *src) is plain(op, *src)


def test_casts_that_lose_something_stand() -> None:
    d = dtypes
    for x, first, second in ((X, d.float32, d.int32), (X, d.int8, d.int32), (F, d.int32, d.int8)):
        assert cast(cast(x, first), second) is UOp(ops.CAST, second, (UOp(ops.CAST, first, (x,)),))


def test_rules_keep_the_shape_of_graph_nodes() -> None:
    x = UOp(ops.BUFFER, dtypes.int32, (), (0, (4, 4), "numpy"))
    b = UOp(ops.BUFFER, dtypes.bool_, (), (1, (4, 4), "numpy"))
    zero, one = const(0, dtypes.int32), const(1, dtypes.int32)
    for u in (
        alu(ops.MUL, x, zero), alu(ops.SUB, x, x), alu(ops.CMPEQ, x, x), alu(ops.ADD, one, x),
        alu(ops.SUB, one, x),
        where(b, one, one), where(TRUE, one, x), where(FALSE, one, x), alu(ops.ADD, x, zero),
        where(b, TRUE, FALSE), alu(ops.XOR, x, x), alu(ops.MOD, x, one),
    ):  # fmt: skip
        assert u.shape == (4, 4), str(u)
    assert alu(ops.ADD, x, zero) is x
    assert where(FALSE, one, x) is x


@given(st.data(), st.sampled_from(ARRAY_DTYPES), st.sampled_from(ARRAY_DTYPES))
@settings(max_examples=500, deadline=None)
def test_lossless_casts_come_back(data: st.DataObject, source: DType, dtype: DType) -> None:
    value = data.draw(values(source))
    if is_lossless(source, dtype):
        there = fold(ops.CAST, dtype, value)
        assert there is not None
        assert there == value or value != value
    elif dtype.kind != "bool" and source.kind == dtype.kind:
        wider = [a for a in ("bits", "mantissa", "exponent") if getattr(source, a) > getattr(dtype, a)]
        assert wider
