"""Choose a schedule from what a kernel touches and what its target has; no shape tables.

Ranges whose size is bound at launch stay whole: they are neither tiled, vectorized nor cut for threads.

1. *Products*: a sum of products of two operands, each free of an output axis of the other (a matmul, a
   convolution), gets a tile of accumulators, vectors along one of those axes and rows along the other, so
   that each loaded vector is used several times.  The operand with the vectors is packed into a local panel
   that stays in the cache.
2. *Vector axis* of everything else: the range along which most accesses are contiguous, and none has to
   gather if that can be had.
3. *Own accumulators*: a reduction along the vector axis gets several, to hide the latency of its additions.
4. *Chunks*: a very long float32 sum is a sum of partial sums, so that its error does not grow with its
   length.
5. *Threads*: an outer output axis is cut into a few pieces per thread, when the kernel is worth waking them
   for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import dtypes, ops
from ..ir.index import flatten, range_size, terms
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .schedule import Axis, Schedule, Stage

#: Scalar operations below which a kernel is not cut for threads: about 20 microseconds of vector work.
PARALLEL_WORK = 1 << 16
#: Pieces per thread: enough to even out, few enough to claim cheaply.
PIECES = 4
#: Most float32 additions into one accumulator: some 2**24 equal terms are where a sum stops growing.
RUN = 1 << 13


@dataclass(frozen=True, slots=True)
class _Access:
    """One load or store: its flat index by range, and how much memory it touches."""

    coefficients: dict[UOp, int]
    irregular: frozenset[UOp]
    is_store: bool


def choose_schedule(kernel: Kernel, capabilities: Capabilities) -> Schedule:
    """Return a legal schedule for a kernel on a target with or without a vector ALU and threads."""
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
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in ranges.items()}
    product = (
        _product(reductions, output, accesses) if lanes >= 2 and "unroll" in capabilities.axis_kinds else None
    )
    if product is not None:
        outer = _tile(axes, product, lanes, capabilities)
        output = [*[r for r in output if r not in outer], *outer]
    else:
        vector = _vector_axis(list(ranges.values()), accesses, lanes, output)
        if vector is not None:
            _split_vector(axes, vector, lanes, vector in reduced and vector not in output)
    _chunk(axes, reductions)
    order = _order(axes, [*output, *[r for r in ranges.values() if r not in output]], product)
    _thread(axes, order, kernel, output, reductions, capabilities)
    stages = _panel(axes, product, kernel, capabilities) if product is not None else []
    splits = [(r.arg[0], a) for r, a in axes.items() if len(a) > 1 or a[0].kind != "loop"]
    return Schedule.of(splits, order, stages)


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


def _vector_axis(ranges: list[UOp], accesses: list[_Access], lanes: int, output: list[UOp]) -> UOp | None:
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


@dataclass(frozen=True, slots=True)
class _Product:
    """A sum of products: `columns` is an output axis of `right` alone, `rows` one of `left` alone."""

    reduction: UOp
    left: UOp
    right: UOp
    rows: UOp
    columns: UOp


def _product(reductions: list[UOp], output: list[UOp], accesses: list[_Access]) -> _Product | None:
    """Return the kernel's only reduction as a product, if it is one."""
    if len(reductions) != 1:
        return None
    (r,) = reductions
    if r.arg is not ops.ADD or r.src[0].op is not ops.MUL:
        return None
    a, b = r.src[0].src
    known = [x for x in output if not x.src]
    only_a = [x for x in known if x in a.ranges and x not in b.ranges]
    only_b = [x for x in known if x in b.ranges and x not in a.ranges]
    if not only_a or not only_b:
        return None
    stores = [x for x in accesses if x.is_store]
    contiguous = [x for x in (*only_a, *only_b) if all(s.coefficients.get(x) == 1 for s in stores)]
    columns = contiguous[0] if contiguous else max((*only_a, *only_b), key=range_size)
    if columns in only_a:
        a, b, only_a = b, a, only_b
    return _Product(r, a, b, max(only_a, key=range_size), columns)


def _tile(
    axes: dict[UOp, list[Axis]], product: _Product, lanes: int, capabilities: Capabilities
) -> list[UOp]:
    """Split the axes of a product into a register tile; return them in loop order, the columns' blocks
    outside.

    The tile has two vectors by as many rows as leave registers for the operands: it takes about eight
    independent multiply-accumulates to keep the units busy.  Rows that divide the axis are preferred to a
    masked remainder.
    """
    rows, columns = product.rows, product.columns
    width = lanes
    while width > range_size(columns):
        width //= 2
    if range_size(columns) % width and range_size(columns) < 4 * width:
        while range_size(columns) % width:
            width //= 2
    vectors = 2 if range_size(columns) % (2 * width) == 0 else 1
    budget = min(8, max(2, (capabilities.registers - 3) // vectors))
    height = range_size(rows)
    tall = next((n for n in range(budget, 2, -1) if height % n == 0), min(4, budget, height))
    name = columns.arg[0]
    inner = []
    if vectors > 1:
        inner.append(Axis(f"{name}u", vectors, "unroll"))
    if width > 1:
        inner.append(Axis(f"{name}v", width, "vector"))
    if inner:
        axes[columns] = [Axis(f"{name}o"), *inner]
    if tall > 1:
        axes[rows] = [Axis(f"{rows.arg[0]}o"), Axis(f"{rows.arg[0]}u", tall, "unroll")]
    return [columns, rows]


def _panel(
    axes: dict[UOp, list[Axis]], product: _Product, kernel: Kernel, capabilities: Capabilities
) -> list[Stage]:
    """Return the stage that packs the panel of the right operand that one block of columns touches.

    It pays when the panel is read for several blocks of rows, or when its columns are not contiguous; it is
    made when the operand is a plain load with one range per axis, and the panel fits the space for local
    arrays.
    """
    load = product.right
    while load.op is ops.CAST:
        load = load.src[0]
    reduced = product.reduction.src[1:]
    if (
        load.op is not ops.LOAD
        or axes[product.columns][-1].kind != "vector"
        or any(len(axes[r]) > 1 or r.src for r in reduced)
    ):
        return []
    if sum(u.op is ops.LOAD and u.src[0] is load.src[0] for u in kernel.nodes) > 1:
        return []  # a tile serves one index; this is a product of an array with itself
    for index in load.src[2:]:
        parts = terms(index)[1]
        if len(parts) > 1 or any(atom.op is not ops.RANGE for atom, _ in parts):
            return []
    depth = 1
    for r in reduced:
        if r in load.ranges:
            depth *= range_size(r)
    inner = [a for a in axes[product.columns] if a.kind in ("unroll", "vector")]
    width = 1
    for a in inner:
        width *= a.size or 1
    blocks = range_size(product.rows) // max([a.size or 1 for a in axes[product.rows]])
    room = capabilities.limits.local_bytes or (64 << 10)
    if depth < 16 or blocks < 4 or depth * width * load.dtype.itemsize > room:
        return []
    block = [a.name for a in axes[product.columns] if a not in inner][-1]
    layout = (*[r.arg[0] for r in reduced if r in load.ranges], *[a.name for a in inner])
    return [Stage(load.src[0].arg[0], block, layout)]


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


def _order(axes: dict[UOp, list[Axis]], ranges: list[UOp], product: _Product | None) -> list[str]:
    """Return loops in the order of their ranges, then unrolled digits, then lanes.

    In a product's tile the rows' digit stands outside the columns': then one element of the left operand
    is live at a time beside the accumulators, and not one for each row, which would spill.
    """
    loops: list[str] = []
    unrolled: list[str] = []
    lanes: list[str] = []
    for r in ranges:
        for a in axes[r]:
            {"vector": lanes, "unroll": unrolled, "own": unrolled}.get(a.kind, loops).append(a.name)
    if product is not None:
        columns = {a.name for a in axes[product.columns]}
        unrolled.sort(key=columns.__contains__)
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
