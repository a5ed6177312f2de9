"""Schedules of sums over windows of an image: convolutions, depthwise ones, stencils.

All of them copy strips of the image with its border of zeros: no mask comes into the inner loop.  A
convolution whose filters all read the same image is a product of filters and pixels: vectors run along the
filters (`choose_window_schedule`).  Where each image has filters of its own there is no such axis, and
vectors run along the pixels of a line: every tap of a filter is one unaligned load
(`choose_stencil_schedule`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..ir import ops
from ..ir.index import range_size, terms
from ..ir.uop import UOp, toposort
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .products import Product, is_packable, load_of, local_room, register_tile, threads_for
from .schedule import Axis, Schedule, Stage
from .task import PARALLEL_WORK, RUN, Task

#: Lines of output computed together: they share what their windows have in common.
LINES = 4
#: Most taps of a filter that are unrolled: times `LINES`, compilers take long for many more.
TAPS = 9


def choose_window_schedule(task: Task, product: Product) -> Schedule | None:
    """Return the schedule of a product whose operand slides a window over an image (a convolution), or None.

    Vectors run along the filters, which are packed; rows are neighbouring pixels.  A strip of image lines is
    copied before the filters pass over it.
    """
    kernel, output, lanes, capabilities = task.kernel, task.output, task.lanes, task.capabilities
    image, filters = product.left, product.right
    if not _has_windows(image):
        image, filters = filters, image
    picture = load_of(image)
    if picture is None or not _has_windows(image):
        return None
    weights = load_of(filters)
    if weights is None or not is_packable(filters, product, kernel):
        return None
    if sum(u.op is ops.LOAD and u.src[0] is picture.src[0] for u in kernel.nodes) > 1:
        return None
    reduced = set(product.reduction.src[1:])
    lines = [[a for a, _ in terms(i)[1] if a in output and a not in filters.ranges] for i in picture.src[2:]]
    pixels = lines[-1]
    channels = [r for r in output if r in filters.ranges and r not in image.ranges and not r.src]
    if any(a.op is not ops.RANGE or a.src for i in picture.src[2:] for a, _ in terms(i)[1]):
        return None
    if len(pixels) != 1 or not channels or max(map(range_size, channels)) < lanes:
        return None
    columns, rows = max(channels, key=range_size), pixels[0]
    y = (
        lines[-2][0]
        if len(lines) > 1 and len(lines[-2]) == 1 and len(terms(picture.src[-2])[1]) > 1
        else None
    )
    pair = Product(product.reduction, image, filters, rows, columns)
    tile = replace(register_tile(pair, lanes, 1, True, capabilities, spare=3), panels=1)
    # What a strip of one line, and of each more, takes.
    size = product.reduction.dtype.itemsize
    extents = [1 + sum(abs(k) * (range_size(a) - 1) for a, k in terms(i)[1] if a in reduced or a is rows)
               for i in picture.src[2:]]  # fmt: skip
    line = size * math.prod(extents[:-2]) * _row(extents[-1], lanes)
    step = dict(terms(picture.src[-2])[1])[y] if y is not None else 0
    room = _strip_room(capabilities)
    high = (room // line - extents[-2]) // step + 1 if step > 0 else 1
    if high < 1 or line * extents[-2] > room:
        return None
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in kernel.ranges.items()}
    n, m = columns.arg[0], rows.arg[0]
    inner = [(f"{n}u", tile.vectors, "unroll"), (f"{n}v", tile.width, "vector")]
    axes[columns] = [Axis(f"{n}o"), *[Axis(name, count, kind) for name, count, kind in inner if count > 1]]
    if tile.rows > 1:
        axes[rows] = [Axis(f"{m}o"), Axis(f"{m}u", tile.rows, "unroll")]
    block, within, each = [], [], 1
    if y is not None:
        tall = range_size(y)
        most = min(high, tall)
        each = next((h for h in range(most, 0, -1) if tall % h == 0 and 2 * h > most), most)
        within = [y.arg[0]]
        if each < tall:
            axes[y] = [Axis(f"{y.arg[0]}b"), Axis(y.arg[0], each)]
            block = [f"{y.arg[0]}b"]
    others = [r for r in output if r not in (columns, rows, y)]
    threads = threads_for(product, capabilities)
    names = [r.arg[0] for r in others] + block
    order = [
        *names, axes[columns][0].name, *within, axes[rows][0].name,
        *[r.arg[0] for r in product.reduction.src[1:]], f"{m}u", f"{n}u", f"{n}v",
    ]  # fmt: skip
    if threads > 1:
        candidates = [r for r in others if not r.src] + ([y] if y is not None and block else [])
        _share_out(axes, candidates, threads, names, order)
    known = {a.name for x in axes.values() for a in x}
    order = [x for x in order if x in known]
    depth = [r.arg[0] for r in product.reduction.src[1:] if r in weights.ranges]
    packed = [name for name, count, _ in inner if count > 1]
    whole = math.prod(range_size(r) for r in weights.ranges) * size
    left = (local_room(capabilities) or 256 << 10) - line * (extents[-2] + step * (each - 1))
    if whole // range_size(columns) * tile.columns > left:
        return None
    filter_block = axes[columns][0].name
    # Groups, and the products of a stack, have filters each: they are packed inside of those axes.
    own = [a.name for r in others if r in weights.ranges for a in axes[r]]
    last = max([names.index(name) for name in own if name in names], default=0)
    at, outer = (names[last], [filter_block]) if names and whole <= left else (filter_block, [])
    layout = [*outer, *depth, *packed]
    stages = [
        Stage(weights.src[0].arg[0], at, tuple(layout)),
        Stage(picture.src[0].arg[0], names[-1] if names else "top"),
    ]
    splits = [(r.arg[0], a) for r, a in axes.items() if a != [Axis(r.arg[0])]]
    return Schedule.of(splits, order, stages)


def choose_stencil_schedule(task: Task) -> Schedule | None:
    """Return the schedule of a sum over the windows of an image, or None if the kernel is none."""
    kernel, output, capabilities = task.kernel, task.output, task.capabilities
    if task.lanes < 2 or len(task.reductions) != 1 or not {"unroll", "vector"} <= capabilities.axis_kinds:
        return None
    (reduction,) = task.reductions
    image = _image(kernel, reduction)
    if image is None:
        return None
    taps = list(reduction.src[1:])
    indices = [dict(terms(i)[1]) for i in image.src[2:]]
    affine = {a for index in indices for a in index}
    if any(a.op is not ops.RANGE for a in affine) or any(r.src for r in kernel.ranges.values()):
        return None
    if len(output) + len(taps) != len(kernel.ranges) or any(range_size(r) > RUN for r in taps):
        return None
    if any(k < 1 for index in indices for k in index.values()):
        return None
    across = indices[-1]
    # Taps that are a line apart or more make rows, not windows; those of windows that do not overlap are read
    # once: nothing is gained by a copy.
    lines = {r: across[r] * range_size(r) for r in output if r in across}
    near = [r for r in lines if any(across.get(t, 0) * range_size(t) > across[r] for t in taps)
            and any(across.get(t, lines[r]) < lines[r] for t in taps)]  # fmt: skip
    near = [r for r in near if across[r] == 1] or near
    if len(near) != 1:
        return None
    (x,) = near
    wide = [a for a in task.accesses if a.is_store and a.coefficients.get(x) != 1]
    strided = [a for a in task.accesses if a.coefficients.get(x, 0) not in (0, 1) or x in a.irregular]
    if wide or len(strided) > (across[x] > 1) or range_size(x) < 2:
        return None
    if across[x] > 1 and range_size(x) % 4:  # no vector divides it, see `_stencil`
        return None
    # Lines of the image slide along the axis before the last; there may be none.
    above = indices[-2] if len(indices) > 1 else {}
    sliding = [r for r in output if r in above and len(above) > 1]
    y = sliding[0] if len(sliding) == 1 else None
    size = image.dtype.itemsize
    extents = [1 + sum(k * (range_size(a) - 1) for a, k in index.items() if a in taps or a is x)
               for index in indices]  # fmt: skip
    line = size * math.prod(extents[:-2]) * _row(extents[-1], task.lanes)
    room = _strip_room(capabilities)
    if capabilities.limits.local_bytes:
        room = min(room, capabilities.limits.local_bytes)
    high = (room // line - (extents[-2] if y is not None else 1)) // above[y] + 1 if y is not None else 1
    if high < 1 or (y is None and size * math.prod(extents) > room):
        return None
    return _stencil(task, image, x, y, high)


def _image(kernel: Kernel, reduction: UOp) -> UOp | None:
    """Return the load of the image in a sum of its elements times other factors, if it is the only one."""
    if reduction.arg is not ops.ADD:
        return None
    inside = toposort([reduction.src[0]])
    if any(u.op in ops.ALU_OPS and u.op is not ops.MUL and u.dtype.is_float for u in inside):
        return None
    if any(u.op is ops.REDUCE for u in inside):
        return None
    loads = [u for u in inside if u.op is ops.LOAD]
    found = [u for u in loads if any(len(terms(i)[1]) > 1 for i in u.src[2:])]
    if len(found) != 1 or found[0].dtype is not reduction.dtype:
        return None
    if sum(u.op is ops.LOAD and u.src[0] is found[0].src[0] for u in kernel.nodes) > 1:
        return None
    return found[0]


def _stencil(task: Task, image: UOp, x: UOp, y: UOp | None, high: int) -> Schedule:
    """Return the schedule with vectors along `x`, several lines of `y`, and at most `high` in one copy."""
    kernel, output, capabilities = task.kernel, task.output, task.capabilities
    (reduction,) = task.reductions
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in kernel.ranges.items()}
    width = task.lanes
    # With a stride, lanes are loaded one by one: those of a mask would cost as much as the others.
    whole = dict(terms(image.src[-1])[1])[x] > 1
    while width > range_size(x) or (whole and range_size(x) % width):
        width //= 2
    n = x.arg[0]
    axes[x] = [Axis(f"{n}v", width, "vector")]
    # What does not divide is surplus: the copy has room for it, and only the stores have a mask.
    if range_size(x) > width:
        axes[x].insert(0, Axis(f"{n}o"))
    filters = [r for r in output if r is not x and r is not y and r not in image.ranges]
    outer = [r for r in output if r is not x and r is not y and r in image.ranges]
    first = [r.arg[0] for r in outer]
    lines: list[str] = []
    if y is not None:
        m, tall = y.arg[0], range_size(y)
        each = min(high, tall)
        step = min(LINES, each)
        digits = [Axis(f"{m}u", step, "unroll")] if step > 1 else []
        if each < tall:
            if each >= 2 * step:
                digits.insert(0, Axis(f"{m}o", each // step))
            digits.insert(0, Axis(f"{m}b"))
            first.append(f"{m}b")
        elif tall > step:
            digits.insert(0, Axis(f"{m}o"))
        axes[y] = digits or axes[y]
        lines = [a.name for a in axes[y] if a.kind == "loop" and a.name not in first]
    left = TAPS
    for r in reversed(reduction.src[1:]):  # taps of a filter that are few are literals in the source
        if range_size(r) > left:
            break
        axes[r] = [Axis(r.arg[0], None, "unroll")]
        left //= range_size(r)
    order = [*first, *[r.arg[0] for r in filters], *lines, f"{n}o", *[r.arg[0] for r in reduction.src[1:]]]
    order += [f"{y.arg[0]}u"] if y is not None else []
    order.append(f"{n}v")
    work = math.prod(range_size(r) for r in axes)
    if "thread" in capabilities.axis_kinds and capabilities.threads > 1 and work >= PARALLEL_WORK:
        cut = [*outer, *([y] if y is not None and f"{y.arg[0]}b" in first else [])]
        _share_out(axes, cut, capabilities.threads, first, order)
    known = {a.name for digits in axes.values() for a in digits}
    splits = [(r.arg[0], a) for r, a in axes.items() if a != [Axis(r.arg[0])]]
    at = first[-1] if first else "top"
    return Schedule.of(splits, [a for a in order if a in known], [Stage(image.src[0].arg[0], at)])


def _has_windows(operand: UOp) -> bool:
    """Whether an operand is a load at sums of ranges."""
    load = load_of(operand)
    return load is not None and any(len(terms(index)[1]) > 1 for index in load.src[2:])


def _row(extent: int, lanes: int) -> int:
    """Return how long a line of a copy is at most: it has room for the last vector that is copied."""
    return extent + -extent % lanes + lanes // 2


def _strip_room(capabilities: Capabilities) -> int:
    """Return how many bytes a strip of an image may take: the filters pass over it again and again."""
    return capabilities.caches[1] * 3 // 8 if len(capabilities.caches) > 1 else 64 << 10


def _share_out(axes: dict[UOp, list[Axis]], candidates: list[UOp], threads: int, *orders: list[str]) -> None:
    """Make the outermost digit of the first range with enough steps the thread axis, first in `orders`."""
    for r in candidates:
        head, *inner = axes[r]
        if -(-range_size(r) // math.prod(a.size or 1 for a in inner)) < threads:
            continue
        name = f"{r.arg[0]}t"
        axes[r][0] = Axis(name, None, "thread")
        for names in orders:
            names.remove(head.name)
            names.insert(0, name)
        return
