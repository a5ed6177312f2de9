"""Integer operations with every operand allowed, as expressions of basic linear ops, which are defined for
safe ones.

Division rounds down, x // 0 = 0 and x % 0 = 0, and the smallest value divided by -1 is itself; divisors are
made safe by selection, so that nothing traps even where the result is not used.  A shift by the width or more
leaves nothing but copies of the sign. x ** n wraps; a negative n gives the exact power cut to an integer: 1
for x = 1, +-1 for x = -1, else 0.
"""

from __future__ import annotations

from .functions.builder import Value, const_like, select


def _signed(x: Value) -> bool:
    return x.dtype.kind == "int"


def _negative_bits(x: Value) -> Value:
    """Return all ones where a signed x is negative, else 0."""
    return x >> (x.dtype.bits - 1)


def _divide(x: Value, y: Value) -> tuple[Value, Value, Value, Value]:
    """Return (q, r, d, w): x = q*d + r rounded toward zero, d a safe y, w whether r has the wrong sign."""
    unsafe = y.equals(0) | (y.equals(-1) & x.equals(x.dtype.min))
    d = select(unsafe, 1, y)
    q = x // d
    r = x - q * d
    return q, r, d, r.differs(0) & ((r ^ d) < 0)


def floor_divide(x: Value, y: Value) -> Value:
    """x // y; see the module's first lines."""
    zero = y.equals(0)
    if not _signed(x):
        return select(zero, 0, x // select(zero, 1, y))
    q, _, _, wrong = _divide(x, y)
    return select(zero, 0, q - wrong.cast(x.dtype))


def remainder(x: Value, y: Value) -> Value:
    """x - y * (x // y); a divisor of 0 became 1, which leaves 0."""
    if not _signed(x):
        d = select(y.equals(0), 1, y)
        return x - (x // d) * d
    _, r, d, wrong = _divide(x, y)
    return select(wrong, r + d, r)


def floor_divide_constant(x: Value, c: int) -> Value:
    """x // c: a shift for powers of two."""
    if c == 0:
        return const_like(x, 0)
    if c > 0 and c & (c - 1) == 0:
        return x >> (c.bit_length() - 1) if c > 1 else x
    if c == -1:
        return -x
    q = x // c
    if not _signed(x):
        return q
    r = x - q * c
    return q + _negative_bits(r) if c > 0 else q - (r > 0).cast(x.dtype)


def remainder_constant(x: Value, c: int) -> Value:
    """x % c: a mask for powers of two."""
    if c in (0, 1, -1):
        return const_like(x, 0)
    if c > 0 and c & (c - 1) == 0:
        return x & (c - 1)
    r = x - (x // c) * c
    if not _signed(x):
        return r
    return r + (_negative_bits(r) & c) if c > 0 else select(r > 0, r + c, r)


def shift_left(x: Value, n: Value) -> Value:
    bits = x.dtype.bits
    return select(n < bits, x << (n & (bits - 1)), 0)


def shift_right(x: Value, n: Value) -> Value:
    bits = x.dtype.bits
    inside = n < bits
    if not _signed(x):
        return select(inside, x >> (n & (bits - 1)), 0)
    return x >> select(inside, n & (bits - 1), bits - 1)


def shift_left_constant(x: Value, n: int) -> Value:
    return x << n if n < x.dtype.bits else const_like(x, 0)


def shift_right_constant(x: Value, n: int) -> Value:
    if n >= x.dtype.bits and not _signed(x):
        return const_like(x, 0)
    return x >> min(n, x.dtype.bits - 1)


def _is_unit(x: Value) -> Value:
    """Return whether x is 1 or -1, the numbers whose negative powers are whole."""
    return x.equals(1) | x.equals(-1)


def power(x: Value, n: Value) -> Value:
    """x ** n by repeated squaring, one step for each bit of n."""
    signed = _signed(x)
    result = select((n & 1).differs(0), x, 1)
    square = x
    for bit in range(1, x.dtype.bits - signed):
        square = square * square
        result = select((n & (1 << bit)).differs(0), result * square, result)
    return select((n < 0) & ~_is_unit(x), 0, result) if signed else result


def power_constant(x: Value, n: int) -> Value:
    """x ** n by repeated squaring."""
    if n < 0:
        return select(_is_unit(x), x if n & 1 else 1, const_like(x, 0))
    result: Value | None = None
    square = x
    while n:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        if n:
            square = square * square
    return const_like(x, 1) if result is None else result


def maximum(x: Value, y: Value) -> Value:
    return select(x > y, x, y)


def minimum(x: Value, y: Value) -> Value:
    return select(x < y, x, y)
