"""Run graphs on a device one kernel at a time, around every cache, with the schedule of each kernel open to
choice.

Graphs here are independent of devices: their BUFFER nodes are names (`placeholder`), and the values come
separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import pipeline, registry
from ..codegen.driver import emit
from ..codegen.program import Program
from ..ir import dtypes, ops
from ..ir.dtypes import DType
from ..ir.uop import UOp
from ..linearize.linearize import linearize
from ..optimize.apply import apply_schedule
from ..optimize.schedule import Schedule
from ..registry.backend import Binary
from ..runtime import buffers
from ..schedule.kernel import Kernel

Values = np.ndarray[Any, Any]
#: Gives the schedule for a kernel.
Choose = Callable[[Kernel], Schedule]
#: Makes the binary of a program.
Compile = Callable[[Program], Binary]

#: The device that placeholders say they are on.
NOWHERE = "test:0"


def placeholder(number: int, dtype: DType, shape: tuple[int, ...]) -> UOp:
    """Return a BUFFER node without data: the same for every call with the same arguments."""
    return UOp(ops.BUFFER, dtype, (), (number, shape, NOWHERE))


@dataclass(slots=True)
class Execution:
    """What a graph gave on a device: the roots' values, and the kernels that ran."""

    values: list[Values] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)


def execute(
    roots: Sequence[UOp],
    data: Mapping[UOp, Values],
    device: str,
    choose: Choose | None = None,
    compile: Compile | None = None,
) -> Execution:
    """Lower, compile and run a graph.

    Parameters
    ----------
    roots
        Graph nodes over placeholders.
    data
        The placeholders' values.
    device
        A device's name.
    choose
        Chooses the schedule of each kernel; None: as outside of tests.
    compile
        Makes the binary of a program; None: the target's renderer and compiler.

    Raises
    ------
    ScheduleError
        If a chosen schedule is illegal.
    """
    info = registry.device(device)
    tools = pipeline.toolchain(info.target)
    on = pipeline.runtime(info.name)
    result = Execution()
    memory: dict[UOp, buffers.Buffer] = {}

    def buffer_of(node: UOp) -> buffers.Buffer:
        found = memory.get(node)
        if found is None:
            if node.op is ops.BUFFER:
                found = buffers.data_of(buffers.from_numpy(data[node], info.name))
            else:
                found = buffers.allocate(buffers.nbytes_of(node.dtype, node.shape), info.name)
            memory[node] = found
        return found

    for _, kernel in pipeline.lower_graph(list(roots)):
        schedule = pipeline.schedule_for(kernel, tools) if choose is None else choose(kernel)
        caps = tools.capabilities
        program = linearize(apply_schedule(kernel, schedule, caps.tensor_cores), caps)
        binary = (
            tools.compiler.compile(emit(program, tools.renderer, tools.hooks))
            if compile is None
            else compile(program)
        )
        run = on.load(binary)
        run([buffer_of(n).handle for n in (*kernel.outputs, *kernel.inputs)])
        result.kernels.append(kernel)
        result.schedules.append(schedule)
        result.programs.append(program)
    on.synchronize()
    for root in roots:
        node = pipeline.strip_reshape(root)
        if node.op is ops.BUFFER:
            result.values.append(np.array(data[node]).reshape(root.shape))
            continue
        out = np.empty(root.shape, dtypes.to_numpy(root.dtype))
        if out.nbytes:
            on.copy_out(out.reshape(-1).view(np.uint8).data, buffer_of(node).handle)
        result.values.append(out)
    return result


def run_program(
    program: Program, inputs: Sequence[Values], device: str, compile: Compile | None = None
) -> list[Values]:
    """Run a linear program on a device, and return what its written parameters hold afterwards."""
    info = registry.device(device)
    tools = pipeline.toolchain(info.target)
    on = pipeline.runtime(info.name)
    binary = (
        tools.compiler.compile(emit(program, tools.renderer, tools.hooks))
        if compile is None
        else compile(program)
    )
    given = iter(inputs)
    memory: list[buffers.Buffer] = []
    outputs: list[tuple[buffers.Buffer, Values]] = []
    for argument in program.arguments:
        if argument.writable:
            out = np.zeros(argument.shape, dtypes.to_numpy(dtypes.as_dtype(argument.dtype)))
            memory.append(buffers.data_of(buffers.from_numpy(out, info.name)))
            outputs.append((memory[-1], out))
        else:
            memory.append(buffers.data_of(buffers.from_numpy(next(given), info.name)))
    on.load(binary)([b.handle for b in memory])
    on.synchronize()
    for buffer, out in outputs:
        on.copy_out(out.reshape(-1).view(np.uint8).data, buffer.handle)
    return [out for _, out in outputs]


def reference(roots: Sequence[UOp], data: Mapping[UOp, Values]) -> list[Values]:
    """Return the values of graph nodes as the NumPy graph evaluator gives them, without any lowering."""
    oracle: Any = registry.backend("numpy")
    values: list[Values] = oracle.evaluate_graph(roots, data.__getitem__)
    return values
