"""Elementwise functions against NumPy: every function, dtype and kind of operand, special values included."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import DeviceError, DTypeError, ShapeError
from retarget.ir.dtypes import ARRAY_DTYPES, promote, to_numpy

pytestmark = pytest.mark.usefixtures("oracle_runtime")

INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
SHAPES = [(), (1,), (5,), (0,), (2, 3), (3, 0, 2)]

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -2.5, 3.0, 1e-7, -1e4, 6e4, 2.0**-24]


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Return values of a dtype, special and extreme ones among them."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTS:
        info = np.iinfo(dtype)
        pool = np.array([info.min, info.max, 0, 1, 2, 3, 5, info.max - 1], dtype)
        return rng.choice(pool, shape).astype(dtype)
    return rng.choice(np.array(SPECIAL), shape).astype(dtype)


def same(got: rt.Array, expected: Any, *, rtol: float = 0.0) -> None:
    """Check shape, dtype and values: equal ones, the sign of zeros and NaN included, or close ones."""
    values, wanted = np.asarray(got), np.asarray(expected)
    assert values.shape == wanted.shape == got.shape
    assert values.dtype == wanted.dtype == to_numpy(got.dtype)
    if rtol:
        np.testing.assert_allclose(values, wanted, rtol=rtol, atol=rtol * 1e-3)
    else:
        np.testing.assert_array_equal(values, wanted)
        if values.dtype.kind == "f":
            zero = (values == 0) & (wanted == 0)
            np.testing.assert_array_equal(np.signbit(values)[zero], np.signbit(wanted)[zero])


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
    "minimum": np.minimum, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in BINARY for d in ["bool", *INTS, *FLOATS] if (n, d) != ("subtract", "bool")],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_binary_of_equal_operands(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    x, y = sample(dtype, shape, 1), sample(dtype, shape, 2)
    with np.errstate(all="ignore"):
        expected = BINARY[name](x, y)
    got = getattr(rt, name)(rt.asarray(x), rt.asarray(y))
    if name in ("maximum", "minimum") and dtype in FLOATS:  # which zero comes first is open
        np.testing.assert_array_equal(np.asarray(got), expected)
    else:
        same(got, expected)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(name: str, dtype: str) -> None:
    x, y = sample(dtype, (40,), 1), sample(dtype, (40,), 2)
    same(getattr(rt, name)(rt.asarray(x), rt.asarray(y)), getattr(np, name)(x, y))
    same(rt.bitwise_invert(rt.asarray(x)), ~x)


def test_shifts_beyond_the_width() -> None:
    same(rt.asarray(np.int32([1, 1, 1])) << rt.asarray(np.int32([31, 32, 33])), np.int32([-(2**31), 0, 0]))
    same(rt.asarray(np.int32([-8, 8])) >> 32, np.int32([-1, 0]))
    same(rt.asarray(np.uint8([128])) >> 2, np.uint8([32]))
    same(rt.asarray(np.int8([-128])) >> 2, np.int8([-32]))


def test_integers_wrap_in_their_own_width() -> None:
    x = rt.asarray(np.uint8([6, 200]))
    same((-x) < 4, [False, False])
    same((x + x) >> 1, np.uint8([6, 72]))
    same(rt.abs(x), np.uint8([6, 200]))
    same(abs(rt.asarray(np.int8([-128, -5]))), np.int8([-128, 5]))
    big = rt.asarray(np.int32([2**31 - 1]))
    same((big + 1) > big, [False])
    same((rt.asarray(np.int32([3])) + (2**31 - 1)) + (2**31 - 1), np.int32([1]))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_floor_division_and_remainder(dtype: str) -> None:
    a, b = np.array([7, -7, 7, -7, -1, 1], dtype), np.array([2, 2, -2, -2, 2, -2], dtype)
    x, y = rt.asarray(a), rt.asarray(b)
    same(x // y, np.array([3, -4, -4, 3, -1, -1], dtype))
    same(x % y, np.array([1, 1, -1, -1, 1, -1], dtype))
    for n, d in zip(a.tolist(), b.tolist(), strict=True):
        same(rt.full((), n, dtype=dtype) // d, np.array(n // d, dtype))
        same(n % rt.full((), d, dtype=dtype), np.array(n % d, dtype))
    lowest = np.iinfo(dtype).min
    same(rt.asarray(np.array([lowest], dtype)) // -1, np.array([lowest], dtype))
    same(rt.asarray(np.array([lowest], dtype)) % -1, np.array([0], dtype))
    same(10 // rt.asarray(np.array([0], dtype)), np.array([0], dtype))
    d = rt.asarray(np.array([0, 2, 0, 5], dtype))
    same(rt.where(d != 0, 10 // d, 0), np.array([0, 5, 0, 2], dtype))


FLOAT_FUNCTIONS = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "reciprocal": np.reciprocal,
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions(name: str, dtype: str) -> None:
    x = np.array(SPECIAL).astype(dtype)
    with np.errstate(all="ignore"):
        expected = FLOAT_FUNCTIONS[name](x.astype(np.float64)).astype(dtype)
    same(
        getattr(rt, name)(rt.asarray(x)),
        expected,
        rtol={"float16": 2e-3, "float32": 5e-7, "float64": 1e-14}[dtype],
    )


@pytest.mark.parametrize("name", [*FLOAT_FUNCTIONS, "erf", "rsqrt"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int64"])
def test_integers_become_float32_in_float_functions(name: str, dtype: str) -> None:
    function = getattr(rt, name)
    x = rt.asarray(np.array([0, 1, 1], dtype))
    got = function(x)
    assert got.dtype is rt.float32
    assert got.node is function(x.astype("float32")).node


def test_true_division_of_integers_is_float32() -> None:
    for dtype in ("bool", *INTS):
        x = np.array([1, 1, 0], dtype)
        same(rt.asarray(x) / rt.asarray(np.array([1, 0, 0], dtype)), np.float32([1, np.inf, np.nan]))
    same(7 / rt.asarray([2, 4]), np.float32([3.5, 1.75]))
    same(rt.asarray([1.0, 3.0]) / 3, np.float32([1.0, 3.0]) / np.float32(3))


ROUNDING = {"ceil": np.ceil, "floor": np.floor, "round": np.round, "trunc": np.trunc}


@pytest.mark.parametrize("name", [*ROUNDING, "abs", "sign", "square", "negative", "positive"])
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_unary_arithmetic(name: str, dtype: str) -> None:
    x = sample(dtype, (60,), 3)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    same(getattr(rt, name)(rt.asarray(x)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_classification(dtype: str) -> None:
    x = np.array([*SPECIAL, -math.nan]).astype(dtype)
    for name in ("isnan", "isinf", "isfinite", "signbit"):
        same(getattr(rt, name)(rt.asarray(x)), getattr(np, name)(x))


def test_classification_of_other_dtypes() -> None:
    import ml_dtypes

    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        x = np.array([0.0, -1.0, math.inf, math.nan, 200.0], np.float32).astype(dtype)
        for name in ("isnan", "isinf", "isfinite", "signbit"):
            same(getattr(rt, name)(rt.asarray(x)), getattr(np, name)(x))
    for dtype in ("bool", "int8", "uint64"):
        x = rt.zeros(3, dtype=dtype)
        same(rt.isfinite(x), [True] * 3)
        same(rt.isnan(x), [False] * 3)
        same(rt.isinf(x), [False] * 3)


PAIRS = [(a, b) for a in SPECIAL for b in SPECIAL]


@pytest.mark.parametrize("name", ["copysign", "nextafter"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_bits(name: str, dtype: str) -> None:
    x, y = np.array(PAIRS).astype(dtype).T
    expected = getattr(np, name)(x, y)
    if name == "nextafter":  # C: the second operand; NumPy's float16 has the first
        expected = np.where(x == y, y, expected)
    same(getattr(rt, name)(rt.asarray(x), rt.asarray(y)), expected)


@pytest.mark.parametrize("name", ["hypot", "logaddexp"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_compositions_at_special_values(name: str, dtype: str) -> None:
    x, y = np.array(PAIRS).astype(dtype).T
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype("f8"), y.astype("f8")).astype(dtype)
    tolerance = {"float16": 4e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    same(getattr(rt, name)(rt.asarray(x), rt.asarray(y)), expected, rtol=tolerance)


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_hypot_neither_overflows_nor_underflows(a: float, b: float) -> None:
    got = float(rt.hypot(rt.asarray(a), rt.asarray(b)))
    exact = math.hypot(a, b)
    if exact < float(np.finfo("f4").max):
        assert got == pytest.approx(exact, rel=1e-6, abs=2e-45)
    else:
        assert got >= float(np.finfo("f4").max) * (1 - 1e-6)


def test_power() -> None:
    base = rt.asarray(np.float32([-2.0, 0.0, 1.5, np.nan, -np.inf]))
    values = np.asarray(base)
    for exponent in (0, 1, 2, 3, -1, 0.5, 2.0, -2.5):
        with np.errstate(all="ignore"):
            same(base**exponent, np.power(values, np.full(5, exponent, "f4")), rtol=1e-6)
    ints = rt.asarray(np.int8([-3, 0, 2, 7]))
    for exponent in range(9):
        same(ints**exponent, np.int8([-3, 0, 2, 7]) ** np.int8(exponent))
    same(2 ** rt.asarray([0, 1, 62]), np.int64([1, 2, 2**62]))
    with pytest.raises(DTypeError, match="no power -1"):
        ints**-1


def test_clip() -> None:
    x = np.float32([-5, -0.5, 0.5, 9, np.nan])
    same(rt.clip(rt.asarray(x), -1, 1), np.clip(x, -1, 1))
    same(rt.clip(rt.asarray(x), max=1), np.clip(x, None, 1))
    same(
        rt.clip(rt.asarray(x), rt.asarray(np.float32([0, 1, 2, 3, 4]))),
        np.clip(x, np.arange(5, dtype="f4"), None),
    )
    same(rt.clip(rt.asarray(x), 3, 1), np.clip(x, 3, 1))


def test_nan_in_comparisons_and_extremes() -> None:
    x = rt.asarray(np.float32([np.nan, 1]))
    same(x != x, [True, False])
    same(x == 6, [False, False])
    same(~(x < 1), [True, True])
    same(x >= 1, [False, True])
    same(rt.where(x != x, 0, x), np.float32([0, 1]))
    same(x - x, np.float32([np.nan, 0]))
    same(x * 0, np.float32([np.nan, 0]))
    inf = rt.asarray(np.float32([np.inf, 1]))
    same(inf - inf, np.float32([np.nan, 0]))
    same(inf * 0, np.float32([np.nan, 0]))
    a, b = rt.asarray(np.float32([1, np.nan, 3])), rt.asarray(np.float32([np.nan, 2, -1]))
    same(rt.maximum(a, b), np.float32([np.nan, np.nan, 3]))
    same(rt.minimum(a, b), np.float32([np.nan, np.nan, -1]))


def test_casts() -> None:
    same(rt.asarray(np.float32([-3, -0.5, 2.9, 255.9])).astype("uint8"), np.uint8([253, 0, 2, 255]))
    same(rt.asarray(np.float32([3e9])).astype("uint32"), np.uint32([3000000000]))
    same(rt.asarray(np.float32([-2.9, 2.9])).astype("int32"), np.int32([-2, 2]))
    flags = rt.asarray(np.float32([0.5, 2, 0, -0.0, np.nan, -1])).astype("bool")
    same(flags, [True, True, False, False, True, True])
    same(rt.asarray(np.int32([256, -256, 0, 65536])).astype(bool), [True, True, False, True])
    same(rt.asarray(True).astype("float32"), np.float32(1))
    same(rt.asarray(True) + rt.asarray(True), np.bool_(True))
    half = rt.asarray(np.float32([65504, 65519, 65520, 65536, -65536])).astype("float16")
    same(half, np.float16([65504, 65504, np.inf, np.inf, -np.inf]))
    a = rt.asarray(np.float16([60000]))
    same((a + a) - a, np.float16([np.inf]))
    x = rt.asarray([1.0])
    assert rt.astype(x, "float32", copy=False) is x
    assert rt.astype(x, "float32") is not x


@pytest.mark.parametrize(
    "value", [0, -0.0, 1, 300, -1, 0.1, 1e300, math.nan, math.inf, 2**53 + 1, 2**63 - 1, True]
)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_casting_a_constant_is_casting_its_value(value: float, dtype: str) -> None:
    """Folding a cast of a constant gives what the cast gives at run time."""
    if math.isfinite(value) or dtype not in ("uint8", "int64"):
        source = "float64" if isinstance(value, float) else "bool" if value is True else "int64"
        if source == "float64" and abs(value) > 2**62 and dtype in ("uint8", "int64"):
            return  # has no value in an integer dtype
        folded = rt.full((2,), value, dtype=source).astype(dtype)
        same(folded, np.asarray(rt.asarray(np.array([value, value], source)).astype(dtype)))


def test_where_broadcasts_and_promotes() -> None:
    mask = rt.asarray([[True], [False]])
    x, y = rt.arange(3), rt.asarray(np.float32([0.5, np.nan, 1.5]))
    same(rt.where(mask, x, y), np.float32([[0, 1, 2], [0.5, np.nan, 1.5]]))
    same(rt.where(mask, 1, 0), np.int64([[1], [0]]))
    same(rt.where(rt.asarray([2.0, 0.0]), True, False), [True, False])
    assert rt.where(mask, rt.asarray(np.int8(1)), 2.0).dtype is rt.float32


# -- promotion -----------------------------------------------------------------------------------------------

# The array API's table (2024.12, "Type promotion rules"), row by row.
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
TABLE = {
    **{(a, b): max(a, b, key=lambda d: int(d[3:])) for a in SIGNED for b in SIGNED},
    **{(a, b): max(a, b, key=lambda d: int(d[4:])) for a in UNSIGNED for b in UNSIGNED},
    ("int8", "uint8"): "int16", ("int8", "uint16"): "int32", ("int8", "uint32"): "int64",
    ("int16", "uint8"): "int16", ("int16", "uint16"): "int32", ("int16", "uint32"): "int64",
    ("int32", "uint8"): "int32", ("int32", "uint16"): "int32", ("int32", "uint32"): "int64",
    ("int64", "uint8"): "int64", ("int64", "uint16"): "int64", ("int64", "uint32"): "int64",
    ("float32", "float32"): "float32", ("float32", "float64"): "float64", ("float64", "float64"): "float64",
    ("bool", "bool"): "bool",
}  # fmt: skip


@pytest.mark.parametrize("pair", TABLE, ids=str)
def test_promotion_table(pair: tuple[str, str]) -> None:
    for a, b in (pair, pair[::-1]):
        x, y = rt.ones((2,), dtype=a), rt.ones((3, 1), dtype=b)
        assert (x + y).dtype.name == rt.result_type(a, b).name == TABLE[pair]
        assert rt.where(rt.asarray(True), x, y).dtype.name == TABLE[pair]


def test_promotion_is_associative_enough() -> None:
    """Promotion commutes, and a dtype promotes to itself; the table has no holes."""
    for a in ARRAY_DTYPES:
        assert promote(a, a) is a
        for b in ARRAY_DTYPES:
            assert promote(a, b) is promote(b, a)


@pytest.mark.parametrize(
    ("dtype", "scalar", "expected"),
    [
        ("int8", 1, "int8"), ("uint8", 255, "uint8"), ("int8", 1.5, "float32"), ("float16", 1, "float16"),
        ("float16", 1.5, "float16"), ("bfloat16", 2.5, "bfloat16"), ("float64", 1.5, "float64"),
        ("bool", 1, "int64"),
        ("bool", True, "bool"), ("bool", 1.5, "float32"), ("int32", True, "int32"), ("int64", 0.5, "float32"),
    ],
)  # fmt: skip
def test_python_scalars_are_weak(dtype: str, scalar: float, expected: str) -> None:
    x = rt.ones((2,), dtype=dtype)
    for got in (x + scalar, scalar + x, x * scalar, rt.add(scalar, x)):
        assert got.dtype.name == expected
    assert rt.result_type(x, scalar).name == expected


def test_numpy_operands_are_strong() -> None:
    x = rt.ones((2,), dtype="float32")
    assert (x + np.float64(1)).dtype is rt.float64
    assert (np.float64(1) * x).dtype is rt.float64
    same(np.arange(2, dtype="f4") - x, np.float32([-1, 0]))
    same(x + np.int8([1, 2]), np.float32([2, 3]))


def test_scalars_that_do_not_fit() -> None:
    with pytest.raises(DTypeError, match="300 does not fit uint8"):
        rt.ones(2, dtype="uint8") + 300
    with pytest.raises(DTypeError, match="too large for float32"):
        rt.ones(2) + 10**400


# -- errors --------------------------------------------------------------------------------------------------


def test_wrong_dtypes() -> None:
    flags, floats = rt.asarray([True]), rt.asarray([1.0])
    for broken in (
        lambda: flags - flags,
        lambda: -flags,
        lambda: +flags,
        lambda: flags // flags,
        lambda: rt.sign(flags),
        lambda: floats & floats,
        lambda: ~floats,
        lambda: floats << 1,
        lambda: flags >> flags,
        lambda: rt.astype(floats, "float7"),
    ):
        with pytest.raises(DTypeError):
            broken()
    with pytest.raises(
        DTypeError, match=r"bitwise_and needs an integer or bool array, got float32; use x.astype"
    ):
        floats & floats
    with pytest.raises(DTypeError, match="negative"):
        rt.asarray([1]) << -1


def test_operands_of_foreign_types() -> None:
    x = rt.asarray([1.0])
    for bad in ("a", None, [1.0], 1j, object()):
        with pytest.raises(TypeError):
            operator.add(x, bad)  # type: ignore[arg-type]
        with pytest.raises(DTypeError):
            rt.add(x, bad)  # type: ignore[arg-type]
        with pytest.raises(DTypeError):
            rt.exp(bad)  # type: ignore[arg-type]


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(
        ShapeError, match=r"\(2, 3\) and \(2,\) do not broadcast: axis -1 has lengths 3 and 2"
    ):
        rt.ones((2, 3)) + rt.ones(2)


def test_devices_do_not_mix() -> None:
    x, y = rt.asarray([1.0], device="cpu"), rt.asarray([1.0], device="gpu:1")
    with pytest.raises(DeviceError, match="'cpu:0' and 'gpu:1'"):
        x + y
    z = x + y.to_device("cpu")
    assert z.device == "cpu:0"
    assert (rt.arange(1) + y).device == "gpu:1"
    same(z, np.float32([2]))


# -- random expressions --------------------------------------------------------------------------------------


@st.composite
def broadcasting_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = draw(st.lists(st.integers(0, 4), max_size=3))
    out = []
    for _ in range(2):
        keep = draw(st.integers(0, len(full)))
        out.append(tuple(n if draw(st.booleans()) else 1 for n in full[keep:]))
    return out[0], out[1]


@given(
    broadcasting_shapes(),
    st.sampled_from(["bool", *INTS, *FLOATS]),
    st.sampled_from(["bool", *INTS, *FLOATS]),
    st.sampled_from(sorted(BINARY)),
)
def test_binary_broadcasts_and_promotes(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], a: str, b: str, name: str
) -> None:
    if name == "subtract" and a == b == "bool":
        return
    x, y = sample(a, shapes[0], 1), sample(b, shapes[1], 2)
    common = to_numpy(promote(rt.asarray(x).dtype, rt.asarray(y).dtype))
    with np.errstate(all="ignore"):
        if name.startswith("logical"):
            expected = BINARY[name](x, y)
        else:
            expected = BINARY[name](x.astype(common), y.astype(common))
    np.testing.assert_array_equal(np.asarray(getattr(rt, name)(rt.asarray(x), rt.asarray(y))), expected)
