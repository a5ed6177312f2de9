"""Conversions between number types as expressions of basic linear ops: what a kernel's CAST means, exactly.

* Float to integer: the fraction is dropped and the whole number wraps; NaN gives 0.  What int64 cannot hold
  becomes the nearest end of int64 first.  uint64 is exact below 2**64, and above that the largest value.
* Anything to a float rounds once, to nearest even; float8_e4m3, which has no infinity, overflows to NaN.
* Anything to bool is whether it differs from 0; NaN does.

Narrow floats (float16, bfloat16, float8) are taken apart with integer arithmetic on their bits.  A conversion
to them from a type wider than float32 rounds to odd in a first step: to float32, with the last bit set when
anything was cut off.  Then rounding to the narrow type, at least two bits shorter, gives what rounding once
would (Boldo and Melquiond, "When double rounding is odd", 2005).
"""

from __future__ import annotations

from ..ir import dtypes
from ..ir.dtypes import DType
from .functions.builder import Value, const_like, mulacc, rint, select, split_sign, trunc

EXPONENT_ONES = 0x7F800000  # infinity in float32
_UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}


def is_narrow(dtype: DType) -> bool:
    """Whether `dtype` is a float of fewer than 32 bits."""
    return dtype.kind == "float" and dtype.bits < 32


def _bias(dtype: DType) -> int:
    return int((1 << (dtype.exponent - 1)) - 1)


def raw_bits(x: Value) -> Value:
    """Return the bits of a float as an unsigned integer of its width."""
    return x.bitcast(_UNSIGNED[x.dtype.bits])


def widen(x: Value) -> Value:
    """Return a narrow float as float32, exactly."""
    narrow = x.dtype
    code = raw_bits(x).cast(dtypes.uint32)
    shift = 23 - narrow.mantissa
    if narrow.exponent == 8:  # bfloat16 is the upper half of a float32
        return (code << shift).bitcast(dtypes.float32)
    sign_bit = 1 << (narrow.bits - 1)
    magnitude = (code & (sign_bit - 1)) << shift
    rebias = (127 - _bias(narrow)) << 23
    normal = magnitude + rebias
    # A subnormal's digits, put under an exponent one higher, are it plus a power of two.
    power = rebias + (1 << 23)
    shifted = (magnitude + power).bitcast(dtypes.float32)
    subnormal = shifted - const_like(magnitude, power).bitcast(dtypes.float32)
    bits = select(magnitude < (1 << 23), subnormal.bitcast(dtypes.uint32), normal)
    if narrow.name == "float8_e4m3":
        bits = select(magnitude.equals(0x7F << shift), EXPONENT_ONES | 1 << 22, bits)
    else:
        bits = select(magnitude < (((1 << narrow.exponent) - 1) << 23), bits, magnitude | EXPONENT_ONES)
    return (bits | (code & sign_bit) << (32 - narrow.bits)).bitcast(dtypes.float32)


def narrow(x: Value, dtype: DType) -> Value:
    """Return a float32 rounded to a narrow float, ties to even."""
    bits = raw_bits(x)
    sign_bit = 1 << 31
    sign, magnitude = bits & sign_bit, bits & (sign_bit - 1)
    shift = 23 - dtype.mantissa
    bias = _bias(dtype)
    rebias = (127 - bias) << 23
    half = (1 << (shift - 1)) - 1
    code = (magnitude + ((magnitude >> shift & 1) + (half - rebias))) >> shift
    ones = ((1 << dtype.exponent) - 1) << dtype.mantissa
    if rebias:
        # Below the normal range, adding a power of two whose last digit is the subnormals' rounds to it.
        power = (127 + 1 - bias + shift) << 23
        base = const_like(magnitude, power).bitcast(dtypes.float32)
        subnormal = (magnitude.bitcast(dtypes.float32) + base).bitcast(dtypes.uint32) - power
        code = select(magnitude < rebias + (1 << 23), subnormal, code)
        largest = 0x7F if dtype.name == "float8_e4m3" else ones  # e4m3: NaN, else infinity
        code = select(code > largest, largest, code)
    if dtype.name != "float8_e4m3":
        code = select(magnitude > EXPONENT_ONES, ones | 1 << (dtype.mantissa - 1), code)
    return (code | sign >> (32 - dtype.bits)).cast(_UNSIGNED[dtype.bits]).bitcast(dtype)


def to_odd_float32(x: Value) -> Value:
    """Return a float64 rounded to odd in float32: cut off, with the last bit set unless it was exact."""
    near = x.cast(dtypes.float32)
    back = near.cast(dtypes.float64)
    bits = raw_bits(near) - (split_sign(back)[0] > split_sign(x)[0]).cast(dtypes.uint32)
    return (bits | back.differs(x).cast(dtypes.uint32)).bitcast(dtypes.float32)


def integer_to_odd_float32(x: Value) -> Value:
    """Return an integer as a float32 that rounds to a narrow float as the integer would.

    Large ones keep at least 10 digits, of which the last is set if any was cut off: two more than bfloat16
    has, and float16 overflows before that.
    """
    steps = {32: ((24, 8),), 64: ((24, 14), (38, 28), (52, 40))}.get(x.dtype.bits, ())
    result = x
    for digits, cut in steps:
        rest = (1 << cut) - 1
        odd = (x & ~rest) | ((x & rest) + rest & (1 << cut))
        size = (x + (1 << digits)).bitcast(_UNSIGNED[x.dtype.bits]) >> 1 if x.dtype.kind == "int" else x
        result = select(size >= 1 << digits, odd, result)
    return result.cast(dtypes.float32)


def truncate(x: Value, dtype: DType) -> Value:
    """Return a float32 or float64 as an integer; see the module's first lines."""
    if dtype.bits == 64:
        return _truncate_64(x, dtype)
    # x modulo 2**32, exactly: where the quotient is not 0, x is a multiple of a large power of two.
    whole = trunc(x)
    rest = mulacc(rint(whole * 2.0**-32), -(2.0**32), whole)
    rest = select(rest.equals(2.0**31), -(2.0**31), rest)
    ends = select(whole > 0.0, const_like(x, -1.0), 0.0)  # the low bits of int64's ends; NaN's 0
    return select(split_sign(x)[0] < 2.0**63, rest, ends).cast(dtypes.int32).cast(dtype)


def _truncate_64(x: Value, dtype: DType) -> Value:
    top = 2.0**63
    upper = x >= top
    y = select(upper, x - top, x) if dtype.kind == "uint" else x
    inside = (y >= -top) & (y < top)
    whole = select(inside, y, 0.0).cast(dtypes.int64)
    whole = select(y >= top, dtypes.int64.max, select(y < -top, dtypes.int64.min, whole))
    if dtype.kind == "int":
        return whole
    return whole.bitcast(dtypes.uint64) ^ select(upper, const_like(whole.bitcast(dtypes.uint64), 1 << 63), 0)


def truth(x: Value) -> Value:
    """Return whether x is not 0."""
    if is_narrow(x.dtype):
        code = raw_bits(x)
        return (code & ((1 << (x.dtype.bits - 1)) - 1)).differs(0)
    return x.differs(0)


def truth_to_narrow(x: Value, dtype: DType) -> Value:
    """Return a bool as 0 or 1 in a narrow float."""
    code = x.cast(_UNSIGNED[dtype.bits])
    return select(x, const_like(code, _bias(dtype) << dtype.mantissa), 0).bitcast(dtype)


def negate(x: Value) -> Value:
    """Return a narrow float with its sign bit flipped."""
    return (raw_bits(x) ^ (1 << (x.dtype.bits - 1))).bitcast(x.dtype)
