"""Schedules of products: sums of products of two operands, each free of an output axis of the other.

A matmul is one, and so is a convolution, for which `convolutions` has schedules of its own.  A product gets a
tile of accumulators in registers: vectors along one of those axes (the columns), elements of the other
operand broadcast along the other (the rows), so that each loaded vector is used several times.  What does
not divide slides back: no mask comes near the inner loop.  The operand with the vectors is packed into
panels, one for each tile's columns, which stay in a cache while the rows pass by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir import dtypes, ops
from ..ir.index import flatten, range_size, terms
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .schedule import Axis, Schedule, Stage
from .task import LINE, PARALLEL_WORK, PIECES, RUN, Task

#: Most rows of a tile: more of them, read a power of two apart, evict each other from the first cache.
ROWS = 8
#: Most accumulators of a tile: more do not make it faster, and compilers begin to spill.
ACCUMULATORS = 16
#: Rows of tiles that take as long as packing the panels once more.
PACKING = 2
#: Bytes of a buffer's row that are read at a time where panels are packed again and again.
PIECE = 256
#: Rows of a panel that is transposed in registers on the way, at least.
TURNED = 4
#: Steps that a multiply-accumulate takes, times those that start at once, and a few to even out: so many have
#: to be independent.
LATENCY = 10


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products: `columns` is an output axis of `right` alone, `rows` one of `left` alone."""

    reduction: UOp
    left: UOp
    right: UOp
    rows: UOp | None
    columns: UOp


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `rows` by `vectors` of `width` lanes, and how many stand side by side in a block."""

    rows: int
    vectors: int
    width: int
    panels: int = 1

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def choose_product_schedule(task: Task, product: Product) -> Schedule:
    """Return the schedule of a product that `find_product` has found."""
    kernel, output, capabilities = task.kernel, task.output, task.capabilities
    ranges = kernel.ranges
    others = [r for r in output if r is not product.rows and r is not product.columns]
    threads = threads_for(product, capabilities)
    apart = [r for r in others if not r.src and range_size(r) >= threads][:1]  # what threads can share out
    packs = is_packable(product.right, product, kernel)
    tile = register_tile(product, task.lanes, 1 if apart else threads, packs, capabilities)
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in ranges.items()}
    n, m = product.columns.arg[0], product.rows.arg[0] if product.rows is not None else ""
    _split(
        axes, product.columns, f"{n}o",
        [(f"{n}p", tile.panels, "loop"), (f"{n}u", tile.vectors, "unroll"), (f"{n}v", tile.width, "vector")],
    )  # fmt: skip
    if product.rows is not None:
        _split(axes, product.rows, f"{m}o", [(f"{m}u", tile.rows, "unroll")])
    block = _row_block(axes, product, tile, kernel, threads, capabilities) if packs else []
    _chunk(axes, product)
    reduced = [a.name for r in ranges.values() if r not in output for a in axes[r]]
    # In the tile rows stand outside columns: then one element of the left operand is live at a time beside
    # the accumulators, and not one for each row, which would spill.
    order = [r.arg[0] for r in others]
    order += [*block, f"{n}o", f"{m}o", f"{n}p", *reduced, f"{m}u", f"{n}u", f"{n}v"]
    known = {a.name for x in axes.values() for a in x}
    order = [x for x in order if x in known]
    if threads > 1:
        rows = [product.rows] if product.rows is not None else []
        inner = [*rows, product.columns] if block else [product.columns, *rows]
        _thread(axes, order, [*apart, *inner], threads)
    stages = _panel(axes, product, tile, order, capabilities) if packs else []
    load = load_of(product.left)
    if block and load is not None:
        at = f"{m}t" if block[0] not in order else block[0]
        layout = [x for x in (f"{m}o", *reduced, f"{m}u") if x in known]
        stages.insert(0, Stage(load.src[0].arg[0], at, tuple(layout)))
    elif stages and f"{m}o" in order:
        stages = _converted_rows(product, tile, kernel, reduced, capabilities) + stages
    splits = [(r.arg[0], a) for r, a in axes.items() if a != [Axis(r.arg[0])]]
    return Schedule.of(splits, order, stages)


def find_product(task: Task) -> Product | None:
    """Return the kernel's only reduction as a product, if it is one and the target can tile it.

    Without rows (a vector times a matrix) it is one where the matrix is read along its rows; else it is a sum
    of its columns' lengths like any other.
    """
    reductions = task.reductions
    if task.lanes < 2 or "unroll" not in task.capabilities.axis_kinds:
        return None
    if len(reductions) != 1:
        return None
    (r,) = reductions
    if r.arg is not ops.ADD or r.src[0].op is not ops.MUL:
        return None
    a, b = r.src[0].src
    # An output axis over which another pass of the kernel sums as well is no axis of the product alone.
    known = [x for x in task.output if not x.src and x not in r.src[1:]]
    only_a = [x for x in known if x in a.ranges and x not in b.ranges]
    only_b = [x for x in known if x in b.ranges and x not in a.ranges]
    if not only_a and not only_b:
        return None
    stores = [x for x in task.accesses if x.is_store]
    contiguous = [x for x in (*only_a, *only_b) if all(s.coefficients.get(x) == 1 for s in stores)]
    columns = contiguous[0] if contiguous else max((*only_a, *only_b), key=range_size)
    if columns in only_a:
        a, b, only_a = b, a, only_b
    if not only_a:
        load = load_of(b)
        if load is None or _flat(load).get(columns) != 1 or any(x in a.ranges for x in known):
            return None
    return Product(r, a, b, max(only_a, key=range_size, default=None), columns)


def load_of(operand: UOp) -> UOp | None:
    """Return the load that an operand is, or is the conversion of."""
    while operand.op is ops.CAST:
        operand = operand.src[0]
    return operand if operand.op is ops.LOAD else None


def _converts(product: Product) -> bool:
    """Whether the rows are read along the sum and converted, which scalars should not be one at a time."""
    return load_of(product.left) is not product.left and _step(product.left, product) == 1


def _step(operand: UOp, product: Product) -> int:
    """Return how far apart in memory an operand has the terms of the sum; 0 if it is no load."""
    load = load_of(operand)
    return 0 if load is None else _flat(load).get(product.reduction.src[-1], 0)


def _flat(load: UOp) -> dict[UOp, int]:
    """Return the coefficient of each atom of a load's flat index."""
    return dict(terms(flatten(load.src[2:], load.src[0].arg[1]))[1])


def register_tile(
    product: Product, lanes: int, threads: int, packs: bool, capabilities: Capabilities, spare: int = 1
) -> Tile:
    """Return the register tile that takes the fewest steps for what the product computes.

    Counted are multiply-accumulates, those that tiles at the edge compute twice and what idles while another
    thread finishes included.  A tile waits for its loads, or for the latency of its own accumulators if it
    has too few.  Vectors come from farther away than elements of rows.  `spare` registers hold neither
    vectors nor accumulators: more of them where compilers unroll a window and load ahead.
    """
    height = range_size(product.rows) if product.rows is not None else 1
    length = range_size(product.columns)
    width = lanes
    while width > length:
        width //= 2
    depth = math.prod(range_size(r) for r in product.reduction.src[1:])
    size = product.reduction.dtype.itemsize
    near = capabilities.caches[1] // 4 if len(capabilities.caches) > 1 else 64 << 10
    room = local_room(capabilities) or near
    first = capabilities.caches[0] if capabilities.caches else 32 << 10
    step, across = _step(product.left, product), _step(product.right, product)
    apart = across * size > 1 << 9
    # Long rows do not stay in the first cache: few of them at a time, and several panels share them.
    far = depth * size >= first // 4
    # Steps for each element of the rows that panels side by side share: where it comes from beyond the second
    # cache, and where it is converted.
    distant = step == 1 and height * depth * size > 4 * near
    shared = 2 * size / LINE * distant + 4 / width * _converts(product)
    again = step > 1 and across != 1 and height >= 8 * ROWS  # panels are packed for each block of packed rows
    best, least = Tile(1, 1, width), math.inf
    for vectors in range(1, min(length // width, capabilities.registers - 3, ACCUMULATORS) + 1):
        free = capabilities.registers - spare - vectors
        most = min(height, 4 if far else ROWS, ACCUMULATORS // vectors, free // vectors)
        if vectors < capabilities.registers - spare:
            most = max(most, 1)  # with one row, a vector is used once: one is live at a time
        if vectors > 4 and most < min(height, 2):
            break
        columns = vectors * width
        # A panel that does not stay near streams past, and the rows with it: then several share those rows.
        panels = 4 if far or depth * columns * size >= near else 1
        for rows in range(most, most // 2, -1):
            done = vectors * rows
            steps = max(done, vectors + rows, LATENCY) + (3 * vectors + rows) / 16
            if depth * columns * size > first // 2:  # each line of a panel takes a while from the next cache
                steps += columns * size / LINE / 2
            # Where nothing is packed, each step of the sum is at a line or two in another page of memory.
            if apart and (not packs or height < 2 * rows):
                # Where columns do not divide, vectors lie across two lines.
                steps *= 1 + 64 / (columns * size) + (0.3 if length % columns else 0)
            # Where packing is a good part of the work, two are packed from longer pieces of memory.
            side = max(panels, 2 if height < 16 * rows else 1) if packs and height >= 2 * rows else 1
            if packs and again:
                side = max(side, PIECE // (columns * size))
            while side > 1 and (columns * side > length or depth * columns * side * size > room):
                side //= 2
            most_panels = side if not shared or side != panels else 4
            while side <= most_panels:
                block = columns * side
                blocks = -(-length // block)
                waste = blocks * block / length * (-(-height // rows) * rows / height)
                if blocks >= threads:
                    waste *= -(-blocks // threads) * threads / blocks
                cost = waste * (steps + shared * rows / side) / done
                if cost < least:
                    best, least = Tile(rows, vectors, width, side), cost
                side *= 2
                if columns * side > length or depth * columns * side * size > min(room, 2 * near):
                    break
    return best


def _row_block(
    axes: dict[UOp, list[Axis]], product: Product, tile: Tile, kernel: Kernel, threads: int,
    capabilities: Capabilities,
) -> list[str]:  # fmt: skip
    """Cut the rows into blocks that are packed, if they are not read along the sum; return their axis.

    Such rows (of a transposed operand) are pieces of a few elements in many pages of memory.
    """
    load, rows = load_of(product.left), product.rows
    if rows is None or load is None or not is_packable(product.left, product, kernel):
        return []
    if _step(product.left, product) == 1 or range_size(rows) < 8 * tile.rows:
        return []
    row = math.prod(range_size(r) for r in product.reduction.src[1:]) * product.reduction.dtype.itemsize
    room = (local_room(capabilities) or 512 << 10) - row * tile.columns * tile.panels
    if len(capabilities.caches) > 1:
        room = min(room, capabilities.caches[1])
    height = range_size(rows)
    most = min(room // (row * tile.rows), height // tile.rows)
    if most < 4:
        return []

    def time(count: int) -> float:
        """Return about how many tiles' worth the thread with the most blocks of so many tiles computes."""
        blocks = -(-height // (count * tile.rows))
        return -(-blocks // threads) * (count + PACKING)

    count = min(range(most, 3, -1), key=time)
    name = rows.arg[0]
    unrolled = [Axis(f"{name}u", tile.rows, "unroll")] if tile.rows > 1 else []
    slides = range_size(rows) % (count * tile.rows) != 0
    axes[rows] = [Axis(f"{name}b", None, "loop", slides), Axis(f"{name}o", count), *unrolled]
    return [f"{name}b"]


def _converted_rows(
    product: Product, tile: Tile, kernel: Kernel, reduced: list[str], capabilities: Capabilities
) -> list[Stage]:
    """Return the stage that converts a tile's rows before panels pass over them.

    They stay as they are in the buffer, so that vectors of them are converted; the inner loop would convert
    one element at a time.
    """
    load = load_of(product.left)
    if load is None or product.rows is None or not _converts(product):
        return []
    row = math.prod(range_size(r) for r in product.reduction.src[1:]) * product.reduction.dtype.itemsize
    room = (local_room(capabilities) or 512 << 10) - row * tile.columns * tile.panels
    if not is_packable(product.left, product, kernel) or row * tile.rows > room:
        return []
    unrolled = [f"{product.rows.arg[0]}u"] if tile.rows > 1 else []
    return [Stage(load.src[0].arg[0], f"{product.rows.arg[0]}o", (*unrolled, *reduced))]


def local_room(capabilities: Capabilities) -> int:
    """Return how many bytes tiles may take: accumulators need some, too; 0: no limit is known."""
    limit = capabilities.limits.local_bytes
    return limit - limit // 32


def threads_for(product: Product, capabilities: Capabilities) -> int:
    """Return how many threads a product is worth."""
    work = math.prod(map(range_size, product.reduction.ranges.union(product.reduction.src[1:])))
    return capabilities.threads if "thread" in capabilities.axis_kinds and work >= PARALLEL_WORK else 1


def _split(axes: dict[UOp, list[Axis]], r: UOp, outer: str, inner: list[tuple[str, int, str]]) -> None:
    """Split a range into steps of the sizes of `inner`; the last step slides if they do not divide it."""
    step = math.prod(size for _, size, _ in inner)
    steps = -(-range_size(r) // step)
    digits = [Axis(name, size, kind) for name, size, kind in inner if size > 1]
    if steps > 1:
        digits.insert(0, Axis(outer, None, "loop", slides=range_size(r) % step != 0))
    if digits:
        axes[r] = digits


def is_packable(operand: UOp, product: Product, kernel: Kernel) -> bool:
    """Whether an operand is a plain load with one range per axis, which nothing else in the kernel reads."""
    load = load_of(operand)
    if load is None or any(r.src for r in product.reduction.src[1:]):
        return False
    if sum(u.op is ops.LOAD and u.src[0] is load.src[0] for u in kernel.nodes) > 1:
        return False  # a tile serves one index; this is a product of an array with itself
    for index in load.src[2:]:
        parts = terms(index)[1]
        if len(parts) > 1 or any(atom.op is not ops.RANGE for atom, _ in parts):
            return False
    return True


def _panel(
    axes: dict[UOp, list[Axis]], product: Product, tile: Tile, order: list[str], capabilities: Capabilities
) -> list[Stage]:
    """Return the stage that packs the panels of the right operand that one block of columns touches.

    It pays when they are read for several tiles of rows, and needs room for all of the sum's terms.
    """
    load = load_of(product.right)
    if load is None or product.rows is None:
        return []
    depth = [r for r in product.reduction.src[1:] if r in load.ranges]
    rows = f"{product.rows.arg[0]}o"
    length = math.prod(map(range_size, depth))
    if rows not in order or length < 16:
        return []
    taken = length * tile.columns * tile.panels * product.right.dtype.itemsize
    if capabilities.limits.local_bytes and taken > local_room(capabilities):
        return []
    if range_size(product.rows) < 2 * tile.rows:
        return []
    at = order[order.index(rows) - 1] if order.index(rows) else "top"
    inside = order[order.index(rows) :]
    layout = [
        *[a.name for a in axes[product.columns] if a.kind == "loop" and a.name in inside],
        *[a.name for r in depth for a in axes[r] if a.name in inside],
        *[a.name for a in axes[product.columns] if a.kind in ("unroll", "vector")],
    ]
    # A buffer that lies along the sum is transposed in registers: the panel lies across.
    turns = _step(product.right, product) == 1 and tile.width >= TURNED and length >= tile.width
    return [Stage(load.src[0].arg[0], at, tuple(layout), turned=tile.width if turns else 0)]


def _chunk(axes: dict[UOp, list[Axis]], product: Product) -> None:
    """Cut the loops of long float32 sums into chunks, each with a partial sum."""
    if product.reduction.dtype is not dtypes.float32:
        return
    for r in product.reduction.src[1:]:
        steps = range_size(r)
        if steps <= 2 * RUN or r.src:
            continue
        each = next((n for n in range(RUN, RUN // 4, -1) if steps % n == 0), RUN)
        axes[r][0:1] = [Axis(f"{r.arg[0]}c", None, "chunk"), Axis(axes[r][0].name, each)]


def _thread(axes: dict[UOp, list[Axis]], order: list[str], candidates: list[UOp], threads: int) -> None:
    """Cut the first of some output axes that has enough steps into pieces for threads.

    Blocks of columns and independent products are pieces of their own.  Rows are cut into few pieces, since
    each of them packs the panels again.
    """
    for r in candidates:
        head = axes[r][0]
        if head.kind != "loop":
            continue
        inner = math.prod(a.size or 1 for a in axes[r][1:])
        steps = -(-range_size(r) // inner)
        if steps < threads:
            continue
        each = max(1, steps // (PIECES * threads)) if r is not candidates[0] else 1
        first = Axis(f"{r.arg[0]}t", None, "thread", range_size(r) % (each * inner) != 0)
        axes[r][0:1] = [first] if each == 1 else [first, Axis(head.name, each)]
        if each == 1:
            order.remove(head.name)
        order.insert(0, first.name)
        return
