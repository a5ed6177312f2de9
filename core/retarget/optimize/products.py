"""Schedules of products: sums of products of two operands, each free of an output axis of the other.

A matmul is one, and so is a convolution.  A product gets a tile of accumulators, vectors along one of those
axes and rows along the other, so that each loaded vector is used several times; the operand with the vectors
is packed into a local panel that stays in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import dtypes, ops
from ..ir.index import range_size, terms
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .accesses import Access
from .schedule import Axis, Schedule, Stage

#: Multiply-accumulates below which a product is not cut for threads: about 20 microseconds of vector work.
PARALLEL_WORK = 1 << 16
#: Pieces per thread: enough to even out, few enough to claim cheaply.
PIECES = 4
#: Most float32 additions into one accumulator: some 2**24 equal terms are where a sum stops growing.
RUN = 1 << 13


def choose_product_schedule(
    kernel: Kernel, reductions: list[UOp], accesses: list[Access], lanes: int, capabilities: Capabilities
) -> Schedule | None:
    """Return the schedule of a product, or None if the kernel is none.

    Parameters
    ----------
    kernel
        What to schedule.
    reductions, accesses
        Its reductions, and its loads and stores.
    lanes
        Width of vectors of its widest dtype.
    capabilities
        What the target has.
    """
    if lanes < 2 or "unroll" not in capabilities.axis_kinds:
        return None
    ranges = kernel.ranges
    output = [r for r in ranges.values() if all(r in s.ranges for s in kernel.stores)]
    product = _product(reductions, output, accesses)
    if product is None:
        return None
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in ranges.items()}
    outer = _tile(axes, product, lanes, capabilities)
    output = [*[r for r in output if r not in outer], *outer]
    _chunk(axes, product)
    order = _order(axes, [*output, *[r for r in ranges.values() if r not in output]], product)
    _thread(axes, order, product, output, capabilities)
    stages = _panel(axes, product, kernel, capabilities)
    splits = [(r.arg[0], a) for r, a in axes.items() if len(a) > 1 or a[0].kind != "loop"]
    return Schedule.of(splits, order, stages)


@dataclass(frozen=True, slots=True)
class _Product:
    """A sum of products: `columns` is an output axis of `right` alone, `rows` one of `left` alone."""

    reduction: UOp
    left: UOp
    right: UOp
    rows: UOp
    columns: UOp


def _product(reductions: list[UOp], output: list[UOp], accesses: list[Access]) -> _Product | None:
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


def _chunk(axes: dict[UOp, list[Axis]], product: _Product) -> None:
    """Cut the loops of long float32 sums into chunks, each with a partial sum."""
    if product.reduction.dtype is not dtypes.float32:
        return
    for r in product.reduction.src[1:]:
        steps = range_size(r)
        if steps <= 2 * RUN or r.src:
            continue
        each = next((n for n in range(RUN, RUN // 4, -1) if steps % n == 0), RUN)
        axes[r][0:1] = [Axis(f"{r.arg[0]}c", None, "chunk"), Axis(axes[r][0].name, each)]


def _order(axes: dict[UOp, list[Axis]], ranges: list[UOp], product: _Product) -> list[str]:
    """Return loops in the order of their ranges, then unrolled digits, then lanes.

    The rows' digit of the tile stands outside the columns': then one element of the left operand is live at
    a time beside the accumulators, and not one for each row, which would spill.
    """
    loops: list[str] = []
    unrolled: list[str] = []
    lanes: list[str] = []
    for r in ranges:
        for a in axes[r]:
            {"vector": lanes, "unroll": unrolled}.get(a.kind, loops).append(a.name)
    columns = {a.name for a in axes[product.columns]}
    unrolled.sort(key=columns.__contains__)
    return [*loops, *unrolled, *lanes]


def _thread(
    axes: dict[UOp, list[Axis]], order: list[str], product: _Product, output: list[UOp],
    capabilities: Capabilities,
) -> None:  # fmt: skip
    """Cut the outermost output axis into pieces for threads, when the work is worth it."""
    if "thread" not in capabilities.axis_kinds or capabilities.threads < 2:
        return
    work = 1
    for r in product.reduction.ranges.union(product.reduction.src[1:]):
        work *= range_size(r)
    if work < PARALLEL_WORK:
        return
    # A reduction that does not depend on the thread axis would be computed by every thread.
    for r in output:
        head = axes[r][0]
        if head.kind != "loop" or r.src or r not in product.reduction.ranges:
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
