"""A thread axis on a reduction: ordered phases, with partial results in scratch buffers between them.

Threads do not wait for each other, so a reduction over their axis is taken in two steps.  In one phase each
piece stores its partial result; in a later one, whoever needs the reduction folds the partial results of all
pieces, in order.  A reduction that needs another one comes a phase later; what has no thread axis comes last
and is computed once.

The number of pieces is the schedule's and not that of the threads: results do not depend on the latter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import dtypes, ops
from ..ir.index import TRUE, irange, range_size
from ..ir.uop import UOp, toposort


@dataclass(slots=True)
class Phases:
    """The phases of a kernel.

    Attributes
    ----------
    stores
        The stores of each phase, in the order in which they run.
    scratch
        PARAMs of the partial results.
    """

    stores: list[list[UOp]] = field(default_factory=list)
    scratch: list[UOp] = field(default_factory=list)


def holds_threads(nodes: list[UOp]) -> bool:
    """Whether a reduction is over a thread axis."""
    return any(u.op is ops.REDUCE and u.src[1].arg[2] == "thread" for u in nodes)


def split_phases(stores: list[UOp], order: dict[UOp, int]) -> tuple[Phases, dict[UOp, int]]:
    """Return the phases of a kernel with a reduction over its thread axis, and the order of all loops."""
    thread = next(r for r in order if r.arg[2] == "thread")
    name = f"{thread.arg[0]}f"
    while any(r.arg[0] == name for r in order):
        name += "f"
    fold = irange(range_size(thread), name)
    found = Phases()
    became: dict[UOp, UOp] = {}
    level: dict[UOp, int] = {}
    partial: dict[int, list[UOp]] = {}
    for u in toposort(stores):
        here = max([level[s] for s in u.src], default=0)
        new = u.replace(tuple([became[s] for s in u.src]))
        if u.op is ops.REDUCE and thread in u.src[1:]:
            value = new.src[0]
            free = sorted([r for r in value.ranges if r is not thread], key=order.__getitem__)
            shape = (range_size(thread), *[range_size(r) for r in free])
            array = UOp(ops.PARAM, u.dtype, (), (f"part{len(found.scratch)}", shape, True))
            found.scratch.append(array)
            store = UOp(ops.STORE, dtypes.void, (array, TRUE, value, thread, *free))
            partial.setdefault(here, []).append(store)
            new = UOp(ops.REDUCE, u.dtype, (UOp(ops.LOAD, u.dtype, (array, TRUE, fold, *free)), fold), u.arg)
            here += 1
        became[u], level[u] = new, here
    last: list[UOp] = []
    for s in stores:
        if thread in became[s].ranges:
            partial.setdefault(level[s], []).append(became[s])
        else:
            last.append(became[s])
    found.stores = [partial[n] for n in sorted(partial)]
    if last:
        found.stores.append(last)
    return found, _with_fold(order, fold)


def _with_fold(order: dict[UOp, int], fold: UOp) -> dict[UOp, int]:
    """Return the order with the loop over partial results inside of the other loops, around what is
    unrolled."""
    nest = sorted(order, key=order.__getitem__)
    at = max([n + 1 for n, r in enumerate(nest) if r.arg[2] in ("thread", "loop", "chunk")], default=0)
    return {r: n for n, r in enumerate([*nest[:at], fold, *nest[at:]])}
