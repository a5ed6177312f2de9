"""`Access`: what one load or store touches, as heuristics look at it."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import ops
from ..ir.index import flatten, terms
from ..ir.uop import UOp


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: its flat index by range, and how much memory it touches."""

    coefficients: dict[UOp, int]
    irregular: frozenset[UOp]
    is_store: bool


def access_of(u: UOp) -> Access:
    idx = u.src[2:] if u.op is ops.LOAD else u.src[3:]
    coefficients: dict[UOp, int] = {}
    irregular: set[UOp] = set()
    for atom, k in terms(flatten(idx, u.src[0].arg[1]))[1]:
        if atom.op is ops.RANGE:
            coefficients[atom] = k
        else:
            irregular |= atom.ranges
    return Access(coefficients, frozenset(irregular), u.op is ops.STORE)
