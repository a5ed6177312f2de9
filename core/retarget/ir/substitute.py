"""`Substitution`: kernel expressions with other index expressions in place of ranges.

Index arithmetic is built anew by its smart constructors, so that it is simplified again.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import ops
from .index import all_of, combine, divmod_, ge0, imul
from .uop import UOp


class Substitution:
    """Rebuilds expressions; what is not below a replaced node stays the same node.

    Parameters
    ----------
    replaced
        Node -> what takes its place: ranges, and whole expressions that are not to be looked into.
    """

    def __init__(self, replaced: Mapping[UOp, UOp]) -> None:
        self.memo: dict[UOp, UOp] = dict(replaced)

    def __call__(self, u: UOp) -> UOp:
        found = self.memo.get(u)
        if found is None:
            found = self.memo[u] = self.rebuild(u)
        return found

    def rebuild(self, u: UOp) -> UOp:
        """Return a node over what its operands became."""
        op = u.op
        if not u.src:
            return u
        match op:
            case ops.AFFINE:
                return combine([(self(a), k) for a, k in zip(u.src, u.arg[1], strict=True)], u.arg[0])
            case ops.IDIV:
                return divmod_(self(u.src[0]), u.arg)[0]
            case ops.IMOD:
                return divmod_(self(u.src[0]), u.arg)[1]
            case ops.IMUL:
                return imul(self(u.src[0]), self(u.src[1]))
            case ops.GE0:
                return ge0(self(u.src[0]))
            case ops.ALL:
                return all_of(*[self(m) for m in u.src])
        return u.replace(tuple([self(s) for s in u.src]))
