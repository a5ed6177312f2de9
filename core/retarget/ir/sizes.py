"""Symbolic sizes: index expressions of variables that are bound at launch, as lengths of axes.

A size is an int, or a UOp of index dtype made of VARs, and stands in shapes beside ints.  `SizeArithmetic`
gives it Python's operators: results are canonical, so that equal sizes are identical, and what is constant is
an int again.  `<` and its like are decided by the bounds of the difference; where these leave it open, the
answer depends on the variables, and that is a `ShapeError`.  `==` is identity: sizes that are not identical
count as different.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InternalError, ShapeError
from . import ops

if TYPE_CHECKING:
    from .uop import UOp


class SizeArithmetic:
    """Operators of index-typed UOps; other UOps have none."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _sum(self, other, -1)

    def __rsub__(self, other: Any) -> Any:
        negative = self * -1
        return NotImplemented if negative is NotImplemented else negative + other

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        from .index import imul

        pair = _pair(self, other)
        return NotImplemented if pair is None else _size(imul(*pair))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        found = _divmod(self, other)
        return found if found is NotImplemented else found[0]

    def __rfloordiv__(self, other: Any) -> Any:
        found = _divmod(other, self)
        return found if found is NotImplemented else found[0]

    def __mod__(self, other: Any) -> Any:
        found = _divmod(self, other)
        return found if found is NotImplemented else found[1]

    def __rmod__(self, other: Any) -> Any:
        found = _divmod(other, self)
        return found if found is NotImplemented else found[1]

    def __lt__(self, other: Any) -> Any:
        return _below(self, other)

    def __le__(self, other: Any) -> Any:
        found = _below(other, self)
        return found if found is NotImplemented else not found

    def __gt__(self, other: Any) -> Any:
        return _below(other, self)

    def __ge__(self, other: Any) -> Any:
        found = _below(self, other)
        return found if found is NotImplemented else not found


def _index(x: Any) -> UOp | None:
    """Return an int or a size as an index expression, None for anything else."""
    from .index import INDEX, iconst
    from .uop import UOp

    if type(x) is UOp:
        return x if x.dtype is INDEX else None
    return iconst(x) if type(x) is int else None


def _pair(a: Any, b: Any) -> tuple[UOp, UOp] | None:
    x, y = _index(a), _index(b)
    return None if x is None or y is None else (x, y)


def _size(x: UOp) -> int | UOp:
    from .index import constant

    c = constant(x)
    return x if c is None else c


def _sum(a: Any, b: Any, factor: int) -> Any:
    from .index import combine

    pair = _pair(a, b)
    return NotImplemented if pair is None else _size(combine(((pair[0], 1), (pair[1], factor))))


def _below(a: Any, b: Any) -> Any:
    """Return whether a < b."""
    difference = _sum(a, b, -1)
    if difference is NotImplemented or type(difference) is int:
        return difference if difference is NotImplemented else difference < 0
    if difference.vmax < 0:
        return True
    if difference.vmin >= 0:
        return False
    raise ShapeError(
        f"whether {size_text(a)} < {size_text(b)} depends on {' and '.join(variables_of(difference))}, "
        "which is only bound at launch; narrow its bounds, or use a size known now"
    )


def _divmod(a: Any, b: Any) -> Any:
    """Return quotient and remainder: by an int, or by a product that divides every term."""
    from .index import combine, constant, divmod_, imul, terms

    pair = _pair(a, b)
    if pair is None:
        return NotImplemented
    x, y = pair
    n = constant(y)
    if n is not None:
        if n <= 0:
            raise ShapeError(f"the size {size_text(a)} is divided by {n}, which is not positive")
        quotient, remainder = divmod_(x, n)
        return _size(quotient), _size(remainder)
    c, divisor = terms(y)
    own, parts = terms(x)
    if c == 0 and len(divisor) == 1 and own == 0:
        atom, k = divisor[0]
        pairs: list[tuple[UOp, int]] = []
        for term, factor in parts:
            rest = _factors(term)
            if factor % k or any(rest.count(f) < _factors(atom).count(f) for f in _factors(atom)):
                break
            for f in _factors(atom):
                rest.remove(f)
            product = combine((), 1)
            for f in rest:
                product = imul(product, f)
            pairs.append((product, factor // k))
        else:
            return _size(combine(pairs)), 0
    raise ShapeError(f"{size_text(a)} divided by {size_text(b)} is no size known now")


def _factors(x: UOp) -> list[UOp]:
    return [*_factors(x.src[0]), *_factors(x.src[1])] if x.op is ops.IMUL else [x]


def size_text(x: Any) -> str:
    """Return a size as people write it: `4`, `3*n+1`."""
    if type(x) is int:
        return str(x)
    from .text import expr

    return expr(x)


def shape_text(shape: Any) -> str:
    """Return a shape as Python writes a tuple, with sizes as people write them."""
    inner = ", ".join([size_text(n) for n in shape])
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def upper(n: Any) -> int:
    """Return the largest value that a size can have."""
    return n if type(n) is int else n.vmax


def upper_numel(shape: Any) -> int:
    """Return the largest number of elements that an array of `shape` can have."""
    total = 1
    for n in shape:
        total *= n if type(n) is int else n.vmax
    return total


def variables_in(roots: Any) -> list[UOp]:
    """Return the VARs that sizes are made of, by name."""
    from .uop import toposort

    sizes = [n for n in roots if type(n) is not int]
    return sorted([u for u in toposort(sizes) if u.op is ops.VAR], key=lambda u: u.arg[0]) if sizes else []


def variables_of(x: UOp) -> list[str]:
    """Return the names of the variables of a size."""
    return [u.arg[0] for u in variables_in((x,))]


def evaluate(x: Any, values: Mapping[str, int]) -> int:
    """Return what a size is for some values of the variables."""
    if type(x) is int:
        return x
    src = [evaluate(s, values) for s in x.src]
    match x.op:
        case ops.VAR:
            return values[x.arg[0]]
        case ops.AFFINE:
            total: int = x.arg[0] + sum([k * s for k, s in zip(x.arg[1], src, strict=True)])
            return total
        case ops.IMUL:
            return src[0] * src[1]
        case ops.IDIV:
            return src[0] // x.arg  # type: ignore[no-any-return]
        case ops.IMOD:
            return src[0] % x.arg  # type: ignore[no-any-return]
    raise InternalError(f"a size depends on {x.op}; sizes are made of variables and index arithmetic")
