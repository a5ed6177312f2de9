"""`Access`: what one load or store touches, as heuristics look at it."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import ops
from ..ir.index import flatten, range_size, terms
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel


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


def past_caches(kernel: Kernel, capabilities: Capabilities, along: UOp | None = None) -> list[str]:
    """Return the outputs that go past the caches: those that are larger than all of the last one.

    With `along`, only outputs that vary with that range do.
    What the kernel reads then has the caches for itself, and a line is not read before it is written.
    """
    if not capabilities.caches:
        return []
    least = capabilities.caches[-1] * max(capabilities.threads, 1)
    found = []
    for s in kernel.stores:
        size = s.src[0].dtype.itemsize
        for r in s.ranges:
            size *= range_size(r)
        if size >= least and (along is None or along in s.ranges):
            found.append(s.src[0].arg[0])
    return found
