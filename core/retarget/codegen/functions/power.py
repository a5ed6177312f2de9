"""Powers and floored division of floats, for float32 and float64 alike.

Where one rounding is too many, a number is kept as a head of half its significand and a rest, so that
products of heads are exact.
"""

from __future__ import annotations

import math

from .builder import (
    Value,
    const_like,
    flip_sign,
    head,
    parts,
    polynomial,
    select,
    split_sign,
    sqrt,
    trunc,
)  # fmt: skip
from .coefficients import POLYNOMIALS
from .exponential import exp2_of_reduced, scale, split_exponent

#: 2 / (3 * log(2))
TWO_THIRDS_LOG2_E = "0.961796693925975604939783120667867958250949730635435319557562966271"


def log2_in_two(x: Value) -> tuple[Value, Value]:
    """Return log2(x) as an unevaluated sum whose first part is a head, for finite positive x.

    log(m) = 2s/3 * (3 + s**2 + 3 * s**4 * p(s**2)) with s = (m - 1) / (m + 1).  The steps are those of
    FreeBSD msun's e_pow.c; no table is needed, because the polynomial covers all of sqrt(1/2) <= m < sqrt(2).
    """
    k, m = split_exponent(x)
    numerator, denominator = m - 1.0, m + 1.0
    s = numerator / denominator
    s_hi = head(s)
    d_hi = head(denominator)
    d_lo = m - (d_hi - 1.0)
    s_lo = ((numerator - s_hi * d_hi) - s_hi * d_lo) / denominator
    z = s * s
    square = s_hi * s_hi
    rest = s_lo * (s_hi + s) + z * z * (polynomial(z, POLYNOMIALS["POW"][x.dtype.name]) * 3.0)
    t_hi = head((square + 3.0) + rest)
    t_lo = rest - ((t_hi - 3.0) - square)
    u = s_hi * t_hi
    v = s_lo * t_hi + t_lo * s
    p_hi = head(u + v)
    p_lo = v - (p_hi - u)
    c_hi, c_lo = parts(TWO_THIRDS_LOG2_E, x.format.mantissa // 2 + 1)
    l_hi = p_hi * c_hi
    l_lo = p_hi * c_lo + p_lo * (c_hi + c_lo)
    high = head((l_hi + l_lo) + k)
    return high, l_lo - ((high - k) - l_hi)


def power(x: Value, y: Value) -> Value:
    """x**y = 2**(y * log2|x|), with IEEE 754's special cases.

    y is cut to a size at which any |x| other than 1 has overflowed or vanished, so that it may be infinite.
    """
    f = x.format
    a, sign = split_sign(x)
    huge = 2.0 ** (f.mantissa + 12)
    y_cut = select(y > huge, huge, select(y < -huge, -huge, y))
    l_hi, l_lo = log2_in_two(a)
    y_hi = head(y_cut)
    high = y_hi * l_hi
    low = (y_cut - y_hi) * l_hi + y_cut * l_lo
    total = high + low
    shifted = total + f.shifter
    n = shifted.bits() - f.bits(f.shifter)
    result = scale(exp2_of_reduced((high - (shifted - f.shifter)) + low), n)
    limit = 160.0 if f.mantissa == 23 else 1100.0
    result = select(total > limit, math.inf, select(total < -limit, 0.0, result))

    zero = a.equals(0.0)
    endless = a.equals(math.inf)
    result = select(zero | endless, select(zero ^ (y > 0.0), const_like(x, math.inf), 0.0), result)
    half = y * 0.5
    whole = trunc(y).equals(y)
    odd = whole & trunc(half).differs(half)
    result = flip_sign(result, select(odd, sign, 0))
    result = select((x < 0.0) & (x > -math.inf) & ~whole, math.nan, result)
    result = select(x.is_nan() | y.is_nan(), math.nan, result)
    return select(y.equals(0.0) | x.equals(1.0), 1.0, result)


def power_constant(x: Value, y: float) -> Value:
    """x**y for the exponents -1, 0, 0.5, 1, 2, 3 and 4."""
    if y == -1.0:
        return 1.0 / x
    if y == 0.0:
        return const_like(x, 1.0)
    if y == 0.5:  # pow(-0, 0.5) = 0 and pow(-infinity, 0.5) = infinity, unlike sqrt
        return select(x.equals(-math.inf), math.inf, sqrt(x) + 0.0)
    square = x * x
    return {1.0: x, 2.0: square, 3.0: square * x, 4.0: square * square}[y]


#: The exponents that `power_constant` takes.
SHORT_EXPONENTS = frozenset({-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0})


def _divide_floor(x: Value, y: Value) -> tuple[Value, Value]:
    """Return (floor(x / y), x - y * floor(x / y)) before the signs of zeros are settled.

    The truncated quotient may be one too large, because the division rounds.  Then the remainder has the
    wrong sign, and the correction that makes the quotient a floor puts it right.
    """
    f = x.format
    size_x, size_y = split_sign(x)[0], split_sign(y)[0]
    ratio = x / y
    # Halved where the quotient times the divisor might overflow.
    near_top = size_x > 2.0 ** (f.bias - 1)
    shrink = select(near_top, const_like(x, 0.5), 1.0)
    a, b = x * shrink, y * shrink
    q = trunc(ratio)
    product = q * b
    b_hi, q_hi = head(b), head(q)
    b_lo, q_lo = b - b_hi, q - q_hi
    error = ((q_hi * b_hi - product) + q_hi * b_lo + q_lo * b_hi) + q_lo * b_lo
    rest = select(size_y.equals(math.inf), a, (a - product) - error)
    wrong = rest.differs(0.0) & ((rest < 0.0) ^ (b < 0.0))
    rest = select(wrong, rest + b, rest) * select(near_top, const_like(x, 2.0), 1.0)
    floor = select(wrong, q - 1.0, q)

    inside = split_sign(ratio)[0] < 2.0 ** (f.mantissa + 1)
    divisible = size_y > 0.0
    finite = size_x < math.inf
    floor = select(inside, floor, select(finite | ~divisible, ratio, math.nan))
    return floor, select(inside, rest, select(finite & divisible, const_like(x, 0.0), math.nan))


def floor_divide(x: Value, y: Value) -> Value:
    """floor(x / y), exact while |x / y| < 2**(bits of the significand), x / y rounded beyond; 0 has x / y's
    sign.
    """
    floor = _divide_floor(x, y)[0]
    return select(floor.equals(0.0), (x / y) * 0.0, floor)


def remainder(x: Value, y: Value) -> Value:
    """x - y * floor(x / y), exact as above, 0 beyond; NaN for y = 0 and infinite x; 0 has y's sign."""
    rest = _divide_floor(x, y)[1]
    return select(rest.equals(0.0), flip_sign(const_like(x, 0.0), split_sign(y)[1]), rest)
