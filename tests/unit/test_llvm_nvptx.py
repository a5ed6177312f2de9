"""LLVM's code for NVIDIA GPUs: PTX, without a GPU and without any tool of NVIDIA's."""

from __future__ import annotations

import re
import shutil
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from gpu_programs import FLOAT32, INT32, copied_ahead, scaled, two_tiles, zeros
from linear_build import Build

from retarget.codegen.driver import emit
from retarget.codegen.hooks import HookPlugin, resolve
from retarget.codegen.program import Program
from retarget.conformance.suite import Suite
from retarget.errors import UnknownNameError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType
from retarget_llvm.backend import LLVMBackend

BACKEND = LLVMBackend()
TARGET = "llvm/nvptx-sm_90"
PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


def ptx(program: Program, target: str = TARGET) -> str:
    renderer = BACKEND.renderer(target)
    source = emit(program, renderer, resolve([HookPlugin("llvm", renderer)], target))
    compiler = BACKEND.compiler(target)
    binary = compiler.compile(source)
    assert binary.metadata["format"] == "ptx"
    return compiler.assembly(binary)


def instructions(text: str) -> list[str]:
    """Return the instructions of the kernel, without their operands."""
    return re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]+)\s", text.partition("{\n")[2], re.MULTILINE)


def test_a_kernel() -> None:
    text = ptx(scaled())
    found = instructions(text)
    for wanted in (
        "ld.global.nc.v4.b32", "max.NaN.f32", "st.shared.b32", "ld.shared.b32", "shfl.sync.bfly.b32",
        "add.rn.f32", "st.global.v4.b32",
    ):  # fmt: skip
        assert wanted in found, text
    assert any(each.startswith(("bar.sync", "barrier.cta.sync", "barrier.sync")) for each in found), text
    assert ".maxntid 32" in text and ".visible .entry scaled(" in text and ".target sm_90" in text
    assert ".shared .align 16 .b8 tile[512]" in text
    older = instructions(ptx(scaled(), "llvm/nvptx-sm_75"))
    assert "max.NaN.f32" not in older and "setp.gt.f32" in older


@pytest.mark.parametrize("dtype", [FLOAT32, dtypes.float64], ids=str)
def test_arithmetic_is_ieee(dtype: DType) -> None:
    build = Build()
    out = build.output("out0", zeros(dtype))
    x, y, z = (build.load(build.input(f"in{n}", zeros(dtype)), build.const(0)) for n in range(3))
    parts = [
        build.add(build.mul(x, y), z), build.alu(ops.FDIV, x, y), build.alu(ops.SQRT, z),
        build.alu(ops.MULACC, x, z, y), build.alu(ops.RINT, x),
    ]  # fmt: skip
    for n, part in enumerate(parts):
        build.store(out, build.const(n), part)
    found = instructions(ptx(build.program()))
    kind = f"f{dtype.bits}"
    for wanted in ("mul.rn", "add.rn", "div.rn", "sqrt.rn", "fma.rn"):
        assert found.count(f"{wanted}.{kind}") == 1
    assert f"cvt.rni.{kind}.{kind}" in found and not any("ftz" in each or "approx" in each for each in found)


@pytest.mark.parametrize(
    "dtype", [dtypes.bool_, dtypes.int16, dtypes.float16, FLOAT32, dtypes.int64], ids=str
)
@pytest.mark.parametrize("lanes", [1, 4])
def test_every_dtype_is_shuffled(dtype: DType, lanes: int) -> None:
    build = Build()
    out, x = build.output("out0", zeros(dtype)), build.input("in0", zeros(dtype), dtype)
    at = build.mul(build(ops.SPECIAL, INT32, arg=("warp0", 8)), lanes)
    value = build.load(x, at, lanes, align=lanes)
    build.store(out, at, build(ops.SHUFFLE, value.dtype, value, arg=4), align=lanes)
    bits = lanes * (1 if dtype.kind == "bool" else dtype.bits)
    assert instructions(ptx(build.program(block=(8,)))).count("shfl.sync.bfly.b32") == max(1, bits // 32)


def test_shared_memory_that_is_asked_for_at_launch() -> None:
    text = ptx(two_tiles())
    assert ".extern .shared .align 128 .b8 shared[];" in text
    assert "+28032]" in text or "28032;" in text  # where the second array lies


def test_copies_in_the_background() -> None:
    found = instructions(ptx(copied_ahead()))
    assert "cp.async.cg.shared.global" in found and "cp.async.wait_group" in found


def test_targets() -> None:
    with pytest.raises(UnknownNameError, match="nvptx-sm_90"):
        BACKEND.capabilities("llvm/nvptx-sm_9")
    assert BACKEND.capabilities(TARGET).limits.local_bytes == 227 << 10
    assert not BACKEND.capabilities("llvm/nvptx-sm_75").async_copies


# -- conformance, levels 0 to 2 ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Suite:
    return Suite(TARGET, 2)


def test_everything_is_rendered_and_compiled(whole: Suite) -> None:
    assert [f"{r.id}: {r.message}" for r in map(whole.result, whole.ids()) if not r.good] == []


@pytest.mark.parametrize("target", ["llvm/nvptx-sm_75", "llvm/nvptx-sm_100"])
def test_other_architectures(target: str) -> None:
    suite = Suite(target, 2)
    patterns = ("L2/hook/*", "L2/function/*", "L2/conversion/*", "L2/reduce/MAXIMUM/*", "L2/schedule/?")
    ids = [id for id in suite.ids() if any(fnmatchcase(id, p) for p in patterns)]
    assert ids
    assert [f"{r.id}: {r.message}" for r in map(suite.result, ids) if not r.good] == []


@pytest.mark.skipif(PTXAS is None, reason="no ptxas")
def test_ptxas_takes_it(whole: Suite, tmp_path: Path) -> None:
    ids = [id for id in whole.ids() if fnmatchcase(id, "L2/hook/*") or fnmatchcase(id, "L2/schedule/?")]
    assert all(whole.result(id).good for id in ids)
    path = tmp_path / "kernel.ptx"
    for binary in list(whole._binaries.values())[::40]:
        path.write_bytes(binary.data)
        command = [str(PTXAS), "-arch=sm_90", str(path), "-o", str(tmp_path / "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{binary.entry}: {done.stderr}"
