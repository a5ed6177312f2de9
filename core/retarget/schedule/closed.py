"""Sums over a range of which a comparison picks one value, or counts how many there are: without a loop.

    sum over r of (v[r] where r == i, else 0)       v[i], if i is a value of r, else 0
    sum over r of (a where r < i, else b)           a * n + b * (size - n), n = i held between 0 and the size

The first holds for every dtype: all other terms are 0 (and a sum that begins with 0.0 turns -0.0 into 0.0).
The second is for integers, whose products wrap as sums do; floats would be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import dtypes, ops
from ..ir.index import all_of, combine, ge0, imul, ishift, terms
from ..ir.index import divmod_ as divide
from ..ir.simplify import alu, cast, where
from ..ir.uop import UOp, const

_FLIPPED = {ops.CMPLT: ops.CMPLE, ops.CMPLE: ops.CMPLT}


def closed_sum(
    value: UOp, r: UOp, as_value: Callable[[UOp, dtypes.DType], UOp], inside: Callable[[UOp, int], UOp]
) -> UOp | None:
    """Return the sum of `value` over `r`, or None if it has no closed form here.

    Parameters
    ----------
    value, r
        A kernel expression and a range.
    as_value
        Makes a value of an index expression.
    inside
        Makes the mask that an integer value is at least 0 and less than a size.
    """
    size = r.arg[1]
    found = _choice(value) if type(size) is int else None
    if found is None:
        return None
    condition, yes, no = found
    op = condition.op
    if op is not ops.CMPEQ and op not in _FLIPPED:
        return None
    left, right = condition.src
    at = _offset(left, r)
    if at is None:
        at, right = _offset(right, r), left
        if at is None:
            return None
        swapped = True
    else:
        swapped = False
    if r in right.ranges or right.dtype is dtypes.uint64 or (at is not _ZERO and not _is_narrow(right)):
        return None  # the difference could wrap
    wide = dtypes.int64
    bound = alu(ops.SUB, cast(right, wide), as_value(at, wide)) if at is not _ZERO else cast(right, wide)
    dtype = value.dtype
    zero = const(ops.identity(ops.ADD, dtype), dtype)
    if op is ops.CMPEQ:
        if no is not zero:
            return None
        mask = inside(bound, size)
        picked = _substitute(yes, r, UOp(ops.IVALUE, dtypes.index, (bound,), (0, size - 1)), mask)
        result = where(mask, picked, zero)
        return alu(ops.ADD, result, zero) if dtype.is_float else result
    if not dtype.is_int or r in yes.ranges or r in no.ranges:
        return None
    # How many r are below the bound, or at most it; the others are those where it is on the left.
    inclusive = (op is ops.CMPLE) is not swapped
    low, high = (-1, size - 1) if inclusive else (0, size)
    count = alu(ops.MINIMUM, alu(ops.MAXIMUM, bound, const(low, wide)), const(high, wide))
    if inclusive:
        count = alu(ops.ADD, count, const(1, wide))
    others = alu(ops.SUB, const(size, wide), count)
    if swapped:
        count, others = others, count
    total = alu(ops.MUL, yes, cast(count, dtype))
    return total if no is zero else alu(ops.ADD, total, alu(ops.MUL, no, cast(others, dtype)))


_ZERO = combine(())


def _choice(value: UOp) -> tuple[UOp, UOp, UOp] | None:
    """Return (condition, value where it holds, value elsewhere) of an expression that is a choice."""
    if value.op is ops.WHERE:
        return value.src[0], value.src[1], value.src[2]
    if value.op is ops.CAST:
        inner = value.src[0]
        if inner.dtype is dtypes.bool_:
            return inner, const(type(ops.identity(ops.ADD, value.dtype))(1), value.dtype), _none(value.dtype)
        found = _choice(inner)
        return found and (found[0], cast(found[1], value.dtype), cast(found[2], value.dtype))
    if value.op is ops.MUL and value.dtype.is_int:
        for a, b in (value.src, value.src[::-1]):
            if a.op is ops.CAST and a.src[0].dtype is dtypes.bool_:
                return a.src[0], b, _none(value.dtype)
    return None


def _none(dtype: dtypes.DType) -> UOp:
    return const(ops.identity(ops.ADD, dtype), dtype)


def _is_index(x: UOp) -> bool:
    return x.op is ops.CAST and x.src[0].dtype is dtypes.index


def _is_narrow(x: UOp) -> bool:
    """Whether an integer certainly has fewer than 64 bits."""
    while x.op is ops.CAST and x.dtype.is_int and x.src[0].dtype.is_int:
        x = x.src[0]
    return _is_index(x) or x.op is ops.CONST or x.dtype.bits < 64


def _offset(x: UOp, r: UOp) -> UOp | None:
    """Return the rest of an integer that is `r` plus something without `r`, else None."""
    shift = 0
    if x.op is ops.ADD and x.src[1].op is ops.CONST and x.dtype.is_int:
        x, shift = x.src[0], x.src[1].arg
    if not _is_index(x) or not x.dtype.is_int:
        return None
    index = ishift(x.src[0], shift)
    if x.src[0].vmin < x.dtype.min or x.src[0].vmax > x.dtype.max:
        return None
    if index.vmin < x.dtype.min or index.vmax > x.dtype.max:
        return None
    c, parts = terms(index)
    if (r, 1) not in parts:
        return None
    rest = [(a, k) for a, k in parts if a is not r]
    return None if any(r in a.ranges for a, _ in rest) else combine(rest, c)


def _substitute(value: UOp, r: UOp, index: UOp, mask: UOp) -> UOp:
    """Return an expression with an index in place of a range; loads that vary with it hold under the mask."""
    memo: dict[UOp, UOp] = {r: index}

    def rebuilt(u: UOp) -> UOp:
        if r not in u.ranges:
            return u
        found = memo.get(u)
        if found is None:
            src = [rebuilt(s) for s in u.src]
            match u.op:
                case ops.AFFINE:
                    found = combine(zip(src, u.arg[1], strict=True), u.arg[0])
                case ops.IDIV | ops.IMOD:
                    found = divide(src[0], u.arg)[u.op is ops.IMOD]
                case ops.IMUL:
                    found = imul(*src)
                case ops.GE0:
                    found = ge0(src[0])
                case ops.ALL:
                    found = all_of(*src)
                case ops.LOAD:
                    found = u.replace((src[0], all_of(src[1], mask), *src[2:]))
                case _:
                    found = u.replace(tuple(src))
            memo[u] = found
        return found

    return rebuilt(value)
