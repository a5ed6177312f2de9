"""Exponentials, logarithms, hyperbolic functions and the error function, for float32 and float64 alike.

Formulas hold for both; only the coefficients and a few bounds differ.  None uses a wider type than its
operand's.
"""

from __future__ import annotations

import math

from .builder import (
    LN2,
    Value,
    const_like,
    flip_sign,
    head,
    int_to_float,
    mulacc,
    parts,
    polynomial,
    power_of_two,
    select,
    split_sign,
    sqrt,
)  # fmt: skip
from .coefficients import POLYNOMIALS

INF = math.inf
LOG2_E = 1.4426950408889634


def coefficients(name: str, x: Value) -> tuple[float, ...]:
    """Return the fitted polynomial `name` for x's dtype."""
    return POLYNOMIALS[name][x.dtype.name]


def _single(x: Value) -> bool:
    """Whether x is a float32, not a float64."""
    return x.format.mantissa == 23


# -- exponentials --------------------------------------------------------------------------------------------


def clamp(x: Value, low: float, high: float) -> Value:
    """Return x cut to [low, high]; NaN stays."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


def reduce_exp(x: Value) -> tuple[Value, Value]:
    """Return (r, n) with x = n * log(2) + r, n a whole number and |r| <= log(2) / 2.

    Cody and Waite's reduction: the head of log(2) has so few bits that its product with n is exact.  The
    integer n is read from the low bits of a float that is large enough to have no fraction.
    """
    f = x.format
    ln2_hi, ln2_lo = _ln2(x)
    shifted = mulacc(x, LOG2_E, f.shifter)
    k = shifted - f.shifter
    r = mulacc(k, -ln2_lo, mulacc(k, -ln2_hi, x))
    return r, shifted.bits() - f.bits(f.shifter)


def exp_of_reduced(r: Value) -> Value:
    """Return e**r for |r| <= log(2) / 2."""
    return mulacc(r * r, polynomial(r, coefficients("EXP", r)), r) + 1.0


def scale(x: Value, n: Value) -> Value:
    """Return x * 2**n for a normal x, in two steps, so that results may be subnormal or overflow."""
    half = n >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(n - half, x.dtype)


def exp(x: Value) -> Value:
    """e**x = 2**n * e**r."""
    r, n = reduce_exp(clamp(x, -104.0, 89.0) if _single(x) else clamp(x, -746.0, 710.0))
    return scale(exp_of_reduced(r), n)


def exp_moderate(x: Value) -> Value:
    """e**x where neither x nor the result is extreme: one scaling, no clamping."""
    r, n = reduce_exp(x)
    return exp_of_reduced(r) * power_of_two(n, x.dtype)


def exp_fast(x: Value) -> Value:
    """e**x with subnormal results flushed to 0 and overflow a little early, by a third of a unit of x."""
    f = x.format
    low, high = math.log(f.tiny), (f.bias + 0.49) * math.log(2.0)
    result = exp_moderate(clamp(x, low, high))
    return select(x < low, 0.0, select(x > high, INF, result))


def exp2_of_reduced(r: Value) -> Value:
    """Return 2**r for |r| <= 1/2, exactly 1 for 0."""
    return mulacc(r, polynomial(r, coefficients("EXP2", r)), 1.0)


def exp2(x: Value) -> Value:
    """2**x = 2**n * 2**r, exact for whole x."""
    f = x.format
    x = clamp(x, -151.0, 129.0) if _single(x) else clamp(x, -1076.0, 1025.0)
    shifted = x + f.shifter
    n = shifted.bits() - f.bits(f.shifter)
    return scale(exp2_of_reduced(x - (shifted - f.shifter)), n)


def expm1(x: Value) -> Value:
    """e**x - 1 = 2**n * (e**r - 1) + (2**n - 1), both terms scaled in two steps against overflow."""
    r, n = reduce_exp(clamp(x, -18.0, 89.0) if _single(x) else clamp(x, -40.0, 710.0))
    small = mulacc(r * r, polynomial(r, coefficients("EXP", r)), r)
    half = n >> 1
    rest = n - half
    first = power_of_two(half, x.dtype)
    result = mulacc(small, first, first - power_of_two(-rest, x.dtype)) * power_of_two(rest, x.dtype)
    return select(x.equals(0.0), x, result)  # keeps -0


# -- logarithms ----------------------------------------------------------------------------------------------


def split_exponent(x: Value) -> tuple[Value, Value]:
    """Return floats (k, m) with x = 2**k * m and sqrt(1/2) <= m < sqrt(2), for finite positive x."""
    f = x.format
    digits = f.mantissa + 1
    subnormal = x < f.tiny
    root = f.bits(math.sqrt(0.5))
    bits = select(subnormal, x * 2.0**digits, x).bits() - root
    k = bits >> f.mantissa
    k = select(subnormal, k - digits, k)
    m = ((bits & ((1 << f.mantissa) - 1)) + root).bitcast(x.dtype)
    return int_to_float(k, x.dtype), m


def log_terms(f: Value) -> tuple[Value, Value]:
    """Return (h, t) with log(1 + f) = f - h + t, h = f**2 / 2 and t much smaller, for sqrt(1/2) <= 1 + f <
    sqrt(2).

    log((1 + s) / (1 - s)) is odd in s = f / (2 + f): the form is FreeBSD msun's, e_log.c.
    """
    s = f / (f + 2.0)
    z = s * s
    half_square = f * 0.5 * f
    return half_square, s * (half_square + z * polynomial(z, coefficients("LOG", f)))


def log_limits(x: Value, result: Value) -> Value:
    """Return the logarithm's value: `result` for finite positive x, and what it is at 0, infinity, NaN and
    below 0.
    """
    limit = select(x.equals(0.0), const_like(x, -INF), math.nan)
    return select(x > 0.0, select(x < INF, result, INF), limit)


def log(x: Value) -> Value:
    """k * log(2) + log(m)."""
    ln2_hi, ln2_lo = _ln2(x)
    k, m = split_exponent(x)
    f = m - 1.0
    half_square, rest = log_terms(f)
    return log_limits(x, k * ln2_hi - ((half_square - mulacc(k, ln2_lo, rest)) - f))


def _ln2(x: Value) -> tuple[float, ...]:
    """Return log(2) as a head whose product with an exponent is exact, and the rest."""
    return parts(LN2, 14 if _single(x) else 41)


def _log_base(f: Value, inverse: str) -> tuple[Value, Value]:
    """Return log(1 + f) / log(base) as an unevaluated sum: `inverse` is 1 / log(base)."""
    inverse_hi, inverse_lo = parts(inverse, 11 if _single(f) else 26)
    half_square, rest = log_terms(f)
    high = head(f - half_square)
    low = ((f - high) - half_square) + rest
    return high * inverse_hi, mulacc(low + high, inverse_lo, low * inverse_hi)


def log2(x: Value) -> Value:
    """k + log(m) / log(2), exact for powers of two."""
    k, m = split_exponent(x)
    high, low = _log_base(m - 1.0, "1.4426950408889634073599246810018921374266459541529859341354494069")
    total = k + high
    return log_limits(x, total + (low + ((k - total) + high)))


def log10(x: Value) -> Value:
    """k * log10(2) + log(m) / log(10)."""
    step_hi, step_lo = parts(
        "0.3010299956639811952137388947244930267681898814621085413104274611", 14 if _single(x) else 41
    )
    k, m = split_exponent(x)
    high, low = _log_base(m - 1.0, "0.4342944819032518276511289189166050822943970058036665661144537832")
    start = k * step_hi
    total = start + high
    return log_limits(x, total + (mulacc(k, step_lo, low) + ((start - total) + high)))


def log1p(x: Value) -> Value:
    """log(u) with u = 1 + x, and the rounding error of that sum divided by u added to the result."""
    ln2_hi, ln2_lo = _ln2(x)
    u = x + 1.0
    k, m = split_exponent(u)
    exact = k.equals(0.0)  # then f = x; otherwise m is u divided by a power of two
    lost = select(k > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u  # both differences are exact
    f = select(exact, x, m - 1.0)
    half_square, rest = log_terms(f)
    result = k * ln2_hi - ((half_square - (rest + mulacc(k, ln2_lo, select(exact, 0.0, lost)))) - f)
    return select(x.equals(0.0), x, log_limits(u, result))


def log_fast(x: Value) -> Value:
    """log(x) for positive normal x; 0 gives -infinity, and subnormals are taken for 0."""
    f = x.format
    ln2_hi, ln2_lo = _ln2(x)
    root = f.bits(math.sqrt(0.5))
    bits = x.bits() - root
    k = int_to_float(bits >> f.mantissa, x.dtype)
    m = ((bits & ((1 << f.mantissa) - 1)) + root).bitcast(x.dtype) - 1.0
    half_square, rest = log_terms(m)
    result = k * ln2_hi - ((half_square - mulacc(k, ln2_lo, rest)) - m)
    limit = select(x < 0.0, const_like(x, math.nan), -INF)
    return select(x < f.tiny, limit, select(x < INF, result, x))


# -- hyperbolic functions ------------------------------------------------------------------------------------


def odd_polynomial(x: Value, name: str) -> Value:
    """Return x + x**3 * p(x**2)."""
    z = x * x
    return mulacc(x * z, polynomial(z, coefficients(name, x)), x)


def tanh(x: Value) -> Value:
    """A polynomial near 0; 1 - 1 / ((e**2|x| + 1) / 2) elsewhere.

    The quotient is so small a part of the result that e**2|x| = 2**n * e**r may be rough: r is reduced in one
    step, and what is left of 2**(n - 1) in the low bits of `shifted`, n, is shifted to the exponent's place.
    """
    f = x.format
    a, sign = split_sign(x)
    limit = 20.0 if _single(x) else 44.0
    double = a + a
    double = select(double > limit, limit, double)
    shifted = mulacc(double, LOG2_E, f.shifter)
    r = mulacc(shifted - f.shifter, -float(LN2), double)
    power = ((shifted.bits() << f.mantissa) + (f.bias - 1 << f.mantissa)).bitcast(x.dtype)
    rest = mulacc(r * r, polynomial(r, coefficients("EXP", x)), r)  # e**r - 1
    far = 1.0 - 1.0 / mulacc(rest, power, power + 0.5)
    return flip_sign(select(a < 0.625, odd_polynomial(a, "TANH"), far), sign)


def half_exp(a: Value) -> Value:
    """Return e**a / 2 for a >= 0, finite wherever it fits."""
    r, n = reduce_exp(select(a > 720.0, 720.0, a) if not _single(a) else select(a > 90.0, 90.0, a))
    return scale(exp_of_reduced(r), n - 1)


def sinh(x: Value) -> Value:
    """A polynomial below 1; e**|x| / 2 - 1 / (4 * (e**|x| / 2)) elsewhere."""
    a, sign = split_sign(x)
    e = half_exp(a)
    return flip_sign(select(a < 1.0, odd_polynomial(a, "SINH"), e - 0.25 / e), sign)


def cosh(x: Value) -> Value:
    """e**|x| / 2 + 1 / (4 * (e**|x| / 2))."""
    e = half_exp(split_sign(x)[0])
    return e + 0.25 / e


def asinh(x: Value) -> Value:
    """log1p(a + a**2 / (1 + sqrt(a**2 + 1))) with a = |x|; log(a) + log(2) where squares would overflow."""
    a, sign = split_sign(x)
    large = a > 2.0 ** (x.format.mantissa + 8)
    square = select(large, 0.0, a * a)
    result = log1p(a + square / (sqrt(square + 1.0) + 1.0))
    return flip_sign(select(large, result + math.log(2.0), result), sign)


def acosh(x: Value) -> Value:
    """log1p(t + sqrt(2t + t**2)) with t = x - 1; log(x) + log(2) where squares would overflow."""
    large = x > 2.0 ** (x.format.mantissa + 8)
    t = x - 1.0
    root = sqrt(t * (t + 2.0))
    result = log1p(select(large, x, t + root))
    return select(x < 1.0, math.nan, select(large, result + math.log(2.0), result))


def atanh(x: Value) -> Value:
    """log1p(2a / (1 - a)) / 2 with a = |x|."""
    a, sign = split_sign(x)
    return flip_sign(log1p((a + a) / (1.0 - a)) * 0.5, sign)


def erf(x: Value) -> Value:
    """x + x * p(x**2) near 0; 1 - e**-q(|x|) elsewhere, with q a fit to -log(erfc)."""
    a, sign = split_sign(x)
    limit = 4.0 if _single(x) else 6.0
    cut = select(a > limit, limit, a)
    far = 1.0 - exp_moderate(-polynomial(cut - 1.0, coefficients("ERFC", x)))
    near = mulacc(a, polynomial(a * a, coefficients("ERF", x)), a)
    return flip_sign(select(a < 0.9, near, far), sign)
