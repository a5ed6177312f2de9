"""Stages: an expression's values inside a loop, kept in an array and read back.

A *tile* is a copy of what the inner loops touch of a parameter.  Its dimensions come from the affine index of
each axis: inner terms that overlap (a sliding window) merge into one dimension, a halo; others stay apart, so
that a layout can permute them.  Ranges outside the tile's loop become dimensions of stride 0 of the array:
the dependence on them is kept by construction.

A *kept* expression has no copy loops of its own: the first pass that needs it stores it, later ones read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError, UnknownNameError
from ..ir import dtypes, ops
from ..ir.index import TRUE, all_of, combine, conjuncts, ge0, in_bounds, irange, range_size, terms
from ..ir.uop import UOp, sort_key, toposort
from .schedule import Stage


@dataclass(frozen=True, slots=True)
class Staged:
    """One stage, applied.

    Attributes
    ----------
    array
        Where the values are: a LOCAL, or the output parameter itself.
    fill
        The STORE that puts them there.
    loops
        For a tile, the copy loops in order; empty for a kept expression, which is stored by its first reader.
    at
        Position in the loop nest of the loop that it is filled in; -1 outside of all.
    """

    array: UOp
    fill: UOp
    loops: tuple[UOp, ...]
    at: int

    @property
    def kept(self) -> bool:
        return not self.loops


@dataclass(slots=True)
class _Dim:
    """One dimension of a tile: inner terms of one axis, in units of `stride`."""

    axis: int
    members: list[tuple[UOp, int]]
    stride: int
    extent: int


def apply_stages(
    stages: Sequence[Stage], stores: list[UOp], position: dict[str, int], order: dict[UOp, int]
) -> tuple[list[UOp], list[Staged]]:
    """Return the stores with staged expressions replaced by reads, and the stages; extends `order` by copy
    loops.

    Parameters
    ----------
    stages, stores
        What to stage, in scheduled stores.
    position
        Axis name -> position in the loop nest.
    order
        Range -> position in the loop nest.

    Raises
    ------
    ScheduleError
        If a stage names something that is not there, or cannot be a stage.
    """
    done: list[Staged] = []
    for stage in stages:
        if stage.at != "top" and stage.at not in position:
            raise UnknownNameError("axis", stage.at, ["top", *position], f"in {stage}")
        at = -1 if stage.at == "top" else position[stage.at]
        nodes = toposort(stores)
        loads = [
            u
            for u in nodes
            if u.op is ops.LOAD and u.src[0].op is ops.PARAM and u.src[0].arg[0] == stage.what
        ]
        if loads:
            if len(loads) > 1:
                raise ScheduleError(
                    f"{stage}: {stage.what} is read at {len(loads)} different indices; a tile serves one"
                )
            old = loads[0]
            new, staged = _tile(stage, old, at, order, len(done))
        else:
            matching = [u for u in nodes if u.op.name == stage.what and u.dtype is not dtypes.index]
            if not matching:
                known = sorted({u.src[0].arg[0] for u in nodes if u.op is ops.LOAD} | {
                    u.op.name for u in nodes if u.op in ops.ALU_OPS})  # fmt: skip
                raise UnknownNameError("stage", stage.what, known, f"in {stage}")
            old = matching[-1]
            new, staged = _keep(stage, old, at, order, stores, len(done))
        stores = _replace(stores, old, new)
        done.append(staged)
    return stores, done


def _replace(stores: list[UOp], old: UOp, new: UOp) -> list[UOp]:
    memo: dict[UOp, UOp] = {old: new}
    for u in toposort(stores):
        if u not in memo:
            memo[u] = u.replace(tuple([memo[s] for s in u.src]))
    return [memo[s] for s in stores]


def _tile(stage: Stage, load: UOp, at: int, order: dict[UOp, int], number: int) -> tuple[UOp, Staged]:
    buffer, mask, *idx = load.src
    inner = {r for r in load.ranges if order[r] > at and r.arg[2] != "thread"}
    for r in sorted(inner, key=sort_key):
        if r.src:
            raise ScheduleError(
                f"{stage}: the size of loop {r.arg[0]} inside {stage.at} is only bound at launch"
            )
    dims: list[_Dim] = []
    for axis, index in enumerate(idx):
        mine: list[_Dim] = []
        affine = []
        for atom, k in terms(index)[1]:
            if atom in inner:
                affine.append((atom, k))
            elif atom.ranges & inner:
                raise ScheduleError(
                    f"{stage}: axis {axis} of {stage.what} is not affine in the loops inside {stage.at}"
                )
        for r, k in sorted(affine, key=lambda t: (abs(t[1]), sort_key(t[0]))):
            if k < 0:
                raise ScheduleError(f"{stage}: axis {axis} of {stage.what} runs backward along {r.arg[0]}")
            if mine and k < mine[-1].extent * mine[-1].stride and k % mine[-1].stride == 0:
                d = mine[-1]  # overlaps the previous term: one window
                d.members.append((r, k))
                d.extent += (k // d.stride) * (range_size(r) - 1)
            elif mine and k < mine[-1].extent * mine[-1].stride:
                raise ScheduleError(f"{stage}: the windows of axis {axis} overlap at different strides")
            else:
                mine.append(_Dim(axis, [(r, k)], k, range_size(r)))
        dims.extend(reversed(mine))
    if not dims:
        raise ScheduleError(f"{stage}: the loops inside {stage.at} touch only one element of {stage.what}")
    if stage.layout:
        dims = _laid_out(stage, dims)
    outer = sorted((r for r in load.ranges if r not in inner), key=order.__getitem__)
    shape = (*[0] * len(outer), *[d.extent for d in dims])
    array = UOp(ops.LOCAL, load.dtype, (), (f"{stage.what}_tile{number}", shape, _space(stage)))
    loops = []
    for n, d in enumerate(dims):
        member = d.members[0][0]
        kind = "vector" if member.arg[2] == "vector" and len(d.members) == 1 and d.stride == 1 else "loop"
        loop = irange(d.extent, f"{member.arg[0]}c{number}", kind)
        loops.append(loop)
        if loop.op is ops.RANGE:
            order[loop] = (1 << 20) + number * 64 + n

    def moved(index: UOp) -> UOp | None:
        """Return an index or mask over the copy loops, or None if it is no function of the tile."""
        c, parts = terms(index)
        left = dict(parts)
        pairs = []
        for d, loop in zip(dims, loops, strict=True):
            r0, k0 = d.members[0]
            unit = left.get(r0, 0)
            if unit * d.stride % k0:
                return None
            unit = unit * d.stride // k0  # coefficient of one step of the dimension
            for r, k in d.members:
                if left.pop(r, 0) != unit * (k // d.stride):
                    return None
            pairs.append((loop, unit))
        if any(a.ranges & inner for a in left):
            return None
        return combine([*pairs, *left.items()], c)

    source = []
    for index in idx:
        there = moved(index)
        if there is None:
            raise ScheduleError(f"{stage}: an index of {stage.what} is no function of its tile")
        source.append(there)
    in_copy, on_read = TRUE, TRUE
    for part in conjuncts(mask):
        there = moved(part.src[0]) if part.op is ops.GE0 else (part if not part.ranges & inner else None)
        if there is None:
            on_read = all_of(on_read, part)
        else:
            in_copy = all_of(in_copy, ge0(there) if part.op is ops.GE0 else there)
    if on_read is not TRUE:  # what the read's mask keeps in bounds, the copy has to check itself
        in_copy = all_of(in_copy, *[in_bounds(i, n) for i, n in zip(source, buffer.arg[1], strict=True)])
    fill = UOp(
        ops.STORE, dtypes.void,
        (array, TRUE, UOp(ops.LOAD, load.dtype, (buffer, in_copy, *source)), *outer, *loops),
    )  # fmt: skip
    position = [combine([(r, k // d.stride) for r, k in d.members]) for d in dims]
    read = UOp(ops.LOAD, load.dtype, (array, on_read, *outer, *position))
    return read, Staged(array, fill, tuple(x for x in loops if x.op is ops.RANGE), at)


def _laid_out(stage: Stage, dims: list[_Dim]) -> list[_Dim]:
    ordered: list[_Dim] = []
    for name in stage.layout:
        ordered += [d for d in dims if d not in ordered and any(r.arg[0] == name for r, _ in d.members)]
    if len(ordered) != len(dims):
        have = ", ".join("+".join(r.arg[0] for r, _ in d.members) for d in dims)
        raise ScheduleError(f"{stage}: the layout must name each dimension of the tile; they are {have}")
    return ordered


def _keep(
    stage: Stage, value: UOp, at: int, order: dict[UOp, int], stores: list[UOp], number: int
) -> tuple[UOp, Staged]:
    if stage.layout:
        raise ScheduleError(f"{stage}: only a buffer's tile has a layout")
    if stage.space == "out":
        (store, *others) = stores
        target, mask, _, *idx = store.src
        if others or store.ranges != value.ranges or target.dtype is not value.dtype or mask is not TRUE:
            raise ScheduleError(f"{stage}: {stage.what} does not have the output's ranges, dtype and bounds")
        array, where = target, tuple(idx)
    else:
        inner = sorted((r for r in value.ranges if order[r] > at), key=order.__getitem__)
        outer = sorted((r for r in value.ranges if order[r] <= at), key=order.__getitem__)
        shape = (*[0] * len(outer), *[range_size(r) for r in inner])
        array = UOp(ops.LOCAL, value.dtype, (), (f"{stage.what.lower()}_row{number}", shape, _space(stage)))
        where = (*outer, *inner)
    fill = UOp(ops.STORE, dtypes.void, (array, TRUE, value, *where))
    read = UOp(ops.LOAD, value.dtype, (array, TRUE, *where))
    return read, Staged(array, fill, (), at)


def _space(stage: Stage) -> str:
    return "register" if stage.space == "register" else "local"
