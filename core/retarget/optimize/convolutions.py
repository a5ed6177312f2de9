"""Schedules of sums over windows that filters do not share: depthwise convolutions and stencils.

A convolution whose filters all read the same image is a product of filters and pixels, see `products`.  Where
each image has filters of its own there is no axis of filters to put into vectors, so that vectors run along
the pixels of a line: in a copy of the image with its border of zeros, every tap of a filter is one unaligned
load without a mask.
"""

from __future__ import annotations

import math

from ..ir import ops
from ..ir.index import range_size, terms
from ..ir.uop import UOp, toposort
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .accesses import Access
from .schedule import Axis, Schedule, Stage

#: Multiply-accumulates below which a kernel is not cut for threads: about 20 microseconds of vector work.
PARALLEL_WORK = 1 << 16
#: Longest float32 sum that has one accumulator.
RUN = 1 << 13
#: Lines of output computed together: they share what their windows have in common.
LINES = 4
#: Most taps of a filter that are unrolled: times `LINES`, compilers take long for many more.
TAPS = 9


def choose_stencil_schedule(
    kernel: Kernel, reductions: list[UOp], accesses: list[Access], lanes: int, capabilities: Capabilities
) -> Schedule | None:
    """Return the schedule of a sum over the windows of an image, or None if the kernel is none.

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
    if lanes < 2 or len(reductions) != 1 or not {"unroll", "vector"} <= capabilities.axis_kinds:
        return None
    (reduction,) = reductions
    image = _image(kernel, reduction)
    if image is None:
        return None
    output = [r for r in kernel.ranges.values() if all(r in s.ranges for s in kernel.stores)]
    taps = list(reduction.src[1:])
    indices = [dict(terms(i)[1]) for i in image.src[2:]]
    affine = {a for index in indices for a in index}
    if any(a.op is not ops.RANGE for a in affine) or any(r.src for r in kernel.ranges.values()):
        return None
    if len(output) + len(taps) != len(kernel.ranges) or any(range_size(r) > RUN for r in taps):
        return None
    # Taps that are a line apart or more make rows, not windows that overlap.
    near = [r for r in output if indices[-1].get(r) == 1
            and any(indices[-1].get(t, range_size(r)) < range_size(r) for t in taps)]  # fmt: skip
    if len(near) != 1 or any(k < 1 for index in indices for k in index.values()):
        return None
    (x,) = near
    wide = [a for a in accesses if a.is_store and a.coefficients.get(x) != 1]
    strided = [a for a in accesses if a.coefficients.get(x, 0) not in (0, 1) or x in a.irregular]
    if wide or strided or range_size(x) < 2:
        return None
    # Lines of the image slide along the axis before the last; there may be none.
    above = indices[-2] if len(indices) > 1 else {}
    sliding = [r for r in output if r in above and len(above) > 1]
    y = sliding[0] if len(sliding) == 1 else None
    size = image.dtype.itemsize
    extents = [1 + sum(k * (range_size(a) - 1) for a, k in index.items() if a in taps or a is x)
               for index in indices]  # fmt: skip
    line = size * extents[-1] * math.prod(extents[:-2])
    room = capabilities.caches[1] * 3 // 8 if len(capabilities.caches) > 1 else 64 << 10
    if capabilities.limits.local_bytes:
        room = min(room, capabilities.limits.local_bytes)
    high = (room // line - (extents[-2] if y is not None else 1)) // above[y] + 1 if y is not None else 1
    if high < 1 or (y is None and size * math.prod(extents) > room):
        return None
    return _schedule(kernel, reduction, image, output, x, y, high, lanes, capabilities)


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


def _schedule(
    kernel: Kernel, reduction: UOp, image: UOp, output: list[UOp], x: UOp, y: UOp | None, high: int,
    lanes: int, capabilities: Capabilities,
) -> Schedule:  # fmt: skip
    """Return the schedule with vectors along `x`, several lines of `y`, and at most `high` in one copy."""
    axes: dict[UOp, list[Axis]] = {r: [Axis(name)] for name, r in kernel.ranges.items()}
    width = lanes
    while width > range_size(x):
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
        for r in (*outer, *([y] if y is not None and f"{y.arg[0]}b" in first else [])):
            head = axes[r][0]
            steps = -(-range_size(r) // math.prod(a.size or 1 for a in axes[r][1:]))
            if steps >= capabilities.threads:
                name = f"{r.arg[0]}t"
                axes[r][0] = Axis(name, None, "thread")
                for names in (first, order):
                    names.remove(head.name)
                    names.insert(0, name)
                break
    known = {a.name for digits in axes.values() for a in digits}
    splits = [(r.arg[0], a) for r, a in axes.items() if a != [Axis(r.arg[0])]]
    at = first[-1] if first else "top"
    return Schedule.of(splits, [a for a in order if a in known], [Stage(image.src[0].arg[0], at)])
