"""Outputs that are stored past the caches."""

from __future__ import annotations

import re

import numpy as np
import pytest

import retarget as rt
from retarget.errors import LaunchError, ParseError, VerifyError
from retarget.ir import dtypes, ops
from retarget.ir.uop import UOp, const
from retarget.ir.verify import verify_program
from retarget.optimize.schedule import parse_schedule

VALUES = np.random.default_rng(0).standard_normal((6, 64)).astype("f4")
SCHEDULE = "r0=a:t; r1=b,c/8:v; stream=out0"


@pytest.mark.parametrize("device", ["llvm", "clang", "numpy"])
@pytest.mark.parametrize("width", [64, 61])
def test_values(device: str, width: int) -> None:
    """Rows of 61 are not aligned and have masked ends: they are stored as usual."""
    values = VALUES[:, :width]
    with rt.with_schedule(SCHEDULE):
        np.testing.assert_array_equal((rt.asarray(values, device=device) * 2).numpy(), values * 2)


@pytest.mark.parametrize(
    ("target", "store", "fence"),
    [("llvm", r"store <8 x float> .*, align 32, !nontemporal !0", "fence seq_cst"),
     ("clang", r"STREAM\(\(f32x8\*\)&out0\[.*\], ", "__atomic_thread_fence")],
)  # fmt: skip
def test_text(target: str, store: str, fence: str) -> None:
    (kernel,) = rt.lower(rt.asarray(VALUES, device="numpy") * 2)
    with rt.with_schedule(SCHEDULE):
        text = rt.render(kernel, target).text
    assert re.search(store, text)
    assert fence in text
    with rt.with_schedule(SCHEDULE.partition("; stream")[0]):
        text = rt.render(kernel, target).text
    assert "nontemporal" not in text
    assert fence not in text


def test_unaligned_memory_is_refused() -> None:
    x = rt.asarray(VALUES, device="llvm")
    (kernel,) = rt.lower(x * 2)
    with rt.with_schedule(SCHEDULE):
        run = rt.load(rt.compile(kernel, "llvm"), "llvm")
    memory = np.zeros(VALUES.size + 32, "f4")
    start = memory.ctypes.data
    aligned = start + -start % 64
    run([aligned, VALUES.ctypes.data])
    np.testing.assert_array_equal(memory[-start % 64 // 4 :][: VALUES.size], VALUES.reshape(-1) * 2)
    with pytest.raises(LaunchError, match=r"output 0 .* aligned to 64 bytes"):
        run([aligned + 4, VALUES.ctypes.data])


def test_text_of_schedules() -> None:
    assert str(parse_schedule(SCHEDULE)) == SCHEDULE
    assert parse_schedule(SCHEDULE).streams == ("out0",)
    with pytest.raises(ParseError, match="given twice"):
        parse_schedule("stream=out0; stream=out1")


def test_only_whole_vectors_stream() -> None:
    out = UOp(ops.PARAM, dtypes.float32, (), ("out0", (8,), True))
    one = const(1.0, dtypes.float32)
    at = const(0, dtypes.int32)
    with pytest.raises(VerifyError, match="no whole vector"):
        verify_program([out, one, at, UOp(ops.STORE, dtypes.void, (out, at, one), "stream")])
