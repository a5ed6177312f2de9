"""Writing linear expressions as formulas, and expanding them quickly.

A formula is a Python function of `Value`s, which wrap a UOp and have operators; numbers become constants of
the other operand's dtype. `expand` runs a formula once for its operands' dtypes, keeps the list of nodes that
it made, and from then on only replays that list.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...ir import dtypes, ops
from ...ir.dtypes import DType
from ...ir.ops import Op
from ...ir.uop import UOp, const, toposort


class Value:
    """A linear expression under construction; the operators build basic linear ops of the operands' dtype.

    `<<` and `>>` shift by a count in range, `//` and `%` round toward zero with a safe divisor.
    """

    __slots__ = ("uop",)
    uop: UOp

    def __init__(self, uop: UOp) -> None:
        self.uop = uop

    @property
    def dtype(self) -> DType:
        return self.uop.dtype

    @property
    def format(self) -> Format:
        """How the value, a float32 or float64, is laid out in bits."""
        return FORMATS[self.uop.dtype.name]

    def _binary(self, op: Op, y: Operand) -> Value:
        return Value(UOp(op, self.uop.dtype, (self.uop, const_like(self, y).uop)))

    def _compare(self, op: Op, y: Operand) -> Value:
        dtype = dtypes.bool_.vector(self.uop.dtype.lanes)
        return Value(UOp(op, dtype, (self.uop, const_like(self, y).uop)))

    def __add__(self, y: Operand) -> Value:
        return self._binary(ops.ADD, y)

    def __radd__(self, x: float) -> Value:
        return const_like(self, x)._binary(ops.ADD, self)

    def __sub__(self, y: Operand) -> Value:
        return self._binary(ops.SUB, y)

    def __rsub__(self, x: float) -> Value:
        return const_like(self, x)._binary(ops.SUB, self)

    def __mul__(self, y: Operand) -> Value:
        return self._binary(ops.MUL, y)

    def __rmul__(self, x: float) -> Value:
        return self._binary(ops.MUL, x)

    def __truediv__(self, y: Operand) -> Value:
        return self._binary(ops.FDIV, y)

    def __rtruediv__(self, x: float) -> Value:
        return const_like(self, x)._binary(ops.FDIV, self)

    def __floordiv__(self, y: Operand) -> Value:
        return self._binary(ops.TRUNCDIV, y)

    def __neg__(self) -> Value:
        return Value(UOp(ops.NEG, self.uop.dtype, (self.uop,)))

    def __and__(self, y: Operand) -> Value:
        return self._binary(ops.AND, y)

    def __or__(self, y: Operand) -> Value:
        return self._binary(ops.OR, y)

    def __xor__(self, y: Operand) -> Value:
        return self._binary(ops.XOR, y)

    def __invert__(self) -> Value:
        return Value(UOp(ops.NOT, self.uop.dtype, (self.uop,)))

    def __lshift__(self, n: Operand) -> Value:
        return self._binary(ops.USHL, n)

    def __rshift__(self, n: Operand) -> Value:
        return self._binary(ops.USHR, n)

    def __lt__(self, y: Operand) -> Value:
        return self._compare(ops.CMPLT, y)

    def __le__(self, y: Operand) -> Value:
        return self._compare(ops.CMPLE, y)

    def __gt__(self, y: Operand) -> Value:
        return const_like(self, y)._compare(ops.CMPLT, self)

    def __ge__(self, y: Operand) -> Value:
        return const_like(self, y)._compare(ops.CMPLE, self)

    def equals(self, y: Operand) -> Value:
        return self._compare(ops.CMPEQ, y)

    def differs(self, y: Operand) -> Value:
        return self._compare(ops.CMPNE, y)

    def is_nan(self) -> Value:
        return self._compare(ops.CMPNE, self)

    def cast(self, dtype: DType) -> Value:
        """Convert to the scalar type of `dtype`; from a float to an integer only what fits."""
        return self._convert(ops.CAST, dtype)

    def bitcast(self, dtype: DType) -> Value:
        return self._convert(ops.BITCAST, dtype)

    def _convert(self, op: Op, dtype: DType) -> Value:
        dtype = dtype.vector(self.uop.dtype.lanes)
        return self if dtype is self.uop.dtype else Value(UOp(op, dtype, (self.uop,)))

    def bits(self) -> Value:
        """The bits of a float as the signed integer of its width."""
        return self.bitcast(self.format.integer)


Operand = Value | float
Formula = Callable[..., Value]


def const_like(x: Value, value: Operand) -> Value:
    """Return the number as a constant of x's dtype, in every lane."""
    if isinstance(value, Value):
        return value
    scalar = const(value, x.uop.dtype)
    return Value(scalar if x.uop.dtype.lanes == 1 else UOp(ops.BROADCAST, x.uop.dtype, (scalar,)))


def select(condition: Value, x: Operand, y: Operand) -> Value:
    """Return x where the condition holds, else y; one of the two must be a Value."""
    like = x if isinstance(x, Value) else y
    assert isinstance(like, Value)
    a, b = const_like(like, x).uop, const_like(like, y).uop
    return Value(UOp(ops.WHERE, a.dtype, (condition.uop, a, b)))


def mulacc(x: Value, y: Operand, z: Operand) -> Value:
    """Return x * y + z, rounded once or twice: for where both are good enough."""
    return Value(UOp(ops.MULACC, x.uop.dtype, (x.uop, const_like(x, y).uop, const_like(x, z).uop)))


def sqrt(x: Value) -> Value:
    return Value(UOp(ops.SQRT, x.uop.dtype, (x.uop,)))


def floor(x: Value) -> Value:
    return Value(UOp(ops.FLOOR, x.uop.dtype, (x.uop,)))


def trunc(x: Value) -> Value:
    return Value(UOp(ops.TRUNC, x.uop.dtype, (x.uop,)))


def rint(x: Value) -> Value:
    return Value(UOp(ops.RINT, x.uop.dtype, (x.uop,)))


# -- formats and exact constants -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of float32 or float64, with the constants that formulas need."""

    mantissa: int  # stored bits
    bias: int  # of the exponent
    integer: DType  # signed, of the same width
    shifter: float  # adding it leaves the nearest integer in the low bits

    @property
    def sign(self) -> int:
        """The sign bit as a signed integer."""
        return int(self.integer.min)

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def head(self) -> int:
        """The mask that keeps half of the significand, so that the product of two such heads is exact."""
        return -1 << (self.mantissa + 2) // 2

    def bits(self, value: float) -> int:
        """Return the bits of a number that has this format, as a signed integer."""
        code = ("<f", "<i") if self.mantissa == 23 else ("<d", "<q")
        return int(struct.unpack(code[1], struct.pack(code[0], value))[0])


FORMATS = {
    "float32": Format(23, 127, dtypes.int32, 1.5 * 2.0**23),
    "float64": Format(52, 1023, dtypes.int64, 1.5 * 2.0**52),
}


@functools.cache
def parts(text: str, *bits: int) -> tuple[float, ...]:
    """Return a decimal constant as a sum of floats: the first few of `bits` significant bits, the last in
    full.
    """
    rest = Fraction(text)
    found = []
    for n in bits:
        scale = Fraction(2) ** (n - 1 - _exponent(rest))
        head = Fraction(round(rest * scale)) / scale
        found.append(float(head))
        rest -= head
    return (*found, float(rest))


def _exponent(x: Fraction) -> int:
    """Return floor(log2(|x|)), or that plus one."""
    return abs(x.numerator).bit_length() - x.denominator.bit_length()


LN2 = "0.6931471805599453094172321214581765680755001343602552541206800094933936"


def head(x: Value) -> Value:
    """Return x with the lower half of its significand cleared."""
    f = x.format
    return (x.bits() & f.head).bitcast(x.dtype)


def split_sign(x: Value) -> tuple[Value, Value]:
    """Return |x| and the sign bit of x as an integer."""
    bits = x.bits()
    sign = x.format.sign
    return (bits & ~sign).bitcast(x.dtype), bits & sign


def flip_sign(x: Value, sign: Value) -> Value:
    """Return x with its sign bit exclusive-ored with an integer that has no other bits."""
    return (x.bits() ^ sign).bitcast(x.dtype)


def int_to_float(n: Value, dtype: DType) -> Value:
    """Return a small integer (below 2**51 in size) as the float of its width.

    CPUs convert vectors of int32, but few convert int64; adding to a large number's bits is as good.
    """
    if n.dtype.bits == 32:
        return n.cast(dtype)
    f = FORMATS[dtype.name]
    return (n + f.bits(f.shifter)).bitcast(dtype) - f.shifter


def power_of_two(n: Value, dtype: DType) -> Value:
    """Return 2**n for an integer n in the range of normal exponents."""
    f = FORMATS[dtype.name]
    return ((n + f.bias) << f.mantissa).bitcast(dtype)


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """Return the polynomial of x with these coefficients, lowest degree first, by Horner's rule."""
    *rest, last = coefficients
    result: Operand = last
    for c in reversed(rest):
        result = mulacc(x, result, c)
    return const_like(x, result)


# -- expansion -----------------------------------------------------------------------------------------------

Step = tuple[Op, DType, tuple[int, ...], Any]


@functools.cache
def _record(
    formula: Formula, operands: tuple[DType, ...], static: tuple[Any, ...]
) -> tuple[list[UOp], list[Step], int]:
    """Run a formula on placeholders; return its constants, its steps over (operands, constants, steps), its
    result.
    """
    places = [UOp(ops.VAR, dtype, (), (f"${i}", 0, 0)) for i, dtype in enumerate(operands)]
    root = formula(*[Value(p) for p in places], *static).uop
    order = [u for u in toposort([root]) if u not in places]
    constants = [
        u for u in order if u.op is ops.CONST or (u.op is ops.BROADCAST and u.src[0].op is ops.CONST)
    ]
    number = {u: i for i, u in enumerate([*places, *constants])}
    steps: list[Step] = []
    for u in order:
        if u not in number:
            number[u] = len(places) + len(constants) + len(steps)
            steps.append((u.op, u.dtype, tuple(number[s] for s in u.src), u.arg))
    return constants, steps, number[root]


def expand(formula: Formula, src: tuple[UOp, ...], *static: Any) -> UOp:
    """Return `formula(*src, *static)`; the static arguments are hashable and decide how the formula is
    written.
    """
    constants, steps, result = _record(formula, tuple([s.dtype for s in src]), static)
    values = [*src, *constants]
    for op, dtype, operands, arg in steps:
        values.append(UOp(op, dtype, tuple([values[i] for i in operands]), arg))
    return values[result]
