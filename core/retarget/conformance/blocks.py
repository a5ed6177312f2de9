"""A made-up device with a grid, small enough that every limit is met: blocks of threads, warps, barriers,
local memory.

Its programs run in the reference's interpreter, one thread at a time up to the next barrier, in several
orders: one thread runs as far ahead of the others as barriers let it, so that a missing one shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from .. import pipeline, registry
from ..codegen.program import Program
from ..ir import dtypes, ops
from ..ir.index import range_size
from ..ir.uop import UOp, numel
from ..linearize.linearize import linearize
from ..optimize.apply import apply_schedule
from ..optimize.schedule import Schedule
from ..registry.capabilities import Capabilities, Limits
from ..schedule.kernel import Kernel
from .execute import Choose, Execution, Values

#: The device's name.
BLOCKS = "blocks:0"
#: More work than this takes seconds.
LARGEST_WORK = 1500
#: Orders of threads and blocks in which each program runs.
ORDERS: tuple[str | int, ...] = ("forward", "reverse", 1)


@cache
def block_capabilities() -> Capabilities:
    """Return what the device can do: what the reference can, within small limits."""
    backend = registry.backend("numpy")
    return backend.capabilities(registry.target("numpy"))._replace(
        target="blocks/small",
        axis_kinds=frozenset({"grid", "block", "warp", "loop", "unroll", "vector"}),
        vector_bits=128,
        limits=Limits(
            arguments=0, grid=(40, 6, 5), block=(16, 8, 4), block_threads=64, local_bytes=16384, warp=8
        ),
    )


def interpret(
    program: Program,
    buffers: Mapping[str, Values],
    variables: Mapping[str, int] | None = None,
    order: str | int = "forward",
) -> None:
    """Run a linear program over NumPy arrays in one order of its threads."""
    reference: Any = registry.backend("numpy")
    reference.interpret(program.uops, buffers, variables, order)


def work(roots: Sequence[UOp]) -> int:
    """Return about how many times the innermost loops of a graph's kernels run."""
    return sum(
        math.prod(range_size(r) for r in kernel.ranges.values())
        for _, kernel in pipeline.lower_graph(list(roots))
    )


def execute_blocks(
    roots: Sequence[UOp],
    data: Mapping[UOp, Values],
    choose: Choose | None = None,
    change: Callable[[Program], Program] = lambda program: program,
) -> list[Execution]:
    """Lower a graph and run it once in each of `ORDERS`, or once if no threads meet.

    Parameters
    ----------
    roots, data
        Graph nodes over placeholders, and the values of those.
    choose
        Chooses the schedule of each kernel; None: no schedule.
    change
        What is done to each program before it runs: a fault that is planted.
    """
    kernels = pipeline.lower_graph(list(roots))
    caps = block_capabilities()
    programs: list[tuple[Kernel, Schedule, Program]] = []
    for _, kernel in kernels:
        schedule = Schedule() if choose is None else choose(kernel)
        programs.append((kernel, schedule, change(linearize(apply_schedule(kernel, schedule), caps))))
    meets = any(u.op in (ops.BARRIER, ops.SHUFFLE) for _, _, p in programs for u in p.uops)
    results = []
    for order in ORDERS if meets else ORDERS[1:2]:
        memory: dict[UOp, Values] = {}

        def array_of(node: UOp, memory: dict[UOp, Values] = memory) -> Values:
            if node not in memory:
                given = data[node] if node.op is ops.BUFFER else None
                memory[node] = (
                    np.zeros(numel(node.shape), dtypes.to_numpy(node.dtype))
                    if given is None
                    else np.ascontiguousarray(given).reshape(-1)
                )
            return memory[node]

        done = Execution()
        for kernel, schedule, program in programs:
            names = [a.name for a in program.arguments]
            arrays = [array_of(n) for n in (*kernel.outputs, *kernel.inputs)]
            interpret(program, dict(zip(names, arrays, strict=True)), order=order)
            done.kernels.append(kernel)
            done.schedules.append(schedule)
            done.programs.append(program)
        for root in roots:
            done.values.append(array_of(pipeline.strip_reshape(root)).reshape(root.shape))
        results.append(done)
    return results
