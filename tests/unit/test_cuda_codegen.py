"""The CUDA backend's code: what is written, and that NVRTC takes it.  No GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_programs import FLOAT32, INT32, copied_ahead, nvrtc, scaled, two_tiles, zeros
from linear_build import Build

import retarget as rt
from retarget import registry
from retarget.cli import app
from retarget.cli.stages import usage
from retarget.codegen.driver import emit
from retarget.codegen.hooks import HookPlugin, resolve
from retarget.codegen.program import Program
from retarget.conformance.suite import Suite
from retarget.errors import CompileError, UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget.linearize.local import placement
from retarget.registry.backend import Argument, Binary, Launch, Source
from retarget_cuda.backend import CudaBackend
from retarget_cuda.compiler import CudaCompiler, device_target, find_program
from retarget_cuda.nvrtc import Nvrtc, find_nvrtc

BACKEND = CudaBackend()
GOLDEN = Path(__file__).parents[1] / "golden"
pytestmark = pytest.mark.usefixtures("nvrtc")
__all__ = ["nvrtc"]  # a fixture


def source(program: Program, target: str = "cuda/sm_90a") -> Source:
    renderer = BACKEND.renderer(target)
    return emit(program, renderer, resolve([HookPlugin("cuda", renderer)], target))


def compiled(program: Program, target: str = "cuda/sm_90a") -> dict[str, Any]:
    """Return what a compiled kernel uses; the compiler must have no remarks."""
    made = source(program, target)
    binary = CudaCompiler(target).compile(made)
    assert binary.data[:4] == b"\x7fELF" and not binary.log, binary.log
    return dict(binary.metadata)


def body(text: str) -> list[str]:
    """Return the lines inside the kernel."""
    return [line[2:] for line in text.partition("__global__")[2].partition(" {\n")[2].splitlines()[:-1]]


def copied(dtype: DType, lanes: int, align: int, gate: bool = False) -> Program:
    """A program that doubles (or negates) vectors of a dtype."""
    build = Build()
    out, x = build.output("out0", zeros(dtype)), build.input("in0", zeros(dtype), dtype)
    thread = build(ops.SPECIAL, INT32, arg=("block0", 4))
    at = build.mul(thread, lanes)
    inside = build.alu(ops.CMPLT, thread, build.const(3)) if gate else None
    value = build.load(x, at, lanes, gate=inside, align=align)
    build.store(out, at, value, gate=inside, align=align)
    return build.program(block=(4,))


def test_a_kernel_is_written_as_a_person_would() -> None:
    program = scaled()
    text, path = source(program).text, GOLDEN / "cuda_scaled.cu"
    if os.environ.get("RETARGET_BLESS") == "1":
        path.write_text(text)
    bless = f"RETARGET_BLESS=1 python -m pytest {Path(__file__).name} -k person"
    assert text == path.read_text(), f"{path.name} differs from what is rendered; after a look at it: {bless}"
    used = compiled(program)
    assert used["shared"] == 512 and used["registers"] > 0 and used["spill_stores"] == used["stack"] == 0


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("dtype", dtypes.ARRAY_DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_vectors_are_accessed_whole(dtype: DType, size: int, gate: bool) -> None:
    lanes = size // dtype.itemsize
    if lanes < 2:
        return
    program = copied(dtype, lanes, lanes, gate)
    text = CudaCompiler("cuda/sm_90a").ptx(CudaCompiler("cuda/sm_90a").compile(source(program)))
    accesses = re.findall(r"ld\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", text)
    assert sum(int(n or 1) * int(bits) for n, bits in accesses) == 8 * size
    assert len(accesses) == max(1, size // 16)


def test_unaligned_vectors_are_taken_apart() -> None:
    text = "\n".join(body(source(copied(FLOAT32, 4, 2)).text))
    assert text.count("float2") == 6 and "float4" not in text.replace("make_float4", "")
    assert "float2" not in source(copied(FLOAT32, 4, 1)).text


def test_more_than_48_kb_of_shared_memory_are_asked_for_at_launch() -> None:
    program = two_tiles()
    text = source(program).text
    assert "extern __shared__ __align__(1024) unsigned char shared[];" in text
    assert "float* const second = (float*)(shared + 28032);" in text  # the next multiple of 128 after 28004
    assert placement(program.uops).total == 28032 + 28004
    assert "shared" not in compiled(program) or compiled(program)["shared"] == 0


def test_the_launch_says_how_much_local_memory_a_block_has() -> None:
    x = rt.asarray(np.zeros((64, 64), np.float32), device="numpy")
    with rt.with_schedule("r0=i:g,j/8:b; stage=in0@k; r1=k,l/8; order=k,l"):
        (kernel,) = rt.lower(rt.sum(x * rt.ones((64, 64), device="numpy"), axis=1))
        launch = rt.render(kernel, target="cuda/sm_90a").launch
    assert launch.block == (8, 1, 1) and launch.local_bytes > 0


@pytest.mark.parametrize("target", ["cuda/sm_75", "cuda/sm_80", "cuda/sm_89", "cuda/sm_100"])
def test_copies_in_the_background(target: str) -> None:
    program = copied_ahead()
    assert body(source(program, target).text)[2:6] == [
        "copy16(&tile[block0*4], &in0[block0*4]);",
        'asm volatile("cp.async.commit_group;" ::: "memory");',
        'asm volatile("cp.async.wait_group 0;" ::: "memory");',
        "__syncthreads();",
    ]
    if BACKEND.capabilities(target).async_copies:
        compiled(program, target)
    else:
        with pytest.raises(CompileError, match=r"sm_75"):
            compiled(program, target)


def test_what_the_compiler_refuses_is_shown() -> None:
    good = source(copied(FLOAT32, 4, 4))
    bad = good._replace(text=good.text.replace("block0*4", "nothing*4"))
    with pytest.raises(
        CompileError, match=r"(?s)compile kernel for cuda/sm_90a.*\n> +\d+ \|.*nothing"
    ) as error:
        CudaCompiler("cuda/sm_90a").compile(bad)
    assert "undefined" in error.value.log


def test_targets() -> None:
    with pytest.raises(UnknownNameError, match="sm_90"):
        BACKEND.capabilities("cuda/sm_9")
    compiler = CudaCompiler("cuda/sm_999")
    binary = compiler.compile(source(copied(FLOAT32, 4, 4), "cuda/sm_999"))
    newest = max(find_nvrtc().architectures)
    assert binary.metadata["format"] == "ptx" and f".target sm_{newest}".encode() in binary.data
    assert "ld.global" in compiler.assembly(binary)
    with pytest.raises(CompileError, match="no sm_90a, only sm_75, sm_80"):
        CudaCompiler("cuda/sm_90a").options((75, 80))
    assert CudaCompiler("cuda/sm_120").options((75, 80)) == CudaCompiler("cuda/sm_87").options((75, 80))


def test_indices_have_64_bits_where_they_need_them() -> None:
    x = rt.empty((70000, 70000), dtype=rt.int8, device="numpy")
    (large,), (small,) = rt.lower(x[::-1] * 2), rt.lower(x[:100, ::-1] * 2)
    assert "long long" in rt.render(large, target="cuda/sm_90a").text
    assert "long long" not in rt.render(small, target="cuda/sm_90a").text


@pytest.mark.parametrize("dtype", [FLOAT32, dtypes.float16], ids=str)
def test_texels_are_vectors_in_memory(dtype: DType) -> None:
    build = Build()
    out, image = (
        build(ops.IMAGE, dtype, arg=(name, (4, 8), written))
        for name, written in (("out0", True), ("in0", False))
    )
    build.arguments += [Argument(u.arg[0], "image", dtype.name, (4, 8, 4), u.arg[2]) for u in (out, image)]
    y, x = (build(ops.SPECIAL, INT32, arg=arg) for arg in (("grid0", 4), ("block0", 8)))
    inside = build.alu(ops.CMPLT, x, build.const(7))
    texel = build(ops.IMAGE_LOAD, FLOAT32.vector(4), image, build.add(x, 1), y, inside)
    build(ops.IMAGE_STORE, dtypes.void, out, x, y, build.add(texel, texel), inside)
    program = build.program(grid=(4,), block=(8,))
    access, text = "float4" if dtype is FLOAT32 else "uint2", source(program).text
    assert f"m0 ? ((const {access}*)in0)[grid0*8 + block0 + 1] : make_{access}(" in text
    assert f"if (m0) (({access}*)out0)[grid0*8 + block0] = make_{access}(" in text
    compiled(program)


def test_a_vector_of_a_variable_keeps_its_value() -> None:
    build = Build()
    out = build.output("out0", zeros(dtypes.bool_))
    state = build.local("state", dtypes.bool_, ())
    start = build.const(0)
    build.store(state, start, build.const(False, dtypes.bool_))
    before, yes = build.load(state, start), build.const(True, dtypes.bool_)
    pair = build(ops.VECTORIZE, dtypes.bool_.vector(2), before, yes)
    build.store(state, start, yes)
    build.store(out, start, pair, align=2)
    assert body(source(build.program()).text) == [
        "bool state = false;",
        "const bool m0 = state;",
        "state = true;",
        "*(uchar2*)&out0[0] = make_uchar2(m0, true);",
    ]


def test_what_a_kernel_uses_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import retarget as rt\ndef twice(): return rt.ones((64,), device='numpy') * 2\n")
    output = str(tmp_path / "twice.cubin")
    assert app.execute(["compile", f"{program}:twice", "--target", "cuda/sm_90a", "-o", output]) == 0
    assert re.search(r" for cuda/sm_90a, \d+ bytes, \d+ registers, no spills\n", capsys.readouterr().out)
    spilling = Binary(b"", "", "", (), Launch(), "", {"registers": 255, "spill_stores": 8, "spill_loads": 16})
    assert usage(spilling) == ", 255 registers, 8 bytes of spill stores, 16 bytes of spill loads"
    assert usage(spilling._replace(metadata={})) == ""


@pytest.mark.skipif(find_program("nvdisasm") is None, reason="no nvdisasm")
def test_assembly_is_sass_where_it_can_be_disassembled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = CudaCompiler("cuda/sm_90a")
    binary = compiler.compile(source(copied(FLOAT32, 4, 4)))
    assert "LDG.E.128" in compiler.assembly(binary)
    monkeypatch.setattr("retarget_cuda.compiler.find_program", lambda name: None)
    assert ".target sm_90a" in compiler.assembly(binary)


# -- which compiler ------------------------------------------------------------------------------------------


def test_without_a_cuda_compiler_llvm_makes_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_target("sm_90a") == "cuda/sm_90a"
    monkeypatch.setenv("RETARGET_CUDA_COMPILER", "llvm")
    target = device_target("sm_90")
    assert target == "cuda/nvptx-sm_90"
    with pytest.raises(CompileError, match="cuda/nvptx-sm_NN"):
        CudaCompiler("cuda/sm_90").compile(source(copied(FLOAT32, 4, 4)))
    suite = Suite(target, 2)
    ids = [id for id in suite.ids() if fnmatch(id, "L0/*") or fnmatch(id, "L2/hook/*")]
    assert [f"{r.id}: {r.message}" for r in map(suite.result, ids) if not r.good] == []
    (kernel,) = rt.lower(rt.sum(rt.ones((8, 64), device="numpy"), axis=1))
    binary = rt.compile(kernel, target=target)
    assert binary.target == target and b".target sm_90\n" in binary.data
    identity = BACKEND.compiler(target).identity()
    assert "NVPTX sm_90" in identity and registry.registry().identity("llvm/nvptx-sm_90") in identity


def test_compilers_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_CUDA_COMPILER", "nvrtc")
    assert CudaCompiler("cuda/sm_90").identity().startswith("NVRTC")
    monkeypatch.setenv("RETARGET_CUDA_COMPILER", "gcc")
    with pytest.raises(UnknownNameError, match="nvcc, nvrtc"):
        device_target("sm_90")


@pytest.mark.skipif(find_program("nvcc") is None, reason="no nvcc")
def test_nvcc_does_where_there_is_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETARGET_CUDA_COMPILER", "nvcc")
    used = compiled(copied(FLOAT32, 4, 4))
    assert used["registers"] > 0 and used["spill_loads"] == 0
    assert CudaCompiler("cuda/sm_90a").identity().startswith("nvcc 1")
    bad = source(copied(FLOAT32, 4, 4))
    with pytest.raises(CompileError, match=r"(?s)status \d+.*\n> +\d+ \|.*nothing"):
        CudaCompiler("cuda/sm_90a").compile(bad._replace(text=bad.text.replace("block0*4", "nothing*4")))
    text = CudaCompiler("cuda/sm_90a").ptx(CudaCompiler("cuda/sm_90a").compile(bad))
    assert re.search(r"ld\.global\.nc\.v4\.[uf]32", text)


def test_keys_of_the_cache_need_no_compiler() -> None:
    code = """
import sys
from retarget_cuda.backend import CudaBackend
from retarget_cuda.compiler import device_target
print(CudaBackend().compiler("cuda/sm_90a").identity(), device_target("sm_90a"), "cffi" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"NVRTC \S*nvrtc\S* \d+ \d+ \[.*\] sm_90a cuda/sm_90a False\n", said)


def test_no_compiler_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Nvrtc:
        raise CompileError("no NVRTC found")

    monkeypatch.setattr("retarget_cuda.compiler.find_nvrtc", none)
    monkeypatch.setattr("retarget_cuda.compiler.file_identity", str)
    monkeypatch.setattr("retarget_cuda.compiler.find_program", lambda name: None)
    with pytest.raises(CompileError, match=r"no CUDA compiler: no NVRTC.*pip install"):
        CudaCompiler("cuda/sm_90a").compile(source(copied(FLOAT32, 4, 4)))
    assert device_target("sm_90a") == "cuda/nvptx-sm_90a"
