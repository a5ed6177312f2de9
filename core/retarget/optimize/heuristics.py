"""Choose a schedule from what a kernel touches and what its target has; no shape tables.

Ranges whose size is bound at launch stay whole: they are neither tiled, vectorized nor cut for threads.

1. *Products*, such as matmuls, have a module of their own, `products`; sums over the windows of an image
   are in `convolutions`.  *Transposes* have one too, `transposes`: kernels that read along one axis and write
   along another.
2. *Lanes*: as many as a vector has of the widest type that is computed in, not of what is stored.
3. *Vector axis*: the range along which most accesses are contiguous, and none has to gather if that can be
   had.  Where functions of many operations are computed along it, a step takes several vectors side by side:
   each is a long chain, and they do not wait for each other.
4. *Columns*: a reduction across rows adds whole rows, several at a time, to a row of accumulators that stays
   in the first cache: memory is read in order.
5. *Own accumulators*: a reduction along the vector axis gets several, to hide the latency of its additions,
   and reads from several places that are far apart, or from several rows: more of memory's channels are busy.
6. *Chunks*: a very long float32 sum is a sum of partial sums, so that its error does not grow with its
   length.
7. *Threads*: an outer output axis is cut into a few pieces per thread, when the kernel is worth waking them
   for.  Where output axes are too short, the reduction is cut instead, into pieces that depend on its size
   alone: so does the result.
8. *Streams*: outputs that the caches cannot hold are stored past them.
9. *Kept rows*: what is costly and needed by a reduction and again by the output is kept in the output, if a
   row of it stays in the cache meanwhile; in a row of its own, if the output is stored past the caches.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir import dtypes, ops
from ..ir.index import TRUE, irange, range_size
from ..ir.uop import UOp, toposort
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .accesses import Access, access_of, past_caches
from .convolutions import choose_stencil_schedule, choose_window_schedule
from .products import choose_product_schedule, find_product
from .schedule import Axis, Schedule, Stage
from .task import PARALLEL_WORK, PIECES, RUN, Task
from .transposes import choose_transpose_schedule

#: Scalar operations in a piece of a reduction that is cut for threads, and the most pieces: enough for many
#: threads, few enough that folding them is nothing.
PIECE_WORK, MOST_PIECES = 1 << 14, 256
#: Output elements, in units of what threads take, from which cutting the reduction instead is not considered.
ENOUGH = 16
#: Rows that are added to a row of accumulators at a time, or streams that a reduction reads at a time.
FAR = 4
#: Vectors side by side where costly functions are computed: two keep the units busy that one chain of
#: operations leaves idle, and more do not fit the registers.  Rows that are reduced as well take four: their
#: sums and maxima are chains from one step to the next.
SIDE_BY_SIDE, ROW_SIDE_BY_SIDE = 2, 4
#: Functions that cost many operations.
_COSTLY = frozenset(ops.UNARY_FUNCTIONS) - {
    ops.NEG, ops.SQRT, ops.FLOOR, ops.CEIL, ops.TRUNC, ops.RINT, ops.NOT
}  # fmt: skip


def choose_schedule(kernel: Kernel, capabilities: Capabilities) -> Schedule:
    """Return a legal schedule for a kernel on a target with or without a vector ALU and threads."""
    ranges = kernel.ranges
    if not ranges:
        return Schedule()
    nodes = kernel.nodes
    accesses = [access_of(u) for u in nodes if u.op in (ops.LOAD, ops.STORE)]
    output = [r for r in ranges.values() if all(r in s.ranges for s in kernel.stores)]
    reductions = [u for u in nodes if u.op is ops.REDUCE]
    task = Task(kernel, output, reductions, accesses, _lanes(kernel, capabilities), capabilities)
    product = find_product(task)
    if product is not None:
        return choose_window_schedule(task, product) or choose_product_schedule(task, product)
    found = choose_stencil_schedule(task) if reductions else choose_transpose_schedule(task)
    if found is not None:
        return found
    every = list(ranges.values())
    keys = {r: name for name, r in ranges.items()}
    if not reductions and len(output) == len(every) > 1:
        every, keys, accesses = _merge(kernel, every, accesses)
        task = replace(task, output=every, accesses=accesses)
    return _Choice(task, every, keys).schedule()


def _merge(
    kernel: Kernel, ranges: list[UOp], accesses: list[Access]
) -> tuple[list[UOp], dict[UOp, str], list[Access]]:
    """Merge neighbouring ranges that every access walks together, as if they were one.

    Returns
    -------
    The ranges that are left, what the schedule calls each, and the accesses along them.
    """
    keys = {r: r.arg[0] for r in ranges}
    plain = all(
        u.src[1] is TRUE if u.op in (ops.LOAD, ops.STORE) else u.op is not ops.CAST or
        u.src[0].dtype is not dtypes.index
        for u in kernel.nodes
    )  # fmt: skip
    crossed = any(a.coefficients.get(ranges[-1], 0) not in (0, 1) for a in accesses)  # wants its axes apart
    if not plain or crossed or any(r.src for r in ranges):
        return ranges, keys, accesses
    left = [ranges[0]]
    for r in ranges[1:]:
        last = left[-1]
        together = all(
            a.coefficients.get(last, 0) == a.coefficients.get(r, 0) * range_size(r)
            and not a.irregular & {last, r} for a in accesses
        )  # fmt: skip
        if not together:
            left.append(r)
            continue
        one = irange(range_size(last) * range_size(r), last.arg[0])
        keys[one] = f"{keys[last]}*{keys[r]}"
        left[-1] = one
        accesses = [
            Access({**{x: k for x, k in a.coefficients.items() if x is not last and x is not r},
                    **({one: a.coefficients[r]} if r in a.coefficients else {})}, a.irregular, a.is_store)
            for a in accesses
        ]  # fmt: skip
    return left, keys, accesses


def _lanes(kernel: Kernel, capabilities: Capabilities) -> int:
    """Return the elements in a vector of the widest type that a kernel computes in."""
    if "vector" not in capabilities.axis_kinds:
        return 0
    bits = 8
    for u in kernel.nodes:
        op, dtype = u.op, u.dtype
        if op is ops.STORE:
            dtype = u.src[2].dtype
        elif not (op is ops.LOAD or op is ops.REDUCE or op is ops.CAST or op in ops.ALU_OPS):
            continue
        if dtype.is_float and op is not ops.LOAD and op is not ops.STORE:
            bits = max(bits, 32)  # narrower ones are computed in float32
        bits = max(bits, dtype.bits)
    return capabilities.vector_bits // bits


class _Choice:
    """What is known of a kernel that is no product, and the axes of its ranges while they are chosen."""

    def __init__(self, task: Task, ranges: list[UOp], keys: dict[UOp, str]) -> None:
        self.kernel, self.capabilities, self.reductions = task.kernel, task.capabilities, task.reductions
        self.output, self.lanes = task.output, task.lanes
        self.reduced = {r for u in self.reductions for r in u.src[1:]}
        self.axes: dict[UOp, list[Axis]] = {r: [Axis(r.arg[0])] for r in ranges}
        self.keys = keys
        self.order: list[str] = []
        self.vector = _vector_axis(ranges, task.accesses, self.lanes, self.output)
        self.costly = [u for u in self.kernel.nodes if u.op in _COSTLY]
        merged = self.vector not in task.kernel.ranges.values()  # it stands for several
        self.cheap = not any(merged or self.vector in u.ranges for u in self.costly)
        self.work = self._work()

    def schedule(self) -> Schedule:
        """Return the schedule."""
        axes, vector, output = self.axes, self.vector, self.output
        wide = vector is not None and _split_vector(axes, vector, self.lanes * self._side_by_side())
        ranges = [*output, *[r for r in axes if r not in output]]
        columns = self._columns() if wide else None
        if columns is not None:
            self.order = self._by_rows(columns)
        else:
            threaded = self._thread_output() or self._thread_reduction(self._common_reduction())
            if wide and vector in self.reduced and (vector not in output or self.cheap):
                self._accumulators(threaded)
            self.order = _order(axes, ranges)
        _chunk(axes, self.order, self.reductions)
        keys = self.keys
        changed = [r for r, a in axes.items() if len(a) > 1 or a[0].kind != "loop" or "*" in keys[r]]
        splits = [(keys[r], axes[r]) for r in changed]
        stages, streams = self._kept(), self._streams()
        if stages and stages[0].space == "out":  # it is read again
            streams = []
        return Schedule.of(splits, self.order, stages, streams)

    # -- sizes -----------------------------------------------------------------------------------------------

    def steps(self, r: UOp) -> int:
        """Return the iterations of what is left of a range beside its sized axes."""
        inner = 1
        for a in self.axes[r]:
            inner *= a.size or 1
        return -(-range_size(r) // inner)

    def _side_by_side(self) -> int:
        """Return how many vectors a step takes: more than one only if they divide the range."""
        if self.vector is None or self.cheap:
            return 1
        count = SIDE_BY_SIDE
        if self.vector in self.reduced:  # a row that is not stored gets accumulators of its own
            count = ROW_SIDE_BY_SIDE if self.vector in self.output else 1
        while count > 1 and range_size(self.vector) % (count * self.lanes):
            count //= 2
        return count

    def _work(self) -> int:
        """Return the scalar operations of the costliest expression."""
        work = 0
        for u in self.kernel.nodes:
            if u.op in ops.ALU_OPS or u.op in (ops.LOAD, ops.REDUCE, ops.CAST, ops.STORE):
                count = 10 if u.op in ops.UNARY_FUNCTIONS else 1
                for r in u.ranges.union(u.src[1:] if u.op is ops.REDUCE else ()):
                    count *= range_size(r)
                work = max(work, count)
        return work

    # -- threads ---------------------------------------------------------------------------------------------

    def _thread_output(self) -> UOp | None:
        """Cut the outermost output axis that is long enough for threads; return it, if the work is worth it.

        It has to be one on which all reductions depend: others would be computed by every thread.
        """
        if "thread" not in self.capabilities.axis_kinds or self.work < PARALLEL_WORK:
            return None
        threads = max(self.capabilities.threads, 2)  # pieces cost one thread nothing; cut reductions would
        common = [r for r in self.output if all(r in u.ranges for u in self.reductions) and not r.src]
        least = ENOUGH if self._common_reduction() is not None else threads
        for r in common:
            steps = self.steps(r)
            if steps >= max(least, threads):
                self._cut(r, _each(steps, min(steps, PIECES * threads), threads))
                return r
        return None

    def _common_reduction(self) -> UOp | None:
        """Return the range to cut if threads share out the reductions, all of which are over the same
        ranges."""
        if not self.reductions:
            return None
        over = self.reductions[0].src[1:]
        if any(u.src[1:] != over for u in self.reductions) or any(r.src for r in over):
            return None
        return next((r for r in over if self.steps(r) >= 4 * ENOUGH), None)

    def _thread_reduction(self, r: UOp | None, most: int = MOST_PIECES) -> UOp | None:
        """Cut a reduction for threads, whose number plays no role: the result depends on the pieces."""
        if r is None or "thread" not in self.capabilities.axis_kinds:
            return None
        steps, pieces = self.steps(r), min(most, self.work // PIECE_WORK)
        if pieces < ENOUGH:
            return None
        pieces = min(pieces, steps // 2)
        exact = next((n for n in range(pieces, pieces // 2, -1) if steps % (n * 2 * FAR) == 0), 0)
        each = steps // exact if exact else _each(steps, pieces, 2)
        if not exact:  # a mask perhaps, but room for far streams
            each += -each % (2 * FAR)
        self._cut(r, each)
        return r

    def _cut(self, r: UOp, each: int) -> None:
        """Make pieces of some iterations of a range's loop the thread axis."""
        name = f"{r.arg[0]}t"
        head = self.axes[r][0]
        inner = [Axis(head.name, each)] if each > 1 else []
        self.axes[r][0:1] = [Axis(name, None, "thread"), *inner]

    # -- reductions ------------------------------------------------------------------------------------------

    def _columns(self) -> UOp | None:
        """Return the range of reductions across rows: all are over it alone, and none of its steps is
        contiguous."""
        vector = self.vector
        over = {u.src[1:] for u in self.reductions}
        if len(over) != 1 or vector in self.reduced or not self.cheap:
            return None
        (ranges,) = over
        if len(ranges) != 1 or ranges[0] in self.output or ranges[0].src or range_size(ranges[0]) < 2 * FAR:
            return None
        if any(vector not in u.ranges for u in self.reductions):
            return None
        return ranges[0]

    def _by_rows(self, rows: UOp) -> list[str]:
        """Add whole rows to a row of accumulators, or rows of a block of columns that fits the first cache.

        Threads take blocks of rows, and of columns where there are few rows.
        """
        vector = self.vector
        assert vector is not None
        name, axes = vector.arg[0], self.axes
        lanes = axes[vector][-1]
        block = (
            max(1, self.capabilities.caches[0] // 4 // max(lanes.size or 1, 1) // 8)
            if (self.capabilities.caches)
            else 256
        )
        block = 1 << (block.bit_length() - 1)
        steps = self.steps(vector)
        outer = [r for r in self.output if r is not vector]
        threaded = self._thread_output() if outer or range_size(rows) < 4 * ENOUGH * FAR else None
        if threaded is None:
            pieces = min(MOST_PIECES // 4, self.steps(rows) // (2 * FAR))
            self._thread_reduction(rows, pieces)
        if steps > 2 * block and threaded is not vector:
            axes[vector] = [Axis(f"{name}b"), Axis(f"{name}o", block), lanes]
        left = axes[rows][-1].size or range_size(rows)
        far = next((n for n in (FAR, 2) if left % n == 0), 1)
        if far > 1:
            last = axes[rows][-1]
            inner = None if last.size is None else last.size // far
            axes[rows][-1:] = [Axis(last.name, inner), Axis(f"{rows.arg[0]}u", far, "unroll")]
        threads = [a.name for r in axes for a in axes[r] if a.kind == "thread"]
        first = [a.name for r in outer for a in axes[r] if a.kind != "thread"]
        strips = [a.name for a in axes[vector][:-2] if a.kind != "thread"]
        row = [a.name for a in axes[rows] if a.kind == "loop"]
        inner_strip = [a.name for a in axes[vector][-2:-1] if a.kind != "thread"]
        unrolled = [a.name for a in axes[rows] if a.kind == "unroll"]
        return [*threads, *first, *strips, *row, *inner_strip, *unrolled, lanes.name]

    def _accumulators(self, threaded: UOp | None) -> None:
        """Give reductions along the vector axis several accumulators, on streams that are far apart."""
        vector, axes = self.vector, self.axes
        assert vector is not None
        name, digits = vector.arg[0], axes[vector]
        steps = digits[-2].size if len(digits) > 1 and digits[-2].size else self.steps(vector)
        streams = vector not in self.output and not self.costly and "unroll" in self.capabilities.axis_kinds
        if streams and threaded is vector:  # one range: a piece has FAR parts that are read together
            head = digits[1]
            if steps % (2 * FAR) == 0 and steps >= 16 * FAR and head.kind == "loop":
                axes[vector] = [
                    digits[0], Axis(f"{name}f", FAR, "own"), Axis(head.name, steps // (2 * FAR)),
                    Axis(f"{name}a", 2, "own"), digits[-1],
                ]  # fmt: skip
                return
        elif streams and threaded is not None and steps % 2 == 0:  # rows that are read together
            last = axes[threaded][-1]
            if last.kind == "loop" and last.size is not None and last.size % FAR == 0:
                kind = "own" if threaded in self.reduced else "unroll"
                far = Axis(f"{threaded.arg[0]}u", FAR, kind)
                axes[threaded][-1:] = [*([Axis(last.name, last.size // FAR)] if last.size > FAR else []), far]
                digits[-1:] = [Axis(f"{name}a", 2, "own"), digits[-1]]
                return
        if steps % 4 == 0 and steps >= 8:
            head = digits[-2]
            if head.size is not None:
                digits[-2] = Axis(head.name, head.size // 4)
            digits[-1:] = [Axis(f"{name}a", 4, "own"), digits[-1]]

    def _streams(self) -> list[str]:
        """Return the outputs that go past the caches."""
        if self.vector is None:
            return []
        return past_caches(self.kernel, self.capabilities, self.vector if self.reductions else None)

    def _kept(self) -> list[Stage]:
        """Return the stage of what is costly and needed by a reduction and by the output."""
        if len(self.kernel.stores) != 1 or not self.reductions or not self.capabilities.caches:
            return []
        (store,) = self.kernel.stores
        inside = {u for r in self.reductions for u in toposort([r.src[0]])}
        for u in reversed(self.costly):
            rows = [r for r in self.output if r not in self.reduced]
            row = [r for r in self.output if r in self.reduced]
            if u not in inside or u.ranges != store.ranges or u.dtype is not store.src[0].dtype:
                continue
            if store.src[1] is not TRUE or not rows or not row or self.vector not in row:
                continue
            if u is not [x for x in self.kernel.nodes if x.op is u.op and x.dtype is not dtypes.index][-1]:
                continue
            if any(set(r.src[1:]) != set(row) for r in self.reductions):
                continue
            bytes_ = u.dtype.itemsize
            for r in row:
                bytes_ *= range_size(r)
            names = [a.name for r in rows for a in self.axes[r]]
            within = [a.name for r in row for a in self.axes[r]]
            place = {n: at for at, n in enumerate(self.order)}
            if bytes_ > self.capabilities.caches[min(1, len(self.capabilities.caches) - 1)] // 2:
                continue
            last = max(names, key=lambda n: place[n])
            if all(place[n] > place[last] for n in within) and _outside(store, u):
                apart = self._streams() and bytes_ <= self.capabilities.limits.local_bytes // 2
                return [Stage(u.op.name, last, (), "local" if apart else "out")]
        return []


def _outside(store: UOp, u: UOp) -> bool:
    """Whether a store reads a value other than through reductions."""
    seen: set[UOp] = set()
    waiting = [store.src[2]]
    while waiting:
        x = waiting.pop()
        if x is u:
            return True
        if x not in seen and x.op is not ops.REDUCE:
            seen.add(x)
            waiting.extend(x.src)
    return False


def _each(steps: int, pieces: int, least: int) -> int:
    """Return the iterations in a piece: such that they divide all, if there is a number near the wanted."""
    wanted = each = -(-steps // pieces)
    while steps % each and each < 2 * wanted and steps // (each + 1) >= least:
        each += 1  # pieces that divide the axis need no mask
    return wanted if steps % each else each


def _vector_axis(ranges: list[UOp], accesses: list[Access], lanes: int, output: list[UOp]) -> UOp | None:
    """Return the range to vectorize: contiguous in as many accesses as possible, strided in few.

    Accesses to a small part of what the others touch count little.
    """
    sizes = []
    for a in accesses:
        size = 1
        for r in a.irregular.union(a.coefficients):
            size *= range_size(r)
        sizes.append(size)
    largest = max(sizes, default=1)
    best, best_score = None, 0.0
    for r in ranges:
        if lanes < 2 or range_size(r) < 2 or r.src:
            continue
        score = 0.0
        for a, size in zip(accesses, sizes, strict=True):
            k = a.coefficients.get(r, 0)
            weight = 1.0 if size * 2 * lanes >= largest else 0.25
            if r in a.irregular:
                score -= 3 * weight
            elif k == 1:
                score += (4 if a.is_store else 2) * weight
            elif k:
                score -= 3 * weight
        if range_size(r) < lanes:
            score -= 1
        # Among equals an output axis is better: its accumulators need no horizontal fold.
        score = 2 * score + (r in output)
        if score > best_score:
            best, best_score = r, score
    return best


def _split_vector(axes: dict[UOp, list[Axis]], vector: UOp, lanes: int) -> bool:
    """Split lanes off a range; return whether there are any."""
    name, size = vector.arg[0], range_size(vector)
    width = lanes
    while width > size:
        width //= 2
    if size % width and size < 4 * width:  # the masked tail would be a good part of the work
        while size % width:
            width //= 2
    if width < 2:
        return False
    axes[vector] = [Axis(f"{name}o"), Axis(f"{name}v", width, "vector")]
    return True


def _chunk(axes: dict[UOp, list[Axis]], order: list[str], reductions: list[UOp]) -> None:
    """Cut the loops of long float32 sums into chunks, each with a partial sum."""
    sums = [u for u in reductions if u.arg is ops.ADD and u.dtype is dtypes.float32]
    for r in dict.fromkeys(r for u in sums for r in u.src[1:]):
        at = next((n for n, a in enumerate(axes[r]) if a.kind == "loop"), None)
        if at is None or r.src:
            continue
        loop = axes[r][at]
        steps = loop.size
        if steps is None:
            inner = 1
            for a in axes[r]:
                inner *= a.size or 1
            steps = -(-range_size(r) // inner)
        if steps <= 2 * RUN:
            continue
        each = next((n for n in range(RUN, RUN // 4, -1) if steps % n == 0), RUN)
        name = f"{r.arg[0]}c"
        outer = None if loop.size is None else -(-steps // each)
        axes[r][at : at + 1] = [Axis(name, outer, "chunk"), Axis(loop.name, each)]
        order.insert(order.index(loop.name), name)


def _order(axes: dict[UOp, list[Axis]], ranges: list[UOp]) -> list[str]:
    """Return loops in the order of their ranges, then unrolled digits, then lanes."""
    loops: list[str] = []
    unrolled: list[str] = []
    lanes: list[str] = []
    threads: list[str] = []
    kinds = {"vector": lanes, "unroll": unrolled, "own": unrolled, "thread": threads}
    for r in ranges:
        for a in axes[r]:
            kinds.get(a.kind, loops).append(a.name)
    return [*threads, *loops, *unrolled, *lanes]
