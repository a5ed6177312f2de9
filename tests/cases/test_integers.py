"""INT-01, INT-03, INT-04, INT-05: integers are two's complement, wrap, and divide toward minus infinity.

The right values are Python's integers, wrapped. Each operation is tested with operands at run time, with
constants on either side, and by the constant folder. What Python has no answer for: x // 0 and x % 0 are
0, as in NumPy; a shift by the width or more leaves no bit of the value, so that it is 0, or -1 for a
negative value shifted right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retarget as rt
from retarget.ir import ops
from retarget.ir.dtypes import DType, as_dtype
from retarget.ir.simplify import alu
from retarget.ir.uop import const
from retarget_numpy.graph import evaluate

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def edges(dtype: DType) -> list[int]:
    """Values at which integer code goes wrong."""
    low, high = int(dtype.min), int(dtype.max)
    found = {low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 8, 10, 64, high // 2, high // 3, high // 2 + 1}
    if low < 0:
        found |= {-1, -2, -3, -7, -8, low // 2, low // 3}
    return sorted(found)


def shift_left(a: int, n: int, dtype: DType) -> int:
    return a << n if n < dtype.bits else 0


def shift_right(a: int, n: int, dtype: DType) -> int:
    return a >> min(n, dtype.bits)


#: name -> (array function, op, the same of Python integers)
OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], ops.Op, Callable[[int, int, DType], int | bool]]] = {
    "add": (lambda a, b: a + b, ops.ADD, lambda a, b, t: a + b),
    "subtract": (lambda a, b: a - b, ops.SUB, lambda a, b, t: a - b),
    "multiply": (lambda a, b: a * b, ops.MUL, lambda a, b, t: a * b),
    "floor_divide": (lambda a, b: a // b, ops.FLOORDIV, lambda a, b, t: a // b if b else 0),
    "remainder": (lambda a, b: a % b, ops.MOD, lambda a, b, t: a % b if b else 0),
    "maximum": (rt.maximum, ops.MAXIMUM, lambda a, b, t: max(a, b)),
    "minimum": (rt.minimum, ops.MINIMUM, lambda a, b, t: min(a, b)),
    "and": (lambda a, b: a & b, ops.AND, lambda a, b, t: a & b),
    "or": (lambda a, b: a | b, ops.OR, lambda a, b, t: a | b),
    "xor": (lambda a, b: a ^ b, ops.XOR, lambda a, b, t: a ^ b),
    "less": (lambda a, b: a < b, ops.CMPLT, lambda a, b, t: a < b),
    "less_equal": (lambda a, b: a <= b, ops.CMPLE, lambda a, b, t: a <= b),
    "equal": (lambda a, b: a == b, ops.CMPEQ, lambda a, b, t: a == b),
}
SHIFTS: dict[str, tuple[Callable[[Any, Any], Any], ops.Op, Callable[[int, int, DType], int]]] = {
    "left": (lambda a, b: a << b, ops.SHL, shift_left),
    "right": (lambda a, b: a >> b, ops.SHR, shift_right),
}


def counts(dtype: DType) -> list[int]:
    """Shift counts around the width, and beyond every width that hardware masks to."""
    n = dtype.bits
    return [c for c in (0, 1, 2, n - 1, n, n + 1, 31, 32, 33, 63, 64, 65, 127) if c <= dtype.max]


def cases(table: dict[str, Any], dtype: DType) -> tuple[list[int], list[int]]:
    return edges(dtype), (counts(dtype) if table is SHIFTS else edges(dtype))


def expected(function: Any, left: list[int], right: list[int], dtype: DType) -> np.ndarray[Any, Any]:
    values = [function(a, b, dtype) for a, b in zip(left, right, strict=True)]
    if isinstance(values[0], bool):
        return np.array(values)
    return np.array([wrap(v, dtype) for v in values], dtype.name)


@pytest.mark.parametrize("table", [OPERATIONS, SHIFTS], ids=["arithmetic", "shifts"])
@pytest.mark.parametrize("name", INTEGERS)
def test_operands_at_run_time(device: str, compute: Any, name: str, table: dict[str, Any]) -> None:
    dtype = as_dtype(name)
    first, second = cases(table, dtype)
    left = [a for a in first for _ in second]
    right = second * len(first)
    if len(left) % 2 == 0:  # an odd length: the last elements are those of a remainder loop or a mask
        left, right = [*left, left[0]], [*right, right[0]]
    a, b = rt.asarray(np.array(left, name)), rt.asarray(np.array(right, name))
    found = compute(*[f(a, b) for f, _, _ in table.values()])
    for (op, (_, _, function)), values in zip(table.items(), found, strict=True):
        np.testing.assert_array_equal(values, expected(function, left, right, dtype), err_msg=op, strict=True)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("table", [OPERATIONS, SHIFTS], ids=["arithmetic", "shifts"])
@pytest.mark.parametrize("name", INTEGERS)
def test_constants(device: str, compute: Any, name: str, table: dict[str, Any], side: str) -> None:
    dtype = as_dtype(name)
    first, second = cases(table, dtype)
    constants, values = (first, second) if side == "left" else (second, first)
    if device == "clang":
        constants = constants[::3] if table is OPERATIONS else constants[::2]  # the C compiler takes its time
    x = rt.asarray(np.array(values, name))
    arrays, right = [], []
    for op, (f, _, function) in table.items():
        for c in constants:
            k = rt.full((), c, dtype=name)
            arrays.append(f(k, x) if side == "left" else f(x, k))
            sides = ([c] * len(values), values) if side == "left" else (values, [c] * len(values))
            right.append((f"{op} {c}", expected(function, *sides, dtype)))
    for (what, values_), found in zip(right, compute(*arrays), strict=True):
        np.testing.assert_array_equal(found, values_, err_msg=what, strict=True)


@pytest.mark.parametrize("table", [OPERATIONS, SHIFTS], ids=["arithmetic", "shifts"])
@pytest.mark.parametrize("name", INTEGERS)
def test_constant_folder(name: str, table: dict[str, Any]) -> None:
    dtype = as_dtype(name)
    first, second = cases(table, dtype)
    for _, op, function in table.values():
        for a in first:
            for b in second:
                folded = alu(op, const(a, dtype), const(b, dtype))
                value = function(a, b, dtype)
                right = value if isinstance(value, bool) else wrap(value, dtype)
                assert folded.op is ops.CONST and folded.arg == right, (op, a, b, folded.arg)


@pytest.mark.parametrize("name", INTEGERS)
def test_graph_oracle(name: str) -> None:
    dtype = as_dtype(name)
    for table in (OPERATIONS, SHIFTS):
        first, second = cases(table, dtype)
        for f, _, function in table.values():
            for b in second:
                x, k = rt.stack([rt.full((), a, dtype=name) for a in first]), rt.full((), b, dtype=name)
                (found,) = evaluate([f(x, k).node], lambda node: node.data)
                right = expected(function, first, [b] * len(first), dtype)
                np.testing.assert_array_equal(found, right, strict=True)


@pytest.mark.parametrize("name", INTEGERS)
def test_quotient_and_remainder_make_the_dividend(device: str, compute: Any, name: str) -> None:
    dtype = as_dtype(name)
    values = edges(dtype)
    a = rt.asarray(np.array([x for x in values for y in values if y], name))
    b = rt.asarray(np.array([y for _ in values for y in values if y], name))
    (same,) = compute(rt.all(b * (a // b) + a % b == a))
    assert same


def test_lengths_around_vector_widths(device: str, compute: Any) -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65):
        a = rng.integers(-50, 50, n).astype("i4")
        b = rng.integers(-3, 4, n).astype("i4")
        x, y = rt.asarray(a), rt.asarray(b)
        q, r = compute(x // y, x % y)
        right = [(i // j, i % j) if j else (0, 0) for i, j in zip(a.tolist(), b.tolist(), strict=True)]
        assert list(zip(q.tolist(), r.tolist(), strict=True)) == right


# -- INT-03 ----------------------------------------------------------------------------------------------


def test_division_that_is_masked_out(device: str, compute: Any) -> None:
    """Both arms of a where are computed: the unused one must not trap."""
    d = rt.asarray(np.array([0, 2, 0, 5], "i4"))
    low = rt.asarray(np.array([-(2**31)], "i4"))
    minus = rt.asarray(np.array([-1], "i4"))
    safe, half = compute(rt.where(d != 0, 10 // d, 0), rt.where(d > 2, 10 % d, -1))
    assert safe.tolist() == [0, 5, 0, 2] and half.tolist() == [-1, -1, -1, 0]
    assert compute(low // minus)[0].tolist() == [-(2**31)]
    assert compute(rt.where(minus == -1, low, low // minus))[0].tolist() == [-(2**31)]


def test_divisor_that_is_a_constant_expression(device: str, compute: Any) -> None:
    """A divisor that becomes a constant only by folding is treated as one."""
    x = rt.asarray(np.array([7, -7], "i4"))
    zero = rt.full((), 3, dtype="int32") - 3
    minus = rt.full((), 3, dtype="int32") - 4
    q, r, n = compute(x // zero, x % zero, x // minus)
    assert (q.tolist(), r.tolist(), n.tolist()) == ([0, 0], [0, 0], [-7, 7])


# -- INT-04 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGERS)
def test_overflow_is_not_assumed_away(device: str, compute: Any, name: str) -> None:
    """What a C compiler or a simplifier may do with signed integers only if they cannot wrap."""
    dtype = as_dtype(name)
    low, high = int(dtype.min), int(dtype.max)
    values = edges(dtype)
    x = rt.asarray(np.array(values, name))
    found = compute(
        x + 1 > x,
        x - 1 < x,
        (x + high) + high,
        (x - high) - high,
        (x * 2) // 2,
        (x * 4) >> 2,
        rt.negative(-x),
        x + x - x,
        (x + 1) * high - x * high,
        abs(x) >= 0,
        abs(x - 1),
    )
    w = lambda v: wrap(v, dtype)  # noqa: E731
    right = [
        [w(v + 1) > v for v in values],
        [w(v - 1) < v for v in values],
        [w(v + 2 * high) for v in values],
        [w(v - 2 * high) for v in values],
        [w(v * 2) // 2 for v in values],
        [w(v * 4) >> 2 for v in values],
        values,
        values,
        [high] * len(values),
        [w(abs(v)) >= 0 for v in values],
        [w(abs(w(v - 1))) for v in values],
    ]
    assert low == values[0]
    for n, (a, b) in enumerate(zip(found, right, strict=True)):
        assert a.tolist() == b, n


@pytest.mark.parametrize("count", [-1, -64])
def test_negative_constant_shift_counts_are_an_error(count: int) -> None:
    with pytest.raises(TypeError, match="negative"):
        rt.asarray([1], device="numpy") << count


# -- INT-05 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_narrow_integers_wrap_after_every_operation(device: str, compute: Any, name: str) -> None:
    """C promotes them to int and would keep the carry inside a fused expression."""
    dtype = as_dtype(name)
    values = edges(dtype)
    x = rt.asarray(np.array(values, name))
    w = lambda v: wrap(v, dtype)  # noqa: E731
    many = {
        "negate, compare": (-x < 4, [w(-v) < 4 for v in values]),
        "double, halve": ((x + x) >> 1, [w(2 * v) >> 1 for v in values]),
        "invert, halve": (~x >> 1, [w(~v) >> 1 for v in values]),
        "invert, divide": (~x // 3, [w(~v) // 3 for v in values]),
        "abs": (abs(x), [w(abs(v)) for v in values]),
        "abs, compare": (abs(x) > 5, [w(abs(v)) > 5 for v in values]),
        "shift out and back": ((x << 3) >> 3, [w(v << 3) >> 3 for v in values]),
        "product, quotient": (x * x // 7, [w(v * v) // 7 for v in values]),
        "product, remainder": (x * x % 7, [w(v * v) % 7 for v in values]),
        "sum, widened": ((x + x).astype("int64"), [w(2 * v) for v in values]),
        "sum, equal": (x + x == 2 * x, [True for v in values]),
        "difference, maximum": (rt.maximum(x - 3, 1), [max(w(v - 3), 1) for v in values]),
        "sign of negative": (rt.sign(-x), [(w(-v) > 0) - (w(-v) < 0) for v in values]),
        "sum, as float": ((x + x).astype("float32"), [np.float32(w(2 * v)) for v in values]),
        "square": (x**2, [w(v * v) for v in values]),
        "where": (rt.where(x + 1 > x, x + 1, x), [w(v + 1) if w(v + 1) > v else v for v in values]),
    }
    for (what, (_, right)), found in zip(many.items(), compute(*[a for a, _ in many.values()]), strict=True):
        assert found.tolist() == right, what
