"""Reductions over a thread axis: phases with partial results in scratch buffers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import retarget as rt
from retarget import pipeline
from retarget.linearize.linearize import linearize
from retarget.optimize.apply import apply_schedule
from retarget.optimize.schedule import parse_schedule
from retarget.runtime.pool import FutexPool, PortablePool

DEVICES = ("llvm", "clang", "numpy")
VALUES = np.random.default_rng(0).standard_normal(1000).astype("f4")
WIDE = "r0=t/7:t,i,a/2:a,v/8:v"


@pytest.mark.parametrize("device", DEVICES)
def test_full_reductions(device: str) -> None:
    x = rt.asarray(VALUES, device=device)
    with rt.with_schedule(WIDE):
        np.testing.assert_allclose(rt.sum(x).numpy(), VALUES.sum(dtype="f8"), rtol=1e-5)
        assert rt.max(x).numpy() == VALUES.max()
        assert rt.argmin(x).numpy() == VALUES.argmin()
        np.testing.assert_allclose(rt.var(x).numpy(), VALUES.var(dtype="f8"), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_reductions_that_need_another_and_are_needed_by_each_element(device: str) -> None:
    """Three parallel phases: the maximum, the sum of what needs it, and every element's quotient."""
    x = rt.asarray(VALUES, device=device)
    e = rt.exp(x - rt.max(x))
    y = e / rt.sum(e)
    (kernel,) = rt.lower(y)
    program = linearize(
        apply_schedule(kernel, parse_schedule(WIDE)), pipeline.toolchain(device).capabilities
    )
    assert program.launch.phases == (7, 7, 7)
    assert program.launch.scratch == 2
    right = np.exp(VALUES.astype("f8") - VALUES.max())
    with rt.with_schedule(WIDE):
        np.testing.assert_allclose(y.numpy(), right / right.sum(), rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_partial_results(device: str) -> None:
    values = VALUES.reshape(40, 25)
    x = rt.asarray(values, device=device)
    with rt.with_schedule("r2=p/6:t,q; r1=o,v/8:v; order=p,o,q,v"):
        (kernel,) = rt.lower(rt.sum(x, axis=0))
        np.testing.assert_allclose(rt.sum(x, axis=0).numpy(), values.sum(0, dtype="f8"), rtol=1e-4, atol=1e-5)
    program = linearize(
        apply_schedule(kernel, parse_schedule("r2=p/6:t,q; r1=o,v/8:v")),
        pipeline.toolchain("llvm").capabilities,
    )
    assert program.launch.phases == (6, 1)  # the rows' sum is taken once
    assert [a.shape for a in program.arguments][-2:] == [(6, 4, 8), ()]


def test_two_outputs_one_of_which_has_the_thread_axis() -> None:
    x = rt.asarray(VALUES, device="llvm")
    total = rt.sum(x)
    with rt.with_schedule("r0=t/7:t,i"):
        np.testing.assert_allclose((x - total / 1000).numpy(), VALUES - VALUES.mean(dtype="f8"), atol=1e-5)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces are the schedule's; threads only share them out."""
    x = rt.asarray(VALUES, device="llvm")
    found = set()
    for pool in (FutexPool(1), FutexPool(2), FutexPool(5), PortablePool(3)):
        monkeypatch.setattr("retarget.runtime.host.thread_pool", lambda pool=pool: pool)
        with rt.with_schedule(WIDE):
            found.add(float(rt.sum(x * 1.5).numpy()))
    assert len(found) == 1


def test_calls_at_the_same_time_have_scratch_memory_of_their_own() -> None:
    inputs = [rt.asarray(VALUES * n, device="llvm") for n in range(1, 5)]
    expected = [VALUES.sum(dtype="f8") * n for n in range(1, 5)]
    wrong: list[float] = []

    def work(n: int) -> None:
        with rt.with_schedule(WIDE):
            for _ in range(50):
                got = float((rt.sum(inputs[n]) + 0).numpy())
                if abs(got - expected[n]) > 1e-3 * abs(expected[n]) + 1e-3:
                    wrong.append(got)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_jit_replays_phases() -> None:
    x = rt.asarray(VALUES, device="llvm")
    with rt.with_schedule(WIDE):
        step = rt.jit(lambda v: rt.sum(v * v))
        for _ in range(3):
            np.testing.assert_allclose(step(x).numpy(), (VALUES.astype("f8") ** 2).sum(), rtol=1e-5)
