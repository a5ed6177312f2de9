"""Stages: an expression's values inside a loop, kept in an array and read back.

A *tile* is a copy of what the inner loops touch of a parameter.  Its dimensions come from the affine index of
each axis: inner terms that overlap (a sliding window) merge into one dimension, a halo; others stay apart, so
that a layout can permute them.  What runs backward in the buffer is copied backward.  Ranges outside the
tile's loop become dimensions of stride 0 of the array: the dependence on them is kept by construction.

A tile can be *turned*: the buffer is contiguous along one of its dimensions, and the tile along another.
Then blocks of vectors along the buffer's are read, transposed in registers (`linearize/lanes.py`) and stored
along the tile's.

A *kept* expression has no copy loops of its own: the first pass that needs it stores it, later ones read it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

from ..errors import ScheduleError, UnknownNameError
from ..ir import dtypes, ops
from ..ir.index import (
    TRUE,
    ZERO,
    all_of,
    combine,
    conjuncts,
    divmod_,
    flatten,
    ge0,
    in_bounds,
    irange,
    less_than,
    range_size,
    terms,
)  # fmt: skip
from ..ir.uop import UOp, sort_key, toposort
from .schedule import PARALLEL, Stage

#: Bytes of a cache line.
LINE = 64


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
    kept
        Whether it is a kept expression.
    shared
        Whether the array is one that all threads of a block share.
    private
        Whether each thread reads only elements that it wrote itself.
    slots, loop
        With more than one slot, the loop that goes through them.
    """

    array: UOp
    fill: UOp
    loops: tuple[UOp, ...]
    at: int
    kept: bool = False
    shared: bool = False
    private: bool = False
    slots: int = 1
    loop: UOp | None = None
    turned: Turned | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """How a turned tile is copied: in blocks of n by n, inside the copy loops.

    Attributes
    ----------
    rows
        The range that counts the rows of a block in the buffer; the other axis of the block is a vector axis.
    stores
        The indices in the array of the n rows of a block of the tile, each varying with a vector axis.
    whole
        Whether every access to the array moves one such row, so that its elements can be vectors.
    """

    rows: UOp
    stores: tuple[tuple[UOp, ...], ...]
    whole: bool


@dataclass(slots=True)
class _Dim:
    """One dimension of a tile: inner terms of one axis, in units of `stride`.

    A term with a coefficient below 0 runs against the dimension, as the pixels and taps of a flipped filter
    do.  The dimension itself may run along the buffer's axis or against it.  `gaps`: some of its elements may
    be read by nobody.
    """

    axis: int
    members: list[tuple[UOp, int]]
    stride: int
    extent: int
    gaps: bool = False

    def contiguous(self, flat: dict[UOp, int]) -> bool:
        """Whether a step is one to the next element, for the coefficients of the buffer's flat index."""
        r, k = self.members[0]
        return self.stride == 1 and flat.get(r) == k

    def is_vector(self, flat: dict[UOp, int]) -> bool:
        """Whether it is the lanes of a vector axis, and nothing else, next to each other in the buffer."""
        return len(self.members) == 1 and self.members[0][0].arg[2] == "vector" and self.contiguous(flat)

    def position(self) -> UOp:
        """Return where the members are in the dimension."""
        pairs = [(r, k // self.stride) for r, k in self.members]
        return combine(pairs, -sum([k * (range_size(r) - 1) for r, k in pairs if k < 0]))


def apply_stages(
    stages: Sequence[Stage], stores: list[UOp], position: dict[str, int], order: dict[UOp, int],
    surplus: Set[UOp] = frozenset(),
) -> tuple[list[UOp], list[Staged]]:  # fmt: skip
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
    surplus
        Masks that keep out the surplus of output axes.  Nothing is stored where they are false, so that a
        tile's reader, whose addresses are in the tile in any case, need not look at them.

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
            _check_reader(stage, loads[0], at, order, nodes)
            old = _converted(loads[0], nodes)
            new, staged = _tile(stage, loads[0], old, at, order, len(done), surplus)
        else:
            matching = [u for u in nodes if u.op.name == stage.what and u.dtype is not dtypes.index]
            if not matching:
                known = sorted({u.src[0].arg[0] for u in nodes if u.op is ops.LOAD} | {
                    u.op.name for u in nodes if u.op in ops.ALU_OPS})  # fmt: skip
                raise UnknownNameError("stage", stage.what, known, f"in {stage}")
            old = matching[-1]
            new, staged = _keep(stage, old, at, order, stores, len(done))
        stores = replaced(stores, old, new)
        done.append(staged)
    return stores, done


def replaced(stores: list[UOp], old: UOp, new: UOp) -> list[UOp]:
    """Return the stores with one expression in place of another."""
    memo: dict[UOp, UOp] = {old: new}
    for u in toposort(stores):
        if u not in memo:
            memo[u] = u.replace(tuple([memo[s] for s in u.src]))
    return [memo[s] for s in stores]


def _check_reader(stage: Stage, load: UOp, at: int, order: dict[UOp, int], nodes: list[UOp]) -> None:
    """Raise ScheduleError if a reduction in steps (`a`, chunks) reads the tile from outside of its loop.

    The accumulators of its inner sums would be declared before the copy, whose loops close theirs.
    """
    inside: set[UOp] = {load}
    sums: list[UOp] = []
    for u in nodes:
        if not inside.isdisjoint(u.src):
            inside.add(u)
            if u.op is ops.REDUCE:
                sums.append(u)
    loops = {r for u in sums for r in u.src[0].ranges.union(u.src[1:])}
    in_steps = any(not set(sums).isdisjoint(toposort((u.src[0],))) for u in sums[1:])
    if at >= 0 and in_steps and all(order.get(r) != at for r in loops):
        raise ScheduleError(f"{stage}: a reduction that reads the tile in steps is not inside {stage.at}")


def _converted(load: UOp, nodes: list[UOp]) -> UOp:
    """Return the conversion of a loaded value if that is all it is read for, else the load itself."""
    users = [u for u in nodes if load in u.src]
    return users[0] if len(users) == 1 and users[0].op is ops.CAST else load


def _tile(
    stage: Stage, load: UOp, value: UOp, at: int, order: dict[UOp, int], number: int, idle: Set[UOp]
) -> tuple[UOp, Staged]:
    """Return the read of a tile of `value`, a load or its conversion, and the stage that fills it."""
    buffer, mask, *idx = load.src
    threads = _threads(order) if stage.space == "local" else []
    inner = {r for r in load.ranges if _varies(r, order, at, stage.space)}
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
            d = _Dim(axis, [(r, k)], abs(k), range_size(r))
            while mine and d.stride < mine[-1].extent * mine[-1].stride:
                d = _window(mine.pop(), d)
            mine.append(d)
        for d in mine:  # along its lanes, else its fastest member
            lead = next((k for r, k in d.members if r.arg[2] == "vector"), d.members[0][1])
            if lead < 0:
                d.members = [(r, -k) for r, k in d.members]
        dims.extend(reversed(mine))
    if not dims:
        raise ScheduleError(f"{stage}: the loops inside {stage.at} touch only one element of {stage.what}")
    copied = dims
    padding = [0] * len(dims)
    if stage.layout:
        dims, padding = _laid_out(stage, dims)
    along: tuple[_Dim, _Dim] | None = None
    if stage.turned:
        dims, along = _turned(stage, dims, idx, buffer, order)
        wide = [r.arg[0] for r in load.ranges - inner if r.arg[2] == "vector"]
        if wide:
            raise ScheduleError(f"{stage}: the vector axis {min(wide)} stands outside of the tile")
    turn = _turn(stage, load, at, order) if stage.slots > 1 else None
    slot = () if turn is None else (divmod_(turn, stage.slots)[1],)
    outer = sorted((r for r in load.ranges if r not in inner), key=order.__getitem__)
    if along:  # a block that sticks out of the tile is copied whole: the array has room for it
        padding = [p + -d.extent % n for (d, n), p in zip(_steps(stage, dims, along), padding, strict=True)]
    flat = dict(terms(flatten(idx, buffer.arg[1]))[1])
    width = 1 if threads or along else _lanes(dims, flat, mask, outer, order)
    if stage.space == "register" and dims[-1].extent % width:
        width = 1
    overhang = -dims[-1].extent % width  # of a copy with a mask, in vectors: the array has room for it
    if overhang > padding[-1]:
        padding[-1] = overhang
        if (dims[-1].extent + overhang) * value.dtype.itemsize % (2 * LINE) == 0:
            padding[-1] += width // 2  # rows that far apart would share few sets of the first cache
    extents = [d.extent + more for d, more in zip(dims, padding, strict=True)]
    shape = (*[0] * len(outer), *[stage.slots for _ in slot], *extents)
    array = UOp(ops.LOCAL, value.dtype, (), (f"{stage.what}_tile{number}", shape, _space(stage)))
    loops: list[UOp] = []
    positions: list[UOp] = []
    # The buffer is read in its own order, along its rows: neighbours in the tile are near in any order.
    rank = {id(d): n for n, d in enumerate(copied)}
    unrolled = _unrolled(copied)
    for d in dims if not threads and not along else ():
        member = d.members[0][0]
        name, at_once = f"{member.arg[0]}c{number}", width if d is dims[-1] else 1
        steps = [irange(-(-d.extent // at_once), name, "unroll" if id(d) in unrolled else "loop")]
        if at_once > 1:
            steps.append(irange(at_once, f"{name}v", "vector"))
        elif d.is_vector(flat):
            steps = [irange(d.extent, name, "vector")]
        positions.append(combine([(r, at_once if r is steps[0] else 1) for r in steps]))
        for r in steps:
            if r.op is ops.RANGE:
                order[r] = (1 << 20) + number * 64 + rank[id(d)]
                loops.append(r)
    copies = tuple(sorted(loops, key=order.__getitem__))
    here, surplus = tuple(positions), TRUE
    if threads:
        if stage.width > 1:
            _check_width(stage, copied, dims, flat)
            if any(r.arg[2] == "vector" for r in outer):
                raise ScheduleError(f"{stage}: the tile varies with a vector axis outside of {stage.at}")
        here, copies, surplus = _spread(copied, dims, threads, number, order, stage.width)
    elif stage.width > 1:
        raise ScheduleError(f"{stage}: only copies that the threads of a block share have a width")
    rows, columns = ZERO, list[tuple[UOp, ...]]()
    if along:
        here, copies, rows, columns = _blocks(stage, dims, along, number, order)

    def moved(index: UOp) -> UOp | None:
        """Return an index or mask over the copy loops, or None if it is no function of the tile."""
        c, parts = terms(index)
        left = dict(parts)
        pairs = []
        for d, loop in zip(dims, here, strict=True):
            r0, k0 = d.members[0]
            unit = left.get(r0, 0)
            if unit * d.stride % k0:
                return None
            unit = unit * d.stride // k0  # coefficient of one step of the dimension
            for r, k in d.members:
                step = left.pop(r, 0)
                if step != unit * (k // d.stride):
                    return None
                if k < 0:  # the dimension begins where this member ends
                    c += step * (range_size(r) - 1)
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
    in_copy, on_read, checked = surplus, TRUE, True
    for part in conjuncts(mask):
        there = moved(part.src[0]) if part.op is ops.GE0 else (part if not part.ranges & inner else None)
        if there is None:
            checked = False
            if part not in idle:
                on_read = all_of(on_read, part)
        else:
            in_copy = all_of(in_copy, ge0(there) if part.op is ops.GE0 else there)
    ragged = overhang > 0 or any(d.gaps for d in dims)
    ragged = ragged or (along is not None and any(d.extent % n for d, n in _steps(stage, dims, along)))
    if not checked or ragged:  # what the read's mask keeps in bounds, the copy has to check itself
        in_copy = all_of(in_copy, *[in_bounds(i, n) for i, n in zip(source, buffer.arg[1], strict=True)])
    copy = UOp(ops.LOAD, load.dtype, (buffer, in_copy, *source))
    if value is not load:
        copy = value.replace((copy,))
    fill = UOp(ops.STORE, dtypes.void, (array, surplus, copy, *outer, *slot, *here))
    read = UOp(ops.LOAD, value.dtype, (array, on_read, *outer, *slot, *[d.position() for d in dims]))
    if not along:
        return read, Staged(array, fill, copies, at, shared=bool(threads), slots=stage.slots, loop=turn)
    whole = (
        stage.space == "register"
        and on_read is TRUE
        and extents[-1] == stage.turned
        and [r.arg[1:] for r, _ in along[0].members] == [(stage.turned, "vector")]
    )
    turned = Turned(rows, tuple([(*outer, *there) for there in columns]), whole)
    return read, Staged(array, fill, copies, at, turned=turned)


def _lanes(
    dims: list[_Dim], flat: dict[UOp, int], mask: UOp, outer: Sequence[UOp], order: dict[UOp, int]
) -> int:
    """Return how many elements a copy moves at a time along a loop: as many as a vector of the kernel has.

    Buffer and tile are both contiguous along that loop.  Where a mask tells its elements apart, such as that
    of an image's border, the loads have masks, and the last of them may reach past the tile's rows.
    """
    last = dims[-1]
    wide = max([range_size(r) for r in order if r.arg[2] == "vector"], default=1)
    elsewhere = any(r.arg[2] == "vector" for r in outer) or any(d.is_vector(flat) for d in dims[:-1])
    if elsewhere or not last.contiguous(flat):
        return 1
    if any(r in mask.ranges for r, _ in last.members):
        return wide if last.extent >= 2 * wide else 1
    return math.gcd(last.extent, wide)


def _unrolled(copied: list[_Dim]) -> set[int]:
    """Return the ids of the dimensions along which a copy is unrolled: innermost ones, as in its readers."""
    found: set[int] = set()
    for d in reversed(copied):
        if len(d.members) > 1 or d.members[0][0].arg[2] not in ("unroll", "vector"):
            break
        found.add(id(d))
    return found


def _window(first: _Dim, second: _Dim) -> _Dim:
    """Return two dimensions of one axis that overlap as one."""
    stride = math.gcd(first.stride, second.stride)
    span = sum([d.stride * (d.extent - 1) for d in (first, second)])
    gaps = first.gaps or second.gaps or stride < first.stride
    return _Dim(first.axis, first.members + second.members, stride, span // stride + 1, gaps)


def _turn(stage: Stage, load: UOp, at: int, order: dict[UOp, int]) -> UOp:
    """Return the loop that goes through the slots of a stage."""
    found = next((r for r, n in order.items() if n == at and r.arg[2] == "loop"), None)
    if found is None or stage.space != "local":
        raise ScheduleError(f"{stage}: slots need local memory, and a loop to go through them")
    if found not in load.ranges:
        raise ScheduleError(f"{stage}: the tile is the same in all iterations of {stage.at}; one slot does")
    return found


def _check_width(stage: Stage, copied: list[_Dim], dims: list[_Dim], flat: dict[UOp, int]) -> None:
    last = copied[-1]
    if dims[-1] is not last or not last.contiguous(flat):
        raise ScheduleError(
            f"{stage}: to copy {stage.width} elements at a time, the buffer's last dimension must be "
            "contiguous and the layout's last"
        )
    if last.extent % stage.width:
        raise ScheduleError(
            f"{stage}: {stage.width} does not divide the tile's last dimension, {last.extent}"
        )


def _turned(
    stage: Stage, dims: list[_Dim], idx: Sequence[UOp], buffer: UOp, order: dict[UOp, int]
) -> tuple[list[_Dim], tuple[_Dim, _Dim]]:
    """Return the dimensions of a turned tile, and those along which it and the buffer are contiguous.

    Without a layout, the dimension of the lanes that read the tile comes last, and the buffer's first.
    """
    n = stage.turned
    parallel = [r.arg[0] for r in order if r.arg[2] in PARALLEL]
    if parallel:
        raise ScheduleError(
            f"{stage}: threads of a block copy element by element ({parallel[0]}); only a kernel without "
            "them transposes in registers"
        )
    strides = dict(terms(flatten(idx, buffer.arg[1]))[1])
    source = [d for d in dims if d.contiguous(strides)]
    if not source:
        raise ScheduleError(f"{stage}: {stage.what} is not contiguous along any loop inside {stage.at}")
    if not stage.layout:
        lanes = [d for d in dims if any(r.arg[2] == "vector" for r, _ in d.members)]
        dims = [d for d in source if d not in lanes] + [d for d in dims if d not in lanes + source] + lanes
    if dims[-1] is source[0]:
        raise ScheduleError(
            f"{stage}: the tile and {stage.what} are both contiguous along {dims[-1].members[0][0].arg[0]}; "
            "there is nothing to turn"
        )
    if stage.slots > 1:
        raise ScheduleError(f"{stage}: what is copied ahead keeps its order; a turned tile has one slot")
    if n & (n - 1):
        raise ScheduleError(f"{stage}: registers transpose a power of two of lanes, not {n}")
    return dims, (dims[-1], source[0])


def _steps(stage: Stage, dims: list[_Dim], along: tuple[_Dim, _Dim]) -> list[tuple[_Dim, int]]:
    """Return each dimension with the number of elements that one step of the copy takes along it."""
    return [(d, stage.turned if d in along else 1) for d in dims]


def _blocks(
    stage: Stage, dims: list[_Dim], along: tuple[_Dim, _Dim], number: int, order: dict[UOp, int]
) -> tuple[tuple[UOp, ...], tuple[UOp, ...], UOp, list[tuple[UOp, ...]]]:
    """Return how a turned tile is copied block by block.

    Returns
    -------
    The position in each of `dims`, the copy loops, the range of a row in its block, and for each column of a
    block the position of the tile's row that it becomes.
    """
    n = stage.turned
    rows = irange(n, f"row{number}", "unroll")
    lanes, across = (irange(n, f"{name}{number}", "vector") for name in ("lane", "turn"))
    steps = [
        irange(-(-d.extent // k), f"{d.members[0][0].arg[0]}c{number}") for d, k in _steps(stage, dims, along)
    ]
    copies = tuple([x for x in steps if x.op is ops.RANGE])
    for at, r in enumerate((*copies, rows, lanes, across)):
        order[r] = (1 << 20) + number * 64 + at
    last, source = along

    def position(row: UOp, column: UOp) -> tuple[UOp, ...]:
        inside = {id(last): row, id(source): column}
        return tuple([
            combine([(x, n), (inside[id(d)], 1)]) if id(d) in inside else x
            for d, x in zip(dims, steps, strict=True)
        ])  # fmt: skip

    columns = [position(across, combine((), k)) for k in range(n)]
    return position(rows, lanes), copies, rows, columns


def _threads(order: dict[UOp, int]) -> list[UOp]:
    """Return the axes that count the threads of a block, the fastest last."""
    axes = sorted((r for r in order if r.arg[2] in ("block", "warp")), key=order.__getitem__)
    return [r for r in axes if r.arg[2] == "block"] + [r for r in axes if r.arg[2] == "warp"]


def _varies(r: UOp, order: dict[UOp, int], at: int, space: str) -> bool:
    """Whether an array that is filled inside the loop at position `at` has a dimension for a range."""
    kind = r.arg[2]
    if kind in ("grid", "thread"):  # each block, each CPU thread, has an array of its own
        return False
    return space == "local" if kind in PARALLEL else order[r] > at


def _spread(
    copied: list[_Dim],
    dims: list[_Dim],
    threads: list[UOp],
    number: int,
    order: dict[UOp, int],
    width: int = 1,
) -> tuple[tuple[UOp, ...], tuple[UOp, ...], UOp]:
    """Spread a copy over the threads of a block: neighbours copy neighbouring elements of the buffer.

    Returns
    -------
    The position in each of `dims`, the copy loop (none if each thread copies at most one element), and the
    mask of those that copy at all.
    """
    count = math.prod(range_size(r) for r in threads)
    total = math.prod(d.extent for d in copied) // width
    stride, pairs = 1, []
    for r in reversed(threads):
        pairs.append((r, stride))
        stride *= range_size(r)
    loop = irange(-(-total // count), f"c{number}")
    flat = combine([(loop, count), *pairs])
    at: dict[int, UOp] = {}
    rest = flat
    for d in reversed(copied[1:]):
        rest, at[id(d)] = divmod_(rest, d.extent // (width if d is copied[-1] else 1))
    at[id(copied[0])] = rest
    if width > 1:
        lane = irange(width, f"c{number}v", "vector")
        order[lane] = (1 << 20) + number * 64 + 1
        at[id(copied[-1])] = combine([(at[id(copied[-1])], width), (lane, 1)])
    copies = (loop,) if loop.op is ops.RANGE else ()
    if copies:
        order[loop] = (1 << 20) + number * 64
    surplus = less_than(flat, total) if flat.vmax >= total else TRUE
    return tuple([at[id(d)] for d in dims]), copies, surplus


def _laid_out(stage: Stage, dims: list[_Dim]) -> tuple[list[_Dim], list[int]]:
    """Return the dimensions in the order of a layout, and what each is longer by."""
    ordered: list[_Dim] = []
    padding: list[int] = []
    for name, more in zip(stage.layout, stage.padding or (0,) * len(stage.layout), strict=True):
        ordered += [d for d in dims if d not in ordered and any(r.arg[0] == name for r, _ in d.members)]
        padding += [0] * (len(ordered) - len(padding))
        if padding:
            padding[-1] += more
    if len(ordered) != len(dims):
        have = ", ".join("+".join(r.arg[0] for r, _ in d.members) for d in dims)
        raise ScheduleError(f"{stage}: the layout must name each dimension of the tile; they are {have}")
    return ordered, padding


def _keep(
    stage: Stage, value: UOp, at: int, order: dict[UOp, int], stores: list[UOp], number: int
) -> tuple[UOp, Staged]:
    if stage.layout or stage.width > 1 or stage.slots > 1:
        raise ScheduleError(f"{stage}: only a buffer's tile has a layout, a width and slots")
    if stage.turned:
        raise ScheduleError(f"{stage}: only a buffer's tile can be turned")
    if stage.space == "out":
        (store, *others) = stores
        target, mask, _, *idx = store.src  # the mask keeps out a surplus, here and wherever it is read
        if any(u.op is ops.LOAD and u.src[0] is target for u in toposort(stores)):
            raise ScheduleError(f"{stage}: the output keeps another expression already")
        if others or store.ranges != value.ranges or target.dtype is not value.dtype:
            raise ScheduleError(f"{stage}: {stage.what} does not have the output's ranges and dtype")
        array, where = target, tuple(idx)
    else:
        mask = TRUE
        dims = {r for r in value.ranges if _varies(r, order, at, stage.space)}
        inner = sorted(dims, key=order.__getitem__)
        outer = sorted((r for r in value.ranges if r not in dims), key=order.__getitem__)
        shape = (*[0] * len(outer), *[range_size(r) for r in inner])
        array = UOp(ops.LOCAL, value.dtype, (), (f"{stage.what.lower()}_row{number}", shape, _space(stage)))
        where = (*outer, *inner)
    fill = UOp(ops.STORE, dtypes.void, (array, mask, value, *where))
    read = UOp(ops.LOAD, value.dtype, (array, mask, *where))
    threads = _threads(order) if stage.space == "local" else []
    own = all(r in value.ranges for r in threads)
    return read, Staged(array, fill, (), at, kept=True, shared=bool(threads), private=own)


def _space(stage: Stage) -> str:
    return "register" if stage.space == "register" else "local"
