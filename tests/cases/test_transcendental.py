"""FP-09: functions are accurate for every argument, huge ones and subnormal ones included.

Right values are computed with 60 digits by the formulas below or in exact arithmetic. Subnormal numbers
are kept, never flushed to zero, by every operation of every device.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import retarget as rt


def ulps(found: np.ndarray[Any, Any], right: list[float]) -> float:
    """Return the largest error in units in the last place of the right values."""
    worst = 0.0
    for f, r in zip(found.tolist(), right, strict=True):
        if r != r or math.isinf(r):
            assert (f != f) == (r != r) and (r != r or f == r), (f, r)
            continue
        unit = float(np.spacing(np.abs(found.dtype.type(r)))) or float(
            np.finfo(found.dtype).smallest_subnormal
        )
        worst = max(worst, abs(f - r) / unit)
    return worst


HUGE = [
    1e5,
    1e6,
    1e9,
    1e10,
    1e20,
    1e30,
    3e38,
    2.0**127,
    12345678.0,
    16777216.0,
    31.415926,
    1.5707964,
    3.1415927,
    6.2831855,
]


def sine(x: float) -> float:
    """sin of a float64 by reduction with 1300 bits of pi and Taylor's series, in rational arithmetic."""
    scale = 1 << 1300

    def arctan_inverse(n: int) -> int:  # scale * atan(1 / n)
        term = total = scale // n
        k, sign = 3, -1
        while term:
            term //= n * n
            total += sign * (term // k)
            k, sign = k + 2, -sign
        return total

    pi = Fraction(4 * (4 * arctan_inverse(5) - arctan_inverse(239)), scale)
    exact = Fraction(x)
    rest = exact - round(exact / (2 * pi)) * 2 * pi
    rest = Fraction(int(rest * (1 << 200)), 1 << 200)
    total = term = rest
    for k in range(1, 30):
        term = -term * rest * rest / ((2 * k) * (2 * k + 1))
        total += term
        term = Fraction(int(term * (1 << 250)), 1 << 250)
    return float(total)


def test_sines_of_huge_arguments(device: str, compute: Any) -> None:
    for name in ("f4", "f8"):
        values = np.array([*HUGE, *[-v for v in HUGE], 39800.0, 0.5, 1e-3], name)
        if name == "f8":
            values = np.concatenate([values, np.array([1e300, 1.7e308, 2.0**1000])])
        x = rt.asarray(values)
        s, c = compute(rt.sin(x), rt.cos(x))
        right = [sine(float(v)) for v in values]
        assert (np.abs(s) <= 1).all() and (np.abs(c) <= 1).all()
        assert ulps(s, right) <= 4
        np.testing.assert_allclose(
            s.astype("f8") ** 2 + c.astype("f8") ** 2, 1, rtol=5e-7 if name == "f4" else 1e-14
        )
    known = rt.sin(rt.asarray(np.array([1e5, 1e6, 1e9, 1e10, 1e30], "f4"))).numpy()
    np.testing.assert_allclose(known, [0.0357488, -0.3499935, 0.5458434, -0.4875060, -0.7911634], rtol=1e-6)
    assert rt.sin(rt.asarray(np.array([39800.0]))).numpy()[0] == pytest.approx(0.7428572, abs=1e-7)


def test_powers_of_two_are_exact(device: str, compute: Any) -> None:
    for name, low, high in (("f4", -149, 127), ("f8", -1074, 1023)):
        k = np.arange(low, high + 1) if device != "numpy" else np.arange(low, high + 1, 5)
        exact = np.ldexp(np.ones(len(k)), k).astype(name)
        x, y = rt.asarray(exact), rt.asarray(k.astype(name))
        logs, powers, back, there = compute(rt.log2(x), rt.exp2(y), rt.log2(rt.exp2(y)), rt.exp2(rt.log2(x)))
        np.testing.assert_array_equal(logs, k.astype(name))
        np.testing.assert_array_equal(powers, exact)
        np.testing.assert_array_equal(back, k.astype(name))
        np.testing.assert_array_equal(there, exact)


def test_overflow_is_not_simplified_away(device: str, compute: Any) -> None:
    x = rt.asarray(np.array([128, -150, 1000, -1000, np.inf, -np.inf, np.nan], "f4"))
    powers, logs, e, back = compute(rt.exp2(x), rt.log2(rt.exp2(x)), rt.exp(x), rt.log(rt.exp(x)))
    np.testing.assert_array_equal(powers, np.array([np.inf, 0, np.inf, 0, np.inf, 0, np.nan], "f4"))
    np.testing.assert_array_equal(
        logs, np.array([np.inf, -np.inf, np.inf, -np.inf, np.inf, -np.inf, np.nan], "f4")
    )
    np.testing.assert_array_equal(e[2:], np.array([np.inf, 0, np.inf, 0, np.nan], "f4"))
    np.testing.assert_array_equal(back[2:], np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan], "f4"))


def test_subnormals_are_kept(device: str, compute: Any) -> None:
    tiny = np.array([1.1754944e-38, 1.4e-45, -1.1754944e-38, 1e-40, 5.9e-39], "f4")
    x = rt.asarray(np.resize(tiny, 37))
    v = np.resize(tiny, 37)
    found = compute(
        x / 2,
        x * 0.5,
        x + x,
        x - x * 0.5,
        rt.exp2(rt.asarray(np.full(9, -149, "f4"))),
        abs(x),
        rt.sqrt(abs(x)),
        -x,
        rt.maximum(x, 0),
        x > 0,
        x == 0,
        x.astype("float64"),
        rt.sum(x),
        rt.exp(rt.asarray(np.full(9, -100, "f4"))),
    )
    half = np.float32(0.5)
    right = [
        v / 2,
        v * half,
        v + v,
        v - v * half,
        np.full(9, 2.0**-149, "f4"),
        abs(v),
        np.sqrt(abs(v)),
        -v,
        np.maximum(v, 0),
        v > 0,
        v == 0,
        v.astype("f8"),
    ]
    for f, e in zip(found, right, strict=False):
        np.testing.assert_array_equal(f, e)
    assert float(found[12]) == pytest.approx(float(v.astype("f8").sum()), rel=1e-5)
    assert ulps(found[13], [math.exp(-100)] * 9) <= 2
    h = rt.asarray(np.array([2.0**-24, 2.0**-14, 3 * 2.0**-24], "f2"))
    a, b = compute(h * 0.5, h + h)
    assert a.tolist() == [0, 2.0**-15, 2.0**-23] and b.tolist() == [2.0**-23, 2.0**-13, 6 * 2.0**-24]


FUNCTIONS = {
    "exp": (math.exp, np.linspace(-80, 80, 401)),
    "log": (math.log, np.geomspace(1e-37, 1e37, 401)),
    "log1p": (math.log1p, np.geomspace(1e-30, 1e30, 301)),
    "expm1": (math.expm1, np.linspace(-5, 50, 301)),
    "log10": (math.log10, np.geomspace(1e-37, 1e37, 301)),
    "sin": (math.sin, np.linspace(-50, 50, 401)),
    "cos": (math.cos, np.linspace(-50, 50, 401)),
    "tan": (math.tan, np.linspace(-20, 20, 401)),
    "tanh": (math.tanh, np.linspace(-12, 12, 301)),
    "sinh": (math.sinh, np.linspace(-20, 20, 301)),
    "cosh": (math.cosh, np.linspace(-20, 20, 301)),
    "atan": (math.atan, np.linspace(-50, 50, 301)),
    "asin": (math.asin, np.linspace(-1, 1, 301)),
    "acos": (math.acos, np.linspace(-1, 1, 301)),
    "erf": (math.erf, np.linspace(-5, 5, 301)),
    "sqrt": (math.sqrt, np.geomspace(1e-37, 1e37, 301)),
    "asinh": (math.asinh, np.linspace(-50, 50, 301)),
    "acosh": (math.acosh, np.linspace(1, 50, 301)),
    "atanh": (math.atanh, np.linspace(-0.99, 0.99, 301)),
}


@pytest.mark.parametrize("name", ["f4", "f8"])
def test_functions(device: str, compute: Any, name: str) -> None:
    """Every function against the C library's in double; `docs/accuracy.md` has sharper bounds."""
    step = 1 if device == "llvm" else 8
    chosen = [f for f in FUNCTIONS if device == "llvm" or f in ("exp", "log", "tanh", "tan", "erf", "asin")]
    inputs = {f: FUNCTIONS[f][1][::step].astype(name) for f in chosen}
    found = compute(*[getattr(rt, f)(rt.asarray(points)) for f, points in inputs.items()])
    for (f, points), values in zip(inputs.items(), found, strict=True):
        assert ulps(values, [FUNCTIONS[f][0](float(p)) for p in points]) <= 4, f
