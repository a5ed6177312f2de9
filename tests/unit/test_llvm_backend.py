"""The LLVM backend's contract: devices, capabilities, identities, errors, assembly, concurrency."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from retarget.codegen.driver import EmitContext, emit
from retarget.codegen.hooks import HookPlugin, hookimpl, resolve
from retarget.codegen.program import Program
from retarget.errors import CompileError, UnknownNameError, UserError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget.ir.uop import UOp
from retarget.registry.backend import Argument, Launch, Source
from retarget.runtime.cpu import host
from retarget_llvm.backend import LLVMBackend
from retarget_llvm.cpu import TARGETS

BACKEND = LLVMBackend()
NATIVE = "llvm/native"


def square_roots(size: int, dtype: DType = dtypes.float32, name: str = "roots") -> Program:
    """Return a program that stores the square root of each element."""
    out = UOp(ops.PARAM, dtype, (), ("out", (size,), True))
    x = UOp(ops.PARAM, dtype, (), ("x", (size,), False))
    i = UOp(ops.RANGE, dtypes.int32, (), ("i", size, "loop"))
    value = UOp(ops.LOAD, dtype, (x, i), 1)
    root = UOp(ops.SQRT, dtype, (value,))
    store = UOp(ops.STORE, dtypes.void, (out, i, root), 1)
    arguments = (
        Argument("out", "buffer", dtype.name, (size,), True),
        Argument("x", "buffer", dtype.name, (size,)),
    )
    uops = (out, x, i, value, root, store, UOp(ops.END, dtypes.void, (i,)))
    return Program(name, uops, arguments, Launch())


def render(program: Program, target: str = NATIVE, *extensions: object) -> Source:
    renderer = BACKEND.renderer(target)
    plugins = [
        HookPlugin("llvm", renderer),
        *(HookPlugin(f"extension{n}", e) for n, e in enumerate(extensions)),
    ]
    return emit(program, renderer, resolve(plugins, target), provenance=True)


def run(source: Source, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kernel = BACKEND.runtime("llvm:0").load(BACKEND.compiler(source.target).compile(source))
    out = np.empty_like(x)
    kernel([out.ctypes.data, x.ctypes.data])
    return out


def test_probe_finds_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_THREADS", "3")
    (device,) = BACKEND.probe().devices
    assert (device.name, device.target) == ("llvm:0", NATIVE)
    assert device.description.endswith(", 3 cores")
    assert BACKEND.capabilities(NATIVE).threads == 3
    monkeypatch.setenv("RETARGET_THREADS", "many")
    with pytest.raises(UserError, match="RETARGET_THREADS"):
        BACKEND.probe()


def test_probe_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    probe = BACKEND.probe()
    assert not probe.devices and "pip install llvmlite" in probe.reason


@pytest.mark.parametrize(
    ("target", "bits", "registers", "conversions"),
    [
        ("llvm/x86-64-v2", 128, 16, set()),
        ("llvm/x86-64-v3", 256, 16, {"float16"}),
        ("llvm/x86-64-v4", 512, 32, {"float16"}),
        ("llvm/aarch64", 128, 32, {"float16"}),
    ],
)
def test_capabilities_of_generic_targets(
    target: str, bits: int, registers: int, conversions: set[str]
) -> None:
    found = BACKEND.capabilities(target)
    assert (found.vector_bits, found.vector_memory_bits, found.registers) == (bits, bits, registers)
    assert found.conversions == conversions
    assert all(found.storage[d.name] for d in dtypes.ARRAY_DTYPES)
    assert found.arithmetic["bfloat16"].support.value == "emulated"
    assert set(found.functions) == {"MAXIMUM", "MINIMUM"} and "float32" not in found.functions["MAXIMUM"]


def test_host_vectors_agree_with_llvm() -> None:
    """What is read from the system without LLVM is what LLVM says about the host."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    found = host()
    if found.architecture != "x86_64":
        pytest.skip("x86 features")
    assert (found.vector_bits >= 256) == features["avx2"]
    assert (found.vector_bits == 512) == all(
        features[n] for n in ("avx512f", "avx512vl", "avx512bw", "avx512dq")
    )
    assert found.half == features["f16c"]


def test_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"llvm/x86-64-v3.*did you mean 'llvm/x86-64-v\d'"):
        BACKEND.capabilities("llvm/x86-64-v9")


def test_identities_tell_targets_apart() -> None:
    assert len({BACKEND.compiler(t).identity() for t in TARGETS}) == len(TARGETS)
    assert BACKEND.compiler(NATIVE).identity() == LLVMBackend().compiler(NATIVE).identity()
    assert len({BACKEND.renderer(t).identity() for t in TARGETS}) == len(TARGETS)


def test_warm_start_does_not_import_llvmlite() -> None:
    """Everything up to the cache lookup: probing, capabilities, rendering hooks and identities."""
    if not sys.platform.startswith("linux"):
        pytest.skip("elsewhere LLVM is asked for the host's features")
    program = (
        "import sys; from retarget_llvm.backend import LLVMBackend; b = LLVMBackend(); b.probe();"
        "t = 'llvm/native'; b.capabilities(t); b.compiler(t).identity(); b.renderer(t).identity();"
        "b.runtime('llvm:0'); print([m for m in sys.modules if m.startswith(('llvmlite', 'ml_dtypes'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={
        "PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


def test_text_that_llvm_refuses_is_reported_with_its_words() -> None:
    source = Source("define void @f( {", "f", NATIVE, (), Launch())
    with pytest.raises(CompileError, match="expected type") as caught:
        BACKEND.compiler(NATIVE).compile(source)
    assert caught.value.source == source.text and caught.value.log
    ill_typed = "define void @f() {\nentry:\n  br label %entry\n}"
    with pytest.raises(CompileError, match="Entry block"):
        BACKEND.compiler(NATIVE).compile(Source(ill_typed, "f", NATIVE, (), Launch()))


@pytest.mark.parametrize(
    ("target", "instruction", "machine"),
    [("llvm/x86-64-v2", "sqrtss", 62), ("llvm/x86-64-v3", "vsqrtss", 62), ("llvm/aarch64", "fsqrt", 183)],
)
def test_cross_compilation(target: str, instruction: str, machine: int) -> None:
    compiler = BACKEND.compiler(target)
    binary = compiler.compile(render(square_roots(8), target))
    assert instruction in compiler.assembly(binary)
    if binary.data[:4] == b"\x7fELF":
        assert int.from_bytes(binary.data[18:20], "little") == machine
    assert (binary.entry, binary.target, len(binary.arguments)) == ("roots", target, 2)


def test_assembly_needs_the_source() -> None:
    compiler = BACKEND.compiler(NATIVE)
    binary = compiler.compile(render(square_roots(8)))
    bare = type(binary)(binary.data, binary.entry, binary.target, binary.arguments, binary.launch)
    with pytest.raises(CompileError, match="metadata"):
        compiler.assembly(bare)


def test_rendering_and_compiling_repeat_exactly() -> None:
    first, second = render(square_roots(8)), render(square_roots(8))
    assert first.text == second.text
    compiler = BACKEND.compiler(NATIVE)
    assert compiler.compile(first).data == compiler.compile(second).data


def test_threads_compile_at_once() -> None:
    sources = [render(square_roots(n, d)) for n in range(8, 16) for d in (dtypes.float32, dtypes.float64)]
    compiler = BACKEND.compiler(NATIVE)
    expected = [compiler.compile(source).data for source in sources]
    with ThreadPoolExecutor(8) as pool:
        found = [binary.data for binary in pool.map(compiler.compile, sources * 2)]
    assert found == expected * 2


class NegatedRoots:
    """An extension that replaces one op of one dtype, with the renderer's own helpers."""

    @hookimpl(targets=["llvm/*"], ops=["SQRT"], dtypes=["float32"])
    def render_alu(self, ctx: EmitContext, uop: UOp, operands: Sequence[str]) -> str:
        root = ctx.renderer.intrinsic(ctx, "@llvm.sqrt", uop.dtype, operands)
        return str(ctx.renderer.define(ctx, "negated", f"fneg float {root}"))


def test_an_extension_overrides_one_op() -> None:
    single, double = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.float64)
    source = render(square_roots(8), NATIVE, NegatedRoots())
    assert (run(source, single) == -np.sqrt(single)).all()
    assert (
        run(render(square_roots(8, dtypes.float64), NATIVE, NegatedRoots()), double) == np.sqrt(double)
    ).all()
    (line,) = [p for p in source.provenance if p.op == "SQRT"][:1]
    assert line.hook == "render_alu" and "extension0" in line.plugins


def test_unused_arguments_keep_their_places() -> None:
    """A buffer and a variable that the program does not use are still passed."""
    program = square_roots(4)
    unused = Argument("unused", "buffer", "float32", (4,))
    arguments = (program.arguments[0], unused, program.arguments[1], Argument("n", "variable", "int32"))
    source = render(Program(program.name, program.uops, arguments, program.launch))
    kernel = BACKEND.runtime("llvm:0").load(BACKEND.compiler(NATIVE).compile(source))
    out, x = np.empty(4, np.float32), np.arange(4, dtype=np.float32)
    kernel([out.ctypes.data, 0, x.ctypes.data], [7])
    assert (out == np.sqrt(x)).all()
