"""Schedules of transposes: kernels that read along one axis and write along another.

Element by element, either the reads or the writes of such a kernel touch another cache line each time.  Here
both sides move vectors: a block of n by n is read along the source's rows, transposed in registers (a turned
stage) and written along the output's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir import ops
from ..ir.index import range_size, terms
from ..ir.uop import UOp
from ..registry.capabilities import Capabilities
from ..schedule.kernel import Kernel
from .accesses import Access, past_caches
from .schedule import Axis, Schedule, Stage
from .task import LINE, PARALLEL_WORK, PIECES, Task

#: Bytes of a source row that are read before the next rows: enough for the prefetcher, and the lines that the
#: output has open meanwhile, one for each element, stay in the second-level cache.
STRIP = 1024
#: Least side of a block, where vectors have as many lanes.
LEAST = 4


@dataclass(frozen=True, slots=True)
class _Transpose:
    """Which range the source is contiguous along (`rows`), and the output (`columns`); what is turned."""

    rows: UOp
    columns: UOp
    turned: tuple[str, ...]
    itemsize: int


def choose_transpose_schedule(task: Task) -> Schedule | None:
    """Return the schedule of a transpose, or None if the kernel, which has no reductions, is none."""
    kernel, capabilities = task.kernel, task.capabilities
    n = min(task.lanes, capabilities.registers)  # a block's rows are in registers all at once
    if n < 2 or "unroll" not in capabilities.axis_kinds or "register" not in capabilities.address_spaces:
        return None
    found = _find(kernel, task.accesses, min(n, LEAST))
    if found is None:
        return None
    n = min(n, range_size(found.rows), range_size(found.columns))
    n = 1 << (n.bit_length() - 1)
    ranges = kernel.ranges
    rows, columns = found.rows, found.columns
    row, column = rows.arg[0], columns.arg[0]
    strip = _share(range_size(rows) // n, max(1, STRIP // (n * found.itemsize)))
    wide = max(1, min(range_size(columns) // n, LINE // (n * found.itemsize)))
    axes = {r: [Axis(name)] for name, r in ranges.items()}
    axes[rows] = [Axis(f"{row}o"), Axis(f"{row}k", strip), Axis(f"{row}u", n, "unroll")]
    axes[columns] = [Axis(f"{column}o"), Axis(f"{column}u", wide, "unroll"), Axis(f"{column}v", n, "vector")]
    others = [r for r in ranges.values() if r is not rows and r is not columns]
    order = [r.arg[0] for r in others]
    order += [a.name for a in (axes[rows][0], axes[columns][0], *axes[rows][1:], *axes[columns][1:])]
    _thread(axes, order, [*others, rows, columns], capabilities)
    for r, digits in axes.items():
        if range_size(r) % _step(digits):  # rather than masks, the last step covers some elements twice
            digits[0] = replace(digits[0], slides=True)
    streams = past_caches(kernel, capabilities)
    unit = {a.name for digits in axes.values() for a in digits if a.size == 1}
    splits = [
        (r.arg[0], [a for a in digits if a.name not in unit])
        for r, digits in axes.items() if len(digits) > 1 or digits[0].kind != "loop"
    ]  # fmt: skip
    at = f"{row}k" if strip > 1 else f"{column}o"
    stages = [Stage(name, at, (), "register", turned=n) for name in found.turned]
    return Schedule.of(splits, [name for name in order if name not in unit], stages, streams)


def _find(kernel: Kernel, accesses: Sequence[Access], n: int) -> _Transpose | None:
    """Return what makes a kernel a transpose: loads that stride along the axis of its stores."""
    ranges = [r for r in kernel.ranges.values() if not r.src and range_size(r) >= n]
    stores = [a for a in accesses if a.is_store]
    columns = next((r for r in ranges if all(a.coefficients.get(r) == 1 for a in stores)), None)
    if columns is None:
        return None
    nodes = [u for u in kernel.nodes if u.op in (ops.LOAD, ops.STORE)]
    loads = [(u, a) for u, a in zip(nodes, accesses, strict=True) if u.op is ops.LOAD]
    rows: UOp | None = None
    turned: list[str] = []
    itemsize = 1
    for u, a in loads:
        along = next((r for r in ranges if a.coefficients.get(r) == 1), None)
        if along is None or along is columns or columns not in a.coefficients or a.irregular:
            continue
        if sum(v.src[0] is u.src[0] for v, _ in loads) > 1 or rows not in (None, along):
            continue
        if a.coefficients[columns] < 2:  # against the order of memory, or along it as well
            continue
        # A tile is cut from every axis of the buffer: a flat index that is affine is not enough.
        axes = [[atom for atom, _ in terms(index)[1]] for index in u.src[2:]]
        if any(atom.op is not ops.RANGE for atoms in axes for atom in atoms):
            continue
        if any(along in atoms and columns in atoms for atoms in axes):
            continue
        rows = along
        turned.append(u.src[0].arg[0])
        itemsize = max(itemsize, u.dtype.itemsize)
    return None if rows is None else _Transpose(rows, columns, tuple(turned), itemsize)


def _share(n: int, most: int) -> int:
    """Return the size of equal shares of a number, none larger than another number."""
    shares = -(-n // most)
    return -(-n // shares)


def _step(axes: Sequence[Axis]) -> int:
    """Return how many elements one step of the first axis of a range covers."""
    covered = 1
    for a in axes[1:]:
        covered *= a.size or 1
    return covered


def _thread(
    axes: dict[UOp, list[Axis]], order: list[str], candidates: Sequence[UOp], capabilities: Capabilities
) -> None:
    """Cut the outermost axis that is long enough into pieces for threads, when the work is worth it."""
    work = 1
    for r in axes:
        work *= range_size(r)
    if "thread" not in capabilities.axis_kinds or capabilities.threads < 2 or work < PARALLEL_WORK:
        return
    for r in candidates:
        steps = -(-range_size(r) // _step(axes[r]))
        if r.src or steps < capabilities.threads:
            continue
        head = axes[r][0].name
        each = -(-steps // min(steps, PIECES * capabilities.threads))
        each = next((k for k in range(each, 2 * each) if steps % k == 0), each)
        thread = Axis(f"{r.arg[0]}t", None, "thread")
        axes[r][0:1] = [thread] if each == 1 else [thread, Axis(head, each)]
        if each == 1:
            order.remove(head)
        order.insert(0, thread.name)
        return
