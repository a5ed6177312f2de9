"""Trigonometric functions and their inverses, for float32 and float64 alike.

The argument is reduced with integer arithmetic on the binary digits of 2/pi, right for every finite number
and without branches.  No formula uses a wider float than its operand's.
"""

from __future__ import annotations

import math

from ...ir import dtypes
from .builder import (
    Value,
    const_like,
    flip_sign,
    head,
    mulacc,
    parts,
    polynomial,
    select,
    split_sign,
    sqrt,
)  # fmt: skip
from .coefficients import POLYNOMIALS

HALF_PI = "1.5707963267948966192313216916397514420985846996875529104874722961539082"

#: The first 1280 binary digits of 2/pi.
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e0"
    "06492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f4"
    "9c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d"
    "7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d",
    16,
)
MASK64 = (1 << 64) - 1


def coefficients(name: str, x: Value) -> tuple[float, ...]:
    """Return the fitted polynomial `name` for x's dtype."""
    return POLYNOMIALS[name][x.dtype.name]


# -- argument reduction --------------------------------------------------------------------------------------


def digits_from(offset: Value, zeros: int, largest: int, count: int) -> list[Value]:
    """Return `count` words of 64 binary digits of 2/pi, preceded by `zeros` zeros, from digit `offset` on.

    The words are selected by the bits of offset // 64, largest first, and shifted by offset % 64.
    """
    word, shift = offset >> 6, offset & 63
    steps = [1 << i for i in reversed(range((largest >> 6).bit_length()))]
    total = (largest >> 6) + count + 1
    padded = TWO_OVER_PI << 1280 >> zeros  # 2560 digits
    words = [const_like(offset, padded >> (2560 - 64 * (i + 1)) & MASK64) for i in range(total)]
    for i, step in enumerate(steps):
        taken = (word & step).differs(0)
        keep = count + 1 + sum(steps[i + 1 :])
        words = [
            select(taken, words[n + step], words[n]) if n + step < len(words) else words[n]
            for n in range(min(keep, len(words)))
        ]
    rest = 63 - shift
    return [(words[i] << shift) | (words[i + 1] >> 1 >> rest) for i in range(count)]


def multiply_high(x: Value, y: Value) -> Value:
    """Return the upper 64 bits of the 128-bit product of two uint64."""
    low = 0xFFFFFFFF
    x0, x1, y0, y1 = x & low, x >> 32, y & low, y >> 32
    middle = x0 * y1 + (x0 * y0 >> 32)
    other = x1 * y0 + (middle & low)
    return x1 * y1 + (middle >> 32) + (other >> 32)


def _quadrants_of_single(a: Value, significand: Value, offset: Value) -> tuple[Value, Value, Value]:
    """Return (q, hi, lo) with a * 2/pi = q + hi + lo modulo 4, by fixed point of 64 bits."""
    w0, w1 = digits_from(offset, 26, 128, 2)
    product = significand * w0 + (significand * (w1 >> 32) >> 32)
    q, fraction = _nearest_quadrant(product)
    high = (fraction >> 38).cast(dtypes.int32).cast(a.dtype) * 2.0**-24
    middle = (fraction >> 14 & 0xFFFFFF).cast(dtypes.int32).cast(a.dtype) * 2.0**-48
    last = (fraction & 0x3FFF).cast(dtypes.int32).cast(a.dtype) * 2.0**-62
    turn = high + middle
    return q, turn, (middle - (turn - high)) + last


def _quadrants_of_double(a: Value, significand: Value, offset: Value) -> tuple[Value, Value, Value]:
    """Return (q, hi, lo) with a * 2/pi = q + hi + lo modulo 4, by fixed point of 128 bits."""
    w0, w1, w2 = digits_from(offset, 55, 1024, 3)
    low = significand * w1
    tail = low + multiply_high(significand, w2)
    carry = select(tail < low, const_like(low, 1), 0)
    q, fraction = _nearest_quadrant(significand * w0 + multiply_high(significand, w1) + carry)
    f = a.format
    one = f.bits(2.0**52)  # an integer below 2**52 in its low bits adds to it
    high = ((fraction >> 10) + f.bits(f.shifter)).bitcast(a.dtype) - f.shifter
    middle = ((fraction & 0x3FF) << 42 | (tail >> 22).bitcast(dtypes.int64) | one).bitcast(a.dtype) - 2.0**52
    last = ((tail & 0x3FFFFF).bitcast(dtypes.int64) | one).bitcast(a.dtype) - 2.0**52
    high, middle, last = high * 2.0**-52, middle * 2.0**-104, last * 2.0**-126
    turn = high + middle
    return q, turn, (middle - (turn - high)) + last


def _nearest_quadrant(product: Value) -> tuple[Value, Value]:
    """Return (q, rest) of a number of quadrants, times 2**62, with a signed rest of at most half of one."""
    q = (product + (1 << 61)) >> 62
    return q, (product - (q << 62)).bitcast(dtypes.int64)


def reduce_quadrant(a: Value) -> tuple[Value, Value, Value]:
    """Return (q, r, t): a = (4*j + q) * pi/2 + r + t, |r| <= pi/4 and t far smaller, for finite a >= 0.

    Payne and Hanek, "Radian reduction for trigonometric functions" (1983): only the digits of 2/pi that
    matter after dropping multiples of 4 are multiplied by the significand.  The product, a fixed-point number
    of quadrants whose two highest bits count them, is rounded to a quadrant; what is left becomes a sum of
    floats and is multiplied by pi/2.  Below pi/4 all of this is meaningless, and a itself is taken.
    """
    f = a.format
    bits = a.bits()
    significand = ((bits & ((1 << f.mantissa) - 1)) | (1 << f.mantissa)).cast(dtypes.uint64)
    offset = (bits >> f.mantissa).cast(dtypes.uint64) - (f.bias - 1)
    quadrants = _quadrants_of_single if f.mantissa == 23 else _quadrants_of_double
    q, turn, left = quadrants(a, significand, offset)
    # (turn + left) * pi/2; the heads' product is exact.
    half = f.mantissa // 2 + 1
    c0, c1, c2 = parts(HALF_PI, half, half)
    top = head(turn)
    bottom = turn - top
    r = turn * (c0 + c1)
    rest = ((top * c0 - r) + top * c1 + bottom * c0) + bottom * c1
    rest = rest + (turn * c2 + left * (c0 + c1))
    small = a < math.pi / 4
    return select(small, 0, q), select(small, a, r), select(small, 0.0, rest)


def reduce_quadrant_fast(a: Value) -> tuple[Value, Value, Value]:
    """Return the same as `reduce_quadrant` by subtracting multiples of pi/2 in four parts.

    For a below 2**12 (float32) or 2**25 (float64), where multiples of the parts are exact.
    """
    f = a.format
    bits = f.mantissa // 2
    shifted = mulacc(a, 2.0 / math.pi, f.shifter)
    k = shifted - f.shifter
    r = a
    for part in parts(HALF_PI, bits, bits, bits):
        r = mulacc(k, -part, r)
    return (shifted.bits() & 3).cast(dtypes.uint64), r, const_like(r, 0.0)


def sin_cos(a: Value, fast: bool) -> tuple[Value, Value, Value]:
    """Return (q, sin(r), cos(r)) for a >= 0 and its reduction r to within pi/4; see `reduce_quadrant`."""
    q, r, t = (reduce_quadrant_fast if fast else reduce_quadrant)(a)
    z = r * r
    half = z * 0.5
    one = 1.0 - half
    sin_r = r + mulacc(r * z, polynomial(z, coefficients("SIN", a)), t * one)
    cos_r = one + (((1.0 - one) - half) + (z * z * polynomial(z, coefficients("COS", a)) - r * t))
    return q, sin_r, cos_r


def bit_to_sign(bit: Value, x: Value) -> Value:
    """Return the sign bit of x's format from the lowest bit of an integer."""
    width = x.format.integer
    return bit.cast(width) << (width.bits - 1)


def sin(x: Value, fast: bool = False) -> Value:
    """The sine or cosine of the reduced argument, by quadrant."""
    a, sign = split_sign(x)
    q, sin_r, cos_r = sin_cos(a, fast)
    result = flip_sign(select((q & 1).differs(0), cos_r, sin_r), bit_to_sign(q >> 1, x) ^ sign)
    return select(a < math.inf, result, math.nan)


def cos(x: Value, fast: bool = False) -> Value:
    """The cosine or minus the sine of the reduced argument, by quadrant."""
    a, _ = split_sign(x)
    q, sin_r, cos_r = sin_cos(a, fast)
    result = flip_sign(select((q & 1).differs(0), sin_r, cos_r), bit_to_sign((q + 1) >> 1, x))
    return select(a < math.inf, result, math.nan)


def tan(x: Value, fast: bool = False) -> Value:
    """sin(r) / cos(r), or -cos(r) / sin(r) in odd quadrants."""
    a, sign = split_sign(x)
    q, sin_r, cos_r = sin_cos(a, fast)
    odd = (q & 1).differs(0)
    result = select(odd, cos_r, sin_r) / select(odd, sin_r, cos_r)
    return select(a < math.inf, flip_sign(result, bit_to_sign(q, x) ^ sign), math.nan)


def sin_fast(x: Value) -> Value:
    """The sine with the short reduction."""
    return sin(x, fast=True)


def cos_fast(x: Value) -> Value:
    """The cosine with the short reduction."""
    return cos(x, fast=True)


def tan_fast(x: Value) -> Value:
    """The tangent with the short reduction."""
    return tan(x, fast=True)


# -- inverses ------------------------------------------------------------------------------------------------


def _half_pi(x: Value) -> tuple[float, float]:
    """Return pi/2 as the nearest number of x's dtype and the rest."""
    hi, lo = parts(HALF_PI, x.format.mantissa + 1)
    return hi, lo


def atan_of_ratio(y: Value, x: Value) -> Value:
    """Return atan(y / x) for y, x >= 0, finite or not, 0 for 0/0: atan(y/x) = c + atan(t) with c 0, pi/4 or
    pi/2.
    """
    hi, lo = _half_pi(x)
    steep = y > x * 2.414213562373095
    middle = y > x * 0.41421356237309503
    numerator = select(steep, -x, select(middle, y - x, y))
    denominator = select(steep, y, select(middle, y + x, x))
    t = numerator / select(denominator.equals(0.0), 1.0, denominator)
    z = t * t
    rest = t * z * polynomial(z, coefficients("ATAN", x))
    start = select(steep, hi, select(middle, const_like(x, hi / 2), 0.0))
    start_lo = select(steep, lo, select(middle, const_like(x, lo / 2), 0.0))
    return start + (t + (rest + start_lo))


def atan(x: Value) -> Value:
    a, sign = split_sign(x)
    return flip_sign(atan_of_ratio(a, const_like(x, 1.0)), sign)


def atan2(y: Value, x: Value) -> Value:
    """The angle of (x, y): that of (|x|, |y|), mirrored for negative x and given y's sign.

    Far points are brought nearer, so that |x| + |y| does not overflow, and near ones moved away, so that
    products with |x| have all their digits; infinities on a diagonal are replaced by ones.
    """
    f = x.format
    b, sign_y = split_sign(y)
    a, sign_x = split_sign(x)
    large = 2.0 ** (f.bias - 3)
    small = 2.0 ** -(f.bias // 2)
    step = select((a < small) & (b < small), const_like(x, 1.0 / small), 1.0)
    step = select((a > large) | (b > large), 0.25, step)
    diagonal = a.equals(math.inf) & b.equals(math.inf)
    angle = atan_of_ratio(select(diagonal, 1.0, b * step), select(diagonal, 1.0, a * step))
    hi, lo = _half_pi(x)
    mirrored = hi * 2 - (angle - lo * 2)
    return flip_sign(select(sign_x.differs(0), mirrored, angle), sign_y)


def _asin_terms(a: Value) -> tuple[Value, Value, Value]:
    """Return (large, t, r): asin(t) = t + r, and t is sqrt((1 - a) / 2) where a > 1/2 (`large`), else a."""
    large = a > 0.5
    z = select(large, (1.0 - a) * 0.5, a * a)
    t = select(large, sqrt(z), a)
    return large, t, t * z * polynomial(z, coefficients("ASIN", a))


def asin(x: Value) -> Value:
    """pi/2 - 2 * asin(sqrt((1 - |x|) / 2)) above 1/2, and a polynomial below."""
    hi, lo = _half_pi(x)
    a, sign = split_sign(x)
    large, t, r = _asin_terms(a)
    small = t + r
    return flip_sign(select(large, hi - (small * 2.0 - lo), small), sign)


def acos(x: Value) -> Value:
    """2 * asin(sqrt((1 - |x|) / 2)) above 1/2, its difference to pi below -1/2, pi/2 - asin(x) between."""
    hi, lo = _half_pi(x)
    a, sign = split_sign(x)
    large, t, r = _asin_terms(a)
    negative = sign.differs(0)
    twice = (t + r) * 2.0
    far = select(negative, hi * 2 - (twice - lo * 2), twice)
    near = hi - (flip_sign(t, sign) - (lo - flip_sign(r, sign)))
    return select(large, far, near)
