"""Grid, block and warp axes as the launch dimensions of a device: SPECIALs, launch sizes and guards.

The innermost axis of each kind is the fastest and goes to x.  A device has a few dimensions (three, where its
limits name no other number), each with a largest size:

* more axes than dimensions: the outermost ones share one, leftmost first;
* fewer: the others have size 1;
* a size beyond its dimension's limit continues in a dimension that is free, or else all axes share all
  dimensions: as an exact product where the size factors, otherwise rounded up, with a guard around the kernel
  that keeps the surplus out.

Warp axes are the fastest threads of a block: together they are the dimension x, which is then called "warp0".
A target without a kind of axis runs such axes as loops, unless threads of a block work together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import ScheduleError
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.index import TRUE, all_of, combine, divmod_, ge0, irange, ishift, less_than, range_size
from ..ir.sizes import size_text
from ..ir.uop import UOp, toposort
from ..optimize.apply import Scheduled, substitute
from ..optimize.schedule import PARALLEL
from ..registry.backend import Launch
from ..registry.capabilities import Capabilities

_DIMENSIONS = 3


@dataclass(slots=True)
class Grid:
    """How a kernel's parallel axes are launched.

    Attributes
    ----------
    special
        Range -> the SPECIAL that it is.  Such ranges have no loop.
    guard
        What holds for the blocks and threads that take part.
    grid, block
        Launch sizes along x, y, z; a size that is bound at launch is an index expression.
    threads
        Threads of a block.
    shuffles
        Warp axis -> the distance, in threads of the block, of two neighbours along it.
    """

    special: dict[UOp, UOp] = field(default_factory=dict)
    guard: UOp = TRUE
    grid: tuple[int | UOp, ...] = ()
    block: tuple[int | UOp, ...] = ()
    threads: int = 1
    shuffles: dict[UOp, int] = field(default_factory=dict)

    def launch(self, chunks: int) -> Launch:
        """Return the launch sizes; those bound at launch as text."""
        return Launch(
            tuple([n if type(n) is int else size_text(n) for n in self.grid]),
            tuple([n if type(n) is int else size_text(n) for n in self.block]),
            chunks,
        )


@dataclass(slots=True)
class _Group:
    """Axes, outermost first, that share one or more dimensions: sizes along them, fastest first."""

    axes: list[UOp]
    sizes: list[int | UOp]


def map_axes(s: Scheduled, caps: Capabilities, index: DType) -> tuple[Scheduled, Grid]:
    """Return the kernel over launch dimensions in place of its parallel axes.

    Raises
    ------
    ScheduleError
        If the target cannot launch that, or lacks what threads need to work together.
    """
    parallel = [r for r in s.order if r.arg[2] in PARALLEL]
    if not parallel:
        return s, Grid()
    _check_target(s, caps, parallel)
    parallel = [r for r in parallel if r.arg[2] in caps.axis_kinds]
    if not parallel:
        return s, Grid()
    s = _one_writer(s, parallel)
    limits = caps.limits
    found = Grid()
    replaced: dict[UOp, UOp] = {}
    blocks = [r for r in parallel if r.arg[2] == "grid"]
    _launch(blocks, "grid", limits.grid, 0, index, found, replaced)
    warps = [r for r in parallel if r.arg[2] == "warp"]
    threads = [r for r in parallel if r.arg[2] == "block"]
    for r in (*warps, *threads):
        if r.src:
            raise ScheduleError(
                f"the {r.arg[2]} axis {r.arg[0]} has a size that is bound at launch; give it one, and let a "
                "grid or loop axis of that range take what is left"
            )
        found.threads *= range_size(r)
    if limits.block_threads and found.threads > limits.block_threads:
        text = " x ".join(str(range_size(r)) for r in (*threads, *warps))
        raise ScheduleError(
            f"a block of {text} = {found.threads} threads; {caps.target} has at most {limits.block_threads}"
        )
    if warps:
        _warp(warps, caps, index, found, replaced)
    before = found.guard
    _launch(threads, "block", limits.block, 1 if warps else 0, index, found, replaced)
    if found.guard is not before and _cooperates(s):
        raise ScheduleError(
            f"the block sizes {', '.join(str(range_size(r)) for r in threads)} do not factor into what "
            f"{caps.target} launches, {limits.block}, and its threads wait for each other: those that are "
            "too many would never come"
        )
    dimensions = max(len(limits.grid) or _DIMENSIONS, len(limits.block) or _DIMENSIONS)
    found.grid += (1,) * (dimensions - len(found.grid))
    found.block += (1,) * (dimensions - len(found.block))
    if replaced:
        s = substitute(s, replaced)
    return s, found


def _cooperates(s: Scheduled) -> bool:
    """Whether threads of a block use each other's values."""
    return any(t.shared for t in s.stages) or any(
        u.op is ops.WMMA or (u.op is ops.REDUCE and u.src[1].arg[2] == "warp") for u in toposort(s.stores)
    )


def _check_target(s: Scheduled, caps: Capabilities, parallel: Sequence[UOp]) -> None:
    shared = [t for t in s.stages if t.shared]
    names = ", ".join(r.arg[0] for r in parallel)
    if shared and ("block" not in caps.axis_kinds or "local" not in caps.address_spaces or not caps.barriers):
        why = caps.barriers.reason if not caps.barriers else "no local memory"
        raise ScheduleError(
            f"the threads of axes {names} share {shared[0].array.arg[0]}, and those of {caps.target} cannot: "
            f"{why}; use loop axes"
        )
    if "warp" not in caps.axis_kinds:
        for u in toposort([*s.stores, *[t.fill for t in s.stages]]):
            if u.op is ops.REDUCE and u.src[1].arg[2] == "warp":
                raise ScheduleError(
                    f"axis {u.src[1].arg[0]} of kind warp holds a reduction, and {caps.target} has no warps; "
                    "use a block or loop axis"
                )


def _one_writer(s: Scheduled, parallel: Sequence[UOp]) -> Scheduled:
    """Let one thread alone store what does not vary with the others' axes."""

    def gated(store: UOp, axes: Sequence[UOp]) -> UOp:
        target, mask, value, *idx = store.src
        varies = frozenset[UOp]().union(*[i.ranges for i in idx])
        extra = [ge0(combine([(r, -1)])) for r in axes if r not in varies]
        return store if not extra else UOp(
            ops.STORE, dtypes.void, (target, all_of(mask, *extra), value, *idx)
        )  # fmt: skip

    threads = [r for r in parallel if r.arg[2] != "grid"]
    stages = []
    for t in s.stages:
        if t.array.op is ops.PARAM and any(r not in t.fill.ranges for r in threads):
            raise ScheduleError(
                f"{t.array.arg[0]} cannot keep values that all threads of "
                f"{', '.join(r.arg[0] for r in threads)} read: it does not vary with each; use local memory"
            )
        stages.append(replace(t, fill=gated(t.fill, threads)) if t.shared else t)
    return replace(s, stores=[gated(store, parallel) for store in s.stores], stages=stages)


# -- dimensions ----------------------------------------------------------------------------------------------


def _launch(
    axes: list[UOp], kind: str, limits: Sequence[int], first: int, index: DType, found: Grid,
    replaced: dict[UOp, UOp],
) -> None:  # fmt: skip
    """Give the axes of one kind, outermost first, the dimensions of a device from number `first` on."""
    dimensions = len(limits) or _DIMENSIONS
    here = [n or _UNLIMITED for n in limits[first:]] or [_UNLIMITED] * (dimensions - first)
    sizes: list[int | UOp] = []
    for group in _fit(axes, here, kind):
        numbers = []
        for n in group.sizes:
            name = f"{kind}{first + len(sizes)}"
            sizes.append(n)
            numbers.append((irange(n, name, kind), n))
        if len(group.axes) == 1 and len(numbers) == 1:
            r = group.axes[0]
            found.special[r] = UOp(ops.SPECIAL, index, (), (numbers[0][0].arg[0], numbers[0][1]))
            continue
        for d, n in numbers:
            if d.op is ops.RANGE:
                found.special[d] = UOp(ops.SPECIAL, index, (), (d.arg[0], n))
        _decode(group, numbers, found, replaced)
    if kind == "grid":
        found.grid = tuple(sizes)
    else:
        found.block += tuple(sizes)


_UNLIMITED = (1 << 31) - 1


def _decode(
    group: _Group, numbers: list[tuple[UOp, int | UOp]], found: Grid, replaced: dict[UOp, UOp]
) -> None:
    """Replace the axes of a group by digits of the number that its dimensions make."""
    stride, pairs = 1, []
    for n, (d, size) in enumerate(numbers):
        pairs.append((d, stride))
        if n < len(numbers) - 1:
            assert type(size) is int
            stride *= size
    flat = combine(pairs)
    whole = 1
    rest = flat
    for r in reversed(group.axes[1:]):
        rest, replaced[r] = divmod_(rest, range_size(r))
        whole *= range_size(r)
    outer = group.axes[0]
    replaced[outer] = rest
    if outer.src:
        if len(numbers) > 1:
            found.guard = all_of(found.guard, less_than(rest, outer.src[0]))
    elif flat.vmax >= whole * range_size(outer):
        found.guard = all_of(found.guard, less_than(flat, whole * range_size(outer)))


def _fit(axes: list[UOp], limits: Sequence[int], kind: str) -> list[_Group]:
    """Return groups of axes, the fastest first, with sizes that respect the limits along x, y, z."""
    axes = [*[r for r in axes if r.src], *[r for r in axes if not r.src]]  # digits have constant sizes
    groups = [[r] for r in axes]
    if not axes:
        return []
    if not limits:
        raise ScheduleError(f"no dimension is left for the {kind} axes {', '.join(r.arg[0] for r in axes)}")
    while len(groups) > len(limits):
        groups[:2] = [groups[0] + groups[1]]
    for shared in groups:
        if sum(bool(r.src) for r in shared) > 1:
            raise ScheduleError(
                f"the {kind} axes {' and '.join(r.arg[0] for r in shared)}, whose sizes are bound at launch, "
                "share a dimension; make one a loop"
            )
    fitted = [_Group(shared, [_size(shared)]) for shared in reversed(groups)]
    at = 0
    for n, group in enumerate(fitted):
        over = _largest(group.sizes[0]) > limits[at]
        if over:
            spare = len(limits) - (at + len(fitted) - n) + 1  # dimensions that this group may take
            split = _split(group.sizes[0], limits[at : at + spare])
            if split is None:
                return [_all_together(axes, limits, kind)]
            group.sizes = split
        at += len(group.sizes)
    return fitted


def _all_together(axes: list[UOp], limits: Sequence[int], kind: str) -> _Group:
    """Return one group that has all dimensions."""
    sizes = None if any(r.src for r in axes[1:]) else _split(_size(axes), limits)
    if sizes is None:
        text = " x ".join(str(range_size(r)) for r in axes)
        raise ScheduleError(
            f"{kind} axes of {text} do not fit the launch limits {tuple(limits)}; make some of them loops"
        )
    return _Group(axes, sizes)


def _split(size: int | UOp, limits: Sequence[int]) -> list[int | UOp] | None:
    """Return the sizes along x, y, z of something larger than x; of a symbolic one the last is symbolic."""
    if isinstance(size, int):
        sizes = spread(size, limits)
        return None if sizes is None else list(sizes)
    rounded = spread(_largest(size), limits)
    if rounded is None:
        return None
    inner = math.prod(rounded[:-1])
    return [*rounded[:-1], divmod_(ishift(size, inner - 1), inner)[0]]


def spread(total: int, limits: Sequence[int]) -> tuple[int, ...] | None:
    """Return sizes along x, y, z, each within its limit: their product is `total`, or as little more as this
    finds; None if no sizes suffice.

    >>> spread(6 * 7, (16, 16)), spread(37, (16, 16)), spread(37, (16,))
    ((14, 3), (13, 3), None)
    """
    return _exact(total, limits) or _rounded(total, limits)


def _exact(total: int, limits: Sequence[int]) -> tuple[int, ...] | None:
    if total <= limits[0]:
        return (total,)
    if len(limits) == 1 or math.prod(limits) < total:
        return None
    small = [d for d in range(1, math.isqrt(total) + 1) if total % d == 0]
    for d in sorted({*small, *[total // d for d in small]}, reverse=True):
        if 1 < d <= limits[0]:
            rest = _exact(total // d, limits[1:])
            if rest is not None:
                return (d, *rest)
    return None


def _rounded(total: int, limits: Sequence[int]) -> tuple[int, ...] | None:
    if math.prod(limits) < total:
        return None
    if total <= limits[0]:
        return (total,)
    pieces = -(-total // limits[0])
    rest = spread(pieces, limits[1:])
    if rest is None:
        return None
    return (-(-total // math.prod(rest)), *rest)


def _size(group: Sequence[UOp]) -> int | UOp:
    inner = math.prod(range_size(r) for r in group[1:])
    if not group[0].src:
        return inner * range_size(group[0])
    size: UOp = group[0].src[0]
    return combine([(size, inner)])


def _largest(n: int | UOp) -> int:
    return n if isinstance(n, int) else n.vmax


# -- warps ---------------------------------------------------------------------------------------------------


def _warp(warps: list[UOp], caps: Capabilities, index: DType, found: Grid, replaced: dict[UOp, UOp]) -> None:
    """Make the warp axes the dimension x of the block, in their order, the innermost the fastest."""
    total = math.prod(range_size(r) for r in warps)
    for r in warps:
        if range_size(r) & (range_size(r) - 1):
            raise ScheduleError(f"the warp axis {r.arg[0]} has size {range_size(r)}, not a power of two")
    limit = caps.limits.warp
    if limit and total > limit:
        raise ScheduleError(
            f"the warp axes {', '.join(r.arg[0] for r in warps)} make {total} threads; a warp of "
            f"{caps.target} has {limit}"
        )
    stride = 1
    for r in reversed(warps):
        found.shuffles[r] = stride
        stride *= range_size(r)
    found.block = (total,)
    special = UOp(ops.SPECIAL, index, (), ("warp0", total))
    if len(warps) == 1:
        found.special[warps[0]] = special
        return
    number = irange(total, "warp0", "warp")
    found.special[number] = special
    rest = number
    for r in reversed(warps[1:]):
        rest, replaced[r] = divmod_(rest, range_size(r))
    replaced[warps[0]] = rest
