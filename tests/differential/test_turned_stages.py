"""Random kernels whose operands are transposed in registers, under random schedules, against NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from devices import require

import retarget as rt
from retarget import pipeline
from retarget.conformance.schedules import random_schedule
from retarget.errors import ScheduleError, UnknownNameError
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import Schedule, Stage, parse_schedule
from retarget.schedule.fusion import fuse
from retarget.schedule.kernel import Kernel
from retarget.schedule.lower import lower_group

DTYPES = ("float32", "float64", "float16", "uint8", "int64", "bool")


def _operands(rng: random.Random) -> tuple[Any, Any, Any]:
    """Return two arrays, and an expression of them in Retarget or NumPy that reads one across its rows."""
    values = np.random.default_rng(rng.randrange(1 << 30))
    if rng.random() < 0.4:
        m, n, k = (rng.randint(1, 21) for _ in range(3))
        dtype = rng.choice(("float32", "float64"))
        a, b = (values.integers(-4, 5, (size, k)).astype(dtype) for size in (m, n))
        return a, b, lambda _, a, b: a @ b.T
    shape = tuple([rng.randint(2, 21) for _ in range(rng.choice((2, 2, 3)))])
    axes = tuple(rng.sample(range(len(shape)), len(shape)))
    a, b = (
        values.integers(0, 2 if dtype == "bool" else 50, s).astype(dtype)
        for dtype in [rng.choice(DTYPES)]
        for s in (shape, tuple([shape[n] for n in axes]))
    )
    low = rng.randint(0, 2)
    return a, b, lambda xp, a, b: (xp.permute_dims(a, axes) | b)[low:] if a.dtype == b.dtype == bool else (
        xp.permute_dims(a, axes) + b)[low:]  # fmt: skip


def _turned(kernel: Kernel, rng: random.Random, tools: pipeline.Toolchain) -> Schedule | None:
    """Return a legal random schedule with a turned stage, if some attempts find one."""
    for _ in range(200):
        plain = random_schedule(kernel, rng, tools.capabilities)
        names = list(plain.order) or list(kernel.ranges)
        layout = tuple(rng.sample(names, len(names))) if rng.random() < 0.6 else ()
        stage = Stage(
            rng.choice(("in0", "in1")), rng.choice([*names, "top"]), layout,
            rng.choice(("local", "register")), turned=rng.choice((2, 4, 8)),
        )  # fmt: skip
        schedule = Schedule(plain.splits, plain.order, (stage,))
        try:
            linearize(apply_schedule(kernel, schedule), tools.capabilities)
        except (ScheduleError, UnknownNameError):
            continue
        return schedule
    return None


@pytest.mark.parametrize("device", ["numpy", "llvm", "clang"])
def test_turned_stages(device: str, monkeypatch: pytest.MonkeyPatch, seed: int = 0, count: int = 30) -> None:
    monkeypatch.setenv("RETARGET_CACHE", "0")
    require(device)
    tools = pipeline.toolchain(device)
    done = 0
    for n in range(seed, seed + count):
        rng = random.Random(n)
        a, b, expression = _operands(rng)
        y = expression(rt, rt.asarray(a, device=device), rt.asarray(b, device=device))
        fused = fuse([pipeline.strip_reshape(y.node)])
        (group,) = fused.groups
        schedule = _turned(lower_group(group, fused.stored), rng, tools)
        if schedule is None:
            continue
        assert parse_schedule(str(schedule)) == schedule
        with rt.with_schedule(schedule):
            found = np.asarray(y)
        right = expression(np, a, b)
        np.testing.assert_array_equal(found, right, err_msg=f"seed {n}: {schedule}")
        done += 1
    assert done > count // 4
