"""Apply a schedule to a kernel: one substitution of its ranges, then an order of the resulting axes.

Reductions split into nested ones by the kinds of their axes: loop and unroll axes innermost (they share one
accumulator, or one a lane), then own accumulators, then the vector axis (a horizontal fold), then the threads
of a warp, then those of a block, then chunks, then the threads of a CPU, which need `phases`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import ScheduleError, UnknownNameError
from ..ir import dtypes, ops
from ..ir.index import (
    TRUE,
    all_of,
    combine,
    conjuncts,
    divmod_,
    irange,
    ishift,
    less_than,
    range_size,
)  # fmt: skip
from ..ir.substitute import Substitution
from ..ir.uop import UOp, const, sort_key, toposort
from ..registry.capabilities import TensorCore
from ..schedule.kernel import Kernel
from ..schedule.lower import reduce, zero_outside
from .cooperate import cooperate
from .phases import holds_threads, split_phases
from .schedule import PARALLEL, Axis, Schedule
from .stages import Staged, apply_stages
from .tensor_cores import LANE, apply_unit, find_unit, match_unit

#: Where axes go that `order` does not name: by kind, outermost first.
_RANK = {
    "grid": 0,
    "thread": 1,
    "block": 2,
    "warp": 3,
    "chunk": 4,
    "loop": 4,
    "unroll": 5,
    "own": 5,
    "vector": 6,
}
#: Reduction axis kinds from the innermost REDUCE outward.
_NESTING = (("loop", "unroll"), ("own",), ("vector",), ("warp",), ("block",), ("chunk",), ("thread",))


@dataclass(slots=True)
class Scheduled:
    """A kernel whose ranges are the axes of a schedule.

    Attributes
    ----------
    kernel, schedule
        What it was made from.
    stores
        The kernel's stores over the new ranges.
    order
        Range -> position in the loop nest, outermost first.
    axes
        Axis name -> range.
    stages
        What is kept between loops.
    became
        Node of the kernel -> what the substitution made of it (before stages).
    parts
        Range of the kernel -> its axes.
    phases
        How many of the stores each phase has, if there are several; they run one after the other.
    scratch
        PARAMs of partial results, which the runtime has to provide.
    """

    kernel: Kernel
    schedule: Schedule
    stores: list[UOp]
    order: dict[UOp, int]
    axes: dict[str, UOp] = field(default_factory=dict)
    stages: list[Staged] = field(default_factory=list)
    became: dict[UOp, UOp] = field(default_factory=dict, repr=False)
    parts: dict[UOp, list[UOp]] = field(default_factory=dict, repr=False)
    phases: tuple[int, ...] = ()
    scratch: tuple[UOp, ...] = ()
    _nodes: list[UOp] = field(default_factory=list, init=False, repr=False)

    @property
    def nodes(self) -> list[UOp]:
        """Every node that the stores and the stages' fills reach, operands first."""
        if not self._nodes:
            self._nodes.extend(toposort([*self.stores, *[stage.fill for stage in self.stages]]))
        return self._nodes


def apply_schedule(
    kernel: Kernel, schedule: Schedule, tensor_cores: Sequence[TensorCore] = ()
) -> Scheduled:
    """Return the kernel with its ranges replaced.

    Parameters
    ----------
    kernel, schedule
        What to schedule, and how.
    tensor_cores
        The descriptors that the target has: a schedule may name one.

    Raises
    ------
    UnknownNameError
        If the schedule names a tensor core that the target has not.
    ScheduleError
        If the schedule names ranges or axes that do not exist, repeats a name, does not cover a range, or
        puts a thread axis inside another loop or on a reduction.
    """
    ranges = kernel.ranges
    splits = dict(schedule.splits)
    unknown = [n for key in splits for n in key.split("*") if n not in ranges and n not in _slots(kernel)]
    if unknown:
        raise ScheduleError(
            f"the schedule splits {unknown[0]}, but the kernel's ranges are {', '.join(ranges) or 'none'}"
        )
    replaced: dict[UOp, UOp] = {}
    parts: dict[UOp, list[UOp]] = {}
    valid: dict[UOp, UOp] = {}
    names: dict[str, UOp] = {}
    merged = _merged(kernel, schedule)
    for name, r in ranges.items():
        axes = splits.get(name)
        if r in merged:
            if axes is not None:
                raise ScheduleError(f"{name} is split alone, and merged with others")
            new, digits, mask = merged[r]
        elif axes is None:
            new, digits, mask = r, [r], TRUE
        else:
            new, digits, mask = _split(r, axes)
            if axes[0].slides:
                _check_slide(kernel, schedule, r, axes)
        replaced[r], parts[r] = new, digits
        if mask is not TRUE:
            valid[r] = mask
        for d in digits:
            if names.setdefault(d.arg[0], d) is not d:
                raise ScheduleError(f"two axes are called {d.arg[0]}")
    substitution = _Substitution(replaced, parts, valid)
    stores = [substitution.store(s) for s in kernel.stores]
    nodes = toposort(stores)
    used = {u for u in nodes if u.op is ops.RANGE}
    live = {n: r for n, r in names.items() if r in used}
    unit = find_unit(schedule.tensor, tensor_cores, live) if schedule.tensor is not None else None
    if unit is not None:
        if unit.lane.op is ops.RANGE:
            live[LANE] = unit.lane
        live = {n: r for n, r in live.items() if r not in unit.axes}
    order = _order(schedule, live)
    if unit is not None:  # further in than any loop
        order |= {r: len(order) + n for n, r in enumerate(unit.axes)}
        if schedule.tensor is not None:
            stores = match_unit(unit, schedule.tensor, stores)
            nodes = toposort(stores)
    scheduled = Scheduled(kernel, schedule, stores, order, live, became=substitution.memo, parts=parts)
    _check(scheduled, nodes)
    if holds_threads(nodes):
        phases, order = split_phases(stores, order)
        scheduled.stores = stores = [s for phase in phases.stores for s in phase]
        scheduled.order, scheduled.scratch = order, tuple(phases.scratch)
        scheduled.phases = tuple([len(phase) for phase in phases.stores])
        nodes = toposort(stores)
    if schedule.stages or any(r.arg[2] == "block" for r in order):
        position = {name: order[r] for name, r in live.items()}
        here = -1
        covered = set(schedule.tensor.axes) if schedule.tensor is not None else set()
        for name in schedule.order:  # an axis of size 1 has no loop: it stands where the one before it does
            if name not in covered:
                here = position.setdefault(name, here)
        summed = {r for u in kernel.nodes if u.op is ops.REDUCE for r in u.src[1:]}
        surplus = frozenset(c for r, mask in valid.items() if r not in summed for c in conjuncts(mask))
        stores, stages = apply_stages(schedule.stages, stores, position, order, surplus)
        scheduled.stores, scheduled.stages = cooperate(stores, stages, order)
        threads = [r.arg[0] for r in order if r.arg[2] == "thread"]
        if threads and any(not stage.kept and stage.at < 0 for stage in scheduled.stages):
            raise ScheduleError(f"a tile at top would be filled outside of the thread axis {threads[0]}")
        if scheduled.phases and any(not stage.kept for stage in scheduled.stages):
            raise ScheduleError(f"the threads of {threads[0]} share a reduction; such kernels have no tiles")
    elif unit is None:
        scheduled._nodes = nodes
    if unit is not None and schedule.tensor is not None:
        scheduled.stores, scheduled.stages = apply_unit(
            unit, schedule.tensor, scheduled.stores, scheduled.stages
        )
    if schedule.streams:
        _check_streams(scheduled)
    return scheduled


def _check_streams(s: Scheduled) -> None:
    outputs = [store.src[0].arg[0] for store in s.kernel.stores]
    for name in s.schedule.streams:
        if name not in outputs:
            raise UnknownNameError("output", name, outputs, f"in stream={','.join(s.schedule.streams)}")
        if any(u.op is ops.LOAD and u.src[0].op is ops.PARAM and u.src[0].arg[0] == name for u in s.nodes):
            raise ScheduleError(f"stream={name}: the kernel reads {name} again and wants it in the caches")


def _merged(kernel: Kernel, schedule: Schedule) -> dict[UOp, tuple[UOp, list[UOp], UOp]]:
    """Return what becomes of ranges that are merged: as what `_split` returns."""
    found: dict[UOp, tuple[UOp, list[UOp], UOp]] = {}
    for key, axes in schedule.splits:
        if "*" not in key:
            continue
        members = [kernel.ranges[n] for n in key.split("*") if n in kernel.ranges]
        reduced = {r for u in kernel.nodes if u.op is ops.REDUCE for r in u.src[1:]}
        size = 1
        for r in members:
            if r in reduced:
                raise ScheduleError(f"{key}: {r.arg[0]} is reduced, and cannot merge with another range")
            if r.src:
                raise ScheduleError(f"{key}: the size of {r.arg[0]} is only bound at launch")
            if r in found:
                raise ScheduleError(f"{r.arg[0]} is merged twice")
            size *= range_size(r)
        if axes[0].slides:
            raise ScheduleError(f"axis {axes[0].name} cannot slide: {key} merges ranges")
        if size == 1:
            continue
        rest, digits, mask = _split(irange(size, key), axes)
        for r in reversed(members[1:]):
            rest, within = divmod_(rest, range_size(r))
            found[r] = within, digits, mask
        found[members[0]] = rest, digits, mask
    return found


def _slots(kernel: Kernel) -> set[str]:
    """Names of output axes of size 1, which have no range: a schedule may mention them all the same."""
    return {f"r{n}" for n in range(len(kernel.outputs[0].shape))}


def _split(r: UOp, axes: Sequence[Axis]) -> tuple[UOp, list[UOp], UOp]:
    """Return (expression that replaces the range, its axes as ranges, mask for a surplus)."""
    size = range_size(r)
    given = 1
    for a in axes:
        given *= a.size or 1
    sizes = [a.size if a.size is not None else -(-size // given) for a in axes]
    total = 1
    for n in sizes:
        total *= n
    if r.src and total >= size:
        return _split_symbolic(r, axes, sizes, given)
    if total < size:
        raise ScheduleError(
            f"axes {', '.join(map(str, axes))} cover {total} of the {size} values of {r.arg[0]}"
        )
    digits = [irange(n, a.name, a.kind) for a, n in zip(axes, sizes, strict=True)]
    stride, pairs = 1, []
    for d, n in zip(reversed(digits), reversed(sizes), strict=True):
        pairs.append((d, stride))
        stride *= n
    if axes[0].slides and total > size and sizes[0] > 1:
        # The last step alone has a quotient of 1 by the number of steps before it.
        pairs.append((divmod_(digits[0], sizes[0] - 1)[0], size - total))
        total = size
    new = combine(pairs)
    mask = less_than(new, size) if total > size else TRUE
    return new, [d for d in digits if d.op is ops.RANGE], mask


def _check_slide(kernel: Kernel, schedule: Schedule, r: UOp, axes: Sequence[Axis]) -> None:
    """Raise unless the values of a range may be computed twice, the second time by another step."""
    name, first = r.arg[0], axes[0]
    if first.kind not in ("loop", "thread"):
        raise ScheduleError(f"axis {first.name} of kind {first.kind} cannot slide; loops and threads can")
    if r.src:
        raise ScheduleError(f"axis {first.name} cannot slide: the size of {name} is only bound at launch")
    step = 1
    for a in axes[1:]:
        step *= a.size or 1
    if any(a.size is None for a in axes[1:]) or step > range_size(r):
        raise ScheduleError(f"axis {first.name} cannot slide: its steps are longer than {name}")
    if first.size is not None and (first.size - 1) * step >= range_size(r):
        raise ScheduleError(f"axis {first.name} cannot slide: {first.size} steps are more than {name} has")
    if any(u.op is ops.REDUCE and r in u.src[1:] for u in kernel.nodes):
        raise ScheduleError(f"axis {first.name} cannot slide: {name} is reduced, and would count twice")
    if any(stage.space == "out" for stage in schedule.stages):
        raise ScheduleError(f"axis {first.name} cannot slide: a stage keeps values in the output")


def _split_symbolic(r: UOp, axes: Sequence[Axis], sizes: list[int], given: int) -> tuple[UOp, list[UOp], UOp]:
    """Split a range whose size is bound at launch; `sizes` are those of its axes at its largest.

    Only the axis whose size follows from the others can follow the range's, and not if it is a thread axis,
    whose pieces are counted beforehand.  A mask keeps out what is beyond the range, unless that axis is all
    there is.
    """
    size = r.src[0]
    digits = []
    whole = False
    for a, n in zip(axes, sizes, strict=True):
        if a.size is None and a.kind in ("loop", "chunk", "grid"):
            digits.append(irange(divmod_(ishift(size, given - 1), given)[0], a.name, a.kind))
            whole = given == 1
        else:
            digits.append(irange(n, a.name, a.kind))
    stride, pairs = 1, []
    for d, n in zip(reversed(digits), reversed(sizes), strict=True):
        pairs.append((d, stride))
        stride *= n
    new = combine(pairs)
    return new, [d for d in digits if d.op is ops.RANGE], TRUE if whole else less_than(new, size)


def substitute(s: Scheduled, replaced: dict[UOp, UOp]) -> Scheduled:
    """Return a scheduled kernel with other index expressions in place of some ranges.

    Reductions over those ranges still name them: they say which threads take part.
    """
    substitution = _Substitution(replaced, None, {})
    stages = [replace(t, fill=substitution.store(t.fill)) for t in s.stages]
    new = dict.fromkeys(r for x in replaced.values() for r in sorted(x.ranges, key=sort_key))
    order = {r: n - len(new) - 1 for n, r in enumerate(new)} | s.order
    return replace(
        s, stores=[substitution.store(x) for x in s.stores], stages=stages, order=order,
        became={u: substitution(v) if v.op is not ops.STORE else v for u, v in s.became.items()},
    )  # fmt: skip


def in_iteration(store: UOp, loop: UOp, index: UOp) -> UOp:
    """Return a store as it is in another iteration of a loop."""
    return _Substitution({loop: index}, None, {}).store(store)


class _Substitution(Substitution):
    """Replaces ranges by what their axes make; masks loads and sums where that is more than the range."""

    def __init__(
        self, replaced: dict[UOp, UOp], parts: dict[UOp, list[UOp]] | None, valid: dict[UOp, UOp]
    ) -> None:
        super().__init__(replaced)
        self.parts, self.valid = parts, valid

    def store(self, store: UOp) -> UOp:
        target, mask, value, *idx = store.src
        bounds = [self.valid[r] for r in sorted(store.ranges, key=sort_key) if r in self.valid]
        return UOp(
            ops.STORE,
            dtypes.void,
            (target, all_of(self(mask), *bounds), self(value), *[self(i) for i in idx]),
        )

    def rebuild(self, u: UOp) -> UOp:
        if u.op is ops.REDUCE:
            return self._reduce(u)
        if u.op is ops.LOAD and self.valid:
            bounds = [self.valid[r] for r in sorted(u.ranges, key=sort_key) if r in self.valid]
            mask = all_of(self(u.src[1]), *bounds)
            return UOp(u.op, u.dtype, (u.src[0], mask, *[self(i) for i in u.src[2:]]))
        return super().rebuild(u)

    def _reduce(self, u: UOp) -> UOp:
        value = self(u.src[0])
        if self.parts is None:
            return u.replace((value, *u.src[1:]))
        fold = u.arg
        axes: list[UOp] = []
        for r in u.src[1:]:
            mask = self.valid.get(r)
            if mask is not None and not (fold is ops.ADD and zero_outside(value, mask)):
                value = UOp(
                    ops.WHERE, value.dtype, (mask, value, const(ops.identity(fold, value.dtype), value.dtype))
                )
            axes.extend(self.parts[r])
        for kinds in _NESTING:
            value = reduce(fold, value, [a for a in axes if a.arg[2] in kinds])
        rest = [a for a in axes if not any(a.arg[2] in kinds for kinds in _NESTING)]
        if rest:
            raise ScheduleError(
                f"axis {rest[0].arg[0]} of kind {rest[0].arg[2]} cannot hold a reduction: blocks of a grid "
                "do not wait for each other; block, warp, thread, loop, unroll, own and vector axes can"
            )
        return value


def _order(schedule: Schedule, axes: dict[str, UOp]) -> dict[UOp, int]:
    named = [axes[n] for n in schedule.order if n in axes]
    rest = [r for r in axes.values() if r not in named]
    front = [r for r in rest if r.arg[2] in ("grid", "thread")]
    back = sorted([r for r in rest if r not in front], key=lambda r: _RANK[r.arg[2]])
    nest = [*front, *named, *back]
    # What has no loop is outside of all loops, whatever `order` says.
    nest.sort(key=lambda r: _RANK[r.arg[2]] if r.arg[2] in PARALLEL else _RANK["chunk"])
    return {r: n for n, r in enumerate(nest)}


def _check(s: Scheduled, nodes: list[UOp]) -> None:
    known = set(s.axes) | {a.name for _, axes in s.schedule.splits for a in axes} | _slots(s.kernel)
    for name in s.schedule.order:
        if name not in known:
            raise ScheduleError(f"order names {name!r}, but the axes are {', '.join(s.axes)}")
    threads = [r for r in s.order if r.arg[2] == "thread"]
    if len(threads) > 1:
        raise ScheduleError(
            f"axes {threads[0].arg[0]} and {threads[1].arg[0]} are both of kind thread; one is allowed"
        )
    for store in s.stores if not holds_threads(nodes) else ():
        for r in threads:
            if r not in store.ranges:
                raise ScheduleError(
                    f"the thread axis {r.arg[0]} is not one of output {store.src[0].arg[0]}'s"
                )
    if sum(r.arg[2] == "vector" for r in s.order) > 1:
        for u in nodes:
            vectors = [r for r in u.ranges if r.arg[2] == "vector"]
            if len(vectors) > 1:
                both = " and ".join(sorted(r.arg[0] for r in vectors))
                raise ScheduleError(f"an expression varies with two vector axes, {both}")
    if threads and s.order[threads[0]] != 0:
        raise ScheduleError(f"the thread axis {threads[0].arg[0]} must be the outermost loop")
