"""Index arithmetic that is canonical when it is built, and masks over it.

An index expression is AFFINE(constant, coefficients; atoms) in which each atom is a RANGE, a VAR, an IDIV, an IMOD, an
IMUL or an IVALUE, at most once, ordered by `sort_key`; a lone atom stands for itself.  Every node knows its bounds.
Quotient and remainder of one division are built from the same residue, so that `n*(x//n) + x%n` recombines to `x`;
no later rewriting is needed.  Floor semantics throughout, as Python's `//` and `%`.

A mask is a bool constant, GE0(index), or ALL(masks...), flat and ordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import dtypes, ops
from .uop import UOp, const, sort_key

TRUE = const(True, dtypes.bool_)
FALSE = const(False, dtypes.bool_)


def iconst(value: int) -> UOp:
    """Return a constant index."""
    return UOp(ops.AFFINE, dtypes.index, (), (value, ()))


ZERO = iconst(0)
ONE = iconst(1)


def irange(size: int | UOp, name: str, kind: str = "loop") -> UOp:
    """Return the range 0 <= i < size; a range of size 1 is the constant 0."""
    if isinstance(size, int):
        return ZERO if size == 1 else UOp(ops.RANGE, dtypes.index, (), (name, size, kind))
    value = constant(size)
    return irange(value, name, kind) if value is not None else UOp(ops.RANGE, dtypes.index, (size,), (name, None, kind))


def range_size(r: UOp) -> int:
    """Return a range's size, the largest possible one if it is bound at launch."""
    size: int | None = r.arg[1]
    return r.vmax + 1 if size is None else size


def constant(x: UOp) -> int | None:
    """Return the value of a constant index expression, else None."""
    return x.arg[0] if x.op is ops.AFFINE and not x.src else None


def terms(x: UOp) -> tuple[int, list[tuple[UOp, int]]]:
    """Return (constant, [(atom, coefficient), ...]) of an index expression."""
    if x.op is ops.AFFINE:
        return x.arg[0], list(zip(x.src, x.arg[1], strict=True))
    return 0, [(x, 1)]


def _build(c: int, d: dict[UOp, int]) -> UOp:
    """Return the canonical sum c + sum(coefficient * atom)."""
    recombined = True
    while recombined:
        recombined = False
        for a, k in d.items():
            # k*(x % n) + k*n*(x // n) -> k*x
            if a.op is ops.IMOD and k:
                q = UOp(ops.IDIV, dtypes.index, a.src, a.arg)
                if d.get(q, 0) == k * a.arg:
                    d[q] = 0
                    d[a] = 0
                    c2, inner = terms(a.src[0])
                    c += k * c2
                    for b, kb in inner:
                        d[b] = d.get(b, 0) + k * kb
                    recombined = True
                    break
    items = [(a, k) for a, k in d.items() if k]
    if not items:
        return iconst(c)
    if len(items) == 1:
        a, k = items[0]
        if c == 0 and k == 1:
            return a
    else:
        items.sort(key=_by_key)
    return UOp(ops.AFFINE, dtypes.index, tuple([a for a, _ in items]), (c, tuple([k for _, k in items])))


def _by_key(item: tuple[UOp, int]) -> tuple[object, ...]:
    return sort_key(item[0])


def combine(pairs: Iterable[tuple[UOp, int]], c: int = 0) -> UOp:
    """Return c + the sum of coefficient * index over (index, coefficient) pairs."""
    d: dict[UOp, int] = {}
    for x, k in pairs:
        if x.op is ops.AFFINE:
            c0, coefs = x.arg
            c += c0 * k
            for a, ka in zip(x.src, coefs, strict=True):
                d[a] = d.get(a, 0) + ka * k
        else:
            d[x] = d.get(x, 0) + k
    return _build(c, d)


def iadd(a: UOp, b: UOp) -> UOp:
    return combine(((a, 1), (b, 1)))


def ishift(a: UOp, c: int) -> UOp:
    """Return a + c."""
    return combine(((a, 1),), c) if c else a


def iscale(a: UOp, k: int) -> UOp:
    """Return a * k."""
    return combine(((a, k),)) if k != 1 else a


def imul(a: UOp, b: UOp) -> UOp:
    """Return a * b for any two index expressions: distributed over sums, so that the result is canonical."""
    ca, ta = terms(a)
    cb, tb = terms(b)
    if not ta:
        return iscale(b, ca)
    if not tb:
        return iscale(a, cb)
    pairs = [(x, k * cb) for x, k in ta] + [(y, k * ca) for y, k in tb]
    for x, kx in ta:
        for y, ky in tb:
            p, q = (x, y) if sort_key(x) <= sort_key(y) else (y, x)
            pairs.append((UOp(ops.IMUL, dtypes.index, (p, q)), kx * ky))
    return combine(pairs, ca * cb)


def divmod_(x: UOp, n: int) -> tuple[UOp, UOp]:
    """Return (x // n, x % n) for a positive constant n, in forms that recombine."""
    if n == 1:
        return x, ZERO
    c, t = terms(x)
    if not t:
        return iconst(c // n), iconst(c % n)
    if 0 <= x.vmin and x.vmax < n:
        return ZERO, x
    # Multiples of n go to the quotient; the residue keeps coefficients in [0, n).
    q = combine([(a, k // n) for a, k in t], c // n)
    r = combine([(a, k % n) for a, k in t], c % n)
    if 0 <= r.vmin and r.vmax < n:
        return q, r
    low = r.vmin // n
    if low == r.vmax // n:
        return ishift(q, low), ishift(r, -n * low)
    c, t = terms(r)
    # Where g divides n and the terms that g does not divide stay in [0, g), they cannot carry: divide them away.
    for g in sorted({k for _, k in t if k > 1 and n % k == 0}, reverse=True):
        part = combine([(a, k) for a, k in t if k % g], c % g)
        if 0 <= part.vmin and part.vmax < g:
            q2, r2 = divmod_(combine([(a, k // g) for a, k in t if k % g == 0], c // g), n // g)
            return iadd(q, q2), combine(((r2, g), (part, 1)))
    if r.op is ops.IDIV:  # (y // m) // n = y // (m*n)
        return iadd(q, divmod_(r.src[0], r.arg * n)[0]), UOp(ops.IMOD, dtypes.index, (r,), n)
    if r.op is ops.IMOD and r.arg % n == 0:  # (y % (m*n)) % n = y % n
        return iadd(q, UOp(ops.IDIV, dtypes.index, (r,), n)), divmod_(r.src[0], n)[1]
    return iadd(q, UOp(ops.IDIV, dtypes.index, (r,), n)), UOp(ops.IMOD, dtypes.index, (r,), n)


def flatten(indices: Sequence[UOp], shape: Sequence[int]) -> UOp:
    """Return the row-major flat index; a dimension of 0 is one of stride 0 (see LOCAL)."""
    stride = 1
    pairs = []
    for i, n in zip(reversed(indices), reversed(shape), strict=True):
        if n:
            pairs.append((i, stride))
            stride *= n
    return combine(pairs)


# -- masks ---------------------------------------------------------------------------------------------------


def ge0(x: UOp) -> UOp:
    """Return the mask x >= 0, a constant where the bounds decide it."""
    if x.vmin >= 0:
        return TRUE
    if x.vmax < 0:
        return FALSE
    c, t = terms(x)
    if len(t) == 1 and abs(t[0][1]) > 1:  # k*a + c >= 0  ->  a + c//k >= 0 (k > 0), -a + c//|k| >= 0 (k < 0)
        a, k = t[0]
        x = combine(((a, 1 if k > 0 else -1),), c // abs(k))
    return UOp(ops.GE0, dtypes.bool_, (x,))


def less_than(x: UOp, n: int) -> UOp:
    """Return the mask x < n."""
    return ge0(combine(((x, -1),), n - 1))


def all_of(*masks: UOp) -> UOp:
    """Return the conjunction of masks."""
    if len(masks) == 2:
        a, b = masks
        if a is TRUE or a is b:
            return b
        if b is TRUE:
            return a
    found: dict[UOp, None] = {}
    for m in masks:
        if m is FALSE:
            return FALSE
        for a in m.src if m.op is ops.ALL else (m,):
            if a is not TRUE:
                found[a] = None
    parts = sorted(found, key=sort_key)
    if not parts:
        return TRUE
    return parts[0] if len(parts) == 1 else UOp(ops.ALL, dtypes.bool_, tuple(parts))


def in_bounds(x: UOp, n: int) -> UOp:
    """Return the mask 0 <= x < n."""
    return all_of(ge0(x), less_than(x, n))


def conjuncts(mask: UOp) -> tuple[UOp, ...]:
    """Return the parts of a mask: none for TRUE."""
    return () if mask is TRUE else mask.src if mask.op is ops.ALL else (mask,)
