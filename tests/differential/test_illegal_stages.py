"""Stages that depend on a loop inside their own are refused, not mislowered."""

from __future__ import annotations

import numpy as np
import pytest

import retarget as rt
from retarget.errors import ScheduleError


@pytest.mark.parametrize(
    ("shape", "axis", "schedule"),
    [
        ((1, 2, 2), 1, "r2=r2o,r2x/3,r2l/3; order=r3,r2o,r2l,r2x; stage=in0@r2l"),
        (
            (1, 1, 2, 2, 2), 2,
            "r3=r3o:t,r3x/2,r3l/2; r5=r5o,r5a/4:a; r4=r4o,r4v/16:v; order=r3l,r5o,r5a; "
            "stage=in0@r3x:register",
        ),
    ],
)  # fmt: skip
def test_a_stage_below_a_loop_that_it_depends_on(shape: tuple[int, ...], axis: int, schedule: str) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = rt.sum(rt.asarray(values, device="llvm"), axis=axis, keepdims=len(shape) == 5)
    if len(shape) == 5:
        y = rt.broadcast_to(y, shape)
    with rt.with_schedule(schedule), pytest.raises(ScheduleError, match=r"stage.*is not open where"):
        np.asarray(y)
