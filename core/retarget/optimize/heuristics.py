"""Choose a schedule from what a kernel touches and what its target has; no shape tables.

Ranges whose size is bound at launch stay whole: they are neither tiled, vectorized nor cut for threads.

1. *Products*, such as matmuls and convolutions, have a module of their own, `products`.
2. *Vector axis* of everything else: the range along which most accesses are contiguous, and none has to
   gather if that can be had.
3. *Own accumulators*: a reduction along the vector axis gets several, to hide the latency of its additions.
4. *Chunks*: a very long float32 sum is a sum of partial sums, so that its error does not grow with its
   length.
5. *Threads*: an outer output axis is cut into a few pieces per thread, when the kernel is worth waking them
   for.
"""

from __future__ import annotations

from ..ir import dtypes, ops
from ..ir.index import range_size
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .accesses import Access, access_of
from .products import choose_product_schedule
from .schedule import Axis, Schedule

#: Scalar operations below which a kernel is not cut for threads: about 20 microseconds of vector work.
PARALLEL_WORK = 1 << 16
#: Pieces per thread: enough to even out, few enough to claim cheaply.
PIECES = 4
#: Most float32 additions into one accumulator: some 2**24 equal terms are where a sum stops growing.
RUN = 1 << 13


def choose_schedule(kernel: Kernel, capabilities: Capabilities) -> Schedule:
    """Return a legal schedule for a kernel on a target with or without a vector ALU and threads."""
    ranges = kernel.ranges
    if not ranges:
        return Schedule()
    accesses = [access_of(u) for u in kernel.nodes if u.op in (ops.LOAD, ops.STORE)]
    output = [r for r in ranges.values() if all(r in s.ranges for s in kernel.stores)]
    reductions = [u for u in kernel.nodes if u.op is ops.REDUCE]
    reduced = {r for u in reductions for r in u.src[1:]}
    bits = max([u.dtype.bits for u in kernel.nodes if u.op in (ops.LOAD, ops.STORE) and u.dtype.bits] or [32])
    bits = max([bits, *[u.dtype.bits for u in kernel.nodes if u.op is ops.REDUCE]])
    lanes = capabilities.vector_bits // max(bits, 8) if "vector" in capabilities.axis_kinds else 0
    product = choose_product_schedule(kernel, reductions, accesses, lanes, capabilities)
    if product is not None:
        return product
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in ranges.items()}
    vector = _vector_axis(list(ranges.values()), accesses, lanes, output)
    if vector is not None:
        _split_vector(axes, vector, lanes, vector in reduced and vector not in output)
    _chunk(axes, reductions)
    order = _order(axes, [*output, *[r for r in ranges.values() if r not in output]])
    _thread(axes, order, kernel, output, reductions, capabilities)
    splits = [(r.arg[0], a) for r, a in axes.items() if len(a) > 1 or a[0].kind != "loop"]
    return Schedule.of(splits, order)


def _vector_axis(ranges: list[UOp], accesses: list[Access], lanes: int, output: list[UOp]) -> UOp | None:
    """Return the range to vectorize: contiguous in as many accesses as possible, strided in few."""
    best, best_score = None, 0
    for r in ranges:
        if lanes < 2 or range_size(r) < 2 or r.src:
            continue
        score = 0
        for a in accesses:
            k = a.coefficients.get(r, 0)
            if r in a.irregular:
                score -= 3
            elif k == 1:
                score += 4 if a.is_store else 2
            elif k:
                score -= 3
        if range_size(r) < lanes:
            score -= 1
        # Among equals an output axis is better: its accumulators need no horizontal fold.
        score = 2 * score + (r in output)
        if score > best_score:
            best, best_score = r, score
    return best


def _split_vector(axes: dict[UOp, list[Axis]], vector: UOp, lanes: int, is_reduced: bool) -> None:
    name, size = vector.arg[0], range_size(vector)
    width = lanes
    while width > size:
        width //= 2
    if size % width and size < 4 * width:  # the masked tail would be a good part of the work
        while size % width:
            width //= 2
    if width < 2:
        return
    digits = [Axis(f"{name}o")]
    steps = -(-size // width)
    if is_reduced and steps % 4 == 0 and steps >= 8:
        digits.append(Axis(f"{name}a", 4, "own"))
    digits.append(Axis(f"{name}v", width, "vector"))
    axes[vector] = digits


def _chunk(axes: dict[UOp, list[Axis]], reductions: list[UOp]) -> None:
    """Cut the loops of long float32 sums into chunks, each with a partial sum."""
    sums = [u for u in reductions if u.arg is ops.ADD and u.dtype is dtypes.float32]
    for r in dict.fromkeys(r for u in sums for r in u.src[1:]):
        inner = 1
        for a in axes[r][1:]:
            inner *= a.size or 1
        steps = -(-range_size(r) // inner)
        if steps <= 2 * RUN or r.src:
            continue
        each = next((n for n in range(RUN, RUN // 4, -1) if steps % n == 0), RUN)
        axes[r][0:1] = [Axis(f"{r.arg[0]}c", None, "chunk"), Axis(axes[r][0].name, each)]


def _order(axes: dict[UOp, list[Axis]], ranges: list[UOp]) -> list[str]:
    """Return loops in the order of their ranges, then unrolled digits, then lanes."""
    loops: list[str] = []
    unrolled: list[str] = []
    lanes: list[str] = []
    for r in ranges:
        for a in axes[r]:
            {"vector": lanes, "unroll": unrolled, "own": unrolled}.get(a.kind, loops).append(a.name)
    return [*loops, *unrolled, *lanes]


def _thread(
    axes: dict[UOp, list[Axis]], order: list[str], kernel: Kernel, output: list[UOp], reductions: list[UOp],
    capabilities: Capabilities,
) -> None:  # fmt: skip
    """Cut the outermost output axis into pieces for threads, when the work is worth it."""
    if "thread" not in capabilities.axis_kinds or capabilities.threads < 2 or not output:
        return
    work = 0
    for u in kernel.nodes:
        if u.op in ops.ALU_OPS or u.op in (ops.LOAD, ops.REDUCE, ops.CAST, ops.STORE):
            count = 1
            for r in u.ranges.union(u.src[1:] if u.op is ops.REDUCE else ()):
                count *= range_size(r)
            work = max(work, count * (10 if u.op in ops.UNARY_FUNCTIONS else 1))
    if work < PARALLEL_WORK:
        return
    # A reduction that does not depend on the thread axis would be computed by every thread.
    common = [r for r in output if all(r in u.ranges for u in reductions)]
    for r in common:
        head = axes[r][0]
        if head.kind != "loop" or r.src:
            continue
        inner = 1
        for a in axes[r][1:]:
            inner *= a.size or 1
        steps = -(-range_size(r) // inner)
        if steps < capabilities.threads:
            continue
        pieces = min(steps, PIECES * capabilities.threads)
        each = -(-steps // pieces)
        while steps % each and each < 2 * -(-steps // pieces) and steps // (each + 1) >= capabilities.threads:
            each += 1  # pieces that divide the axis need no mask
        if steps % each:
            each = -(-steps // pieces)
        name = f"{r.arg[0]}t"
        if each == 1:
            axes[r][0] = Axis(name, None, "thread")
            order.remove(head.name)
        else:
            axes[r][0:1] = [Axis(name, None, "thread"), Axis(head.name, each)]
        order.insert(0, name)
        return
