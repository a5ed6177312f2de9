"""The NumPy backend as the core uses it: rendered through the hooks, compiled, loaded, launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retarget.codegen.driver import emit
from retarget.codegen.hooks import HookManager, HookPlugin, ResolvedHooks, hookimpl
from retarget.codegen.program import Program
from retarget.errors import CompileError, DeviceError, LaunchError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import ARRAY_DTYPES
from retarget.ir.text import parse_program
from retarget.ir.uop import UOp, const
from retarget.registry.backend import Argument, Source
from retarget.registry.capabilities import Support
from retarget_numpy.backend import DEVICE, TARGET, NumpyBackend
from retarget_numpy.interpreter import ExecutionError

F32, I32, VOID = dtypes.float32, dtypes.int32, dtypes.void
BACKEND = NumpyBackend()


def scaled() -> Program:
    """Return out[i] = n * x[i] where that is positive, with a block in a loop and a value used twice."""
    out = UOp(ops.PARAM, F32, (), ("out", (6,), True))
    x = UOp(ops.PARAM, F32, (), ("x", (6,), False))
    n = UOp(ops.VAR, I32, (), ("n", 0, 100))
    factor = UOp(ops.CAST, F32, (n,))
    i = UOp(ops.RANGE, I32, (), ("r0", 6, "loop"))
    value = UOp(ops.MUL, F32, (UOp(ops.LOAD, F32, (x, i)), factor))
    zero = const(0.0, F32)
    condition = UOp(ops.CMPLT, dtypes.bool_, (zero, value))
    branch = UOp(ops.IF, VOID, (condition,))
    store, endif = UOp(ops.STORE, VOID, (out, i, value)), UOp(ops.ENDIF, VOID, (branch,))
    end = UOp(ops.END, VOID, (i,))
    uops = (out, x, n, factor, zero, i, value.src[0], value, condition, branch, store, endif, end)
    arguments = (
        Argument("out", "buffer", "float32", (6,), True),
        Argument("x", "buffer", "float32", (6,)),
        Argument("n", "variable", "int32"),
    )
    return Program("scaled_6", uops, arguments)


def render(program: Program, *extensions: object) -> Source:
    renderer = BACKEND.renderer(TARGET)
    manager = HookManager()
    manager.add(HookPlugin("numpy", renderer))
    for number, extension in enumerate(extensions):
        manager.add(HookPlugin(f"extension{number}", extension))
    return emit(program, renderer, ResolvedHooks(manager, TARGET), provenance=True)


def launch(source: Source, n: int) -> list[float]:
    runtime = BACKEND.runtime(DEVICE)
    run = runtime.load(BACKEND.compiler(TARGET).compile(source))
    out, x = runtime.allocate(24), runtime.allocate(24)
    data, result = np.arange(-2, 4, dtype=np.float32), np.full(6, -1, np.float32)
    runtime.copy_in(x, data.data)
    runtime.copy_in(out, result.data)
    run([out, x], [n])
    runtime.synchronize()
    runtime.copy_out(result.data, out)
    runtime.free(out)
    runtime.free(x)
    return result.tolist()


def test_the_source_is_the_program_s_text() -> None:
    program = scaled()
    source = render(program)
    assert tuple(parse_program(source.text)) == program.uops
    assert source.text.startswith("# scaled_6\n%0 = PARAM")
    assert "\n  %6 = LOAD float32 %1 %5\n" in source.text
    assert "\n    %10 = STORE void %0 %5 %7\n" in source.text
    assert source.text.endswith("\n%12 = END void %5\n")


def test_each_line_has_its_provenance() -> None:
    program = scaled()
    provenance = render(program).provenance
    assert [p.position for p in provenance] == [
        -1,
        *range(len(program.uops)),
    ]  # the title, and a line for each uop
    assert {p.plugins for p in provenance} == {("numpy",)}


def test_a_program_runs_on_raw_memory() -> None:
    assert launch(render(scaled()), 3) == [-1, -1, -1, 3, 6, 9]


def test_extensions_take_part() -> None:
    class Offset:
        """Adds 100 to every product."""

        @hookimpl(ops=["MUL"], dtypes=["float32"])
        def render_alu(self, ctx: Any, uop: UOp, operands: list[int]) -> int:
            write: Callable[..., int] = ctx.renderer.write
            hundred = const(100.0, F32)
            terms = [write(ctx, uop, operands), write(ctx, hundred)]
            return write(ctx, UOp(ops.ADD, F32, (uop, hundred)), terms)

    assert launch(render(scaled(), Offset()), 3) == [94, 97, 100, 103, 106, 109]


def test_the_compiler_refuses_what_is_no_program() -> None:
    compiler = BACKEND.compiler(TARGET)
    source = render(scaled())
    for text, wrong in (
        (source.text.replace("MUL", "MULL"), "unknown op 'MULL'"),
        (source.text.replace("%12 = END void %5\n", ""), "ends inside the block that RANGE opened"),
    ):
        with pytest.raises(CompileError, match=wrong):
            compiler.compile(Source(text, source.entry, TARGET, source.arguments, source.launch))


def test_the_compiler_tells_its_version_and_shows_what_runs() -> None:
    compiler = BACKEND.compiler(TARGET)
    assert np.__version__ in compiler.identity()
    assembly = compiler.assembly(compiler.compile(render(scaled())))
    assert assembly.startswith("def thread(v0, v1, v2, stages):\n")
    compile(assembly, "assembly", "exec")


def test_launches_check_their_arguments() -> None:
    runtime = BACKEND.runtime(DEVICE)
    run = runtime.load(BACKEND.compiler(TARGET).compile(render(scaled())))
    with pytest.raises(LaunchError, match="takes 2 buffers and 1 variables; 1 and 0 were given"):
        run([runtime.allocate(24)])
    buffers = [runtime.allocate(24), runtime.allocate(24)]
    with pytest.raises(LaunchError, match="'n' is 101"):
        run(buffers, [101])
    assert run.time(buffers, [1]) > 0


def test_undefined_accesses_are_errors_at_launch() -> None:
    program = scaled()
    index = UOp(ops.ADD, I32, (program.uops[5], six := const(6, I32)))
    load = UOp(ops.LOAD, F32, (program.uops[1], index))
    uops = (*program.uops[:6], six, index, load, program.uops[-1])
    with pytest.raises(ExecutionError, match="index 6 is outside"):
        launch(render(Program("outside", uops, program.arguments)), 3)


def test_memory_is_freed_once() -> None:
    runtime = BACKEND.runtime(DEVICE)
    address = runtime.allocate(0)
    assert runtime.host_address(address) == address
    runtime.copy_in(address, memoryview(b""))
    runtime.free(address)
    with pytest.raises(DeviceError, match="not the address"):
        runtime.free(address)


def test_capabilities_cover_every_dtype() -> None:
    capabilities = BACKEND.capabilities(TARGET)
    assert list(capabilities.storage) == list(capabilities.arithmetic) == [d.name for d in ARRAY_DTYPES]
    emulated = {d for d, entry in capabilities.arithmetic.items() if entry.support is Support.EMULATED}
    assert emulated == capabilities.conversions == {"float8_e4m3", "float8_e5m2", "float16", "bfloat16"}


def test_one_device_is_always_there() -> None:
    (device,) = BACKEND.probe().devices
    assert (device.name, device.target) == (DEVICE, TARGET)
    with pytest.raises(UnknownNameError, match="unknown target 'numpy/fast'"):
        BACKEND.renderer("numpy/fast")
    with pytest.raises(UnknownNameError, match="unknown device 'numpy:1'"):
        BACKEND.runtime("numpy:1")


def test_graphs_are_evaluated() -> None:
    x = UOp(ops.BUFFER, F32, (), (0, (2,), DEVICE))
    (result,) = BACKEND.evaluate_graph([UOp(ops.NEG, F32, (x,))], lambda _: np.array([1, -2], np.float32))
    assert result.tolist() == [-1, 2]
