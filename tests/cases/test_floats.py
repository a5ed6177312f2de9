"""FP-01, FP-03, FP-08: NaN, infinities and signed zeros obey IEEE 754 in every operation, and nothing is
contracted.

Numbers that no rewrite may touch: x * 0, x - x, x / x, x + 0, not (x < y), x == x. A NaN makes `max`,
`min`, `maximum` and `minimum` NaN, wherever it stands. `a * b + c` rounds twice, except that a sum of
products may fuse its own multiply and add.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import retarget as rt

NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, -NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-40, 3e38, 2.0, 3.5]
FLOATS = ["float16", "float32", "float64"]


def same(found: np.ndarray[Any, Any], right: np.ndarray[Any, Any], what: object = "") -> None:
    """Assert equal values, NaN equal to NaN, and equal signs of zeros."""
    right = np.asarray(right)
    np.testing.assert_array_equal(found, right, err_msg=str(what))
    if right.dtype.kind == "f":
        numbers = ~np.isnan(right)
        np.testing.assert_array_equal(
            np.signbit(found)[numbers], np.signbit(right)[numbers], err_msg=str(what)
        )


# -- FP-01 -----------------------------------------------------------------------------------------------


def place(n: int, at: int, name: str) -> np.ndarray[Any, Any]:
    values = np.linspace(-3, 5, n).astype(name)
    values[at] = NAN
    return values


@pytest.mark.parametrize("name", FLOATS)
def test_nan_in_reductions(device: str, compute: Any, name: str) -> None:
    for n in (1, 17, 1000) if device == "clang" else (1, 2, 3, 8, 17, 64, 1000):
        spots = sorted({0, n // 2, n - 1, min(7, n - 1)})
        rows = np.stack([place(n, at, name) for at in spots])
        x = rt.asarray(rows)
        for found in compute(rt.max(x, axis=1), rt.min(x, axis=1), rt.max(x), rt.min(x)):
            assert np.isnan(found).all(), (n, found)
        columns = rt.asarray(np.ascontiguousarray(rows.T))
        for found in compute(rt.max(columns, axis=0), rt.min(columns, axis=0)):
            assert np.isnan(found).all(), (n, found)
        high, low = compute(rt.argmax(x, axis=1), rt.argmin(x, axis=1))
        assert high.tolist() == spots and low.tolist() == spots


@pytest.mark.parametrize("name", FLOATS)
def test_infinities_and_only_nan(device: str, compute: Any, name: str) -> None:
    a, b, c = (rt.asarray(np.array(v, name)) for v in ([-INF, -INF], [NAN, NAN], [INF, INF, INF]))
    found = compute(a.max(), a.min(), b.max(), b.min(), c.min(), c.max())
    same(np.stack(found), np.array([-INF, -INF, NAN, NAN, INF, INF], name))


@pytest.mark.parametrize("name", FLOATS)
def test_maximum_and_minimum(device: str, compute: Any, name: str) -> None:
    """Also with a constant, on either side; -0.0 and 0.0 are equal, and either may be the answer."""
    pairs = [*itertools.product(SPECIAL, SPECIAL), (1.0, 2.0)]
    with np.errstate(over="ignore"):
        a, b = np.array([p[0] for p in pairs], name), np.array([p[1] for p in pairs], name)
    x, y = rt.asarray(a), rt.asarray(b)
    high, low = compute(rt.maximum(x, y), rt.minimum(x, y))
    np.testing.assert_array_equal(high, np.maximum(a, b))
    np.testing.assert_array_equal(low, np.minimum(a, b))
    arrays = [f(*args) for c in SPECIAL for f in (rt.maximum, rt.minimum) for args in ((x, c), (c, x))]
    with np.errstate(over="ignore"):
        right = [f(a, np.array(c, name)) for c in SPECIAL for f in (np.maximum, np.minimum) for _ in range(2)]
    for values, expected in zip(compute(*arrays), right, strict=True):
        np.testing.assert_array_equal(values, expected)


# -- FP-03 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
def test_no_unsound_rewrite(device: str, compute: Any, name: str) -> None:
    with np.errstate(over="ignore"):
        v = np.array([*SPECIAL, 6.0, 1.0, NAN], name)
    x = rt.asarray(v)
    with np.errstate(all="ignore"):
        cases: dict[str, tuple[rt.Array, np.ndarray[Any, Any]]] = {
            "x != x": (x != x, v != v),
            "x == x": (x == x, v == v),
            "x == 6": (x == 6, v == 6),
            "6 == x": (x == 6, v == 6),
            "~(x < 1)": (~(x < 1), ~(v < 1)),
            "~(x >= 1)": (~(x >= 1), ~(v >= 1)),
            "x >= 1": (x >= 1, v >= 1),
            "~(x == 1)": (~(x == 1), ~(v == 1)),
            "x <= x": (x <= x, v <= v),
            "x < x": (x < x, v < v),
            "where": (rt.where(x != x, 0, x), np.where(v != v, v.dtype.type(0), v)),
            "where, negated": (rt.where(~(x < 1), x, 2), np.where(~(v < 1), v, v.dtype.type(2))),
            "clip by where": (rt.where(x > 1, 1, x), np.where(v > 1, v.dtype.type(1), v)),
            "x - x": (x - x, v - v),
            "x * 0": (x * 0, v * 0),
            "0 * x": (0 * x, 0 * v),
            "x + 0": (x + 0.0, v + 0.0),
            "x + -0": (x + -0.0, v + -0.0),
            "x - 0": (x - 0.0, v - 0.0),
            "0 - x": (0.0 - x, 0.0 - v),
            "-x": (-x, -v),
            "x * 1": (x * 1, v),
            "x * -1": (x * -1, v * -1),
            "x / 1": (x / 1, v),
            "x / x": (x / x, v / v),
            "0 / x": (0 / x, 0 / v),
            "1 / x": (1 / x, 1 / v),
            "x / 0": (x / 0.0, v / v.dtype.type(0)),
            "negative twice": (rt.negative(-x), v),
            "abs": (abs(x), abs(v)),
            "abs(-x)": (abs(-x), abs(v)),
            "x + x - x": (x + x - x, v + v - v),
            "x * 2 / 2": (x * 2 / 2, v * 2 / 2),
            "(x + 1) - 1": ((x + 1) - 1, (v + 1) - 1),
            "isnan": (rt.isnan(x), np.isnan(v)),
            "isinf": (rt.isinf(x), np.isinf(v)),
            "isfinite": (rt.isfinite(x), np.isfinite(v)),
            "signbit": (rt.signbit(x), np.signbit(v)),
            "square": (x**2, v * v),
            "sign": (rt.sign(x), np.sign(v)),
            "copysign": (
                rt.copysign(rt.asarray(np.ones(len(v), name)), x),
                np.copysign(np.ones(len(v), name), v),
            ),
            "trunc": (rt.trunc(x), np.trunc(v)),
            "floor": (rt.floor(x), np.floor(v)),
            "ceil": (rt.ceil(x), np.ceil(v)),
            "round": (rt.round(x), np.round(v)),
            "sqrt": (rt.sqrt(x), np.sqrt(v)),
            "bool": (x.astype("bool"), v != 0),
            "x and not x": (rt.logical_and(x, rt.logical_not(x)), np.zeros(len(v), bool)),
        }
    for (what, (_, right)), found in zip(
        cases.items(), compute(*[a for a, _ in cases.values()]), strict=True
    ):
        if what == "signbit" or right.dtype.kind != "f":
            numbers = ~np.isnan(v) if what == "signbit" else slice(None)
            np.testing.assert_array_equal(found[numbers], right[numbers], err_msg=what)
        else:
            same(found, right, what)


@pytest.mark.parametrize("name", FLOATS)
def test_comparisons(device: str, compute: Any, name: str) -> None:
    with np.errstate(over="ignore"):
        a, b = (np.array(v, name) for v in zip(*itertools.product(SPECIAL, SPECIAL), strict=True))
    x, y = rt.asarray(a), rt.asarray(b)
    found = compute(x < y, x <= y, x > y, x >= y, x == y, x != y, ~(x < y), ~(x > y), ~(x == y), ~(x <= y))
    right = [a < b, a <= b, a > b, a >= b, a == b, a != b, ~(a < b), ~(a > b), ~(a == b), ~(a <= b)]
    for values, expected in zip(found, right, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_sums_keep_special_values(device: str, compute: Any) -> None:
    rows = np.zeros((6, 37), "f4")
    rows[0, 5], rows[1, 36], rows[2, 0], rows[2, 1] = NAN, INF, INF, -INF
    rows[4] = -0.0
    rows[5, 10] = 1
    x = rt.asarray(rows)
    total, product, mean = compute(x.sum(axis=1), x.prod(axis=1), x.mean(axis=1))
    np.testing.assert_array_equal(total, [NAN, INF, NAN, 0, 0, 1])
    np.testing.assert_array_equal(product, [NAN, NAN, NAN, 0, 0, 0])
    np.testing.assert_array_equal(mean, np.array([NAN, INF, NAN, 0, 0, 1 / 37], "f4"))


def test_padding_does_not_meet_nan(device: str, compute: Any) -> None:
    """A masked lane must not multiply what lies beside the array."""
    base = np.full((5, 9), NAN, "f4")
    base[1:4, 1:8] = 1
    x = rt.asarray(base)[1:4, 1:8]
    padded, total, product = compute(rt.pad(x, ((1, 1), (2, 1))), x.sum(axis=1), x @ x.T)
    np.testing.assert_array_equal(padded, np.pad(np.ones((3, 7), "f4"), ((1, 1), (2, 1))))
    assert total.tolist() == [7] * 3 and product.tolist() == [[7] * 3] * 3


# -- FP-08 -----------------------------------------------------------------------------------------------


def test_multiply_and_add_are_not_contracted(device: str, compute: Any) -> None:
    s = np.float32(0.18033688)
    x = rt.asarray(np.array([1134139801600, 1], "f4"))
    y = x * float(s)
    (found,) = compute(rt.exp(y - rt.max(y)))
    np.testing.assert_array_equal(found, [1, 0])
    rng = np.random.default_rng(3)
    for name in ("float16", "float32", "float64"):
        a, b = rng.standard_normal(1003).astype(name), rng.standard_normal(1003).astype(name)
        p, q = rt.asarray(a), rt.asarray(b)
        found = compute(p * q - p * q, p * p - q * q, p * q + p, p - q * 3, (p * 3 + 1) * 3 + 1)
        one, three = np.array(1, name), np.array(3, name)
        right = [np.zeros_like(a), a * a - b * b, a * b + a, a - b * three, (a * three + one) * three + one]
        for values, expected in zip(found, right, strict=True):
            np.testing.assert_array_equal(values, expected)


def test_quotients_are_correctly_rounded(device: str, compute: Any) -> None:
    t = np.arange(1, 1025, dtype="f4")
    x = rt.asarray(t)
    y = rt.asarray(t[::-1].copy())
    one, quotient, reciprocal, root = compute(
        (abs(x) / x).astype("int32"), x / y, rt.reciprocal(x), rt.sqrt(x)
    )
    assert (one == 1).all()
    np.testing.assert_array_equal(quotient, t / t[::-1])
    np.testing.assert_array_equal(reciprocal, 1 / t)
    np.testing.assert_array_equal(root, np.sqrt(t))
    for divisor in (3.0, 10.0, 0.1, 7.0):  # a constant divisor is not replaced by its reciprocal
        np.testing.assert_array_equal(compute(x / divisor)[0], t / np.float32(divisor))


def test_sums_do_not_reassociate_across_statements(device: str, compute: Any) -> None:
    big, one = np.float32(1e8), np.float32(1)
    x, y = rt.asarray(np.full(17, big)), rt.asarray(np.full(17, one))
    a, b, c = compute((x + y) - x, (y - x) + x, (x + 1) - (x + 1))
    assert (a == 0).all() and (b == 0).all() and (c == 0).all()
