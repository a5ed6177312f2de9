"""Index arithmetic that is canonical when it is built, and masks over it.

An index expression is AFFINE(constant, coefficients; atoms) in which each atom is a RANGE, a VAR, an IDIV, an
IMOD, an IMUL or an IVALUE, at most once, ordered by `sort_key`; a lone atom stands for itself.  Every node
knows its bounds.  Quotient and remainder of one division are built from the same residue, so that
`n*(x//n) + x%n` recombines to `x`; no later rewriting is needed.  Floor semantics throughout, as Python's
`//` and `%`.

A mask is a bool constant, GE0(index), or ALL(masks...), flat and ordered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from . import dtypes, ops
from .ops import AFFINE, IDIV, IMOD
from .uop import UOp, const, sort_key

INDEX = dtypes.index

TRUE = const(True, dtypes.bool_)
FALSE = const(False, dtypes.bool_)


def iconst(value: int) -> UOp:
    """Return a constant index."""
    return UOp(AFFINE, INDEX, (), (value, ()))


ZERO = iconst(0)
ONE = iconst(1)


def irange(size: int | UOp, name: str, kind: str = "loop") -> UOp:
    """Return the range 0 <= i < size; a range of size 1 is the constant 0."""
    if isinstance(size, int):
        return ZERO if size == 1 else UOp(ops.RANGE, INDEX, (), (name, size, kind))
    value = constant(size)
    if value is not None:
        return irange(value, name, kind)
    return UOp(ops.RANGE, INDEX, (size,), (name, None, kind))


def range_size(r: UOp) -> int:
    """Return a range's size, the largest possible one if it is bound at launch."""
    size: int | None = r.arg[1]
    return r.vmax + 1 if size is None else size


def constant(x: UOp) -> int | None:
    """Return the value of a constant index expression, else None."""
    return x.arg[0] if x.op is AFFINE and not x.src else None


def terms(x: UOp) -> tuple[int, list[tuple[UOp, int]]]:
    """Return (constant, [(atom, coefficient), ...]) of an index expression."""
    if x.op is AFFINE:
        return x.arg[0], list(zip(x.src, x.arg[1], strict=True))
    return 0, [(x, 1)]


def _build(c: int, d: dict[UOp, int]) -> UOp:
    """Return the canonical sum c + sum(coefficient * atom); `d` is used up."""
    atoms = []
    has_div = has_mod = False  # has_mod: there is a remainder, or a quotient of one
    for a, k in d.items():
        if k:
            atoms.append(a)
            op = a.op
            if op is IDIV:
                has_div = True
                has_mod = has_mod or a.src[0].op is IMOD
            elif op is IMOD:
                has_mod = True
    if has_div and has_mod:
        c = _recombine(c, d)
        atoms = [a for a, k in d.items() if k]
    if len(atoms) > 1:
        atoms.sort(key=_by_key)
    return _sum(c, atoms, [d[a] for a in atoms])


def _sum(c: int, atoms: Sequence[UOp], coefficients: Sequence[int]) -> UOp:
    """Return the sum of atoms in canonical order; part of a canonical sum, or a multiple of it, is one."""
    if len(atoms) == 1 and c == 0 and coefficients[0] == 1:
        return atoms[0]
    return UOp(AFFINE, INDEX, tuple(atoms), (c, tuple(coefficients)))


def _by_key(a: UOp) -> tuple[object, ...]:
    return a._key or sort_key(a)


def _recombine(c: int, d: dict[UOp, int]) -> int:
    """Put quotients and remainders in `d` together where both are there; return the new constant.

    k*(x % n) + k*n*(x // n) is k*x, for the forms that `divmod_` gives to x // n and x % n; more of x // n
    than that stays.  Where x % n needs no division, k*n*(x // n) alone is k*x - k*(x % n).
    """
    again = True
    while again:
        again = False
        for a in sorted([a for a, k in d.items() if k and (a.op is IDIV or a.op is IMOD)], key=_by_key):
            k, n = d[a], a.arg
            x = a.src[0]
            if a.op is IDIV:
                if k % n:
                    continue
                k //= n
            quotient, remainder = divmod_(x, n)
            # Each term that divides has to be there; the others may have merged with something else.
            parts = [(b, k * n * kb) for b, kb in terms(quotient)[1]] + [
                (b, k * kb) for b, kb in terms(remainder)[1]
            ]
            divisions = [(b, kb) for b, kb in parts if b.op is IDIV or b.op is IMOD]
            if len(divisions) > (a.op is IMOD) and all(
                d.get(b, 0) == kb or (a.op is IMOD and (d.get(b, 0) - kb) * kb > 0) for b, kb in divisions
            ):
                for b, kb in parts:
                    d[b] = d.get(b, 0) - kb
                c += k * (terms(x)[0] - n * terms(quotient)[0] - terms(remainder)[0])
                for b, kb in terms(x)[1]:
                    d[b] = d.get(b, 0) + k * kb
                again = True
                break
    return c


def combine(pairs: Iterable[tuple[UOp, int]], c: int = 0) -> UOp:
    """Return c + the sum of coefficient * index over (index, coefficient) pairs."""
    d: dict[UOp, int] = {}
    for x, k in pairs:
        if x.op is AFFINE:
            c0, coefs = x.arg
            c += c0 * k
            for a, ka in zip(x.src, coefs, strict=True):
                d[a] = d.get(a, 0) + ka * k
        else:
            d[x] = d.get(x, 0) + k
    return _build(c, d)


def iadd(a: UOp, b: UOp) -> UOp:
    return combine(((a, 1), (b, 1)))


def ishift(a: UOp, c: int | UOp) -> UOp:
    """Return a + c."""
    if isinstance(c, UOp):
        return iadd(a, c)
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
            pairs.append((UOp(ops.IMUL, INDEX, (p, q)), kx * ky))
    return combine(pairs, ca * cb)


def divmod_(x: UOp, n: int) -> tuple[UOp, UOp]:
    """Return (x // n, x % n) for a positive constant n, in forms that recombine."""
    if n == 1:
        return x, ZERO
    low = x.vmin // n
    if low == x.vmax // n:
        return iconst(low), ishift(x, -n * low)
    if x.op is not AFFINE:
        return _divide(x, n)
    c, coefs = x.arg
    if 0 <= c < n and min(coefs) >= 0 and max(coefs) < n:
        return _divide(x, n)
    # Multiples of n go to the quotient; the residue keeps coefficients in [0, n).
    q = _build(c // n, {a: k // n for a, k in zip(x.src, coefs, strict=True)})
    r = _build(c % n, {a: k % n for a, k in zip(x.src, coefs, strict=True)})
    low = r.vmin // n
    if low == r.vmax // n:
        return ishift(q, low), ishift(r, -n * low)
    if 2 * max(k % n for k in coefs) > n:  # n - 1 is a step backward: nearest 0, residues may not wrap at all
        near = {a: (k + n // 2) // n for a, k in zip(x.src, coefs, strict=True)}
        back = _build(c % n, {a: k - near[a] * n for a, k in zip(x.src, coefs, strict=True)})
        low = back.vmin // n
        if low == back.vmax // n:
            return _build(c // n + low, near), ishift(back, -n * low)
    q2, r2 = _divide(r, n)
    return iadd(q, q2), r2


def _divide(r: UOp, n: int) -> tuple[UOp, UOp]:
    """Return quotient and remainder of a residue: its coefficients and constant are in [0, n)."""
    if r.op is AFFINE:
        c, coefs = r.arg
        atoms = r.src
        # Where g divides n and the terms that g does not divide stay between two multiples of g, they cannot
        # carry: divide the others by g.
        for g in sorted({math.gcd(k, n) for k in coefs}, reverse=True):
            if g == 1:
                break
            lo = hi = c % g
            low_atoms, low, high_atoms, high = [], [], [], []
            for a, k in zip(atoms, coefs, strict=True):
                if k % g:
                    low_atoms.append(a)
                    low.append(k)
                    lo += k * a.vmin
                    hi += k * a.vmax
                else:
                    high_atoms.append(a)
                    high.append(k // g)
            carry = lo // g
            if carry == hi // g:
                q, rest = divmod_(_sum(c // g + carry, high_atoms, high), n // g)
                return q, combine(((rest, g), (_sum(c % g - carry * g, low_atoms, low), 1)))
    elif r.op is IDIV:  # (y // m) // n = y // (m*n)
        return divmod_(r.src[0], r.arg * n)[0], UOp(IMOD, INDEX, (r,), n)
    elif r.op is IMOD and r.arg % n == 0:  # (y % (m*n)) % n = y % n
        return UOp(IDIV, INDEX, (r,), n), divmod_(r.src[0], n)[1]
    return UOp(IDIV, INDEX, (r,), n), UOp(IMOD, INDEX, (r,), n)


def flatten(indices: Sequence[UOp], shape: Sequence[int]) -> UOp:
    """Return the row-major flat index; a dimension of 0 is one of stride 0 (see LOCAL)."""
    stride: int | UOp = 1
    pairs = []
    for i, n in zip(reversed(indices), reversed(shape), strict=True):
        if n:
            pairs.append((i, stride) if type(stride) is int else (imul(i, stride), 1))  # type: ignore[arg-type]
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
    for a, k in t:
        if k < 0 and a.op is ops.RANGE and a.src and _lowest(c, t) >= 0:
            return TRUE
    if len(t) == 1 and abs(t[0][1]) > 1:  # k*a + c >= 0  ->  a + c//k >= 0 (k > 0), -a + c//|k| >= 0 (k < 0)
        a, k = t[0]
        x = combine(((a, 1 if k > 0 else -1),), c // abs(k))
    return UOp(ops.GE0, dtypes.bool_, (x,))


def _lowest(c: int, parts: list[tuple[UOp, int]]) -> int:
    """Return a lower bound of a sum: each range of symbolic size is put at its end, its size - 1."""
    pairs = []
    for a, k in parts:
        if k < 0 and a.op is ops.RANGE and a.src:
            c -= k
            a = a.src[0]
        pairs.append((a, k))
    return combine(pairs, c).vmin


def less_than(x: UOp, n: int | UOp) -> UOp:
    """Return the mask x < n."""
    if isinstance(n, UOp):
        return ge0(combine(((n, 1), (x, -1)), -1))
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


def in_bounds(x: UOp, n: int | UOp) -> UOp:
    """Return the mask 0 <= x < n."""
    return all_of(ge0(x), less_than(x, n))


def conjuncts(mask: UOp) -> tuple[UOp, ...]:
    """Return the parts of a mask: none for TRUE."""
    return () if mask is TRUE else mask.src if mask.op is ops.ALL else (mask,)
