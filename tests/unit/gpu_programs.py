"""Linear programs for GPUs that tests of several backends render and compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_build import Build

from retarget.codegen.program import Program
from retarget.errors import CompileError
from retarget.ir import dtypes, ops
from retarget.ir.dtypes import DType, to_numpy
from retarget_cuda.nvrtc import find_nvrtc

INT32, FLOAT32 = dtypes.int32, dtypes.float32


@pytest.fixture(scope="module")
def nvrtc() -> None:
    """Skip the tests of a module that compile CUDA C, if there is nothing to do it with."""
    try:
        find_nvrtc()
    except CompileError as error:
        pytest.skip(str(error))


def zeros(dtype: DType, size: int = 64) -> Any:
    return np.zeros(size, to_numpy(dtype))


def scaled() -> Program:
    """A gated load of four floats, their maximum by way of local memory and a shuffle, and a store."""
    build = Build()
    out, x = build.output("out0", zeros(FLOAT32, 4096)), build.input("in0", zeros(FLOAT32, 4096))
    n = build.variable("n", 1, 1024)
    tile = build.local("tile", FLOAT32, (128,), "local")
    block, thread = (build(ops.SPECIAL, INT32, arg=arg) for arg in (("grid0", 8), ("warp0", 32)))
    at = build.add(build.mul(block, 512), build.mul(thread, 4))
    four = build.load(x, at, 4, gate=build.alu(ops.CMPLT, block, n), align=4)
    build.store(tile, thread, build(ops.FOLD, FLOAT32, four, arg=ops.MAXIMUM))
    build(ops.BARRIER, dtypes.void)
    other = build(ops.SHUFFLE, FLOAT32, build.load(tile, thread), arg=16)
    build.store(out, at, build.alu(ops.ADD, four, build.broadcast(other, 4)), align=4)
    return build.program("scaled", grid=(8,), block=(32,))


def two_tiles() -> Program:
    """Two arrays of 28004 bytes in local memory."""
    build = Build()
    out = build.output("out0", zeros(FLOAT32))
    thread = build(ops.SPECIAL, INT32, arg=("block0", 32))
    tiles = [build.local(name, FLOAT32, (7001,), "local") for name in ("first", "second")]
    for tile in tiles:
        build.store(tile, thread, build.const(1.0, FLOAT32))
    build(ops.BARRIER, dtypes.void)
    build.store(out, thread, build.alu(ops.ADD, *(build.load(tile, thread) for tile in tiles)))
    return build.program(block=(32,))


def copied_ahead() -> Program:
    """A tile that is copied in the background, four floats a thread."""
    build = Build()
    out, x = build.output("out0", zeros(FLOAT32)), build.input("in0", zeros(FLOAT32))
    tile = build.local("tile", FLOAT32, (64,), "local")
    thread = build(ops.SPECIAL, INT32, arg=("block0", 16))
    at = build.mul(thread, 4)
    build(ops.STAGE_COPY, dtypes.void, tile, at, x, at, arg=4)
    build(ops.STAGE_COMMIT, dtypes.void)
    build(ops.STAGE_WAIT, dtypes.void, arg=0)
    build(ops.BARRIER, dtypes.void)
    build.store(out, thread, build.load(tile, thread))
    return build.program(block=(16,))
