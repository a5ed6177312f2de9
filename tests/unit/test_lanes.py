"""Turned stages: the shuffle network, what is emitted for a transpose, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget import pipeline
from retarget.errors import ScheduleError
from retarget.ir import ops
from retarget.linearize.lanes import network
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.schedule.fusion import fuse
from retarget.schedule.kernel import Kernel
from retarget.schedule.lower import lower_group


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_the_network_transposes(n: int, itemsize: int) -> None:
    steps, order = network(n, itemsize)
    rows = list(np.arange(n * n).reshape(n, n))
    for distance, low, high in steps:
        for i in (i for i in range(n) if not i & distance):
            both = np.concatenate([rows[i], rows[i + distance]])
            rows[i], rows[i + distance] = both[list(low)], both[list(high)]
    np.testing.assert_array_equal([rows[i] for i in order], np.arange(n * n).reshape(n, n).T)
    assert 2 ** len(steps) == n


def kernel_of(array: rt.Array) -> Kernel:
    fused = fuse([pipeline.strip_reshape(array.node)])
    (group,) = fused.groups
    return lower_group(group, fused.stored)


def test_a_transpose_neither_gathers_nor_masks() -> None:
    tools = pipeline.toolchain("llvm")
    kernel = kernel_of(rt.asarray(np.zeros((77, 100), np.float32), device="llvm").T + 1)
    schedule = pipeline.schedule_for(kernel, tools)
    assert any(stage.turned for stage in schedule.stages), schedule
    program = pipeline.program_of(kernel, tools)
    assert any(u.op is ops.GEP and len(u.src) == 2 for u in program.uops)
    for u in program.uops:
        if u.op is ops.LOAD or u.op is ops.STORE:
            assert u.src[1].dtype.lanes == 1 and len(u.src) == 2 + (u.op is ops.STORE), u


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((19, 23), (1, 0)), ((3, 40, 9), (0, 2, 1)), ((17, 5, 33), (2, 1, 0)), ((8, 8), (1, 0))],
)
@pytest.mark.parametrize("device", ["numpy", "llvm", "clang"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8", "bool"])
def test_permutations(shape: tuple[int, ...], axes: tuple[int, ...], device: str, dtype: str) -> None:
    a = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    x = rt.asarray(a, device=require(device))
    y = ~rt.permute_dims(x, axes) if dtype == "bool" else rt.permute_dims(x, axes) + 1
    right = ~np.transpose(a, axes) if dtype == "bool" else np.transpose(a, axes) + np.asarray(1, dtype)
    np.testing.assert_array_equal(np.asarray(y), right)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("r1=j,jv/8:v; order=r0,j,jv; stage=in0@j^8", "in0 is not contiguous along any loop inside j"),
        ("order=r1,r0; stage=in0@r1^8", "both contiguous along r0; there is nothing to turn"),
        ("r0=b:b; order=r1; stage=in0@r1^8", "threads of a block copy element by element"),
        ("r1=j,ji/8; order=j,ji,r0; stage=in0@j^8:local*2", "one slot"),
        ("order=r0,r1; stage=EXP@r0^8", "only a buffer's tile can be turned"),
    ],
)
def test_refused(schedule: str, message: str) -> None:
    kernel = kernel_of(rt.exp(rt.asarray(np.zeros((16, 24), np.float32), device="llvm").T))
    with pytest.raises(ScheduleError, match=message):
        apply_schedule(kernel, parse_schedule(schedule))
