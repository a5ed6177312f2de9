"""Choose a schedule from what a kernel touches and what its target has; no shape tables.

1. *Vector axis*: the range along which most accesses are contiguous, and none has to gather if that can be had.
2. *Register tile*: a reduction whose terms are products of two operands, each free of one of the other's output
   axes, gets a tile of accumulators, so that each loaded vector is used several times.
3. *Own accumulators*: a reduction along the vector axis gets several, to hide the latency of its additions.
4. *Threads*: the outermost output axis is cut into a few pieces per thread, when the kernel is worth waking them for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import ops
from ..ir.index import flatten, range_size, terms
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .schedule import Axis, Schedule

#: Scalar operations below which a kernel is not cut for threads: about 20 microseconds of vector work.
PARALLEL_WORK = 1 << 16
#: Pieces per thread: enough to even out, few enough to claim cheaply.
PIECES = 4


@dataclass(frozen=True, slots=True)
class _Access:
    """One load or store: its flat index by range, and how much memory it touches."""

    coefficients: dict[UOp, int]
    irregular: frozenset[UOp]
    is_store: bool


def choose_schedule(kernel: Kernel, capabilities: Capabilities) -> Schedule:
    """Return a legal schedule for a kernel on a target with a vector ALU or without, and with threads or without."""
    ranges = kernel.ranges
    if not ranges:
        return Schedule()
    accesses = [_access(u) for u in kernel.nodes if u.op in (ops.LOAD, ops.STORE)]
    output = [r for r in ranges.values() if all(r in s.ranges for s in kernel.stores)]
    reductions = [u for u in kernel.nodes if u.op is ops.REDUCE]
    reduced = {r for u in reductions for r in u.src[1:]}
    bits = max([u.dtype.bits for u in kernel.nodes if u.op in (ops.LOAD, ops.STORE) and u.dtype.bits] or [32])
    bits = max([bits, *[u.dtype.bits for u in kernel.nodes if u.op is ops.REDUCE]])
    lanes = capabilities.vector_bits // max(bits, 8) if "vector" in capabilities.axis_kinds else 0
    vector = _vector_axis(list(ranges.values()), accesses, lanes, reduced, output)
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in ranges.items()}
    if vector is not None:
        _split_vector(axes, vector, lanes, vector in reduced and vector not in output)
        _tile(axes, kernel, vector, lanes, capabilities)
    order = _order(axes, list(ranges.values()), output, reduced, vector)
    _thread(axes, order, kernel, output, reductions, capabilities)
    splits = [(r.arg[0], a) for r, a in axes.items() if len(a) > 1 or a[0].kind != "loop"]
    return Schedule.of(splits, order)


def _access(u: UOp) -> _Access:
    idx = u.src[2:] if u.op is ops.LOAD else u.src[3:]
    coefficients: dict[UOp, int] = {}
    irregular: set[UOp] = set()
    for atom, k in terms(flatten(idx, u.src[0].arg[1]))[1]:
        if atom.op is ops.RANGE:
            coefficients[atom] = k
        else:
            irregular |= atom.ranges
    return _Access(coefficients, frozenset(irregular), u.op is ops.STORE)


def _vector_axis(
    ranges: list[UOp], accesses: list[_Access], lanes: int, reduced: set[UOp], output: list[UOp]
) -> UOp | None:
    """Return the range to vectorize: contiguous in as many accesses as possible, strided in few."""
    best, best_score = None, 0
    for r in ranges:
        if lanes < 2 or range_size(r) < 2:
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


def _tile(axes: dict[UOp, list[Axis]], kernel: Kernel, vector: UOp, lanes: int, capabilities: Capabilities) -> None:
    """Give a matmul-like reduction a register tile: vectors along the vector axis, rows along another output axis."""
    products = [
        u for u in kernel.nodes
        if u.op is ops.REDUCE and u.arg is ops.ADD and u.src[0].op is ops.MUL and vector in u.ranges
    ]  # fmt: skip
    if len(products) != 1 or "unroll" not in capabilities.axis_kinds or axes[vector][-1].kind != "vector":
        return
    (product,) = products
    a, b = product.src[0].src
    rows = [r for r in product.ranges if r is not vector and ((r in a.ranges) != (r in b.ranges))
            and ((vector in a.ranges) != (r in a.ranges))]  # fmt: skip
    if not rows:
        return
    row = max(rows, key=lambda r: (range_size(r), r.arg[0]))
    wide = 2 if range_size(vector) % (2 * lanes) == 0 and axes[vector][-1].size == lanes else 1
    budget = max(2, (capabilities.registers - 3) // wide)
    tall = next((n for n in (8, 6, 5, 4, 3, 2) if n <= budget and range_size(row) % n == 0), 1)
    if tall == 1 and range_size(row) > 1:
        tall = min(4, budget)
    if wide > 1:
        v = vector.arg[0]
        axes[vector] = [Axis(f"{v}o"), Axis(f"{v}u", 2, "unroll"), Axis(f"{v}v", lanes, "vector")]
    if tall > 1:
        axes[row] = [Axis(f"{row.arg[0]}o"), Axis(f"{row.arg[0]}u", tall, "unroll")]


def _order(
    axes: dict[UOp, list[Axis]], ranges: list[UOp], output: list[UOp], reduced: set[UOp], vector: UOp | None
) -> list[str]:
    """Return loops of output axes, then of reductions, then unrolled digits, then lanes."""
    outer = [r for r in ranges if r in output]
    inner = [r for r in ranges if r not in output]
    loops, unrolled, lanes = [], [], []
    for r in (*outer, *inner):
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
        if head.kind != "loop" or order[0] not in [a.name for a in axes[r]] and order.index(head.name) > 2:
            continue
        inner = 1
        for a in axes[r][1:]:
            inner *= a.size or 1
        steps = -(-range_size(r) // inner)
        if steps < 2:
            continue
        pieces = min(steps, PIECES * capabilities.threads)
        each = -(-steps // pieces)
        while each > 1 and steps % each and each * 2 > -(-steps // pieces):
            each -= 1  # prefer pieces that divide the axis: no mask
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
